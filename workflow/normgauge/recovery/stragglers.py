"""Columns with a rounding too close to call: more evidence for the few coordinates concerned.

The other coordinates of the column are decided, so the residual of the rounded column depends on the undecided ones alone:
y - A W = A_U (w_U - W_U) + noise. Regressing it on A_U (a handful of columns) is far less noisy than the joint fit, and
observations add: triangular factors of [A_U, residual] from old and fresh rows are stacked and factored again.

The residual is formed by sliced products: a float64 product rounds with a bias of some hundredths of its noise, the same for every row,
which many observations would lift above the noise of their mean.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from normgauge.recovery import sliced_product
from normgauge.recovery.grids import Grid

REQUIRED_MARGIN = 4.0
"""Distance from the rounding boundary, in noises, from which on a rounding counts as decided."""
SECOND_LOOK_MARGIN = 16.0
"""Below this the joint fit's margin is not trusted: its float64 residual may be biased by a few noises of its mean."""


@dataclass(frozen=True)
class Evidence:
    """What some observations say about the undecided coordinates of one column.

    triangle: (u + 1, u + 1) upper factor of [A_U, residual]; rows: how many observations. Merging is associative and commutative
    up to rounding.
    """

    triangle: np.ndarray
    rows: int

    @classmethod
    def of(cls, undecided: np.ndarray, residual: np.ndarray) -> Evidence:
        """From (N, u) design columns and the (N,) residual of the rounded column."""
        return cls(np.linalg.qr(np.column_stack([undecided, residual]), mode="r"), len(residual))

    def merge(self, other: Evidence) -> Evidence:
        return Evidence(np.linalg.qr(np.vstack([self.triangle, other.triangle]), mode="r"), self.rows + other.rows)

    def estimate(self) -> tuple[np.ndarray, np.ndarray]:
        """Correction of the undecided coordinates and its noise, (u,) each."""
        count = len(self.triangle) - 1
        inverse = np.linalg.inv(self.triangle[:count, :count])
        deviation = abs(self.triangle[count, count]) / np.sqrt(self.rows - count)
        return inverse @ self.triangle[:count, count], np.linalg.norm(inverse, axis=1) * deviation


@dataclass(frozen=True)
class Straggler:
    """A column with undecided coordinates. column: its index; coordinates: (u,) indices; start: (n,) the rounded column, the intercept last."""

    column: int
    coordinates: np.ndarray
    start: np.ndarray

    def decide(self, evidence: Evidence, grid: Grid) -> Decision:
        """The undecided coordinates in the light of the evidence."""
        correction, noise = evidence.estimate()
        values = self.start[self.coordinates] + correction
        rounded = grid.round(values)
        noise = np.maximum(noise, np.finfo(float).tiny)
        return Decision(rounded, grid.boundary_distance(values, rounded) / noise, float((0.5 * grid.ulp(rounded) / noise).min()))


@dataclass(frozen=True)
class Decision:
    """values: (u,) grid points; margins: (u,); resolution: the largest margin that every one of them could have, half an ulp in noises."""

    values: np.ndarray
    margins: np.ndarray
    resolution: float

    def within_reach(self, growth: float) -> bool:
        """Whether `growth` times as many observations can be expected to decide: weights below their noise, such as zeros, are not."""
        return bool(self.resolution * np.sqrt(growth) >= 2 * REQUIRED_MARGIN)


def close_calls(values: np.ndarray, margins: np.ndarray) -> list[Straggler]:
    """The columns of (n, k) rounded values with a margin below SECOND_LOOK_MARGIN (undetermined values, NaN, are none)."""
    undecided = (margins < SECOND_LOOK_MARGIN) & np.isfinite(values)
    return [Straggler(int(column), np.flatnonzero(undecided[:, column]), values[:, column]) for column in np.flatnonzero(undecided.any(axis=0))]


def gather(given: Sequence[Straggler], design: np.ndarray, targets: np.ndarray) -> list[Evidence]:
    """The evidence of (N, n) design [X, 1] (or X) and (N, len(given)) outputs, one column per straggler."""
    starts = np.column_stack([straggler.start for straggler in given])
    residuals = sliced_product.residual(targets, design, starts)
    return [Evidence.of(design[:, straggler.coordinates], residuals[:, place]) for place, straggler in enumerate(given)]
