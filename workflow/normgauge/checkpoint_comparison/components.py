"""Components of one kind, such as the heads: the energies of their changes, what a random change
would spread over them, and what storage rounding alone does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

UNIFORM = 1.2  # 3 minus the kurtosis of a uniform variable
ARITHMETIC = 2.0**-40
"""Relative error that aligning in float64 may leave: far above its unit roundoff, for products of
many factors, and far below that of any smaller dtype.
"""


@dataclass(frozen=True, eq=False)
class Noise:
    """What storage rounding alone does to the energies of components: mean and variance, float64
    (c,) each.
    """

    mean: np.ndarray
    variance: np.ndarray

    def __add__(self, other: Noise) -> Noise:
        """Of two independent roundings, what one does to the effect of the other left out."""
        return Noise(
            self.mean + other.mean,
            self.variance + other.variance + 2 * self.mean * other.mean * self._spread(other),
        )

    def _spread(self, other: Noise) -> np.ndarray:
        scale = self.mean * other.mean
        return np.divide(
            np.sqrt(self.variance * other.variance),
            scale,
            out=np.zeros_like(scale),
            where=scale > 0,
        )


@dataclass(frozen=True, eq=False)
class Components:
    """Components of one kind, float64 (c,) each: energies of their changes; energies that a random
    change of variance one is expected to have, and the squared relative spread of those; the
    rounding of both sides; their own squared norms, the mean of both sides. `table`: of rows, which
    have no places, the table.
    """

    statistic: str
    places: list[dict[str, Any]]
    energies: np.ndarray
    susceptibilities: np.ndarray
    spreads: np.ndarray
    noise: Noise
    sizes: np.ndarray
    table: str | None = None

    def expected(self) -> tuple[np.ndarray, np.ndarray]:
        """(mean, variance) of the energies under the null, with the one variance that matches the
        total above the rounding floor.
        """
        excess = max(float(self.energies.sum() - self.noise.mean.sum()), 0.0)
        total = float(self.susceptibilities.sum())
        random = (excess / total if total else 0.0) * self.susceptibilities
        return self.noise.mean + random, self.noise.variance + random**2 * self.spreads

    def ratios(self) -> tuple[np.ndarray, np.ndarray]:
        """(energy observed over energy expected, shape of its gamma law)."""
        mean, variance = self.expected()
        ratios = np.divide(self.energies, mean, out=np.zeros_like(mean), where=mean > 0)
        return ratios, np.divide(mean**2, variance, out=np.ones_like(mean), where=variance > 0)


def arithmetic(energies: np.ndarray, sizes: np.ndarray) -> Noise:
    """What aligning itself may leave in the energies of changes, (c,), of components of these
    squared norms; nothing where nothing changed.
    """
    return Noise(ARITHMETIC**2 * sizes * (energies > 0), np.zeros_like(sizes))


def joined(parts: list[Noise]) -> Noise:
    return Noise(
        np.concatenate([part.mean for part in parts]),
        np.concatenate([part.variance for part in parts]),
    )


def where_differing(values: Sequence[np.ndarray], noise: Sequence[np.ndarray]) -> list[np.ndarray]:
    """The noise of both sides, zero where their values are equal: such a value carries no rounding,
    or the same on both.
    """
    differ = values[0] != values[1]
    return [part * differ for part in noise]


def square_variance(noise: np.ndarray, scale: np.ndarray) -> np.ndarray:
    """Variance of sqrt(scale) |e|^2 for independent uniform entries e with these variances, by
    row.
    """
    return scale * (2 - UNIFORM) * (noise**2).sum(1)
