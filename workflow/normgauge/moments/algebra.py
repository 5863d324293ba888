"""Moments as immutable values: n, mean, and the centred second moment as a scatter matrix or as its
triangular factor.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache, reduce

import numpy as np
import torch
from scipy.linalg import cho_factor, cho_solve, eigh, solve_triangular
from threadpoolctl import ThreadpoolController

from normgauge.errors import InputError
from normgauge.moments.packed import PackedMoments, packed_triangle

EPSILON = {
    "cov32": float(np.finfo(np.float32).eps),
    "cov64": float(np.finfo(np.float64).eps),
    "tsqr64": float(np.finfo(np.float64).eps),
}


@contextmanager
def one_thread() -> Iterator[None]:
    """LAPACK's decompositions split their sums by thread count; on one thread they give the same
    bits whatever the job was given.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with _thread_pools().limit(limits=1, user_api="blas"):
            yield
    finally:
        torch.set_num_threads(threads)


@cache
def _thread_pools() -> ThreadpoolController:
    """The thread pools of the libraries loaded so far: looking for them takes longer than a small
    decomposition.
    """
    return ThreadpoolController()


@dataclass(frozen=True)
class Spectrum:
    """Singular values of a sample matrix, and its bottom directions when asked for: few of a
    scatter's cost less than all.

    values: (d,) float64, ascending, not divided by sqrt(n). Units: activation.
    order: (d,) int, the coordinate that each row of `scatter` or `vectors` stands for; one of these
        two is given.
    scatter: (d, d), rows and columns in that order. vectors: (d, d), columns ascending with
        `values`.
    """

    values: np.ndarray
    order: np.ndarray
    scatter: np.ndarray | None = None
    vectors: np.ndarray | None = None

    def bottom(self, count: int) -> np.ndarray:
        """(d, count) orthonormal right singular vectors of the `count` >= 1 smallest singular
        values, ascending.
        """
        if self.vectors is not None:
            ordered = self.vectors[:, :count]
        else:
            with one_thread():
                _, ordered = eigh(self.scatter, subset_by_index=[0, count - 1])
        directions = np.empty_like(ordered)
        directions[self.order] = ordered
        return directions


@dataclass(frozen=True)
class Moments:
    """First and second moments of n samples in d coordinates.

    method: how they were accumulated, `cov32`, `cov64` or `tsqr64`.
    n: number of samples.
    mean: (d,) float64.
    matrix: (d, d) float64. For `cov*` the centred scatter S = sum (x - mean)(x - mean)^T; for
        `tsqr64` the upper triangular R with R^T R = S, from a QR factorisation of the samples
        (Golub and Van Loan, Matrix Computations, section 5.2; the streaming form is Demmel et al.
        2012, "Communication-optimal parallel and sequential QR and LU factorizations").
    groups: the same samples by group of sequences, number -> moments; empty where that was not
        kept.
    distinct: sorted uint64 hashes of the distinct samples, where they were kept.

    Merging is associative and commutative up to rounding, and the empty moments are its identity.
    """

    method: str
    n: int
    mean: np.ndarray
    matrix: np.ndarray
    groups: Mapping[int, PackedMoments] = field(default_factory=dict)
    distinct: np.ndarray | None = None

    @property
    def d(self) -> int:
        return int(self.mean.shape[0])

    @property
    def distinct_rows(self) -> int | None:
        """How many different samples there are, None where they were not compared."""
        return None if self.distinct is None else int(self.distinct.size)

    @property
    def least_samples(self) -> int:
        """The number of different samples where they were compared, else of all: what a covariance
        of these coordinates rests on.
        """
        return self.n if self.distinct is None else int(self.distinct.size)

    @classmethod
    def of_groups(
        cls, groups: Mapping[int, PackedMoments], distinct: np.ndarray | None = None
    ) -> Moments:
        """The union of these groups, in the order of their numbers."""
        whole = merge_all(unpack(groups[number]) for number in sorted(groups))
        return replace(whole, groups=dict(groups), distinct=distinct)

    def pack(self) -> PackedMoments:
        """The same numbers as a packed triangle, without groups."""
        return PackedMoments(self.method, self.n, self.mean, packed_triangle(self.matrix))

    @classmethod
    def empty(cls, method: str, d: int) -> Moments:
        return cls(method, 0, np.zeros(d), np.zeros((d, d)))

    def scatter(self, centred: bool = True) -> np.ndarray:
        """(d, d) scatter, sum over samples of x x^T, with or without the mean removed. Units:
        activation squared.
        """
        scatter = self.matrix.T @ self.matrix if self.method == "tsqr64" else self.matrix
        return scatter if centred else scatter + self.n * np.outer(self.mean, self.mean)

    def factor(self, centred: bool = True) -> np.ndarray:
        """(d, d) upper triangular R with R^T R = scatter. Only `tsqr64` has one that is accurate
        below sqrt(eps).
        """
        if self.method != "tsqr64":
            raise ValueError(f"{self.method} holds a scatter matrix, not a triangular factor")
        return self.matrix if centred else _triangle(self.matrix, np.sqrt(self.n) * self.mean[None])

    def filled(self, directions: np.ndarray) -> Moments:
        """These moments with the variance along orthonormal `directions` (d, k) replaced by that of
        a median coordinate.

        Mean and covariance of the complement stay. Fills an exact kernel, so that what is left can
        be inverted.
        """
        if self.method == "tsqr64":
            sizes = np.einsum("ij,ij->j", self.matrix, self.matrix)
            rest = self.matrix - (self.matrix @ directions) @ directions.T
            return Moments(
                self.method,
                self.n,
                self.mean,
                _triangle(rest, np.sqrt(np.median(sizes)) * directions.T),
            )
        image = self.matrix @ directions
        inner = directions.T @ image + np.median(self.matrix.diagonal()) * np.eye(
            directions.shape[1]
        )
        crossed = image @ directions.T
        return Moments(
            self.method,
            self.n,
            self.mean,
            self.matrix - crossed - crossed.T + directions @ inner @ directions.T,
        )

    def whitened(self, vectors: np.ndarray) -> np.ndarray:
        """C^-1 times `vectors` (d,), C the covariance S / n: by Cholesky's factor of the scatter,
        or by the triangular factor itself.

        Raises numpy.linalg.LinAlgError where C is singular.
        """
        if self.method == "tsqr64":
            inner = solve_triangular(self.matrix, vectors, trans="T")
            return self.n * solve_triangular(self.matrix, inner)
        with one_thread():
            return self.n * cho_solve(cho_factor(self.matrix), vectors)

    def spectrum(self, centred: bool = True) -> Spectrum:
        """Singular values and right singular vectors of the sample matrix.

        `cov*`: square roots of the scatter's eigenvalues (negative ones, which are rounding, read
            0); `tsqr64`: SVD of the factor.
        """
        matrix, order = self._largest_first(centred)
        with one_thread():
            if self.method == "tsqr64":
                _, sigma, rows = torch.linalg.svd(torch.from_numpy(matrix))
                return Spectrum(sigma.flip(0).numpy(), order, vectors=rows.flip(0).T.numpy())
            return Spectrum(np.sqrt(np.maximum(_eigenvalues(matrix), 0.0)), order, scatter=matrix)

    def gram_eigenvalues(self) -> np.ndarray:
        """Eigenvalues (ascending) of A = X^T X / n, uncentred, signs kept: a negative one is
        rounding and is not hidden.
        """
        matrix, _ = self._largest_first(centred=False)
        with one_thread():
            if self.method == "tsqr64":
                return (
                    torch.linalg.svdvals(torch.from_numpy(matrix)).flip(0) ** 2 / self.n
                ).numpy()
            return _eigenvalues(matrix / self.n)

    def _largest_first(self, centred: bool) -> tuple[np.ndarray, np.ndarray]:
        """The factor or scatter with its coordinates sorted by size, the largest first, and that
        order.

        LAPACK's reductions eliminate the leading coordinates first. Where a few are massive
        (activation outliers lie along axes), this order leaves the small singular values an
        accuracy relative to themselves; in another they inherit the rounding of the large ones.
        That is measured here (benchmarks/moments.py), not proven: proofs exist for Jacobi's method
        (Demmel and Veselić 1992, "Jacobi's method is more accurate than QR"). Vectors of a scatter
        do not share it.
        """
        factored = self.method == "tsqr64"
        matrix = self.factor(centred) if factored else self.scatter(centred)
        sizes = np.einsum("ij,ij->j", matrix, matrix) if factored else matrix.diagonal()
        order = np.argsort(-sizes, kind="stable")
        ordered = matrix.take(order, axis=1)
        return ordered if factored else ordered.take(order, axis=0), order

    def length_along(self, direction: np.ndarray, centred: bool = True) -> float:
        """|X v| (centred or raw) along a unit vector v of shape (d,); 0 where rounding makes the
        square negative, never NaN.
        """
        if self.method == "tsqr64":
            return float(np.linalg.norm(self.factor(centred) @ direction))
        return float(np.sqrt(max(direction @ self.scatter(centred) @ direction, 0.0)))

    def accumulator_floor(self, sigma_max: float) -> float:
        """Singular values below this are rounding of the accumulation.

        A scatter matrix carries eps sigma_max^2 in its eigenvalues, hence sqrt(eps) sigma_max; the
        orthogonal factor d eps sigma_max. The first is a size and no bound (an exact kernel comes
        out above it now and then), so twice that.
        """
        epsilon = EPSILON[self.method]
        return sigma_max * (
            self.d * epsilon if self.method == "tsqr64" else 2.0 * float(np.sqrt(epsilon))
        )


def _eigenvalues(matrix: np.ndarray) -> np.ndarray:
    """All eigenvalues of a symmetric matrix, ascending, by the route without vectors: of those with
    vectors, divide and conquer lost small values beside large ones, and relatively robust
    representations put an exact kernel above its floor.
    """
    return eigh(matrix, eigvals_only=True, driver="evr")


def merge(a: Moments, b: Moments) -> Moments:
    """Moments of the union of two sample sets (Chan, Golub and LeVeque 1983, updating formulae for
    variances).

    Two triangular factors merge into one; any other pair merges as scatter matrices, and takes the
    less accurate method's name. Groups of one number merge likewise.
    Raises InputError when the widths differ.
    """
    if a.d != b.d:
        raise InputError(
            f"cannot merge moments of widths {a.d} and {b.d}: they are not shards of one site"
        )
    if not a.n or not b.n:
        return a if a.n else b
    n = a.n + b.n
    difference = b.mean - a.mean
    mean = a.mean + difference * (b.n / n)
    between = np.sqrt(a.n * b.n / n) * difference[None]
    groups = _merged_groups(a.groups, b.groups) if a.groups and b.groups else {}
    distinct = (
        None if a.distinct is None or b.distinct is None else np.union1d(a.distinct, b.distinct)
    )
    if a.method == b.method == "tsqr64":
        return Moments("tsqr64", n, mean, _triangle(a.matrix, b.matrix, between), groups, distinct)
    method = min(a.method, b.method, key=("cov32", "cov64", "tsqr64").index)
    return Moments(
        method, n, mean, a.scatter() + b.scatter() + between.T @ between, groups, distinct
    )


def unpack(packed: PackedMoments) -> Moments:
    """Moments from a packed triangle."""
    return Moments(packed.method, packed.n, packed.mean, packed.matrix())


def _merged_groups(
    a: Mapping[int, PackedMoments], b: Mapping[int, PackedMoments]
) -> dict[int, PackedMoments]:
    """Groups of one number, of which each side has a part, become one."""
    shared = {
        number: merge(unpack(a[number]), unpack(b[number])).pack() for number in a.keys() & b.keys()
    }
    return {
        number: shared.get(number) or a.get(number) or b[number]
        for number in sorted(a.keys() | b.keys())
    }


def merge_all(parts: Iterable[Moments]) -> Moments:
    """Left fold of `merge`."""
    return reduce(merge, parts)


def _triangle(*rows: np.ndarray) -> np.ndarray:
    """Upper triangular R of the stacked rows."""
    return torch.linalg.qr(torch.from_numpy(np.vstack(rows)), mode="r").R.numpy()
