"""A method that always succeeds has shown nothing: the same solve with the rows of X permuted must find nothing."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from normgauge.recovery.arithmetic import Arithmetic
from normgauge.recovery.grids import Grid
from normgauge.recovery.least_squares import solve
from normgauge.recovery.maps import Design, recover


@dataclass(frozen=True)
class Falsified:
    """claimed: values that a solve on permuted rows claims (must be 0); rounded: its (n, k) grid points whether claimed or not.

    residual_ratio: its residual over that of the true pairing.
    """

    claimed: int
    rounded: np.ndarray
    residual_ratio: float


def permuted(design: Design, targets: np.ndarray, intercept: bool, grid: Grid, arithmetic: Arithmetic, seed: int) -> Falsified:
    """Solve (N, k) targets on the design with the pairing of rows broken.

    Permuting the rows of Y by the inverse permutation is the same as permuting those of X, and needs no second factorisation.
    """
    order = np.random.default_rng(seed).permutation(len(targets))
    shuffled = np.ascontiguousarray(targets[order])
    result = recover(design, [shuffled], [intercept], grid, arithmetic)[0]
    true, false = solve(design.factors, targets, arithmetic), solve(design.factors, shuffled, arithmetic)
    ratio = float(np.median(false.relative_residual / np.maximum(true.relative_residual, np.finfo(float).tiny)))
    return Falsified(int(np.isfinite(result.values).sum()), grid.round(false.values), ratio)
