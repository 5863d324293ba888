"""The minimum-norm fit of a map behind a LayerNorm: it gives the observed outputs, and other
weights than the stored ones.

Of all columns on a gauge line least squares picks the one orthogonal to v = (1/g, -C). Nothing
stored is special about it: that is Theorem 1 of the paper, shown.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from normgauge.exact_recovery.arithmetic import Arithmetic
from normgauge.exact_recovery.gauge_line import GaugeLine
from normgauge.exact_recovery.grids import Grid
from normgauge.exact_recovery.least_squares import design_matrix


@dataclass(frozen=True)
class MinimumNorm:
    """values: (n, k) the fit, rounded to the grid, the intercept last. distance: the largest over
    columns of the deviation of its outputs, unrounded, from the observed ones, over their size;
    place_distance: the same of the places found. moved: median over columns of the size of what
    separates the two, over that of the column.
    """

    values: np.ndarray
    distance: float
    place_distance: float | None
    moved: float | None


def fit(
    line: GaugeLine,
    family: np.ndarray,
    places: np.ndarray,
    inputs: np.ndarray,
    outputs: np.ndarray,
    grid: Grid,
    arithmetic: Arithmetic,
) -> MinimumNorm:
    """The minimum-norm fit of the columns (n, k) `family`, points of their lines, beside `places`,
    (n, k), the columns found there, NaN where none was; (N, fan_in) inputs, (N, k) outputs.
    """
    v = line.direction
    least = family - np.outer(v, v @ family) / (v @ v)
    design = design_matrix(inputs, intercept=True)

    def distance(columns: np.ndarray, of: np.ndarray) -> float:
        deviation = of - arithmetic.product(design, np.ascontiguousarray(columns))
        size = np.maximum(np.linalg.norm(of, axis=0), np.finfo(float).tiny)
        return float((np.linalg.norm(deviation, axis=0) / size).max())

    known = np.isfinite(places).all(axis=0)
    if not known.any():
        return MinimumNorm(grid.round(least), distance(least, outputs), None, None)
    apart = np.linalg.norm((least - places)[:, known], axis=0)
    return MinimumNorm(
        grid.round(least),
        distance(least, outputs),
        distance(places[:, known], np.ascontiguousarray(outputs[:, known])),
        float(np.median(apart / np.linalg.norm(places[:, known], axis=0))),
    )
