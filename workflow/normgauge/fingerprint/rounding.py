"""How far rounding may have moved a second moment, and what is still known of its bottom."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from normgauge.moments import Moments

ROUNDOFF = {"float64": 2.0**-52, "float32": 2.0**-23, "bfloat16": 2.0**-7, "float16": 2.0**-10}
"""Spacing of 1 in each forward arithmetic. The published floor is sigma_max eps32 with eps32 =
1.2e-7 (arXiv 2606.19491, A.6).
"""


@dataclass(frozen=True)
class Rounding:
    """The two ways in which a second moment is off.

    amplitude: spectral norm of the error of the samples (forward pass; for tsqr64 the accumulation
        too), in units of a singular value.
    scatter: error of the eigenvalues of an accumulated scatter matrix, in those units squared; 0
        for tsqr64.

    Both are sizes of rounding as the floors are (docs/dead_directions.md), not proven bounds; what
    is derived from them holds for every error of these sizes.
    """

    amplitude: float
    scatter: float

    @classmethod
    def of(cls, moments: Moments, forward: float, accumulator: float) -> Rounding:
        """From the floors of singular values of the forward pass and of the accumulation."""
        if moments.method == "tsqr64":
            return cls(max(forward, accumulator), 0.0)
        return cls(forward, accumulator**2)

    @property
    def floor(self) -> float:
        """Eigenvalue at or below which nothing is known."""
        return max(self.amplitude**2, self.scatter)

    def largest(self, eigenvalue: float) -> float:
        """The largest eigenvalue (or quadratic form) that may have read so (Weyl)."""
        return (max(eigenvalue, 0.0) ** 0.5 + self.amplitude) ** 2 + self.scatter

    def smallest(self, eigenvalue: float) -> float:
        """The smallest that may have read so; at least 0."""
        root = max(max(eigenvalue, 0.0) ** 0.5 - self.amplitude, 0.0)
        return max(root**2 - self.scatter, 0.0)

    def turn(self, sigma: np.ndarray) -> float:
        """Sine of the angle by which the bottom singular vector may be off (Wedin 1972), 1 where it
        is not
        determined. sigma: singular values, ascending, at least two.
        """
        gap, gap_of_squares = sigma[1] - sigma[0], sigma[1] ** 2 - sigma[0] ** 2
        if gap <= 0:
            return 1.0
        return float(min(self.amplitude / gap + self.scatter / gap_of_squares, 1.0))
