"""One linear map from its input and output: stored values, a margin for each, or the reason why
they are not determined.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from normgauge.errors import InputError
from normgauge.exact_recovery import gauge_line, lattice
from normgauge.exact_recovery.arithmetic import Arithmetic
from normgauge.exact_recovery.calls import Calls
from normgauge.exact_recovery.gauge_line import GaugeLine
from normgauge.exact_recovery.grids import Grid
from normgauge.exact_recovery.least_squares import (
    Factorisation,
    Solution,
    design_matrix,
    factorise,
    solve,
)
from normgauge.exact_recovery.stragglers import (
    REQUIRED_MARGIN,
)

LINEAR = 1e-9
"""Residual over the outputs' size above which outputs are not a linear function of the inputs;
float64 leaves 1e-15.
"""

COLUMNS_AT_ONCE = 4096

LEAST_NOISE = 1e-100
"""Noise of outputs that are all zero: below anything stored, and its square is still a number."""


@dataclass(frozen=True)
class Recovered:
    """What a map's observations determine.

    values: (n, k) grid points, the intercept last when the map has one; NaN in undetermined
        columns. margins: (n, k), 0 there.
    argument: the argument used. gauge_dimension: directions per column that the observations do not
    see. null_rank: of the design [X, 1]; null_cosine: of the measured null vector with (1/g, -C).
    reason: why columns are undetermined, or None. score, least_score: the largest and the smallest
    over columns of the worst rounding residual, in ulp. extended: columns that were fitted again in
    extended precision. calls: what the joint fit left with small margins.
    solved: what certificates start from, for maps behind a LayerNorm; None for others.
    """

    values: np.ndarray
    margins: np.ndarray
    argument: str
    gauge_dimension: int
    relative_residual: float
    null_rank: int
    null_cosine: float | None = None
    reason: str | None = None
    draws: int = 0
    score: float | None = None
    log10_null: float | None = None
    solved: Solved | None = None
    least_score: float | None = None
    extended: int = 0
    calls: Calls | None = None

    @property
    def undetermined(self) -> np.ndarray:
        """(k,) columns without a value."""
        return np.isnan(self.values).any(axis=0)

    def without(self, columns: Sequence[int], reason: str) -> Recovered:
        """The same with these columns undetermined for that reason."""
        values, margins = self.values.copy(), self.margins.copy()
        values[:, columns], margins[:, columns] = np.nan, 0.0
        return replace(self, values=values, margins=margins, gauge_dimension=1, reason=reason)


@dataclass(frozen=True)
class Solved:
    """The family of a map behind a LayerNorm: (n, k) values with a zero at the pivot, their (n, k)
    noise, the line, and what the search for the places on it found.
    """

    line: GaugeLine
    values: np.ndarray
    noise: np.ndarray
    found: lattice.Search


@dataclass(frozen=True)
class Design:
    """A factored design, reusable for every map with these inputs. line is None where the design
    must have full rank.
    """

    factors: Factorisation
    line: GaugeLine | None
    null_rank: int
    null_cosine: float | None


def full_design(inputs: np.ndarray, intercept: bool, arithmetic: Arithmetic) -> Design:
    """The design of maps that no LayerNorm feeds. inputs: (N, fan_in) with N > fan_in + 1."""
    _require_rows(inputs)
    factors = factorise(design_matrix(inputs, intercept), arithmetic)
    return Design(factors, None, factors.null_rank, None)


def gauge_design(
    inputs: np.ndarray, gains: np.ndarray, biases: np.ndarray | None, arithmetic: Arithmetic
) -> Design:
    """The design of maps behind a LayerNorm with these gains and biases, its pivot dropped; the
    null direction is measured.

    InputError when the inputs are not the outputs of a LayerNorm with these gains: the rank or the
    null direction says so.
    """
    _require_rows(inputs)
    line = GaugeLine.behind(gains, biases, intercept=True)
    factors = factorise(design_matrix(inputs, True, line.pivot), arithmetic)
    if factors.null_rank:
        return Design(factors, line, factors.null_rank + 1, None)
    dropped = np.ascontiguousarray(inputs[:, line.pivot : line.pivot + 1])
    fit = solve(factors, dropped, arithmetic)
    residual = float(fit.relative_residual[0] * np.sqrt(np.mean(dropped**2)) / dropped.std())
    if residual > LINEAR:
        raise InputError(
            f"[X, 1] has full rank (the pivot feature {line.pivot} is not a combination of the "
            f"others: residual {residual:.1e}); "
            "the inputs are not the output of a LayerNorm"
        )
    measured = np.insert(-fit.values[:, 0], line.pivot, 1.0)
    cosine = float(
        abs(measured @ line.direction) / np.linalg.norm(measured) / np.linalg.norm(line.direction)
    )
    if cosine < 1 - LINEAR:
        raise InputError(
            f"the null direction of [X, 1] has cosine {cosine:.9f} with (1/g, -C); the gains or "
            "biases are not those of the norm"
        )
    return Design(factors, line, 1, cosine)


def _require_rows(inputs: np.ndarray) -> None:
    rows, width = inputs.shape
    if rows < width + 2:
        raise InputError(
            f"{rows} different observations of {width} inputs: at least {width + 2} are needed; "
            "observe more sequences"
        )


def recover(
    design: Design,
    targets: Sequence[np.ndarray],
    intercepts: Sequence[bool],
    grid: Grid,
    arithmetic: Arithmetic,
    seed: int = 0,
) -> list[Recovered]:
    """Stored values of the maps with outputs `targets`, (N, k) each, that share one design.

    Behind a LayerNorm one lattice search serves all of them. `intercepts` says which maps have a
    bias; a fitted intercept of a map without one must vanish, and is dropped.
    """
    if design.factors.null_rank:
        return [
            _not_seen(design, outputs.shape[1], intercept)
            for outputs, intercept in zip(targets, intercepts, strict=True)
        ]
    return judge(
        design,
        [solve(design.factors, outputs, arithmetic) for outputs in targets],
        intercepts,
        grid,
        seed,
    )


def judge(
    design: Design, solutions: list[Solution], intercepts: Sequence[bool], grid: Grid, seed: int = 0
) -> list[Recovered]:
    """`recover` from the maps' least-squares solutions on the design, which has full rank."""
    if design.line is None:
        return [by_rounding(solution, grid) for solution in solutions]
    return _on_the_line(design, design.line, solutions, intercepts, grid, seed)


def _not_seen(design: Design, columns: int, intercept: bool) -> Recovered:
    count = (
        design.factors.design.shape[1]
        if design.line is None
        else len(design.line.direction) - (not intercept)
    )
    empty = np.full((count, columns), np.nan)
    reason = f"the inputs leave {design.null_rank} directions of the design unseen"
    return Recovered(
        empty,
        np.zeros_like(empty),
        "rank deficient",
        design.null_rank,
        0.0,
        design.null_rank,
        reason=reason,
    )


def by_rounding(solution: Solution, grid: Grid) -> Recovered:
    noise = np.maximum(solution.noise, LEAST_NOISE)
    still = np.zeros(noise.shape[1])
    placed = gauge_line.place(solution.values, noise, np.zeros(len(noise)), still, still, grid)
    lost = ~placed.on_grid | (solution.relative_residual > LINEAR)
    # what cannot be told from zero is recorded as zero at once (see `Straggler.decide`): quantised
    # weights have many, which no look helps
    values = np.where(np.abs(solution.values) < REQUIRED_MARGIN * noise, 0.0, placed.values)
    margins = np.where(lost, 0.0, grid.margin(solution.values, values, noise))
    return Recovered(
        np.where(lost, np.nan, values),
        margins,
        "least squares",
        0,
        float(solution.relative_residual.max()),
        0,
        reason=_off_grid(solution, placed.on_grid, grid),
        score=float(placed.score.max()),
        least_score=float(placed.score.min()),
        calls=Calls.of(np.where(lost, np.nan, values), margins, noise, grid),
    )


def _off_grid(solution: Solution, on_grid: np.ndarray, grid: Grid) -> str | None:
    if (solution.relative_residual > LINEAR).any():
        return (
            "the outputs are not a linear function of the inputs (relative residual "
            f"{solution.relative_residual.max():.1e})"
        )
    return (
        None if on_grid.all() else f"{int((~on_grid).sum())} columns lie off the {grid.name} grid"
    )


def _on_the_line(
    design: Design,
    line: GaugeLine,
    solutions: list[Solution],
    intercepts: Sequence[bool],
    grid: Grid,
    seed: int,
) -> list[Recovered]:
    joined = line.complete(np.hstack([solution.values for solution in solutions]))
    noise = line.complete(
        np.maximum(np.hstack([solution.noise for solution in solutions]), LEAST_NOISE)
    )
    linear = np.concatenate([solution.relative_residual for solution in solutions]) <= LINEAR
    search = lattice.search(line, joined[:, linear], noise[:, linear], grid, seed)
    alpha, alpha_noise = np.full(len(linear), np.nan), np.full(len(linear), np.nan)
    alpha[linear], alpha_noise[linear] = search.alpha, search.alpha_noise
    ends = np.cumsum([solution.values.shape[1] for solution in solutions])
    found = [
        replace(
            search,
            alpha=alpha[end - solution.values.shape[1] : end],
            alpha_noise=alpha_noise[end - solution.values.shape[1] : end],
        )
        for solution, end in zip(solutions, ends, strict=True)
    ]
    return [
        placed_on_line(design, line, *part, grid)
        for part in zip(solutions, intercepts, found, strict=True)
    ]


def placed_on_line(
    design: Design,
    line: GaugeLine,
    solution: Solution,
    intercept: bool,
    found: lattice.Search,
    grid: Grid,
) -> Recovered:
    values, noise = line.complete(solution.values), line.complete(solution.noise)
    alpha, alpha_noise = found.alpha, found.alpha_noise
    if not intercept and line.direction[-1]:
        # a map without bias has intercept 0 at the stored place: that gives alpha where the grid
        # cannot
        unknown = np.isnan(alpha)
        alpha = np.where(unknown, -values[-1] / line.direction[-1], alpha)
        alpha_noise = np.where(unknown, noise[-1] / abs(line.direction[-1]), alpha_noise)
    known = ~np.isnan(alpha)
    at, spread = np.where(known, alpha, 0.0), np.where(known, alpha_noise, 0.0)
    placed = gauge_line.place(values, noise, line.direction, at, spread, grid)
    lost = ~(known & placed.accepted)
    log10_null = gauge_line.log10_null(line, placed, values, noise, grid)
    margins = grid.margin(placed.moved, placed.values, placed.noise)
    kept = slice(None)
    if not intercept:
        lost |= np.abs(placed.moved[-1]) > gauge_line.ACCEPTED_DEVIATIONS * placed.noise[-1]
        kept = slice(-1)
    found_values = np.where(lost, np.nan, placed.values)[kept]
    return Recovered(
        found_values,
        np.where(lost, 0.0, margins)[kept],
        "gauge line and lattice",
        int(lost.any()),
        float(solution.relative_residual.max()),
        design.null_rank,
        design.null_cosine,
        _lost_reason(lost, solution, found),
        found.draws,
        None if lost.all() else float(placed.score[~lost].max()),
        None if lost.all() else float(log10_null[~lost].max()),
        Solved(line, values, noise, replace(found, alpha=alpha, alpha_noise=alpha_noise)),
        None if lost.all() else float(placed.score[~lost].min()),
        calls=Calls.of(found_values, margins[kept], placed.noise[kept], grid),
    )


def _lost_reason(lost: np.ndarray, solution: Solution, found: lattice.Search) -> str | None:
    if not lost.any():
        return None
    if (solution.relative_residual > LINEAR).any():
        return (
            "the outputs are not a linear function of the inputs (relative residual "
            f"{solution.relative_residual.max():.1e})"
        )
    if not found.separable:
        return (
            "the gains stand in small ratios (or are all equal): the line meets the grid at "
            "many places in the window"
        )
    return f"{int(lost.sum())} columns meet the grid nowhere that {found.draws} draws reached"
