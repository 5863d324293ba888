"""Numbers with a bound on what rounding of the stored weights can have done to them, carried
through sums and products (running error analysis: Higham, Accuracy and Stability of Numerical
Algorithms, 2nd edition, chapter 3).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

ROUNDOFF = 2.0**-53  # of the arithmetic here


@dataclass(frozen=True, eq=False)
class Bounded:
    """value: float64 or complex128. error: float64 of its shape; entry by entry, at most this far
    from what was rounded.
    """

    value: np.ndarray
    error: np.ndarray

    def __getitem__(self, key: Any) -> Bounded:
        return Bounded(self.value[key], self.error[key])

    @property
    def transposed(self) -> Bounded:
        return Bounded(self.value.T, self.error.T)

    def __add__(self, other: Bounded) -> Bounded:
        total = self.value + other.value
        return Bounded(total, self.error + other.error + ROUNDOFF * np.abs(total))

    def __mul__(self, other: Bounded) -> Bounded:
        """Entry by entry, with broadcasting."""
        size, by = np.abs(self.value), np.abs(other.value)
        error = size * other.error + self.error * by + self.error * other.error
        return Bounded(self.value * other.value, error + ROUNDOFF * size * by)

    def __matmul__(self, other: Bounded) -> Bounded:
        size, by = np.abs(self.value), np.abs(other.value)
        error = size @ other.error + self.error @ (by + other.error)
        terms = self.value.shape[-1]
        return Bounded(self.value @ other.value, error + terms * ROUNDOFF * (size @ by))


def stored(value: torch.Tensor) -> Bounded:
    """A stored tensor: every value off by half a unit in the last place of its dtype."""
    limits = torch.finfo(value.dtype)
    wide = value.double().numpy()
    return Bounded(wide, limits.eps / 2 * np.abs(wide) + limits.smallest_normal * limits.eps)


def exact(value: np.ndarray) -> Bounded:
    return Bounded(value, np.zeros(value.shape))


def joined(parts: list[Bounded], axis: int) -> Bounded:
    return Bounded(
        np.concatenate([each.value for each in parts], axis),
        np.concatenate([each.error for each in parts], axis),
    )


def over_bound(first: Bounded, second: Bounded) -> float:
    """The largest difference over the bound of both: at most 1 where rounding explains it."""
    difference = np.abs(first.value - second.value)
    bound = first.error + second.error
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.where(difference == 0, 0.0, difference / bound)
    return float(ratio.max(initial=0.0))


def complex_of(first: Bounded, second: Bounded) -> Bounded:
    """first + i second, the error as a modulus."""
    return Bounded(first.value + 1j * second.value, np.hypot(first.error, second.error))


def factors(first: Bounded, second: Bounded) -> tuple[Bounded, Bounded]:
    """(n, 1) each: the factor c of each row with second = c first, by least squares, and its
    inverse, with their bounds; 1 where the first row is zero. A factor that rounding could have
    brought to zero has an inverse without a bound.
    """
    size = np.abs(first.value)
    square = np.square(size).sum(1, keepdims=True)
    there = square > 0
    product = (first.value.conj() * second.value).sum(1, keepdims=True)
    factor = np.where(there, product / np.where(there, square, 1), 1)
    error = (size * (second.error + np.abs(factor) * first.error)).sum(1, keepdims=True)
    error = np.where(there, error / np.where(there, square, 1), 0) + 4 * ROUNDOFF * np.abs(factor)
    sure = np.abs(factor) > 2 * error
    inverse = np.where(sure, 1 / np.where(sure, factor, 1), 1)
    bound = np.where(sure, 2 * error * np.abs(inverse) ** 2, np.inf)
    return Bounded(factor, error), Bounded(inverse, bound)
