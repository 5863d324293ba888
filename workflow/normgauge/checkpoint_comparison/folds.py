"""Norm folds: a norm's gain and bias may be scaled, coordinate by coordinate, if every map that it
feeds is scaled back.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from normgauge.anatomy.lookup import fed_maps
from normgauge.anatomy.structure import Anatomy, Norm
from normgauge.checkpoint_comparison.alignment_rows import (
    CORRESPONDS,
    alignment_row,
    relative_change,
)
from normgauge.checkpoint_comparison.factors import (
    gain,
    matrix,
)
from normgauge.checkpoint_comparison.pair import Pair, Step
from normgauge.gauge.folding import folds_gain
from normgauge.gauge.groups import Monomial
from normgauge.gauge.transform import Move


@dataclass(frozen=True, eq=False)
class GainScale:
    """A stored gain w, which stands for offset + w, with the effective gain multiplied by
    `factors`, float64 (n,).
    """

    factors: np.ndarray
    offset: float

    def apply(self, value: torch.Tensor) -> torch.Tensor:
        return ((value.double() + self.offset) * torch.from_numpy(self.factors) - self.offset).to(
            value.dtype
        )


def foldable_norms(anatomy: Anatomy) -> list[Norm]:
    """Norms whose output linear maps alone read, none of them tied to another tensor."""
    return [norm for norm in anatomy.norms if folds_gain(anatomy, norm)]


def fold_steps(anatomy: Anatomy, scales: Mapping[str, np.ndarray]) -> dict[str, list[Step]]:
    """The changes by tensor name that multiply the gains of the named norms by factors, float64
    (n,), and leave the function alone.
    """
    steps: dict[str, list[Step]] = {}
    for norm in foldable_norms(anatomy):
        if norm.name not in scales:
            continue
        factors = scales[norm.name]
        places = np.arange(len(factors))
        assert norm.gain is not None
        steps.setdefault(norm.gain, []).append(GainScale(factors, norm.gain_offset))
        if norm.bias:
            steps.setdefault(norm.bias, []).append(Move(0, Monomial(places, factors), None))
        for weight, axis in {(item.weight, item.input_axis) for item in fed_maps(anatomy, norm)}:
            steps.setdefault(weight, []).append(Move(axis, Monomial(places, 1 / factors), None))
    return steps


def find_folds(pair: Pair) -> tuple[Mapping[str, np.ndarray], list[dict[str, Any]]]:
    """By norm, what B's gains are multiplied by to be A's, where the maps behind it, scaled back,
    then agree better by half.
    """
    scales, rows = {}, []
    for norm in foldable_norms(pair.anatomy):
        gains = gain(pair.a, norm), gain(pair.b, norm)
        items = fed_maps(pair.anatomy, norm)
        maps = [[matrix(side, item) for item in items] for side in (pair.a, pair.b)]
        before = relative_change(maps[0], maps[1])
        usable = bool((gains[0] * gains[1] != 0).all())
        factors = gains[0] / gains[1] if usable else np.ones_like(gains[0])
        after = relative_change(maps[0], [weight / factors for weight in maps[1]])
        taken = usable and after < CORRESPONDS * before
        if taken:
            scales[norm.name] = factors
        found = "gauge" if taken else "identity"
        rows.append(
            alignment_row(
                "folds",
                norm.name,
                found,
                float((factors != 1).mean()) if taken else 0.0,
                1.0,
                before,
                after if taken else before,
            )
        )
    return scales, rows


def with_folds(pair: Pair, scales: Mapping[str, np.ndarray]) -> Pair:
    """The pair with the gains of B's named norms multiplied by the factors; gains are rounded, and
    so are their ratios.
    """
    errors: dict[str, tuple[int, np.ndarray]] = {}
    for norm in (norm for norm in foldable_norms(pair.anatomy) if norm.name in scales):
        assert norm.gain is not None
        relative = sum(side.floor(norm.gain) / gain(side, norm) ** 2 for side in (pair.a, pair.b))
        errors |= {
            item.weight: (item.input_axis, relative) for item in fed_maps(pair.anatomy, norm)
        }
    return replace(
        pair, b=replace(pair.b.with_steps(fold_steps(pair.anatomy, scales)), scale_errors=errors)
    )
