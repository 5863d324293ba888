"""A method that always succeeds has shown nothing: the same solve with the rows of X permuted must
find nothing, and with the rows as they are, beside it, everything.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from normgauge.recovery import gauge_line, lattice
from normgauge.recovery.arithmetic import Arithmetic
from normgauge.recovery.grids import Grid
from normgauge.recovery.least_squares import Solution, solve
from normgauge.recovery.maps import LEAST_NOISE, Design, judge

LATTICES = 16
"""Lattices whose places are tried on each column: with half of them failing, one of 65,536 true
columns is not found.
"""


@dataclass(frozen=True)
class Falsified:
    """What one procedure, without any test of acceptance, makes of the true and of the permuted
    pairing.

    true, permuted: (n, k) grid points, the intercept last. true_score, permuted_score: median over
    columns of the worst rounding residual, in ulp. claimed: values that the solver itself, with its
    tests, claims on permuted rows. residual_ratio: residual of the permuted pairing over that of
    the true one.
    """

    true: np.ndarray
    permuted: np.ndarray
    true_score: float
    permuted_score: float
    claimed: int
    residual_ratio: float


def falsify(design: Design, targets: np.ndarray, intercept: bool, grid: Grid, arithmetic: Arithmetic, seeds: tuple[int, int]) -> Falsified:
    """Solve (N, k) targets on the design as they are and with the pairing of rows broken. seeds: of
    the permutation, of the lattices.

    Permuting the rows of Y by the inverse permutation is the same as permuting those of X, and
    needs no second factorisation. The noise is that of the true pairing for both: with its own the
    permuted one would have no lattice.
    """
    order = np.random.default_rng(seeds[0]).permutation(len(targets))
    shuffled = np.ascontiguousarray(targets[order])
    solutions = [solve(design.factors, outputs, arithmetic) for outputs in (targets, shuffled)]
    (true, true_score), (permuted, permuted_score) = _ungated(design, solutions, grid, seeds[1])
    claimed = judge(design, solutions[1:], [intercept], grid)[0]
    own, other = (solution.relative_residual for solution in solutions)
    ratio = float(np.median(other / np.maximum(own, np.finfo(float).tiny)))
    return Falsified(true, permuted, true_score, permuted_score, int(np.isfinite(claimed.values).sum()), ratio)


def _ungated(design: Design, solutions: list[Solution], grid: Grid, seed: int) -> list[tuple[np.ndarray, float]]:
    """Grid points and score of each solution, by rounding; behind a LayerNorm at the best place on
    each column's line.
    """
    noise, line = np.maximum(solutions[0].noise, LEAST_NOISE), design.line
    values, direction = [solution.values for solution in solutions], np.zeros(len(noise))
    still = np.zeros(noise.shape[1])
    places = [(still, still)] * len(values)
    if line is not None:
        noise, values, direction = line.complete(noise), [line.complete(part) for part in values], line.direction
        drawn = lattice.lattices(line, values[0], noise, grid, seed, LATTICES)
        places = [lattice.best_places(line, part, noise, drawn, grid) for part in values]
    placed = [gauge_line.place(part, noise, direction, *place, grid) for part, place in zip(values, places, strict=True)]
    return [(part.values, float(np.median(part.score))) for part in placed]
