"""Streaming accumulation: chunks of activations in, moments out; one (d + 1)^2 matrix per site is
all that is held.
"""

from __future__ import annotations

import numpy as np
import torch
from scipy.linalg.blas import dsyrk, ssyrk

from normgauge.errors import InputError
from normgauge.moments.algebra import Moments

METHODS = ("cov32", "cov64", "tsqr64")


class Workspace:
    """One buffer that all accumulators of a capture widen their chunks in, one after the other."""

    def __init__(self) -> None:
        self._flat: dict[torch.dtype, torch.Tensor] = {}

    def matrix(self, rows: int, columns: int, dtype: torch.dtype) -> torch.Tensor:
        """An uninitialised (rows, columns) matrix, valid until the next call."""
        flat = self._flat.get(dtype)
        if flat is None or flat.numel() < rows * columns:
            flat = self._flat[dtype] = torch.empty(rows * columns, dtype=dtype)
        return flat[: rows * columns].view(rows, columns)


class Accumulator:
    """Accumulates chunks (rows are samples) of one site.

    method: `cov32` (float32 scatter, the historical baseline), `cov64` (float64 scatter, the
    published protocol) or `tsqr64` (streaming Householder QR, accurate below sqrt(eps)).

    Every chunk enters as [1, X - shift], shift being the first chunk's mean: the ones column makes
    sums and second moments one symmetric rank-k update (BLAS syrk, half the work of a general
    product), and the shift keeps the subtraction of the mean at the end from cancelling (a shift
    changes no centred moment). Chunks are widened to the accumulator's dtype while they are
    shifted, in one pass. Only the upper triangle of a scatter is kept up.
    """

    def __init__(self, method: str, d: int, workspace: Workspace | None = None) -> None:
        if method not in METHODS:
            raise InputError(
                f"accumulation {method!r} is unknown: expected one of {', '.join(METHODS)}"
            )
        self.method, self.d, self.n = method, d, 0
        self._dtype = torch.float32 if method == "cov32" else torch.float64
        self._shift: torch.Tensor | None = None
        self._workspace = workspace or Workspace()
        self._matrix = np.zeros(
            (d + 1, d + 1), dtype=np.float32 if method == "cov32" else np.float64, order="F"
        )

    def update(self, chunk: torch.Tensor) -> None:
        """Add samples: chunk is (m, d), any floating dtype, on any device. Raises InputError on NaN
        or infinity.
        """
        if chunk.ndim != 2 or chunk.shape[1] != self.d:
            raise ValueError(f"expected a chunk of shape (m, {self.d}), got {tuple(chunk.shape)}")
        chunk = chunk.detach().cpu()
        if chunk.dtype in (torch.float16, torch.bfloat16):
            chunk = chunk.float()
        if self._shift is None:
            self._shift = chunk.mean(dim=0, dtype=self._dtype)
        rows = self._widened(chunk, self._shift)
        if self.method == "tsqr64":
            stacked = (
                torch.cat([torch.from_numpy(self._matrix), rows])
                if self.n or rows.shape[0] <= self.d
                else rows
            )
            self._matrix = torch.linalg.qr(stacked, mode="r").R.numpy()
        else:
            syrk = ssyrk if self.method == "cov32" else dsyrk
            self._matrix = syrk(1.0, rows.numpy().T, beta=1.0, c=self._matrix, overwrite_c=1)
        self.n += chunk.shape[0]
        if not (np.isfinite(self._matrix[0]).all() and np.isfinite(self._matrix.diagonal()).all()):
            raise InputError(
                "activations hold NaN or infinity: check the checkpoint's weights and the forward "
                "dtype's range"
            )

    def _widened(self, chunk: torch.Tensor, shift: torch.Tensor) -> torch.Tensor:
        """[1, chunk - shift], shape (m, d + 1), in the shared workspace."""
        rows = self._workspace.matrix(chunk.shape[0], self.d + 1, self._dtype)
        rows[:, 0] = 1.0
        torch.sub(chunk, shift, out=rows[:, 1:])
        return rows

    def moments(self) -> Moments:
        """The moments of all samples so far. float64 whatever the method; `cov32` keeps its float32
        rounding.
        """
        if self.n == 0 or self._shift is None:
            return Moments.empty(self.method, self.d)
        shift = self._shift.double().numpy()
        matrix = self._matrix
        if self.method == "tsqr64":
            # Row 0 of the factor of [1, X - shift] is +-[sqrt(n), sqrt(n) (mean - shift)]; what is
            # left is the centred factor.
            return Moments(
                self.method,
                self.n,
                shift + matrix[0, 1:] / matrix[0, 0],
                np.ascontiguousarray(matrix[1:, 1:]),
            )
        sums = np.ascontiguousarray(matrix[0, 1:])
        # The upper triangle of a matrix in Fortran's order is the lower one of its transpose, which
        # torch reads without a copy.
        lower = torch.addr(
            torch.from_numpy(matrix.T)[1:, 1:],
            torch.from_numpy(sums),
            torch.from_numpy(sums),
            alpha=-1.0 / self.n,
        ).tril_()
        scatter = lower + lower.T.triu(1)
        return Moments(
            self.method, self.n, shift + sums.astype(np.float64) / self.n, scatter.double().numpy()
        )
