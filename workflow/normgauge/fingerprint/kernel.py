"""The predicted kernel of a norm's output: 1/gamma, or the axes of zero gains.

LayerNorm gives y = gamma * xhat + beta with sum(xhat) = 0, so sum_i (y_i - beta_i) / gamma_i = 0
for any input: 1/gamma is in the kernel of the centred covariance (Shirodkar and Narayanan 2026,
Proposition 2). A coordinate with gain 0 is constant, so its axis is in the kernel, and with any
such coordinate 1/gamma no longer is: the remaining xhat do not sum to 0.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from normgauge.anatomy.kernel import kernel_basis

COLLAPSED = 0.1
"""A gain is collapsed where |gamma_i| is below this share of the mean |gamma| (arXiv 2606.19491,
A.6).
"""


@dataclass(frozen=True)
class NormFacts:
    """What the fingerprint knows of a norm: kind by class, effective gain (d,) float64, bias (d,)
    float64 or None.
    """

    name: str
    kind: str
    gain: np.ndarray
    bias: np.ndarray | None

    @property
    def kernel(self) -> np.ndarray:
        return kernel_basis(self.gain)

    @property
    def has_zero_gain(self) -> bool:
        return bool((self.gain == 0).any())


@dataclass(frozen=True)
class SmallGains:
    """Where 1/gain may owe its direction to a few axes.

    axis: (d, 1), the axis of the smallest |gain|. kept: (d,), 0 on the axes of the collapsed gains
    (of the smallest gain where none is collapsed) and 1 elsewhere. rest: (d, 1), 1/gain on the kept
    axes, of length 1; None with zero gains, whose axes are all that the kernel has. share: share of
    |1/gain|^2 on `axis`. collapsed: number of collapsed gains.
    """

    axis: np.ndarray
    kept: np.ndarray
    rest: np.ndarray | None
    share: float
    collapsed: int

    @classmethod
    def of(cls, norm: NormFacts) -> SmallGains:
        sizes, inverse = np.abs(norm.gain), norm.kernel[:, 0]
        smallest = int(sizes.argmin())
        collapsed = sizes < COLLAPSED * sizes.mean()
        kept = np.where(collapsed, 0.0, 1.0)
        kept[smallest] = 0.0
        rest = (
            kernel_basis(np.where(kept, norm.gain, np.inf))
            if sizes[smallest] and kept.any()
            else None
        )
        return cls(
            np.eye(sizes.size)[:, [smallest]],
            kept,
            rest,
            float(inverse[smallest] ** 2),
            int(collapsed.sum()),
        )


def alignment(vector: np.ndarray, basis: np.ndarray) -> float:
    """|cos| of a vector (d,) with the span of an orthonormal basis (d, k): the length of its
    projection over its length.
    """
    length = np.linalg.norm(vector)
    return min(float(np.linalg.norm(basis.T @ vector) / length), 1.0) if length else 0.0


def containment(basis: np.ndarray, subspace: np.ndarray) -> float:
    """Smallest principal cosine of span(basis) (d, k) against span(subspace) (d, m): 1 when it lies
    inside, 0 when m < k.
    """
    if subspace.shape[1] < basis.shape[1]:
        return 0.0
    return min(float(np.linalg.svd(subspace.T @ basis, compute_uv=False)[-1]), 1.0)
