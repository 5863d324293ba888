"""Norm folds: a norm's gain and bias may be scaled, coordinate by coordinate, if every map that it feeds is scaled back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch

from normgauge.anatomy.structure import Anatomy, Norm
from normgauge.comparison.pair import Step
from normgauge.gauge.groups import Monomial
from normgauge.gauge.transform import Move
from normgauge.redundancy.norm_folds import folds_gain


@dataclass(frozen=True, eq=False)
class GainScale:
    """A stored gain w, which stands for offset + w, with the effective gain multiplied by `factors`, float64 (n,)."""

    factors: np.ndarray
    offset: float

    def apply(self, value: torch.Tensor) -> torch.Tensor:
        return ((value.double() + self.offset) * torch.from_numpy(self.factors) - self.offset).to(value.dtype)


def foldable_norms(anatomy: Anatomy) -> list[Norm]:
    """Norms whose output linear maps alone read, none of them tied to another tensor."""
    return [norm for norm in anatomy.norms if folds_gain(anatomy, norm)]


def fold_steps(anatomy: Anatomy, scales: Mapping[str, np.ndarray]) -> dict[str, list[Step]]:
    """The changes by tensor name that multiply the gains of the named norms by factors, float64 (n,), and leave the function alone."""
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
        for weight, axis in {(item.weight, item.input_axis) for item in anatomy.maps if item.name in norm.feeds}:
            steps.setdefault(weight, []).append(Move(axis, Monomial(places, 1 / factors), None))
    return steps
