"""Dense orthogonal matrices, which act where all gains of a space are equal."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from normgauge.errors import InputError
from normgauge.gauge.monomial import Monomial, check_size, frozen

ORTHOGONALITY = 1e-10  # largest entry of Q^T Q - I of a matrix that counts as orthogonal


@dataclass(frozen=True, eq=False)
class Orthogonal:
    """A dense orthogonal matrix, float64 (d, d): h -> h Q. Raises InputError when it is not
    orthogonal to 1e-10.
    """

    matrix: np.ndarray

    def __post_init__(self) -> None:
        object.__setattr__(self, "matrix", frozen(self.matrix, np.float64))
        square = self.matrix.ndim == 2 and self.matrix.shape[0] == self.matrix.shape[1]
        if (
            not square
            or not np.abs(self.matrix.T @ self.matrix - np.eye(self.size)).max(initial=0)
            <= ORTHOGONALITY
        ):
            raise InputError(
                f"orthogonal gauge: the matrix of shape {self.matrix.shape} is not orthogonal to "
                f"{ORTHOGONALITY}; mend it"
            )

    @classmethod
    def identity(cls, size: int) -> Orthogonal:
        return cls(np.eye(size))

    @classmethod
    def random(cls, size: int, seed: int, fixing_ones: bool = False) -> Orthogonal:
        """Haar-distributed on O(d), or on the subgroup that leaves the line of equal coordinates
        pointwise fixed.
        """
        generator = np.random.default_rng(seed)
        if not fixing_ones:
            return cls(_haar(size, generator))
        basis = np.linalg.qr(
            np.column_stack([np.ones(size), generator.standard_normal((size, size - 1))])
        )[0]
        return cls(
            np.outer(basis[:, 0], basis[:, 0])
            + basis[:, 1:] @ _haar(size - 1, generator) @ basis[:, 1:].T
        )

    @property
    def size(self) -> int:
        return len(self.matrix)

    @property
    def exact(self) -> bool:
        """Taken as rounding, whatever its entries."""
        return False

    is_signed_permutation = exact

    @property
    def fixes_ones(self) -> bool:
        """Whether it maps the vector of ones to itself or its negative, entry by entry (its mean
        alone hardly sees a small tilt).
        """
        image = self.matrix.sum(0)
        return bool((np.abs(image - np.sign(image.sum())) <= ORTHOGONALITY).all())

    def compose(self, other: Orthogonal) -> Orthogonal:
        return Orthogonal(self.matrix @ other.matrix)

    def inverse(self) -> Orthogonal:
        return Orthogonal(self.matrix.T)

    def dual(self) -> Orthogonal:
        return self

    def permutation(self) -> Monomial:
        """On a constant gain, the only one that admits a dense matrix, nothing happens."""
        return Monomial.identity(self.size)

    def apply(self, value: torch.Tensor, axis: int = -1) -> torch.Tensor:
        """The tensor multiplied along `axis`, in float64, rounded once to its dtype."""
        check_size(self.size, value, axis)
        product = value.double().movedim(axis, -1) @ torch.tensor(self.matrix)
        return product.movedim(-1, axis).to(value.dtype).contiguous()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Orthogonal) and np.array_equal(self.matrix, other.matrix)


def _haar(size: int, generator: np.random.Generator) -> np.ndarray:
    factor, upper = np.linalg.qr(generator.standard_normal((size, size)))
    return factor * np.sign(np.diag(upper))
