"""Two independent arithmetic routes for the same linear algebra; recovered bits must not depend on
which one ran.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
import scipy.linalg
import torch

from normgauge.errors import InputError
from normgauge.exact_recovery import sliced_product

ROWS_AT_ONCE = 512


class Arithmetic(Protocol):
    """Float64 linear algebra on C-ordered numpy arrays."""

    name: str

    def qr(self, design: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Householder QR of an (N, n) matrix: orthonormal (N, n) and upper triangular (n, n)."""

    def product(self, left: np.ndarray, right: np.ndarray) -> np.ndarray:
        """Matrix product."""

    def solve_triangle(self, triangle: np.ndarray, right: np.ndarray) -> np.ndarray:
        """Solution of triangle @ x = right for an upper triangle."""

    def residual(self, targets: np.ndarray, design: np.ndarray, values: np.ndarray) -> np.ndarray:
        """targets - design @ values with the cancellation done in extended precision; (N, k)
        float64.
        """


class Torch:
    """PyTorch's BLAS and LAPACK (Intel MKL in the published x86 builds): blocked Householder
    reflectors (geqrf, orgqr).

    Residuals by sliced products, to about twice float64's precision.
    """

    name = "torch"

    def qr(self, design: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        orthogonal, triangle = torch.linalg.qr(torch.from_numpy(design), mode="reduced")
        return orthogonal.numpy(), triangle.numpy()

    def product(self, left: np.ndarray, right: np.ndarray) -> np.ndarray:
        return (torch.from_numpy(left) @ torch.from_numpy(right)).numpy()

    def solve_triangle(self, triangle: np.ndarray, right: np.ndarray) -> np.ndarray:
        return torch.linalg.solve_triangular(
            torch.from_numpy(triangle), torch.from_numpy(right), upper=True
        ).numpy()

    def residual(self, targets: np.ndarray, design: np.ndarray, values: np.ndarray) -> np.ndarray:
        return sliced_product.residual(targets, design, values, self.product)


class Scipy:
    """scipy's BLAS and LAPACK (OpenBLAS). Residuals in numpy's longdouble, on x86 the 64-bit
    mantissas of the floating-point unit.
    """

    name = "scipy"

    def qr(self, design: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return scipy.linalg.qr(design, mode="economic", check_finite=False)

    def product(self, left: np.ndarray, right: np.ndarray) -> np.ndarray:
        return left @ right

    def solve_triangle(self, triangle: np.ndarray, right: np.ndarray) -> np.ndarray:
        return scipy.linalg.solve_triangular(triangle, right, check_finite=False)

    def residual(self, targets: np.ndarray, design: np.ndarray, values: np.ndarray) -> np.ndarray:
        long_values, left = values.astype(np.longdouble), np.empty(targets.shape)
        for start in range(0, len(design), ROWS_AT_ONCE):
            rows = slice(start, start + ROWS_AT_ONCE)
            # einsum goes along the rows of `values`; the product of matrices goes down its columns,
            # at half the speed where they are many
            left[rows] = targets[rows] - np.einsum(
                "ik,kj->ij", design[rows].astype(np.longdouble), long_values
            )
        return left


ROUTES: dict[str, Arithmetic] = {route.name: route for route in (Torch(), Scipy())}


def arithmetic(name: str) -> Arithmetic:
    """The route of that name; InputError for an unknown one."""
    if name not in ROUTES:
        raise InputError(f"arithmetic {name!r}: expected one of {', '.join(ROUTES)}")
    return ROUTES[name]
