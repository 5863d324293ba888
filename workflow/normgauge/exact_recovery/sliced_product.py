"""Residuals Y - A W to about twice float64's precision at the speed of matrix products.

Each factor is cut into slices of so few bits that float64 products of slices are exact (Ozaki,
Ogita, Oishi and Rump 2012, "Error-free transformations of matrix multiplication"); their sum is
carried in two float64 words (Knuth's exact addition).
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

SLICES = 3


def slices(matrix: np.ndarray, axis: int, inner: int) -> list[np.ndarray]:
    """Cut a matrix into SLICES parts that sum to it up to about 2^-66 of the largest entry along
    `axis`, the summed axis.

    A part holds so few bits, on one scale along `axis`, that a sum of `inner` products of parts is
    exact in float64.
    """
    bits = (53 - math.ceil(math.log2(max(inner, 2)))) // 2
    rest = np.array(matrix, dtype=np.float64)
    parts = []
    for _ in range(SLICES):
        largest = np.abs(rest).max(axis=axis, keepdims=True)
        exponent = np.frexp(largest)[1]
        anchor = np.where(largest > 0, np.ldexp(1.5, exponent + 52 - bits), 0.0)
        part = (rest + anchor) - anchor
        rest -= part
        parts.append(part)
    return parts


def residual(
    targets: np.ndarray,
    design: np.ndarray,
    values: np.ndarray,
    product: Callable[[np.ndarray, np.ndarray], np.ndarray] = np.matmul,
) -> np.ndarray:
    """targets - design @ values with the cancellation done in twice float64's precision; (N, k)
    float64.

    Columns of the design are brought to one size first (by powers of two): the slices of `values`
    share a scale.
    """
    inner = design.shape[1]
    exponents = np.frexp(np.abs(design).max(axis=0))[1]
    left, right = (
        slices(np.ldexp(design, -exponents), 1, inner),
        slices(np.ldexp(values, exponents[:, None]), 0, inner),
    )
    high, low = np.array(targets, dtype=np.float64), np.zeros(targets.shape)
    for order in range(SLICES):
        for index in range(order + 1):
            term = -product(left[index], right[order - index])
            total = high + term
            virtual = total - high
            low += (high - (total - virtual)) + (term - virtual)
            high = total
    return high + low
