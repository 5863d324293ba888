"""A method that always succeeds has shown nothing: the same solve with the rows of X permuted must
find nothing, and with the rows as they are, beside it, everything.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from normgauge.exact_recovery import gauge_line, lattice
from normgauge.exact_recovery.arithmetic import Arithmetic
from normgauge.exact_recovery.gauge_line import Placed
from normgauge.exact_recovery.grids import Grid
from normgauge.exact_recovery.least_squares import Solution, solve
from normgauge.exact_recovery.maps import LEAST_NOISE, Design, judge
from normgauge.exact_recovery.stragglers import REQUIRED_MARGIN

MOST_LATTICES = 24
"""Lattices tried on the columns at most; each finds about half or more of the true ones."""
FOUND = 0.1
"""Mean rounding residual, in ulp, below which a true column needs no further lattice; at a wrong
place it is near 1/4.
"""


@dataclass(frozen=True)
class Falsified:
    """What one procedure, without any test of acceptance, makes of the true and of the permuted
    pairing.

    true, permuted: (n, k) grid points, the intercept last. decided: (n, k) whether the margin on
    the true pairing is large enough: these are compared. true_score, permuted_score: median over
    columns of the worst rounding residual, in ulp. claimed: values that the solver itself, with its
    tests, claims on permuted rows. residual_ratio: residual of the permuted pairing over that of
    the true one.
    """

    true: np.ndarray
    permuted: np.ndarray
    decided: np.ndarray
    true_score: float
    permuted_score: float
    claimed: int
    residual_ratio: float


def falsify(
    design: Design,
    targets: np.ndarray,
    intercept: bool,
    grid: Grid,
    arithmetic: Arithmetic,
    seeds: tuple[int, int],
) -> Falsified:
    """Solve (N, k) targets on the design as they are and with the pairing of rows broken. seeds: of
    the permutation, of the lattices.

    Permuting the rows of Y by the inverse permutation is the same as permuting those of X, and
    needs no second factorisation. The noise is that of the true pairing for both: with its own the
    permuted one would have no lattice.
    """
    order = np.random.default_rng(seeds[0]).permutation(len(targets))
    solutions = [
        solve(design.factors, np.ascontiguousarray(outputs), arithmetic)
        for outputs in (targets, targets[order])
    ]
    true, permuted = _ungated(design, solutions, grid, seeds[1])
    claimed = judge(design, solutions[1:], [intercept], grid)[0]
    own, other = (solution.relative_residual for solution in solutions)
    return Falsified(
        true.values,
        permuted.values,
        grid.margin(true.moved, true.values, true.noise) >= REQUIRED_MARGIN,
        float(np.median(true.score)),
        float(np.median(permuted.score)),
        int(np.isfinite(claimed.values).sum()),
        float(np.median(other / np.maximum(own, np.finfo(float).tiny))),
    )


def _ungated(design: Design, solutions: list[Solution], grid: Grid, seed: int) -> list[Placed]:
    """Each solution on the grid, by rounding; behind a LayerNorm at the best place on each column's
    line.
    """
    noise, line = np.maximum(solutions[0].noise, LEAST_NOISE), design.line
    values, direction = [solution.values for solution in solutions], np.zeros(len(noise))
    best = [lattice.Best.none(noise.shape[1])] * len(values)
    if line is not None:
        noise, values, direction = (
            line.complete(noise),
            [line.complete(part) for part in values],
            line.direction,
        )
        generator, tried = np.random.default_rng(seed), 0
        # the true pairing says how many, for both
        while tried < MOST_LATTICES and (best[0].residual > FOUND).any():
            drawn = lattice.draw(line, values[0], noise, grid, generator)
            if drawn is None:
                break
            best, tried = (
                [
                    known.or_of(drawn, line, part, noise, grid)
                    for known, part in zip(best, values, strict=True)
                ],
                tried + 1,
            )
    return [
        gauge_line.place(part, noise, direction, known.alpha, known.alpha_noise, grid)
        for part, known in zip(values, best, strict=True)
    ]
