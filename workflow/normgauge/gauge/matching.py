"""From a correlation matrix to a signed permutation: match by absolute value, read the sign off the matched entry.

Matching on C itself (the signed cost) is kept as a control: a coordinate whose true sign is negative has its true partner as the most
negative entry of its row, which a maximum of C avoids.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import lap
import numpy as np

from normgauge.errors import InputError
from normgauge.gauge.correlation import CrossCorrelation
from normgauge.gauge.groups import Monomial

GREEDY_FROM = 8192  # coordinates from which rows are restricted to their best candidates
CANDIDATES = 200
DEVIATIONS = 3.0  # standard errors by which a match must beat its rivals to be certain
LARGEST = 1 - 1e-6  # a correlation beyond this is one up to float32 rounding


Solver = Callable[[np.ndarray], tuple[np.ndarray, str, bool]]
"""From a (d, d) score: the target of each row, the method's name, and whether the assignment is proven optimal."""


class Cost(StrEnum):
    """What a match maximises."""

    ABSOLUTE = "|C|"
    SIGNED = "C"


@dataclass(frozen=True, eq=False)
class Matching:
    """Source coordinate i matched to target coordinate `gauge.target[i]` with sign `gauge.factors[i]`.

    `margins`: float64 (d,), the matched entry minus the best rival in its row or column, on the cost's scale; negative where the whole
    assignment gives up a row's best. `uncertain`: bool (d,), constant, tied, or not ahead of the best rival by three standard errors.
    `certified`: the row-wise maxima form a bijection, so no assignment scores higher. `method`: how it was found, and on which cost.
    """

    gauge: Monomial
    margins: np.ndarray
    uncertain: np.ndarray
    certified: bool
    method: str
    samples: int
    seconds: float


def match(correlation: CrossCorrelation, cost: Cost = Cost.ABSOLUTE, solver: Solver | None = None) -> Matching:
    """Match the coordinates of two spaces of one width, with `assign` or another solver. Raises InputError with fewer than four samples."""
    constant = correlation.constant()
    return match_matrix(correlation.matrix(), correlation.n, constant[0], constant[1], cost, solver)


def match_matrix(
    matrix: np.ndarray,
    samples: int,
    source_constant: np.ndarray,
    target_constant: np.ndarray,
    cost: Cost = Cost.ABSOLUTE,
    solver: Solver | None = None,
) -> Matching:
    """The same from the (d, d) correlations of `samples` samples and the coordinates known to be constant."""
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1] or not np.isfinite(matrix).all():
        raise InputError(f"correlations of shape {list(matrix.shape)}: expected a square matrix of finite numbers; mend the activations")
    started = time.perf_counter()
    score = np.abs(matrix) if cost == Cost.ABSOLUTE else matrix
    target, method, certified = (solver or assign)(score)
    seconds = time.perf_counter() - started
    rows = np.arange(len(matrix))
    best = score[rows, target]
    rival = _rivals(score, target)
    ahead = np.arctanh(np.clip(best, -LARGEST, LARGEST)) - np.arctanh(np.clip(rival, -LARGEST, LARGEST))
    constant = source_constant | target_constant[target]
    return Matching(
        gauge=Monomial(target, np.where(matrix[rows, target] < 0, -1.0, 1.0)),
        margins=(best - rival).astype(np.float64),
        uncertain=constant | (ahead <= DEVIATIONS * np.sqrt(2 / max(samples - 3, 1))),
        certified=certified and not constant.any(),
        method=f"{method} on {cost}",
        samples=samples,
        seconds=seconds,
    )


def assign(score: np.ndarray) -> tuple[np.ndarray, str, bool]:
    """(target of each row, method, whether proven optimal) of the assignment that maximises the sum of a (d, d) score.

    Row maxima that form a bijection are optimal, since no assignment can beat them row by row. Else the Jonker-Volgenant solver of lapx
    in float32; from 8192 coordinates on a greedy match among each row's best candidates, which is not optimal.
    """
    target = score.argmax(1)
    if len(np.unique(target)) == len(score):
        return target, "row argmax", True
    if len(score) >= GREEDY_FROM:
        return assign_greedily(score)
    _, target, _ = lap.lapjvs(-score.astype(np.float32), extend_cost=False, jvx_like=False)
    return target, "lapjvs", False


def assign_greedily(score: np.ndarray) -> tuple[np.ndarray, str, bool]:
    """The same by `greedy` among each row's 200 best."""
    return greedy(score, CANDIDATES), "greedy", False


def greedy(score: np.ndarray, candidates: int) -> np.ndarray:
    """Each row's target: pairs are taken best first among every row's `candidates` highest, then leftovers in order of their best."""
    size = len(score)
    count = min(candidates, size)
    columns = np.argpartition(-score, count - 1, axis=1)[:, :count]
    order = np.argsort(-np.take_along_axis(score, columns, 1).ravel(), kind="stable")
    target, taken, left = np.full(size, -1), np.zeros(size, dtype=bool), size
    for row, column in zip((order // count).tolist(), columns.ravel()[order].tolist(), strict=True):
        if target[row] < 0 and not taken[column]:
            target[row], taken[column] = column, True
            left -= 1
            if not left:
                break
    for row in np.flatnonzero(target < 0):
        free = np.flatnonzero(~taken)
        target[row] = free[score[row, free].argmax()]
        taken[target[row]] = True
    return target


def _rivals(score: np.ndarray, target: np.ndarray) -> np.ndarray:
    """(d,) the best other entry in the row or column of each matched one; -inf in a space of one coordinate."""
    others = score.copy()
    others[np.arange(len(score)), target] = -np.inf
    return np.maximum(others.max(1), others.max(0)[target])


def contradictions(first: Matching, second: Matching) -> np.ndarray:
    """bool (d,): coordinates of which both matches are certain, each of another target or sign. One gauge of a space has none."""
    differ = (first.gauge.target != second.gauge.target) | (first.gauge.factors != second.gauge.factors)
    return ~first.uncertain & ~second.uncertain & differ


def recovery_row(site: str, seed: int, found: Matching, truth: Monomial, part: str = "residual") -> dict[str, Any]:
    """One row of schema `gauge_recovery`: a matching against the gauge that was applied to this part of the model."""
    if truth.size != found.gauge.size:
        raise InputError(f"site {site}: matched {found.gauge.size} coordinates, the recorded gauge has {truth.size}; use its own model")
    right = found.gauge.target == truth.target
    same_sign = np.sign(found.gauge.factors) == np.sign(truth.factors)
    certain = ~found.uncertain
    return {
        "site": site,
        "part": part,
        "width": truth.size,
        "seed": seed,
        "tokens": found.samples,
        "method": found.method,
        "permutation_accuracy": float(right.mean()),
        "sign_accuracy": float(same_sign.mean()),
        "uncertain": float(found.uncertain.mean()),
        "certain_accuracy": float((right & same_sign)[certain].mean()) if certain.any() else None,
        "map_error": float(np.abs(found.gauge.factors / truth.factors - 1)[right & certain].max(initial=0)),
        "min_margin": float(found.margins.min()),
        "certified": found.certified,
        "seconds": found.seconds,
    }
