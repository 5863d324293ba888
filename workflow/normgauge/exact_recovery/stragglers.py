"""Columns with a rounding too close to call: more evidence for the few coordinates concerned.

The other coordinates of the column are decided, so the residual of the rounded column depends on
the undecided ones alone: y - A W = A_U (w_U - W_U) + noise. Regressing it on A_U (a handful of
columns) is far less noisy than the joint fit, and
observations add: triangular factors of [A_U, residual] from old and fresh rows are stacked and
    factored again.

The residual is formed in extended precision: a float64 product rounds with a bias of some
hundredths of its noise, the same for every row, which many observations would lift above the noise
of their mean.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from normgauge.exact_recovery.arithmetic import Arithmetic
from normgauge.exact_recovery.grids import Grid
from normgauge.exact_recovery.least_squares import (
    COMMON_ROUNDING,
    FEW_ROWS,
    TARGET_ROUNDING,
    deciding_rows,
    row_scales,
)

REQUIRED_MARGIN = 4.0
"""Distance from the rounding boundary, in noises, from which on a rounding counts as decided."""
HELD_MARGIN = 8.0
"""From this margin on a coordinate is held while others of its column are estimated again."""
TRUSTED_MARGIN = 16.0
"""Below this the margin of a fit on float64 residuals is not trusted: these may be biased by a few
noises of their mean.
"""

ROUNDED_ONCE, FLOAT64 = "rounded-once", "float64"
OUTPUTS = (ROUNDED_ONCE, FLOAT64)
"""What is observed of fresh sequences: the sums that a module forms, rounded once; or its outputs
in float64 arithmetic, which rounds at every addition. The first is the better oracle, the second
the plain forward pass.
"""

WORST_CONDITION = 1e6
"""Condition of undecided columns up to which the noise of their coordinates is computed from inner
products.
"""


@dataclass(frozen=True)
class Evidence:
    """What some observations say about the undecided coordinates of one column.

    triangle: (u + 1, u + 1) upper factor of [A_U, residual]; spread: (u, u) sum over observations
    of a a^T r^2, from which the noise is estimated without assuming that all rows are equally noisy
    (as in `least_squares`); alike: (u,) sum over observations of a times what their errors may have
    in common, which no number of rows averages out; rows: how many observations. All are in units
    of the observations' own deviation (a power of two near it), so that in a sum of parts each
    weighs by its precision. Merging is associative and commutative up to rounding; the spread of
    parts differs from that of the whole by a share of u / rows.
    """

    triangle: np.ndarray
    spread: np.ndarray
    alike: np.ndarray
    rows: int

    @classmethod
    def of(
        cls,
        undecided: np.ndarray,
        residual: np.ndarray,
        rounding: np.ndarray | float = 0.0,
        common: np.ndarray | float = 0.0,
    ) -> Evidence:
        """From (N, u) design columns and, all in one unit, the (N,) residual of the rounded column,
        the (N,) rounding of the outputs, and the (N,) part of it that may be the same for all rows.
        """
        scale = 2.0 ** -np.rint(
            np.log2(max(float(np.sqrt(np.mean(residual**2))), np.finfo(float).tiny))
        )
        undecided, residual, rounding, common = (
            undecided * scale,
            residual * scale,
            rounding * scale,
            common * scale,
        )
        triangle = _triangle(np.column_stack([undecided, residual]))
        count = undecided.shape[1]
        square, left = triangle[:count, :count], np.abs(residual)
        if _well_conditioned(square):
            inverse = np.linalg.inv(square)
            left = np.abs(residual - undecided @ (inverse @ triangle[:count, count]))
            few = (deciding_rows(np.square(inverse @ inverse.T @ undecided.T)) < FEW_ROWS).any()
            left = (
                np.maximum(left, np.maximum(np.sqrt(np.mean(residual**2)), rounding))
                if few
                else left
            )
        weighted = undecided * left[:, None]
        alike = (undecided * np.reshape(common, (-1, 1))).sum(axis=0)
        return cls(triangle, weighted.T @ weighted, alike, len(residual))

    @classmethod
    def nothing(cls, count: int) -> Evidence:
        """No observation of `count` coordinates."""
        return cls(np.zeros((count + 1, count + 1)), np.zeros((count, count)), np.zeros(count), 0)

    @classmethod
    def read(cls, arrays: Mapping[str, np.ndarray], key: str, count: int) -> Evidence:
        """What `arrays` keeps under a key; nothing of `count` coordinates where it keeps none."""
        if f"{key}.triangle" not in arrays:
            return cls.nothing(count)
        triangle, spread, alike, rows = (
            arrays[f"{key}.{name}"] for name in ("triangle", "spread", "alike", "rows")
        )
        return cls(triangle, spread, alike, int(rows.item()))

    def arrays(self, key: str) -> dict[str, np.ndarray]:
        """What `read` reads."""
        parts = {
            "triangle": self.triangle,
            "spread": self.spread,
            "alike": self.alike,
            "rows": np.array(self.rows),
        }
        return {f"{key}.{name}": array for name, array in parts.items()}

    def merge(self, other: Evidence) -> Evidence:
        triangle = _triangle(np.vstack([self.triangle, other.triangle]))
        return Evidence(
            triangle, self.spread + other.spread, self.alike + other.alike, self.rows + other.rows
        )

    def holding(self, held: np.ndarray, correction: np.ndarray) -> Evidence:
        """The evidence on the other coordinates when those of the (u,) mask `held` are corrected by
        given amounts.
        """
        count = len(self.spread)
        rest = self.triangle[:, count] - self.triangle[:, :count][:, held] @ correction
        triangle = _triangle(np.column_stack([self.triangle[:, :count][:, ~held], rest]))
        return Evidence(triangle, self.spread[np.ix_(~held, ~held)], self.alike[~held], self.rows)

    def estimate(self) -> tuple[np.ndarray, np.ndarray]:
        """Correction of the undecided coordinates and its noise, (u,) each; infinite noise where
        they are too nearly dependent to tell.
        """
        count = len(self.spread)
        triangle = self.triangle[:count, :count]
        if not _well_conditioned(triangle):
            return np.zeros(count), np.full(count, np.inf)
        inverse = np.linalg.inv(triangle)
        gram_inverse = inverse @ inverse.T
        spread = self.spread + np.outer(self.alike, self.alike)
        return inverse @ self.triangle[:count, count], np.sqrt(
            np.diag(gram_inverse @ spread @ gram_inverse)
        )


def decisive(first: Evidence, drawn: Evidence) -> Evidence:
    """All evidence, or that of the fresh rows alone where it leaves less noise: what the roundings
    of the first observations have in common no number of rows averages out, while fresh outputs are
    sums rounded once. A feature that is active in no fresh row needs the first.
    """
    return min(first.merge(drawn), drawn, key=lambda evidence: float(evidence.estimate()[1].max()))


def _well_conditioned(triangle: np.ndarray) -> bool:
    lengths = np.linalg.norm(triangle, axis=0)
    return bool(lengths.all() and np.linalg.cond(triangle / lengths) < WORST_CONDITION)


def _triangle(matrix: np.ndarray) -> np.ndarray:
    missing = max(0, matrix.shape[1] - len(matrix))
    return np.asarray(np.linalg.qr(np.pad(matrix, ((0, missing), (0, 0))), mode="r"))


@dataclass(frozen=True)
class Straggler:
    """A column with undecided coordinates. coordinates: (u,) their indices; start: (n,) the rounded
    column, the intercept last.
    """

    column: int
    coordinates: np.ndarray
    start: np.ndarray

    def decide(self, evidence: Evidence, grid: Grid) -> Decision:
        """The undecided coordinates in the light of the evidence; those clearly decided are held
        while the rest is estimated again.

        What cannot be told from zero is recorded as zero, which is never claimed: of all values
        that near it is the likely one.
        """
        count = len(self.coordinates)
        values, margins, resolution = np.zeros(count), np.zeros(count), np.zeros(count)
        left = np.arange(count)
        while len(left):
            start = self.start[self.coordinates[left]]
            correction, noise = evidence.estimate()
            moved = start + correction
            values[left] = np.where(np.abs(moved) < REQUIRED_MARGIN * noise, 0.0, grid.round(moved))
            margins[left] = grid.margin(moved, values[left], noise)
            resolution[left] = np.where(
                values[left] == 0,
                0.0,
                0.5 * grid.ulp(values[left]) / np.maximum(noise, np.finfo(float).tiny),
            )
            clear = margins[left] >= HELD_MARGIN
            if clear.all() or not clear.any():
                break
            evidence = evidence.holding(clear, (values[left] - start)[clear])
            left = left[~clear]
        undecided = margins < REQUIRED_MARGIN
        return Decision(
            values, margins, float(resolution[undecided].max()) if undecided.any() else np.inf
        )


@dataclass(frozen=True)
class Decision:
    """values: (u,) grid points; margins: (u,); resolution: the largest margin that one still
    undecided could have, half an ulp in noises, 0 where none of these can be told from zero,
    infinite where all are decided.
    """

    values: np.ndarray
    margins: np.ndarray
    resolution: float

    def within_reach(self, growth: float) -> bool:
        """Whether `growth` times as many observations can be expected to decide: weights below
        their noise are not.
        """
        return bool(self.resolution * np.sqrt(growth) >= 2 * REQUIRED_MARGIN)


def close_calls(values: np.ndarray, margins: np.ndarray) -> list[Straggler]:
    """The columns of (n, k) rounded values with a margin below HELD_MARGIN (undetermined values,
    NaN, and zeros are none).
    """
    undecided = (margins < HELD_MARGIN) & np.isfinite(values) & (values != 0)
    return [
        Straggler(int(column), np.flatnonzero(undecided[:, column]), values[:, column])
        for column in np.flatnonzero(undecided.any(axis=0))
    ]


def gather(
    given: Sequence[Straggler],
    design: np.ndarray,
    targets: np.ndarray,
    arithmetic: Arithmetic,
    rounded_once: bool,
) -> list[Evidence]:
    """The evidence of (N, n) design [X, 1] (or X) and (N, len(given)) outputs, one column per
    straggler.

    `rounded_once`: the outputs are not those of a float64 product, whose roundings have something
        in common, but sums rounded once.
    """
    if not len(design):
        return [Evidence.nothing(len(straggler.coordinates)) for straggler in given]
    starts = np.column_stack([straggler.start for straggler in given])
    scale = row_scales(design)
    residuals, design, sizes = (
        arithmetic.residual(targets, design, starts) * scale,
        design * scale,
        np.abs(targets) * scale,
    )
    shares = TARGET_ROUNDING, 0.0 if rounded_once else COMMON_ROUNDING
    return [
        Evidence.of(
            design[:, straggler.coordinates],
            residuals[:, place],
            *(share * sizes[:, place] for share in shares),
        )
        for place, straggler in enumerate(given)
    ]
