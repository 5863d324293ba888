"""The algebra of low-rank kernels: products of two thin factors, compared without ever forming the
product.

A kernel K = left @ right with left (m, r) and right (r, n), r far below m and n. Inner products are
traces of r x r matrices. The change between two kernels of one basis is exact and free of
cancellation: B - A = dL R_mid + L_mid dR.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product

import numpy as np

Factor = tuple[int, str]
"""A factor of units: its number, and "d" for its change, "m" for its mean."""
Form = Callable[[Factor, Factor], np.ndarray]
RUN = 256  # units whose inner products with all others are in memory at once


@dataclass(frozen=True, eq=False)
class Kernel:
    """left @ right, float64."""

    left: np.ndarray
    right: np.ndarray

    def inner(self, other: Kernel) -> float:
        """Frobenius inner product."""
        return float(np.vdot(self.left.T @ other.left, self.right @ other.right.T))

    def energy(self) -> float:
        """Squared Frobenius norm."""
        return max(self.inner(self), 0.0)

    def singular_values(self) -> np.ndarray:
        """In descending order, as many as the rank may be."""
        left, right = np.linalg.qr(self.left)[1], np.linalg.qr(self.right.T)[1]
        return np.linalg.svd(left @ right.T)[1]

    def applied(self, inputs: np.ndarray) -> np.ndarray:
        """(l, m): what the kernel makes of each row of inputs (l, n)."""
        return (inputs @ self.right.T) @ self.left.T

    def between(self, outputs: np.ndarray, inputs: np.ndarray) -> np.ndarray:
        """(k, l): outputs (k, m) @ K @ inputs.T, inputs (l, n)."""
        return (outputs @ self.left) @ (self.right @ inputs.T)


def midpoint(first: Kernel, second: Kernel) -> Kernel:
    """The mean of the two products, not the product of the means."""
    return Kernel(np.hstack([first.left, second.left]) / 2, np.vstack([first.right, second.right]))


def change_parts(first: Kernel, second: Kernel) -> tuple[Kernel, Kernel]:
    """second - first = (change of the left factor) + (change of the right factor), each against the
    mean of the other factor.
    """
    return (
        Kernel(second.left - first.left, (first.right + second.right) / 2),
        Kernel((first.left + second.left) / 2, second.right - first.right),
    )


def change(first: Kernel, second: Kernel) -> Kernel:
    """second - first, exactly zero where the factors are equal."""
    parts = change_parts(first, second)
    return Kernel(
        np.hstack([part.left for part in parts]), np.vstack([part.right for part in parts])
    )


def ratio(part: float, whole: float) -> float:
    """part / whole, and 0 where there is nothing: of no change every share is zero."""
    return part / whole if whole else 0.0


def effective_rank(energies: np.ndarray) -> float:
    """(sum of eigenvalues)^2 / sum of their squares; 0 for none."""
    return ratio(float(energies.sum()) ** 2, float((energies**2).sum()))


def top_share(energies: np.ndarray, count: int) -> float:
    """Share of the `count` largest eigenvalues in their sum; 0 for none."""
    return ratio(float(np.sort(energies)[::-1][:count].sum()), float(energies.sum()))


@dataclass(frozen=True)
class Term:
    """One term of a product of n factors, each at its mean ("m") or its change ("d"): `kinds` by
    factor, `weight` in the sum.
    """

    kinds: tuple[str, ...]
    weight: float

    @property
    def name(self) -> str:
        return "".join(self.kinds)


def change_terms(count: int) -> list[Term]:
    """prod(B) - prod(A) = sum of weight * term: every odd set S of factors at their changes, weight
    4^-((|S| - 1) / 2).

    Two factors: d m + m d. Three: d m m + m d m + m m d + d d d / 4.
    """
    return [
        Term(kinds, 0.25 ** (kinds.count("d") // 2))
        for kinds in product("md", repeat=count)
        if kinds.count("d") % 2
    ]


def mean_terms(count: int) -> list[Term]:
    """(prod(A) + prod(B)) / 2 = sum of weight * term: the even sets, weight 4^-(|S| / 2)."""
    return [
        Term(kinds, 0.25 ** (kinds.count("d") // 2))
        for kinds in product("md", repeat=count)
        if kinds.count("d") % 2 == 0
    ]


class Units:
    """Feed-forward units of A and B in one order: d_j (x) sym(reads of j), d_j what unit j writes,
    reads its up or its gate and up rows.

    `factors` are (down, *reads) of A and of B, each (f, n). Inner products of terms come from Gram
    matrices, a run of RUN units against all units at a time.
    """

    def __init__(self, first: tuple[np.ndarray, ...], second: tuple[np.ndarray, ...]) -> None:
        self.count = len(first)
        self._factors = {
            (number, kind): value
            for number, (before, after) in enumerate(zip(first, second, strict=True))
            for kind, value in (("d", after - before), ("m", (after + before) / 2))
        }

    def _pairs(self, left: tuple[int, str], right: tuple[int, str]) -> np.ndarray:
        return np.einsum("ij,ij->i", self._factors[left], self._factors[right])

    def _products(
        self,
        first: Term,
        second: Term,
        form: Form,
    ) -> np.ndarray:
        """<term of j, term of k>, over all pairs of units or over equal units, as `form` gives the
        factors' inner products.
        """
        left, right = list(enumerate(first.kinds)), list(enumerate(second.kinds))
        if self.count == 2:
            return form(left[0], right[0]) * form(left[1], right[1])
        straight = form(left[1], right[1]) * form(left[2], right[2])
        crossed = form(left[1], right[2]) * form(left[2], right[1])
        return form(left[0], right[0]) * (straight + crossed) / 2

    def gram(self, terms: Sequence[Term]) -> np.ndarray:
        """(T, T): weighted inner products of the terms, each summed over all units; the sum of the
        matrix is the squared norm of their sum.
        """
        return self.grams([terms])[0]

    def grams(
        self,
        groups: Sequence[Sequence[Term]],
        projections: Sequence[tuple[np.ndarray, np.ndarray]] = (),
    ) -> list[np.ndarray]:
        """`gram` of each group of terms, then of the first group with other down factors of A and
        of B in place of these, (f, k) each: what units write, projected.
        """
        downs = [
            {(0, "d"): second - first, (0, "m"): (first + second) / 2}
            for first, second in projections
        ]
        found = [
            np.zeros((len(terms), len(terms))) for terms in (*groups, *([groups[0]] * len(downs)))
        ]
        for start in range(0, len(self._factors[0, "m"]), RUN):
            run = slice(start, start + RUN)
            shared = _grams(self._factors, run)
            for terms, total in zip(groups, found, strict=False):
                self._add(terms, shared, total)
            for down, total in zip(downs, found[len(groups) :], strict=True):
                self._add(groups[0], _replaced(_grams(down, run), shared), total)
        return [total + np.tril(total, -1).T for total in found]

    def _add(
        self,
        terms: Sequence[Term],
        form: Form,
        total: np.ndarray,
    ) -> None:
        """Add one run's inner products to the lower triangle of `total`."""
        for row, first in enumerate(terms):
            for column, second in enumerate(terms[: row + 1]):
                inner = float(self._products(first, second, form).sum())
                total[row, column] += first.weight * second.weight * inner

    def energies(self, terms: Sequence[Term]) -> np.ndarray:
        """(f,): squared norm of the sum of the terms, unit by unit."""
        total = sum(
            first.weight * second.weight * self._products(first, second, self._pairs)
            for first in terms
            for second in terms
        )
        return np.maximum(np.asarray(total), 0.0)

    def term_energies(self, terms: Sequence[Term]) -> np.ndarray:
        """(f,): sum of the squared norms of the terms, unit by unit, without their inner
        products.
        """
        return np.asarray(
            sum(term.weight**2 * self._products(term, term, self._pairs) for term in terms)
        )


def _grams(factors: Mapping[tuple[int, str], np.ndarray], run: slice) -> Form:
    """(r, f): inner products of a run of units with all units, by pair of factors, each found
    once.
    """

    @cache
    def form(left: tuple[int, str], right: tuple[int, str]) -> np.ndarray:
        return factors[left][run] @ factors[right].T

    return form


def _replaced(
    down: Form,
    shared: Form,
) -> Form:
    """The inner products of other down factors, and of the reads as they are."""

    def form(left: tuple[int, str], right: tuple[int, str]) -> np.ndarray:
        return (shared if left[0] else down)(left, right)

    return form
