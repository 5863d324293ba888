"""Moments as packed triangles: half the numbers of a square matrix, in memory and on disk."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.linalg.lapack import dtpttr, dtrttp


@dataclass(frozen=True)
class PackedMoments:
    """The moments of one group of samples; see `Moments`.

    triangle: (d (d + 1) / 2,) float64. The columns of the matrix's upper triangle one after the
        other, column j with its j + 1
        entries: all of a factor, and all that a symmetric scatter has.
    """

    method: str
    n: int
    mean: np.ndarray
    triangle: np.ndarray

    def matrix(self) -> np.ndarray:
        """(d, d) float64: the factor or the scatter."""
        d = self.mean.shape[0]
        upper, _ = dtpttr(d, self.triangle)
        if self.method == "tsqr64":
            return np.ascontiguousarray(np.triu(upper))
        upper = np.triu(upper)
        return upper + np.triu(upper, 1).T


def packed_triangle(matrix: np.ndarray) -> np.ndarray:
    """(d (d + 1) / 2,) float64: the columns of the upper triangle of a (d, d) matrix."""
    triangle, _ = dtrttp(matrix)
    return triangle
