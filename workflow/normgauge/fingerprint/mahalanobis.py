"""The mean of a norm's output in units of its covariance, which predicts the Schur ratio.

y = gamma * xhat + beta is the output of a LayerNorm with mean m and covariance C, v =
(1/gamma)/|1/gamma|. Proposition 2 of arXiv 2606.19491 says C v = 0, and v . y = v . beta for every
sample. The Schur complement of A = C + m m^T at v is then (beta . v)^2 / (1 + T^2), with T^2 = m^T
C^+ m the squared Mahalanobis length of the mean. It equals 1 / (v^T A^-1 v), so it bounds
lambda_min(A) from above; the secular equation of the rank-one update (Golub and Van Loan, Matrix
Computations, section 8.4.3) makes it exact:

    lambda = (beta . v)^2 / (1 + m^T (C - lambda)^+ m)   for lambda below C's smallest other
    eigenvalue c.

Derivation and measured values: docs/statistics.md.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from normgauge.fingerprint.rounding import Rounding
from normgauge.moments import Moments
from normgauge.moments.algebra import EPSILON


@dataclass(frozen=True)
class MeanLength:
    """T^2 = m^T C^+ m off the predicted kernel.

    squared: T^2 over the resolved directions alone, each further one could only add to it. size:
    |C^+ m|, in 1/activation. smallest: smallest resolved eigenvalue of C, activation squared.
    unresolved: number of directions off the kernel whose variance lies at or below the floor.
    """

    squared: float
    size: float
    smallest: float
    unresolved: int
    rounding: Rounding

    @property
    def error(self) -> float:
        """First-order bound on the error of `squared`: with w = C^+ m, samples off by E change it
        by at most 2 (T + 1) |w| |E| + |w|^2 |E|^2, a scatter matrix off by D by |w|^2 |D|.
        """
        step = self.size * self.rounding.amplitude
        first_order = 2 * (self.squared**0.5 + 1) * step
        return first_order + step**2 + self.size**2 * self.rounding.scatter


def mean_length(moments: Moments, kernel: np.ndarray, rounding: Rounding) -> MeanLength:
    """The Mahalanobis length of the mean of `moments` (d coordinates) off the predicted kernel (d,
    k).

    rounding: of A = X^T X / n. The pseudo-inverse is taken by filling the kernel and what lies at
    or below the floor, and solving with the triangular factor (tsqr64) or Cholesky's. Rounding can
    break the latter where variances are of the size of d epsilon times the largest (Higham 2002,
    Accuracy and Stability of Numerical
    Algorithms, section 10.1): these are left out as well.
    """
    filled = moments.filled(kernel)
    spectrum = filled.spectrum()
    variances = spectrum.values**2 / moments.n
    lost = moments.d * EPSILON["cov64"] * variances[-1] if moments.method != "tsqr64" else 0.0
    unresolved = int((variances <= max(rounding.floor, lost)).sum())
    if unresolved:
        kernel = np.linalg.qr(np.hstack([kernel, spectrum.bottom(unresolved)]))[0]
        filled = moments.filled(kernel)
    mean = moments.mean - kernel @ (kernel.T @ moments.mean)
    solution = filled.whitened(mean)
    smallest = float(variances[unresolved]) if unresolved < moments.d else 0.0
    return MeanLength(
        float(mean @ solution), float(np.linalg.norm(solution)), smallest, unresolved, rounding
    )


def predicted_ratio(
    length: MeanLength, along: float, kernel_dimension: int
) -> tuple[float, float, float]:
    """(low, first order, high) of R = lambda_min(A) / u^T A u behind a LayerNorm; along: (beta .
    v)^2, positive.

    First order is 1 / (1 + T^2), which no true ratio exceeds; high is that at the lower end of
    T^2's error. low is the secular equation at the largest lambda_min, with 1 / (c_i - lambda) at
    most 1/c_i + lambda / c_i^2 * c / (c - lambda); 0 where a direction is unresolved or lambda may
    reach c. With several zero gains A vanishes in their span orthogonal to beta, so that all three
    are 0.
    """
    if kernel_dimension > 1:
        return 0.0, 0.0, 0.0
    first = 1 / (1 + length.squared)
    high = 1 / (1 + max(length.squared - length.error, 0.0))
    largest, next_one = along * high, length.rounding.smallest(length.smallest)
    if length.unresolved or largest >= next_one:
        return 0.0, first, high
    second_order = largest * length.size**2 * next_one / (next_one - largest)
    return 1 / (1 + length.squared + length.error + second_order), first, high
