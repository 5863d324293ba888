"""From correlations to a matching of two spaces, inside the group that the space admits.

Where signs are free the cost is |C| and the sign is that of the matched entry; where there are none
it is C; where one sign is common to all coordinates, the better of the assignments on C and on -C.
On the wrong cost a match is of no gauge: free signs under LayerNorm change the function, and a
coordinate whose true sign is negative is the most negative entry of its row, which a maximum of C
avoids.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property

import lap
import numpy as np

from normgauge.errors import InputError
from normgauge.gauge.admissible import Group
from normgauge.gauge.correlation import CrossCorrelation
from normgauge.gauge.groups import Monomial

CANDIDATES = 200  # of each row in a greedy match
DEVIATIONS = 3.0  # standard errors by which a match must beat its rivals to be certain
LARGEST = 1 - 1e-6  # a correlation beyond this is one up to float32 rounding
FARTHEST = 1e6  # standard errors: a lead without any error is no further


Solver = Callable[[np.ndarray], tuple[np.ndarray, str, bool]]
"""From a (d, d) score: the target of each row, the method's name, and whether the assignment is
proven optimal.
"""
Entries = tuple[np.ndarray, np.ndarray]
"""Rows and columns of entries of a (d, d) array, int64 (k,) each."""


class Cost(StrEnum):
    """What a match maximises."""

    ABSOLUTE = "|C|"
    SIGNED = "C"
    COMMON = "±C"


def cost_of(group: Group) -> Cost:
    """The cost whose maximum lies in the group."""
    if group == Group.COMMON_SIGN:
        return Cost.COMMON
    return Cost.SIGNED if group in (Group.PERMUTATION, Group.POSITIVE_MONOMIAL) else Cost.ABSOLUTE


@dataclass(frozen=True, eq=False)
class Matching:
    """Source coordinate i matched to target coordinate `gauge.target[i]` with sign
    `gauge.factors[i]`.

    `margins`: float64 (d,), the matched value minus the best rival in its row or column, on the
    cost's scale; negative where the whole assignment gives up a row's best. `lead`: float64
    (d,), the same of atanh of the correlations, in standard errors of the difference, at most 1e6
    either way; 0 for constant coordinates. `uncertain`: bool (d,),
    not ahead of these rivals by what the samples can tell, or constant, or of a common sign that is
    not certain.
    `constant`: bool (d,), without variance in source or target. `certified`: the row-wise maxima
    form a bijection, so no assignment scores higher. `method`: how it was found, and on which cost.
    `effective`: float64 (d,), the independent samples that would tell as much about the matched
    correlation. `sign_certain`: whether a common sign is; true where there is none. `by_weights`:
    bool (d,), decided by the weights around them (`weight_evidence.decided`).
    """

    gauge: Monomial
    margins: np.ndarray
    lead: np.ndarray
    uncertain: np.ndarray
    constant: np.ndarray
    certified: bool
    method: str
    samples: int
    effective: np.ndarray
    sign_certain: bool
    seconds: float
    by_weights: np.ndarray


def match(
    correlation: CrossCorrelation,
    group: Group = Group.SIGNED_PERMUTATION,
    solver: Solver | None = None,
) -> Matching:
    """Match by the correlations of independent samples, such as the rows of a table.

    Activations are not independent: `site_matching.match_sites` is for them. Raises InputError with
    fewer than four samples.
    """
    constant = correlation.constant()
    return match_matrix(
        correlation.matrix(), correlation.n, constant[0], constant[1], group, solver
    )


def match_matrix(
    matrix: np.ndarray,
    samples: int,
    source_constant: np.ndarray,
    target_constant: np.ndarray,
    group: Group = Group.SIGNED_PERMUTATION,
    solver: Solver | None = None,
) -> Matching:
    """The same from the (d, d) correlations of independent samples and the coordinates known to be
    constant.

    atanh of a correlation has standard error 1 / sqrt(n - 3) (Fisher 1915); that of a difference is
    taken as sqrt(2) times it, and of a mean over coordinates as no smaller.
    """
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1] or not np.isfinite(matrix).all():
        raise InputError(
            f"correlations of shape {list(matrix.shape)}: expected a square matrix of finite "
            "numbers; mend the activations"
        )
    started = time.perf_counter()
    found = assign_in(group, matrix, solver)
    seconds = time.perf_counter() - started
    error = np.sqrt(2 / max(samples - 3, 1))
    best = _atanh(found.score[found.matched])
    rival = np.maximum(*(_atanh(found.score[entries]) for entries in found.rivals))
    constant = source_constant | target_constant[found.target]
    sign_certain = True
    if found.opposite is not None:
        gap = (best + _atanh(found.score[found.matched[0], found.opposite])).mean()
        sign_certain = bool(gap > DEVIATIONS * error)
    return Matching(
        gauge=found.gauge,
        margins=found.margins,
        lead=np.where(constant, 0.0, leads(best - rival, np.full(len(best), error))),
        uncertain=constant
        | ((best - rival <= DEVIATIONS * error) & (len(matrix) > 1))
        | (not sign_certain),
        constant=constant,
        certified=found.certified and not constant.any(),
        method=f"{found.method} on {cost_of(group)}",
        samples=samples,
        effective=np.where(constant, 0.0, float(samples)),
        sign_certain=sign_certain,
        seconds=seconds,
        by_weights=np.zeros(len(matrix), dtype=bool),
    )


def leads(gap: np.ndarray, error: np.ndarray) -> np.ndarray:
    """float64 (d,): differences in their standard errors, at most FARTHEST either way; 0 where
    there is neither.
    """
    ratio = gap / np.maximum(error, np.finfo(np.float64).tiny)
    return np.clip(np.where(gap == 0, 0.0, ratio), -FARTHEST, FARTHEST)


def _atanh(correlation: np.ndarray) -> np.ndarray:
    return np.arctanh(np.clip(correlation, -LARGEST, LARGEST))


@dataclass(frozen=True, eq=False)
class Assigned:
    """The best assignment inside a group.

    `values`: (d, d), what entries are worth up to their signs. `sign`: the common one, or None
        where
    each entry has its own. `score`: (d, d), the values with the signs that the group allows, whose
        sum
    over the assignment is largest. `opposite`: what each row has best under the other common sign,
        if
    there is one: of an assignment, or of the rows alone where even those do not reach this one's
        sum.
    """

    target: np.ndarray
    values: np.ndarray
    score: np.ndarray
    sign: float | None
    method: str
    certified: bool
    opposite: np.ndarray | None = None

    def signs(self, entries: Entries) -> np.ndarray:
        """float64 (k,): what the values of entries are multiplied by in the score."""
        if self.sign is not None:
            return np.full(len(entries[0]), self.sign)
        return np.where(self.values[entries] < 0, -1.0, 1.0)

    @property
    def matched(self) -> Entries:
        return np.arange(len(self.target)), self.target

    @property
    def gauge(self) -> Monomial:
        return Monomial(self.target, self.signs(self.matched))

    @cached_property
    def rivals(self) -> tuple[Entries, Entries]:
        """Of each coordinate the best other entry in its row, and the best other entry in its
        column.
        """
        rows = np.arange(len(self.target))
        others = self.score.copy()
        others[self.matched] = -np.inf
        return (rows, others.argmax(1)), (others.argmax(0)[self.target], self.target)

    @property
    def margins(self) -> np.ndarray:
        """float64 (d,): the matched score minus the best rival's; infinite in a space of one
        coordinate.
        """
        if len(self.target) == 1:
            return np.full(1, np.inf)
        best = self.score[self.matched]
        return (best - np.maximum(*(self.score[entries] for entries in self.rivals))).astype(
            np.float64
        )


def assign_in(group: Group, values: np.ndarray, solver: Solver | None = None) -> Assigned:
    """The assignment inside a group that maximises the sum of (d, d) values up to the signs that it
    allows.
    """
    solve = solver or assign
    cost = cost_of(group)
    if cost == Cost.COMMON:
        return _assign_with_common_sign(values, solve)
    score = np.abs(values) if cost == Cost.ABSOLUTE else values
    target, method, certified = solve(score)
    return Assigned(target, values, score, 1.0 if cost == Cost.SIGNED else None, method, certified)


def _assign_with_common_sign(values: np.ndarray, solve: Solver) -> Assigned:
    """The better of the assignments with either sign; the other is not solved where its row maxima
    show that it is worse.
    """
    bounds = {sign: float((sign * values).max(1).sum(dtype=np.float64)) for sign in (1.0, -1.0)}
    likely = max(bounds, key=lambda sign: bounds[sign])
    first = _assign_with_sign(values, likely, solve)
    if _total(first) >= bounds[-likely]:
        return replace(first, opposite=(-likely * values).argmax(1))
    second = _assign_with_sign(values, -likely, solve)
    best, other = (first, second) if _total(first) >= _total(second) else (second, first)
    proven = best.certified and _total(best) >= bounds[-best.sign]  # type: ignore[operator]
    return replace(best, opposite=other.target, certified=proven)


def _assign_with_sign(values: np.ndarray, sign: float, solve: Solver) -> Assigned:
    score = sign * values
    target, method, certified = solve(score)
    return Assigned(target, values, score, sign, method, certified)


def _total(found: Assigned) -> float:
    return float(found.score[found.matched].sum(dtype=np.float64))


def assign(score: np.ndarray) -> tuple[np.ndarray, str, bool]:
    """(target of each row, method, whether proven optimal) of the assignment that maximises the sum
    of a (d, d) score.

    Row maxima that form a bijection are optimal, since no assignment can beat them row by row. Else
    the Jonker-Volgenant solver of lapx
    in float32: seconds at 8192 coordinates, where a greedy match saves less than it loses
        (benchmarks/results/gauge.csv).
    """
    target = score.argmax(1)
    if len(np.unique(target)) == len(score):
        return target, "row argmax", True
    _, target, _ = lap.lapjvs(-score.astype(np.float32), extend_cost=False, jvx_like=False)
    return target, "lapjvs", False


def assign_greedily(score: np.ndarray) -> tuple[np.ndarray, str, bool]:
    """The same by `greedy` among each row's 200 best, which is not optimal: a control."""
    return greedy(score, CANDIDATES), "greedy", False


def greedy(score: np.ndarray, candidates: int) -> np.ndarray:
    """Each row's target: pairs are taken best first among every row's `candidates` highest, then
    leftovers in order of their best.
    """
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
