"""Least squares for every output column of a linear map at once, with the noise of each coordinate.

min |A w - y| by Householder QR, A = QR, once per design, then one step of iterative refinement on
the residual (Golub and Van Loan, Matrix Computations, 5.3). The normal equations would square the
condition number and lose the last bits.

The outputs' rounding errors grow with the inputs: rows are scaled by powers of two (exactly) to
about unit length, which evens the errors out, and the noise of a coordinate is estimated from the
residuals that it rests on, var w_j = sum_i P_ji^2 r_i^2 / (1 - l_i) with P = R^-1 Q^T and the
leverages l (the heteroscedasticity-consistent estimator of White 1980, in the form of Horn, Horn
and Duncan 1975). A single deviation for all rows underrates the coordinates that few large rows
decide, by up to a factor of two on real encoders.
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b

import numpy as np

from normgauge.exact_recovery.arithmetic import Arithmetic

DEPENDENT = 1e-12
"""Sine of the angle to the other columns below which a design column counts as dependent: far above
n eps, far below any real spectrum.
"""

FEW_ROWS = 16
"""Number of rows up to which their own residuals are too few to estimate the noise of what they
decide.
"""
TARGET_ROUNDING = 2.0**-53
"""Largest error of rounding a target, relative to it."""
COMMON_ROUNDING = 2.0**-55
"""How much of the targets' rounding, relative to them, may be the same for all rows, so that many
rows do not average it out.
"""


@dataclass(frozen=True)
class Factorisation:
    """A factored design.

    design: (N, n) with its rows scaled by `row_scale` (N, 1); orthogonal: (N, n), triangle: (n, n)
    upper. influence: (n, N), by how much the squared residual of each observation counts in each
    coordinate's variance. few: (m,) coordinates that a handful of rows
    decide, few_squares: (m, N) by how much the squared error of each observation counts in theirs.
        All empty where null_rank > 0.
    null_rank: number of directions that the design does not see.
    """

    design: np.ndarray
    row_scale: np.ndarray
    orthogonal: np.ndarray
    triangle: np.ndarray
    influence: np.ndarray
    few: np.ndarray
    few_squares: np.ndarray
    null_rank: int


@dataclass(frozen=True)
class Solution:
    """values, noise: (n, k), the noise being one standard deviation. relative_residual: (k,)
    deviation of the residual over the size of the targets, about float64's rounding when these are
    a linear function of the design.
    """

    values: np.ndarray
    noise: np.ndarray
    relative_residual: np.ndarray


def design_matrix(inputs: np.ndarray, intercept: bool, without: int | None = None) -> np.ndarray:
    """[X, 1] (or X) as a C-ordered float64 array, with column `without` left out."""
    kept = inputs if without is None else np.delete(inputs, without, axis=1)
    return np.hstack([kept, np.ones((len(kept), 1))]) if intercept else np.ascontiguousarray(kept)


_NOTHING = np.empty((0, 0)), np.empty(0, dtype=np.intp), np.empty((0, 0))


def row_digests(inputs: np.ndarray) -> np.ndarray:
    """(N,) uint64, equal for rows of (N, n) float64 inputs that are bit for bit the same, and
    practically only for these.
    """
    rows = np.ascontiguousarray(inputs)
    return np.array(
        [int.from_bytes(blake2b(row, digest_size=8).digest(), "little") for row in rows],
        dtype=np.uint64,
    )


def distinct_rows(digests: np.ndarray) -> np.ndarray:
    """Ascending indices of the first row of each kind. Equal inputs have equal outputs, rounding
    included: repeated, they are no new observation, and a noise that counted them as one would be
    too small.
    """
    return np.sort(np.unique(digests, return_index=True)[1])


def row_scales(design: np.ndarray) -> np.ndarray:
    """(N, 1) powers of two that bring the rows of an (N, n) design to lengths near 1."""
    lengths = np.sqrt(np.einsum("ij,ij->i", design, design))[:, None]
    return 2.0 ** -np.rint(np.log2(np.where(lengths > 0, lengths, 1.0)))


def deciding_rows(squares: np.ndarray) -> np.ndarray:
    """(n,) effective number of the rows that decide each coordinate, from their (n, N) squared
    weights in it.
    """
    return squares.sum(axis=1) ** 2 / np.einsum("ij,ij->i", squares, squares)


def factorise(design: np.ndarray, arithmetic: Arithmetic) -> Factorisation:
    """QR of an (N, n) design with N > n, and its rank."""
    scale = row_scales(design)
    design = design * scale
    orthogonal, triangle = arithmetic.qr(design)
    lengths = np.sqrt(np.einsum("ij,ij->j", triangle, triangle))
    seen = np.abs(np.diag(triangle)) > DEPENDENT * 1e-3 * lengths
    if seen.all():
        influence = arithmetic.solve_triangle(triangle, np.ascontiguousarray(orthogonal.T))
        np.square(influence, out=influence)
        if (np.sqrt(influence.sum(axis=1)) * lengths < 1 / DEPENDENT).all():
            leverage = np.einsum("ij,ij->i", orthogonal, orthogonal)
            few = np.flatnonzero(deciding_rows(influence) < FEW_ROWS)
            few_squares = influence[few]
            influence /= np.maximum(1 - leverage, 1 / len(design))
            return Factorisation(
                design, scale, orthogonal, triangle, influence, few, few_squares, 0
            )
    scaled = triangle / np.where(lengths > 0, lengths, 1.0)
    singular = np.linalg.svd(scaled, compute_uv=False)
    null_rank = max(1, int((singular <= DEPENDENT * singular[0]).sum()))
    return Factorisation(design, scale, orthogonal, triangle, *_NOTHING, null_rank)


def solve(
    factors: Factorisation, targets: np.ndarray, arithmetic: Arithmetic, extended: bool = False
) -> Solution:
    """Least-squares values of (N, k) targets on a full-rank design.

    `extended` forms the residual in extended precision; what is left of it then is the rounding of
    the targets alone, and so is the noise. A product that made the targets rounds with a bias, so
    that part of it is taken to be common to all rows. A handful of rows that decide a coordinate (a
    feature hardly ever active) leave too little residual to judge their errors by: each is taken to
    have at least the deviation of all rows and the rounding of its target.
    """
    targets = targets * factors.row_scale
    adjoint = factors.orthogonal.T
    values = arithmetic.solve_triangle(factors.triangle, arithmetic.product(adjoint, targets))
    if extended:
        residual = arithmetic.residual(targets, factors.design, values)
    else:
        residual = arithmetic.product(factors.design, values)
        np.subtract(targets, residual, out=residual)
    projected = arithmetic.product(adjoint, residual)
    values += arithmetic.solve_triangle(factors.triangle, projected)
    size = np.einsum("ij,ij->j", targets, targets)
    if extended:
        residual -= arithmetic.product(factors.orthogonal, projected)
        projected = np.zeros((1, 1))
        common = arithmetic.solve_triangle(
            factors.triangle, arithmetic.product(adjoint, COMMON_ROUNDING * np.abs(targets))
        )
    np.square(residual, out=residual)
    left_over = np.maximum(residual.sum(axis=0) - np.einsum("ij,ij->j", projected, projected), 0.0)
    variance = arithmetic.product(factors.influence, residual)
    if extended:
        variance += common**2
    if len(factors.few):
        rows, count = factors.design.shape
        errors = np.maximum(left_over / (rows - count), np.square(TARGET_ROUNDING * targets))
        variance[factors.few] = np.maximum(
            variance[factors.few], arithmetic.product(factors.few_squares, errors)
        )
    noise = np.sqrt(variance)
    return Solution(values, noise, np.sqrt(left_over / np.where(size > 0, size, 1.0)))
