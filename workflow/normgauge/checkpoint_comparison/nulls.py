"""Nulls and what is done with them: draws, p = (k + 1) / (n + 1), Benjamini-Hochberg and the
smallest p over a declared family.

A test compares one observed statistic with n draws under its null, both on a scale where larger
means more evidence. Its p-value counts the draws that reach it, k; the smallest attainable is 1 /
(n + 1). Tests of the confirmatory family are declared before the data are seen; a component is
significant when it passes both corrections there. Exploratory tests are corrected among themselves
and decide nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import permutations
from typing import Any

import numpy as np
from scipy.special import gammainc, gammaincinv

from normgauge.errors import InputError
from normgauge.gauge.groups import Orthogonal

LEVEL = 0.05
"""False discovery rate, and family-wise error rate, that a significant component must keep."""
GRID = 1024  # thresholds at which the law of a maximum is tabulated
EXACT = 7  # tokens up to which every relabelling is listed
ROUNDING = 1e-12  # relative difference up to which two values of a statistic count as equal


@dataclass(frozen=True, eq=False)
class Test:
    """One observed statistic and its draws (n,) under a null; `place` locates it (block, part,
    head, unit, token, label).

    `shared`: tests of one name have their draws in common: number i of each comes from the same
    random element, such as one relabelling of the tokens in every head. Tests without a name are
    drawn independently of all others.
    """

    statistic: str
    null: str
    observed: float
    draws: np.ndarray
    confirmatory: bool
    place: dict[str, Any] = field(default_factory=dict)
    change: float = float("nan")
    """The quantity itself, with its sign, where `observed` is its size."""
    shared: str | None = None

    @property
    def reached(self) -> int:
        """Draws that are at least as large, up to rounding."""
        return int((self.draws >= self.observed - ROUNDING * abs(self.observed)).sum())

    @property
    def p(self) -> float:
        return (self.reached + 1) / (len(self.draws) + 1)

    @property
    def smallest_p(self) -> float:
        return 1 / (len(self.draws) + 1)


def test_rows(tests: Sequence[Test]) -> list[dict[str, Any]]:
    """Rows of schema `checkpoint_comparison_nulls`, the strongest first in each family; each family
    is corrected as a whole.
    """
    rows = []
    for confirmatory in (True, False):
        family = [test for test in tests if test.confirmatory == confirmatory]
        adjusted = zip(
            family, benjamini_hochberg([test.p for test in family]), familywise(family), strict=True
        )
        rows += [_row(test, q, familywise) for test, q, familywise in adjusted]
    return sorted(rows, key=lambda row: (not row["confirmatory"], row["p"], -row["z"]))


def _row(test: Test, q: float, familywise: float) -> dict[str, Any]:
    mean, deviation = float(test.draws.mean()), float(test.draws.std())
    place = {
        key: test.place.get(key)
        for key in ("block", "part", "head", "unit", "row", "token", "probe", "label")
    }
    return {
        "family": "confirmatory" if test.confirmatory else "exploratory",
        "confirmatory": test.confirmatory,
        "statistic": test.statistic,
        "null": test.null,
        **place,
        "change": test.change,
        "observed": test.observed,
        "null_mean": mean,
        "null_deviation": deviation,
        "z": standardised(test.observed, mean, deviation),
        "reached": test.reached,
        "draws": len(test.draws),
        "p": test.p,
        "smallest_p": test.smallest_p,
        "q": q,
        "familywise_p": familywise,
        "significant": test.confirmatory and q <= LEVEL and familywise <= LEVEL,
    }


def standardised(value: float, mean: float, deviation: float) -> float:
    return (value - mean) / deviation if deviation > 0 else 0.0


def benjamini_hochberg(values: Sequence[float]) -> list[float]:
    """Adjusted p-values (q): the smallest false discovery rate at which each is rejected."""
    p = np.asarray(values, dtype=np.float64)
    order = np.argsort(-p, kind="stable")
    scaled = p[order] * len(p) / np.arange(len(p), 0, -1)
    adjusted = np.empty_like(p)
    adjusted[order] = np.minimum(np.minimum.accumulate(scaled), 1.0)
    return adjusted.tolist()


def familywise(tests: Sequence[Test]) -> list[float]:
    """Family-wise p-values: the probability, were every null of the family true, that its smallest
    p is at most each test's.

    Under its null the observed value is one of the n + 1 values of a test, each as likely as the
    others, so all of them are ranked together. Tests that share their draws are one group; the
    smallest p of a group is at most x with the share P(x) of its n + 1 elements, whatever the
    dependence within it. Groups are drawn independently: 1 - prod(1 - P(x)) (Sidak 1967; within a
    group the single-step min P of Westfall and Young 1993, section 2.3).
    """
    groups: dict[Any, list[Test]] = {}
    for number, test in enumerate(tests):
        groups.setdefault(number if test.shared is None else test.shared, []).append(test)
    reached = np.array([test.p for test in tests]) * (1 + 1e-12)
    log_none = np.zeros(len(tests))
    for members in groups.values():
        smallest = np.sort(np.min([_pooled_p(test) for test in members], axis=0))
        with np.errstate(divide="ignore"):  # a share of one: certain to be reached
            log_none += np.log1p(-np.searchsorted(smallest, reached, side="right") / len(smallest))
    return (-np.expm1(log_none)).tolist()


def _pooled_p(test: Test) -> np.ndarray:
    """The p-value of the observed value, then of each draw, among all n + 1 of them, (n + 1,)."""
    values = np.concatenate([[test.observed], test.draws])
    order = np.argsort(values)
    ordered, found = values[order], np.empty(len(values))
    found[order] = len(values) - np.searchsorted(ordered, ordered - ROUNDING * np.abs(ordered))
    return found / len(values)


def draws_needed(tests: int, least: int) -> int:
    """Draws with which one component alone passes both corrections among `tests`: smallest p times
    tests is half the level.
    """
    return max(least, int(np.ceil(2 * tests / LEVEL)))


# --- the nulls


def relabellings(size: int, count: int, generator: np.random.Generator) -> np.ndarray:
    """(n, size): permutations of the tokens other than the identity.

    All of them up to EXACT tokens (p is then exact), else `count` random ones, which may repeat.
    """
    if size <= EXACT:
        return np.array(list(permutations(range(size)))[1:], dtype=int).reshape(-1, size)
    return np.argsort(generator.random((count, size)), axis=1)


def relabelled_traces(matrix: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """Sum over i of matrix[i, s(i)] for every relabelling s, a row of `targets`, (n,)."""
    return matrix[np.arange(len(matrix)), targets].sum(1)


def sign_sums(terms: np.ndarray, count: int, generator: np.random.Generator) -> np.ndarray:
    """Sums of the terms with independent random signs, (count,)."""
    return generator.choice((-1.0, 1.0), (count, len(terms))) @ terms


def random_rotations(size: int, count: int, generator: np.random.Generator) -> np.ndarray:
    """(count, size, size): Haar-distributed."""
    return np.stack(
        [
            Orthogonal.random(size, int(seed)).matrix
            for seed in generator.integers(2**31, size=count)
        ]
    )


def contrast_space(matrix: np.ndarray) -> np.ndarray:
    """(k - 1, k - 1): a (k, k) matrix whose rows and columns sum to zero, in an orthonormal basis
    of the contrasts.
    """
    size = len(matrix)
    basis = np.linalg.qr(np.column_stack([np.ones(size), np.eye(size)[:, :-1]]))[0][:, 1:]
    return basis.T @ matrix @ basis


def rotated_products(first: np.ndarray, second: np.ndarray, rotations: np.ndarray) -> np.ndarray:
    """<first, R second R^T> for every rotation, (count,)."""
    return np.einsum("ij,cik,kl,cjl->c", first, rotations, second, rotations, optimize=True)


def random_subspaces(
    size: int, dimension: int, count: int, generator: np.random.Generator
) -> np.ndarray:
    """(count, dimension, size): orthonormal bases of Haar-distributed subspaces."""
    return np.stack(
        [np.linalg.qr(generator.standard_normal((size, dimension)))[0].T for _ in range(count)]
    )


def matched_tokens(
    lengths: np.ndarray, ids: Sequence[int], count: int, generator: np.random.Generator
) -> np.ndarray:
    """(count, k) token ids drawn without the probes' own, each among the 32 tokens whose embedding
    is nearest in length to its probe's.
    """
    order = np.argsort(lengths, kind="stable")
    free = order[~np.isin(order, ids) & (lengths[order] > 0)]
    if not len(free):
        raise InputError(
            "vocabulary: no token beside a probe set's own has a vector, so none can be matched "
            "with them; leave tokens out"
        )
    columns = []
    for identifier in ids:
        place = int(np.searchsorted(lengths[free], lengths[identifier]))
        start = max(min(place - 16, len(free) - 32), 0)
        columns.append(generator.choice(free[start : start + 32], count))
    return np.stack(columns, axis=1)


def energy_ratios(shape: float, count: int, generator: np.random.Generator) -> np.ndarray:
    """Squared norms of a random change over their mean, (count,): a gamma law, its shape one over
    the squared relative spread.
    """
    return generator.gamma(shape, size=count) / shape


def largest_energy_ratios(
    shapes: np.ndarray, count: int, generator: np.random.Generator
) -> np.ndarray:
    """The largest of independent such ratios, one of each shape, (count,): by inversion of the law
    of the maximum on a grid.
    """
    kinds, members = np.unique(np.round(shapes, 6), return_counts=True)
    if len(kinds) == 1:
        return gammaincinv(kinds[0], generator.random(count) ** (1 / members[0])) / kinds[0]
    ends = [
        float((gammaincinv(kinds, probability) / kinds).max())
        for probability in (0.5, 1 - 1e-9 / len(shapes))
    ]
    grid = np.geomspace(ends[0] / 8, ends[1] * 2, GRID)
    log_law = np.zeros(GRID)
    for kind, number in zip(kinds, members, strict=True):
        log_law += number * np.log(np.maximum(gammainc(kind, kind * grid), 1e-300))
    return np.interp(np.log(generator.random(count)), log_law, grid)
