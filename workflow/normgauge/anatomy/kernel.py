"""The predicted kernel of a norm's output, from its gains: 1/gamma, or the axes of zero gains."""

from __future__ import annotations

import numpy as np


def kernel_basis(gain: np.ndarray) -> np.ndarray:
    """Orthonormal basis (d, k) of the predicted kernel: (1/gain)/|1/gain| (k = 1), or the axes of
    the k zero gains.

    gain: (d,) float64, effective gains. Signs of the gains are kept. The smallest |gain| is scaled
        to 1 first, so tiny gains do
    not overflow. Source: Shirodkar and Narayanan 2026, Proposition 2 (arXiv 2606.19491).
    """
    zeros = np.flatnonzero(gain == 0)
    if zeros.size:
        return np.eye(gain.size)[:, zeros]
    inverse = np.abs(gain).min() / gain
    return (inverse / np.linalg.norm(inverse))[:, None]
