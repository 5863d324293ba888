"""Columns with a rounding too close to call: more evidence for the few coordinates concerned.

The other coordinates of the column are decided, so the residual of the rounded column depends on the undecided ones alone:
y - A W = A_U (w_U - W_U) + noise. Regressing it on A_U (a handful of columns) is far less noisy than the joint fit, and
observations add: triangular factors of [A_U, residual] from old and fresh rows are stacked and factored again.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from normgauge.recovery.grids import Grid

REQUIRED_MARGIN = 4.0
"""Distance from the rounding boundary, in noises, from which on a rounding counts as decided."""


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

    def evidence(self, design: np.ndarray, targets: np.ndarray) -> Evidence:
        """From (N, n) design [X, 1] and (N,) outputs of this column."""
        return Evidence.of(design[:, self.coordinates], targets - design @ self.start)

    def decide(self, evidence: Evidence, grid: Grid) -> tuple[np.ndarray, np.ndarray]:
        """Grid points and margins of the undecided coordinates, (u,) each."""
        correction, noise = evidence.estimate()
        values = self.start[self.coordinates] + correction
        rounded = grid.round(values)
        return rounded, grid.boundary_distance(values, rounded) / noise


def stragglers(values: np.ndarray, margins: np.ndarray) -> list[Straggler]:
    """The columns of (n, k) rounded values with a margin below REQUIRED_MARGIN (undetermined values, NaN, are none)."""
    undecided = (margins < REQUIRED_MARGIN) & np.isfinite(values)
    return [
        Straggler(int(column), np.flatnonzero(undecided[:, column]), values[:, column]) for column in np.flatnonzero(undecided.any(axis=0))
    ]


def rows_needed(evidence: Evidence, margins: np.ndarray) -> int:
    """About how many further observations bring the least margin to REQUIRED_MARGIN: it grows as the root of their number."""
    factor = (REQUIRED_MARGIN / max(float(margins.min()), 0.25)) ** 2 * 1.1 - 1
    return max(0, int(np.ceil(evidence.rows * factor)))
