"""A second look, with the same observations, at columns with margins too small to be trusted."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from normgauge.exact_recovery import gauge_line
from normgauge.exact_recovery.arithmetic import Arithmetic
from normgauge.exact_recovery.grids import Grid
from normgauge.exact_recovery.least_squares import (
    design_matrix,
    solve,
)
from normgauge.exact_recovery.maps import Design, Recovered, by_rounding, placed_on_line
from normgauge.exact_recovery.stragglers import (
    TRUSTED_MARGIN,
    Decision,
    Evidence,
    Straggler,
    close_calls,
    gather,
)


@dataclass(frozen=True)
class SecondLook:
    """A straggler with the evidence of the observations so far and what it decides."""

    straggler: Straggler
    evidence: Evidence
    decision: Decision
    first_margin: float


def settle(
    design: Design,
    recovered: Recovered,
    inputs: np.ndarray,
    outputs: np.ndarray,
    intercept: bool,
    grid: Grid,
    arithmetic: Arithmetic,
) -> tuple[Recovered, list[SecondLook]]:
    """A second look at margins that are too small to be trusted, with the same observations: (N,
    fan_in) inputs, (N, k) outputs.

    First the columns concerned are fitted again on residuals in twice the precision; then the close
    calls that are left are estimated with the decided coordinates of their columns held.
    """
    doubtful = (
        (recovered.margins < TRUSTED_MARGIN)
        & np.isfinite(recovered.values)
        & (recovered.values != 0)
    ).any(axis=0)
    if not doubtful.any():
        return recovered, []
    first, recovered = recovered.margins, replace(recovered, extended=int(doubtful.sum()))
    recovered = _sharpened(
        design, recovered, np.flatnonzero(doubtful), outputs, intercept, grid, arithmetic
    )
    calls = close_calls(recovered.values, recovered.margins)
    if not calls:
        return recovered, []
    values, margins, looks = recovered.values.copy(), recovered.margins.copy(), []
    evidence = gather(
        calls,
        design_matrix(inputs, intercept),
        outputs[:, [call.column for call in calls]],
        arithmetic,
        rounded_once=False,
    )
    for call, seen in zip(calls, evidence, strict=True):
        decision = call.decide(seen, grid)
        looks.append(
            SecondLook(call, seen, decision, float(first[call.coordinates, call.column].min()))
        )
        values[call.coordinates, call.column] = decision.values
        margins[call.coordinates, call.column] = decision.margins
    return replace(recovered, values=values, margins=margins), looks


def _sharpened(
    design: Design,
    recovered: Recovered,
    columns: np.ndarray,
    outputs: np.ndarray,
    intercept: bool,
    grid: Grid,
    arithmetic: Arithmetic,
) -> Recovered:
    """`recovered` with some columns fitted again on residuals in twice the precision, at the same
    places on their gauge lines.
    """
    solution = solve(
        design.factors, np.ascontiguousarray(outputs[:, columns]), arithmetic, extended=True
    )
    if recovered.solved is None:
        again = by_rounding(solution, grid)
    else:
        line, found = recovered.solved.line, recovered.solved.found
        values, noise = line.complete(solution.values), line.complete(solution.noise)
        weights = values[: line.weights], noise[: line.weights], line.direction[: line.weights]
        placed = gauge_line.place(*weights, found.alpha[columns], found.alpha_noise[columns], grid)
        alpha, alpha_noise = gauge_line.refine(placed, *weights, grid)
        again = placed_on_line(
            design,
            line,
            solution,
            intercept,
            replace(found, alpha=alpha, alpha_noise=alpha_noise),
            grid,
        )
    values, margins = recovered.values.copy(), recovered.margins.copy()
    values[:, columns], margins[:, columns] = again.values, again.margins
    return replace(
        recovered,
        values=values,
        margins=margins,
        gauge_dimension=max(recovered.gauge_dimension, again.gauge_dimension),
        reason=recovered.reason or again.reason,
    )
