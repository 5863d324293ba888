"""A part of a model that no symmetry moves: how it changed, and what rounding can do to it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from normgauge.checkpoint_comparison.components import ARITHMETIC, where_differing
from normgauge.checkpoint_comparison.kernels import ratio
from normgauge.checkpoint_comparison.pair import Pair

ALLOWED = 4.0
"""Of the expected energy of rounding: a part is equal up to twice its root mean square. Fitting a
gauge to rounded values, and rounding one side in another gauge, stay below that.
"""
DEVIATIONS = 6.0  # standard deviations of that energy


@dataclass(frozen=True)
class Part:
    """One part: the squared norm of its change, the largest that counts as rounding, and the mean
    of both sides' squared norms.
    """

    name: str
    energy: float
    bound: float
    size: float

    @property
    def equal(self) -> bool:
        return self.energy <= self.bound

    def row(self) -> dict[str, Any]:
        return {
            "part": self.name,
            "relative": ratio(self.energy, self.size) ** 0.5,
            "rounding": ratio(self.bound, self.size) ** 0.5,
        }


def part_of(name: str, values: Sequence[np.ndarray], variances: Sequence[np.ndarray]) -> Part:
    """A part from both sides' values and the variances of their rounding, arrays of one shape."""
    variance = variances[0] + variances[1]
    size = float((values[0] ** 2).sum() + (values[1] ** 2).sum()) / 2
    spread = float(np.sqrt(2 * (variance**2).sum()))
    bound = ALLOWED * float(variance.sum()) + DEVIATIONS * spread + ARITHMETIC**2 * size
    return Part(name, float(((values[1] - values[0]) ** 2).sum()), bound, size)


def stored_values(pair: Pair, name: str) -> tuple[list[np.ndarray], list[np.ndarray]]:
    values = [side.tensor(name) for side in (pair.a, pair.b)]
    return values, where_differing(values, [side.floor(name) for side in (pair.a, pair.b)])


def sum_of(name: str, parts: Sequence[Part]) -> Part:
    return Part(
        name,
        sum(part.energy for part in parts),
        sum(part.bound for part in parts),
        sum(part.size for part in parts),
    )
