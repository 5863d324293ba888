"""The line of weights that a map behind a LayerNorm cannot tell apart, and a column's place on it.

A LayerNorm's output x_j = g_j u_j + beta_j has sum_j u_j = 0, so [x, 1] v = 0 for v = (1/g, -C), C
= sum_j beta_j / g_j. Hence W + alpha v gives the same outputs for every alpha. The design column of
the largest |1/g| (the pivot) is dropped: that fixes w_pivot = 0 and spreads less noise than the
minimum-norm choice, because the other columns are the better determined ones.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from normgauge.errors import InputError
from normgauge.exact_recovery.grids import Grid

ACCEPTED_DEVIATIONS = 8.0
"""A coordinate may lie this many of its own noises from a grid point; 10^9 Gaussian coordinates
stay within 6.2.
"""
WINDOW = 1.0
"""The searched part of a line: the part of a column along 1/g may be this many times as large as
all the rest of it together.
"""
SWEPT = 16.0
"""Grid spacings by which half a search window must move a coordinate for its residual to be uniform
over the window.
"""
REQUIRED_LOG10_NULL = -20.0
"""A wrong place on the line must pass with less than this probability; a search window holds up to
10^10 distinguishable places.
"""


@dataclass(frozen=True)
class GaugeLine:
    """direction: (n,) v, the intercept's coordinate last when there is one; pivot: the dropped
    coordinate; weights: fan_in.
    """

    direction: np.ndarray
    pivot: int
    weights: int

    @classmethod
    def behind(cls, gains: np.ndarray, biases: np.ndarray | None, intercept: bool) -> GaugeLine:
        """The line of a map behind a LayerNorm with these gains and biases; InputError when a gain
        is zero.
        """
        if not gains.all():
            zero = int(np.flatnonzero(gains == 0)[0])
            raise InputError(
                f"gain {zero} is zero: its feature is constant and its weights cannot be told from "
                "the map's bias"
            )
        constant = 0.0 if biases is None else float(np.sum(biases / gains))
        tail = [-constant] if intercept else []
        return cls(np.concatenate([1 / gains, tail]), int(np.argmin(np.abs(gains))), len(gains))

    def complete(self, reduced: np.ndarray) -> np.ndarray:
        """Put the pivot's zero row back into (n - 1, k) values of the design without the pivot."""
        return np.insert(reduced, self.pivot, 0.0, axis=0)

    def window(self, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Centre and half-width (k,) of the searched part of the line, for (n, k) values.

        The centre makes the weights' norm least; the half-width lets the part along 1/g be WINDOW
        times that norm.
        """
        direction = self.direction[: self.weights]
        square = direction @ direction
        centre = -(direction @ values[: self.weights]) / square
        least = values[: self.weights] + np.outer(direction, centre)
        return centre, WINDOW * np.sqrt(np.einsum("ij,ij->j", least, least) / square)

    def measured_window(
        self, values: np.ndarray, noise: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """The window (k,) of (n, k) values without those that are not told from zero: behind a
        collapsed gain a value may be all noise, many orders larger than any weight.
        """
        return self.window(np.where(np.abs(values) < ACCEPTED_DEVIATIONS * noise, 0.0, values))

    def swept(self, values: np.ndarray, noise: np.ndarray, grid: Grid) -> np.ndarray:
        """(n, k) whether the measured window of each column of (n, k) values carries a coordinate
        over many grid points, so that its residual at a random place is uniform. Behind a collapsed
        gain the window moves the coordinate of that gain alone, the others not even from one point
        to the next.
        """
        centre, half_width = self.measured_window(values, noise)
        reach = np.abs(self.direction[:, None]) * half_width
        middle = np.abs(values + self.direction[:, None] * centre)
        return reach >= SWEPT * grid.ulp(np.maximum(middle, reach))


@dataclass(frozen=True)
class Placed:
    """Columns at a place on the line. moved: (n, k) there. values: (n, k) grid points. noise: (n,
    k).
    residual: (n, k) distance to the grid point.

    score: (k,) worst residual in ulp over the coordinates whose noise is below 1/32 ulp;
    log10_passing: (n, k) probability that a coordinate anywhere passes; log10_null: (k,) that all
    do; on_grid: (k,) whether every coordinate is as near to the grid as its noise allows.
    """

    moved: np.ndarray
    values: np.ndarray
    noise: np.ndarray
    residual: np.ndarray
    score: np.ndarray
    log10_passing: np.ndarray
    on_grid: np.ndarray

    @property
    def log10_null(self) -> np.ndarray:
        return self.log10_passing.sum(axis=0)

    @property
    def accepted(self) -> np.ndarray:
        """(k,) on the grid, and not by chance."""
        return self.on_grid & (self.log10_null <= REQUIRED_LOG10_NULL)


def log10_null(
    line: GaugeLine, placed: Placed, values: np.ndarray, noise: np.ndarray, grid: Grid
) -> np.ndarray:
    """log10 of the probability (k,) that a random place in the measured window passes on every
    coordinate. Swept ones are independent. The others see the same few places, where they are
    within
    their noise of one grid point or the next: only the most exacting of them counts.
    """
    swept = line.swept(values, noise, grid)
    reach = np.abs(line.direction[:, None]) * line.measured_window(values, noise)[1]
    nearly = ACCEPTED_DEVIATIONS * placed.noise
    by_width = np.where(
        nearly < reach, np.minimum(nearly, reach) / np.maximum(reach, np.finfo(float).tiny), 1.0
    )
    passing = np.minimum(10.0**placed.log10_passing + by_width, 1.0)
    return (placed.log10_passing * swept).sum(axis=0) + np.where(swept, 0.0, np.log10(passing)).min(
        axis=0
    )


def place(
    values: np.ndarray,
    noise: np.ndarray,
    direction: np.ndarray,
    alpha: np.ndarray,
    alpha_noise: np.ndarray,
    grid: Grid,
) -> Placed:
    """Round every coordinate of values + alpha direction and judge the place. values, noise: (n,
    k); alpha, alpha_noise: (k,).
    """
    moved = values + direction[:, None] * alpha
    rounded = grid.round(moved)
    residual = np.abs(moved - rounded)
    spread = np.sqrt(noise * noise + (direction[:, None] * alpha_noise) ** 2)
    ulp = grid.ulp(rounded)
    passing = np.minimum(2 * ACCEPTED_DEVIATIONS * spread / ulp, 1.0)
    log10_passing = np.log10(np.maximum(passing, 1e-300))
    score = np.where(spread < ulp / 32, residual / ulp, 0.0).max(axis=0)
    on_grid = (residual <= ACCEPTED_DEVIATIONS * spread).all(axis=0)
    return Placed(moved, rounded, spread, residual, score, log10_passing, on_grid)


def refine(
    placed: Placed, values: np.ndarray, noise: np.ndarray, direction: np.ndarray, grid: Grid
) -> tuple[np.ndarray, np.ndarray]:
    """alpha and its noise (k,) from every coordinate that is measured (the pivot is not) and
    clearly resolved, weighted by its precision.

    The coordinates' errors are correlated, so the noise is the weighted mean of theirs, not divided
    by their number.
    """
    slope = direction[:, None]
    clear = (noise > 0) & (placed.noise < grid.ulp(placed.values) / 64)
    precision = np.where(clear, (slope / np.where(clear, noise, 1.0)) ** 2, 0.0)
    precision /= np.maximum(precision.sum(axis=0), 1e-300)
    alpha = (precision * (placed.values - values) / slope).sum(axis=0)
    return alpha, (precision * noise / np.abs(slope)).sum(axis=0)
