"""The bottom of a spectrum alone: a triangular factor and a few Lanczos steps on its inverse.

All singular values cost several times as much, and a jackknife asks for the bottom once per group.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from scipy.linalg.lapack import dpotrf, dpotrs
from scipy.sparse.linalg import ArpackNoConvergence, LinearOperator, eigsh

from normgauge.moments.algebra import Moments, one_thread

_KRYLOV = 20
"""Dimension of the Krylov space; where so many steps save nothing all singular values are taken."""

_TOLERANCE = 1e-6
"""Of the Lanczos residual relative to the value. The value's own error is of second order in it,
the vector's of first over the gap to the next value: both far below what a group of sequences
changes, which is all that these values are taken for.
"""


@dataclass(frozen=True)
class Bottom:
    """values: (count,) smallest singular values, ascending, not divided by sqrt(n). vectors: (d,
    count) theirs.
    """

    values: np.ndarray
    vectors: np.ndarray


def bottom_of(moments: Moments, centred: bool, count: int) -> Bottom:
    """The `count` smallest singular values of the samples, and their vectors: the same bits on any
    number of threads.

    Where rounding makes a scatter indefinite, and where `count` is large, all are computed.
    """
    if moments.d > _KRYLOV * count:
        with one_thread():
            factor = _triangular_factor(moments, centred)
            found = None if factor is None else _inverse_lanczos(factor, count)
        if found is not None:
            return found
    spectrum = moments.spectrum(centred)
    return Bottom(spectrum.values[:count], spectrum.bottom(count))


def lifted(moments: Moments, directions: np.ndarray, sigma: float) -> Moments:
    """The moments with a variance sigma^2 / n added along each of the orthonormal `directions` (d,
    k), k >= 0.

    Along a kernel there is then sigma, and the values below it are those of the complement.
    """
    if moments.method == "tsqr64":
        rows = np.vstack([moments.matrix, sigma * directions.T])
        return replace(moments, matrix=torch.linalg.qr(torch.from_numpy(rows), mode="r").R.numpy())
    return replace(moments, matrix=moments.matrix + sigma**2 * directions @ directions.T)


def _triangular_factor(moments: Moments, centred: bool) -> np.ndarray | None:
    """(d, d) upper triangular C with C^T C = scatter, in Fortran's order; None where rounding makes
    the scatter indefinite.
    """
    if moments.method == "tsqr64":
        return np.asfortranarray(moments.factor(centred))
    factor, failed = dpotrf(moments.scatter(centred).T, overwrite_a=not centred, clean=0)
    return None if failed else factor


def _inverse_lanczos(factor: np.ndarray, count: int) -> Bottom | None:
    """Largest eigenpairs of (C^T C)^-1, from a fixed start (Parlett, The Symmetric Eigenvalue
    Problem, chapter 13).
    """
    d = factor.shape[0]
    if not np.diagonal(factor).all():
        return None
    inverse = LinearOperator(
        (d, d), matvec=lambda vector: dpotrs(factor, vector)[0].ravel(), dtype=np.float64
    )
    start = np.random.default_rng(0).standard_normal(d)
    try:
        values, vectors = eigsh(
            inverse, k=count, which="LA", v0=start, ncv=max(_KRYLOV, 4 * count), tol=_TOLERANCE
        )
    except ArpackNoConvergence:
        return None
    order = np.argsort(-values)
    return Bottom(values[order] ** -0.5, vectors[:, order])
