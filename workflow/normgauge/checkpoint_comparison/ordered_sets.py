"""Of an ordered set of tokens: the maps i -> a i + b mod size, and orthogonal contrasts."""

from __future__ import annotations

import numpy as np


def affine_maps(size: int) -> list[np.ndarray]:
    """The bijections i -> a i + b mod size as index arrays, the identity first."""
    units = [factor for factor in range(1, size) if np.gcd(factor, size) == 1] or [1]
    return [(factor * np.arange(size) + shift) % size for factor in units for shift in range(size)]


def contrasts(size: int) -> tuple[tuple[str, ...], np.ndarray]:
    """(names, (size - 1, size) orthonormal rows, all orthogonal to ones): linear, quadratic,
    parity, then the remaining distinctions.
    """
    steps = np.arange(size) - (size - 1) / 2
    columns = np.column_stack(
        [np.ones(size), steps, steps**2, (-1.0) ** np.arange(size), np.eye(size)]
    )
    basis, triangle = np.linalg.qr(columns)
    basis = basis * np.where(np.diag(triangle[:size, :size]) < 0, -1.0, 1.0)
    names = ("linear", "quadratic", "parity", *("remaining",) * (size - 4))
    return names, basis[:, 1:size].T
