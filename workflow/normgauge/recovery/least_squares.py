"""Least squares for every output column of a linear map at once, with the noise of each coordinate.

min |A w - y| by Householder QR, A = QR, once per design, then one step of iterative refinement on the residual (Golub and Van
Loan, Matrix Computations, 5.3). The normal equations would square the condition number and lose the last bits.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from normgauge.recovery import sliced_product
from normgauge.recovery.arithmetic import Arithmetic

DEPENDENT = 1e-12
"""Sine of the angle to the other columns below which a design column counts as dependent: far above n eps, far below any real spectrum."""


@dataclass(frozen=True)
class Factorisation:
    """A factored design.

    design: (N, n), orthogonal: (N, n), triangle: (n, n) upper; row_norms: (n,) norms of the rows of triangle^-1, that is
    sqrt(diag((A^T A)^-1)): the noise of coordinate j is row_norms[j] times the deviation of the targets.
    null_rank: number of directions that the design does not see; row_norms is infinite when it is not 0.
    """

    design: np.ndarray
    orthogonal: np.ndarray
    triangle: np.ndarray
    row_norms: np.ndarray
    null_rank: int


@dataclass(frozen=True)
class Solution:
    """values: (n, k). deviation: (k,) standard deviation of the residual per observation. scale: (k,) root mean square of the targets."""

    values: np.ndarray
    deviation: np.ndarray
    scale: np.ndarray

    @property
    def relative_residual(self) -> np.ndarray:
        """(k,) deviation over scale: about float64's rounding when the targets are a linear function of the design."""
        return self.deviation / np.where(self.scale > 0, self.scale, 1.0)


def design_matrix(inputs: np.ndarray, intercept: bool, without: int | None = None) -> np.ndarray:
    """[X, 1] (or X) as a C-ordered float64 array, with column `without` left out."""
    kept = inputs if without is None else np.delete(inputs, without, axis=1)
    return np.hstack([kept, np.ones((len(kept), 1))]) if intercept else np.ascontiguousarray(kept)


def factorise(design: np.ndarray, arithmetic: Arithmetic) -> Factorisation:
    """QR of an (N, n) design with N > n, and its rank."""
    orthogonal, triangle = arithmetic.qr(design)
    lengths = np.sqrt(np.einsum("ij,ij->j", triangle, triangle))
    count = design.shape[1]
    seen = np.abs(np.diag(triangle)) > DEPENDENT * 1e-3 * lengths
    row_norms = np.full(count, np.inf)
    if seen.all():
        inverse = arithmetic.solve_triangle(triangle, np.eye(count))
        row_norms = np.sqrt(np.einsum("ij,ij->i", inverse, inverse))
        if (row_norms * lengths < 1 / DEPENDENT).all():
            return Factorisation(design, orthogonal, triangle, row_norms, 0)
    scaled = triangle / np.where(lengths > 0, lengths, 1.0)
    singular = np.linalg.svd(scaled, compute_uv=False)
    null_rank = max(1, int((singular <= DEPENDENT * singular[0]).sum()))
    return Factorisation(design, orthogonal, triangle, np.full(count, np.inf), null_rank)


def solve(factors: Factorisation, targets: np.ndarray, arithmetic: Arithmetic, extended: bool = False) -> Solution:
    """Least-squares values of (N, k) targets on a full-rank design; `extended` forms the residual by sliced products."""
    rows, count = factors.design.shape
    adjoint = factors.orthogonal.T
    values = arithmetic.solve_triangle(factors.triangle, arithmetic.product(adjoint, targets))
    if extended:
        residual = sliced_product.residual(targets, factors.design, values, arithmetic.product)
    else:
        residual = arithmetic.product(factors.design, values)
        np.subtract(targets, residual, out=residual)
    projected = arithmetic.product(adjoint, residual)
    values += arithmetic.solve_triangle(factors.triangle, projected)
    left_over = np.einsum("ij,ij->j", residual, residual) - np.einsum("ij,ij->j", projected, projected)
    deviation = np.sqrt(np.maximum(left_over, 0.0) / (rows - count))
    scale = np.sqrt(np.einsum("ij,ij->j", targets, targets) / rows)
    return Solution(values, deviation, scale)
