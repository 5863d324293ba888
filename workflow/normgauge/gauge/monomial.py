"""Monomial matrices: coordinates that change places and are multiplied by factors, and what every
element of a group is checked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import ArrayLike

from normgauge.errors import InputError

SIGN_SEED_OFFSET = 1000  # the signs of the recorded gauge with seed s are drawn with seed s + 1000


def frozen(values: ArrayLike, dtype: type) -> np.ndarray:
    array: np.ndarray = np.array(values, dtype=dtype)
    array.setflags(write=False)
    return array


def check_permutation(target: np.ndarray, what: str) -> None:
    if target.ndim != 1 or not np.array_equal(np.sort(target), np.arange(len(target))):
        raise InputError(
            f"{what}: its {target.size} targets are not a permutation of 0..{target.size - 1}; "
            "record the gauge again"
        )


def inverted(target: np.ndarray) -> np.ndarray:
    inverse = np.empty_like(target)
    inverse[target] = np.arange(len(target))
    return inverse


def check_size(size: int, value: torch.Tensor, axis: int) -> None:
    if value.shape[axis] != size:
        raise InputError(
            f"axis {axis} of a tensor of shape {list(value.shape)} has not the gauge's {size} "
            "coordinates; use its own model"
        )


@dataclass(frozen=True, eq=False)
class Monomial:
    """Coordinate i goes to `target[i]` and is multiplied by `factors[i]` (source-indexed): (h
    G)[target[i]] = factors[i] h[i].

    `target`: int64 (d,), a permutation. `factors`: float64 (d,), finite and not zero. With factors
    +-1 it is a signed permutation G = S P with P[i, target[i]] = 1 and S = diag(factors): an
    element of B_d, of which S_d (all +1) and the global sign times S_d (all equal) are subgroups.
    Raises InputError when it is not invertible.
    """

    target: np.ndarray
    factors: np.ndarray

    def __post_init__(self) -> None:
        object.__setattr__(self, "target", frozen(self.target, np.int64))
        object.__setattr__(self, "factors", frozen(self.factors, np.float64))
        check_permutation(self.target, "monomial gauge")
        if (
            self.factors.shape != self.target.shape
            or not np.isfinite(self.factors).all()
            or not self.factors.all()
        ):
            raise InputError(
                f"monomial gauge: expected {self.size} finite factors other than zero; record the "
                "gauge again"
            )

    @classmethod
    def identity(cls, size: int) -> Monomial:
        return cls(np.arange(size), np.ones(size))

    @classmethod
    def random(cls, size: int, seed: int, signed: bool = True) -> Monomial:
        """The recorded gauge of a seed: numpy's default generator draws the permutation with
        `seed`, the signs with `seed` + 1000.
        """
        target = np.random.default_rng(seed).permutation(size)
        signs = np.random.default_rng(seed + SIGN_SEED_OFFSET).choice((-1.0, 1.0), size)
        return cls(target, signs if signed else np.ones(size))

    @property
    def size(self) -> int:
        return len(self.target)

    @property
    def is_signed_permutation(self) -> bool:
        return bool((np.abs(self.factors) == 1).all())

    @property
    def exact(self) -> bool:
        """Whether no value is rounded, in any binary dtype within its normal range: factors are
        powers of two up to sign.
        """
        return bool((np.abs(np.frexp(self.factors)[0]) == 0.5).all())

    def compose(self, other: Monomial) -> Monomial:
        """This element first, then the other: the matrix product."""
        return Monomial(other.target[self.target], self.factors * other.factors[self.target])

    def inverse(self) -> Monomial:
        source = inverted(self.target)
        return Monomial(source, 1 / self.factors[source])

    def dual(self) -> Monomial:
        """The inverse transpose: a signed permutation is its own."""
        return Monomial(self.target, 1 / self.factors)

    def permutation(self) -> Monomial:
        """|G| of a signed permutation: the coordinates move and nothing else happens to them."""
        return Monomial(self.target, np.ones(self.size))

    def absolute(self) -> Monomial:
        """How absolute values of entries move."""
        return Monomial(self.target, np.abs(self.factors))

    def squared(self) -> Monomial:
        """How elementwise squares move (second moments of an optimizer): |G| for a signed
        permutation.
        """
        return Monomial(self.target, self.factors**2)

    def matrix(self) -> np.ndarray:
        """float64 (d, d), for rows: h @ matrix."""
        matrix = np.zeros((self.size, self.size))
        matrix[np.arange(self.size), self.target] = self.factors
        return matrix

    def apply(self, value: torch.Tensor, axis: int = -1) -> torch.Tensor:
        """The tensor with its coordinates along `axis` moved. Exact for factors +-1, else rounded
        once to the tensor's dtype.
        """
        check_size(self.size, value, axis)
        moved = value.index_select(axis, self._source)
        if (self.factors == 1).all():
            return moved
        shape = [1] * value.ndim
        shape[axis] = self.size
        factors = torch.from_numpy(self.factors[self._source.numpy()]).reshape(shape)
        if self.is_signed_permutation:
            return moved.mul_(factors.to(value.dtype))
        return (moved.double() * factors).to(value.dtype)

    @cached_property
    def _source(self) -> torch.Tensor:
        return torch.from_numpy(inverted(self.target))

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Monomial)
            and np.array_equal(self.target, other.target)
            and np.array_equal(self.factors, other.factors)
        )


def compose_all(elements: Sequence[Monomial]) -> Monomial:
    """The product of a chain, first to last; InputError on an empty chain."""
    if not elements:
        raise InputError("a chain of gauges is empty; name at least one")
    product = elements[0]
    for element in elements[1:]:
        product = product.compose(element)
    return product
