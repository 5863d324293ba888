"""Norm folds: a norm's gain and bias may be scaled, coordinate by coordinate, if every map that it
feeds is scaled back.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from normgauge.anatomy.lookup import fed_maps
from normgauge.anatomy.structure import Anatomy, Norm
from normgauge.checkpoint_comparison.alignment_rows import (
    CORRESPONDS,
    alignment_row,
    relative_change,
)
from normgauge.checkpoint_comparison.factors import gain, matrix
from normgauge.checkpoint_comparison.pair import Pair
from normgauge.checkpoint_comparison.steps import AxisScale, GainScale, Step
from normgauge.gauge.folding import folds_gain


def foldable_norms(anatomy: Anatomy) -> list[Norm]:
    """Norms whose output linear maps alone read, none of them tied to another tensor."""
    return [norm for norm in anatomy.norms if folds_gain(anatomy, norm)]


def fold_steps(
    anatomy: Anatomy,
    scales: Mapping[str, np.ndarray],
    relative: Mapping[str, np.ndarray] | None = None,
) -> dict[str, list[Step]]:
    """The changes by tensor name that multiply the gains of the named norms by factors, float64
    (n,), and leave the function alone. `relative`: by norm, the relative variances of the factors,
    float64 (n,), where they are stored values themselves.
    """
    steps: dict[str, list[Step]] = {}
    for norm in foldable_norms(anatomy):
        if norm.name not in scales:
            continue
        factors = scales[norm.name]
        exact = np.zeros_like(factors)
        errors = (relative or {}).get(norm.name, exact)
        assert norm.gain is not None
        steps.setdefault(norm.gain, []).append(GainScale(factors, norm.gain_offset))
        if norm.bias:
            steps.setdefault(norm.bias, []).append(AxisScale(0, factors, exact))
        for weight, axis in {(item.weight, item.input_axis) for item in fed_maps(anatomy, norm)}:
            steps.setdefault(weight, []).append(AxisScale(axis, 1 / factors, errors))
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
    """The pair with the gains of B's named norms multiplied by the factors."""
    return replace(pair, b=pair.b.with_steps(fold_steps(pair.anatomy, scales)))
