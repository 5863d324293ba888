"""Elements of the groups that act on one space: monomial matrices, orthogonal matrices, and the maps of one attention layer.

Every element is immutable and knows: `compose` (this first, then the other), `inverse`, `dual` (its inverse transpose, by which what
reads the space moves), `permutation` (what is left of it on a norm's gain) and `apply` along one axis of a tensor.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import ArrayLike

from normgauge.errors import InputError

ORTHOGONALITY = 1e-10  # largest entry of Q^T Q - I of a matrix that counts as orthogonal
SIGN_SEED_OFFSET = 1000  # the signs of the recorded gauge with seed s are drawn with seed s + 1000


def _frozen(values: ArrayLike, dtype: type) -> np.ndarray:
    array: np.ndarray = np.array(values, dtype=dtype)
    array.setflags(write=False)
    return array


def _check_permutation(target: np.ndarray, what: str) -> None:
    if target.ndim != 1 or not np.array_equal(np.sort(target), np.arange(len(target))):
        raise InputError(f"{what}: its {target.size} targets are not a permutation of 0..{target.size - 1}; record the gauge again")


def _inverted(target: np.ndarray) -> np.ndarray:
    inverse = np.empty_like(target)
    inverse[target] = np.arange(len(target))
    return inverse


def _check_size(size: int, value: torch.Tensor, axis: int) -> None:
    if value.shape[axis] != size:
        raise InputError(f"axis {axis} of a tensor of shape {list(value.shape)} has not the gauge's {size} coordinates; use its own model")


@dataclass(frozen=True, eq=False)
class Monomial:
    """Coordinate i goes to `target[i]` and is multiplied by `factors[i]` (source-indexed): (h G)[target[i]] = factors[i] h[i].

    `target`: int64 (d,), a permutation. `factors`: float64 (d,), finite and not zero. With factors +-1 it is a signed permutation
    G = S P with P[i, target[i]] = 1 and S = diag(factors): an element of B_d, of which S_d (all +1) and the global sign times S_d
    (all equal) are subgroups. Raises InputError when it is not invertible.
    """

    target: np.ndarray
    factors: np.ndarray

    def __post_init__(self) -> None:
        object.__setattr__(self, "target", _frozen(self.target, np.int64))
        object.__setattr__(self, "factors", _frozen(self.factors, np.float64))
        _check_permutation(self.target, "monomial gauge")
        if self.factors.shape != self.target.shape or not np.isfinite(self.factors).all() or not self.factors.all():
            raise InputError(f"monomial gauge: expected {self.size} finite factors other than zero; record the gauge again")

    @classmethod
    def identity(cls, size: int) -> Monomial:
        return cls(np.arange(size), np.ones(size))

    @classmethod
    def random(cls, size: int, seed: int, signed: bool = True) -> Monomial:
        """The recorded gauge of a seed: numpy's default generator draws the permutation with `seed`, the signs with `seed` + 1000."""
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
        """Whether no value is rounded, in any binary dtype within its normal range: factors are powers of two up to sign."""
        return bool((np.abs(np.frexp(self.factors)[0]) == 0.5).all())

    def compose(self, other: Monomial) -> Monomial:
        """This element first, then the other: the matrix product."""
        return Monomial(other.target[self.target], self.factors * other.factors[self.target])

    def inverse(self) -> Monomial:
        source = _inverted(self.target)
        return Monomial(source, 1 / self.factors[source])

    def dual(self) -> Monomial:
        """The inverse transpose: a signed permutation is its own."""
        return Monomial(self.target, 1 / self.factors)

    def permutation(self) -> Monomial:
        """|G| of a signed permutation: the coordinates move and nothing else happens to them."""
        return Monomial(self.target, np.ones(self.size))

    def squared(self) -> Monomial:
        """How elementwise squares move (second moments of an optimizer): |G| for a signed permutation."""
        return Monomial(self.target, self.factors**2)

    def matrix(self) -> np.ndarray:
        """float64 (d, d), for rows: h @ matrix."""
        matrix = np.zeros((self.size, self.size))
        matrix[np.arange(self.size), self.target] = self.factors
        return matrix

    def apply(self, value: torch.Tensor, axis: int = -1) -> torch.Tensor:
        """The tensor with its coordinates along `axis` moved. Exact for factors +-1, else rounded once to the tensor's dtype."""
        _check_size(self.size, value, axis)
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
        return torch.from_numpy(_inverted(self.target))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Monomial) and np.array_equal(self.target, other.target) and np.array_equal(self.factors, other.factors)


@dataclass(frozen=True, eq=False)
class Orthogonal:
    """A dense orthogonal matrix, float64 (d, d): h -> h Q. Raises InputError when it is not orthogonal to 1e-10."""

    matrix: np.ndarray

    def __post_init__(self) -> None:
        object.__setattr__(self, "matrix", _frozen(self.matrix, np.float64))
        square = self.matrix.ndim == 2 and self.matrix.shape[0] == self.matrix.shape[1]
        if not square or not np.abs(self.matrix.T @ self.matrix - np.eye(self.size)).max(initial=0) <= ORTHOGONALITY:
            raise InputError(f"orthogonal gauge: the matrix of shape {self.matrix.shape} is not orthogonal to {ORTHOGONALITY}; mend it")

    @classmethod
    def identity(cls, size: int) -> Orthogonal:
        return cls(np.eye(size))

    @classmethod
    def random(cls, size: int, seed: int, fixing_ones: bool = False) -> Orthogonal:
        """Haar-distributed on O(d), or on the subgroup that leaves the line of equal coordinates pointwise fixed."""
        generator = np.random.default_rng(seed)
        if not fixing_ones:
            return cls(_haar(size, generator))
        basis = np.linalg.qr(np.column_stack([np.ones(size), generator.standard_normal((size, size - 1))]))[0]
        return cls(np.outer(basis[:, 0], basis[:, 0]) + basis[:, 1:] @ _haar(size - 1, generator) @ basis[:, 1:].T)

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
        """Whether it maps the vector of ones to itself or its negative, entry by entry (its mean alone hardly sees a small tilt)."""
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
        _check_size(self.size, value, axis)
        product = value.double().movedim(axis, -1) @ torch.tensor(self.matrix)
        return product.movedim(-1, axis).to(value.dtype).contiguous()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Orthogonal) and np.array_equal(self.matrix, other.matrix)


def _haar(size: int, generator: np.random.Generator) -> np.ndarray:
    factor, upper = np.linalg.qr(generator.standard_normal((size, size)))
    return factor * np.sign(np.diag(upper))


@dataclass(frozen=True, eq=False)
class HeadMap:
    """Head h goes to `order[h]` and is multiplied by `matrices[h]`: order int64 (H,), matrices float64 (H, d_h, d_h), invertible."""

    order: np.ndarray
    matrices: np.ndarray

    def __post_init__(self) -> None:
        object.__setattr__(self, "order", _frozen(self.order, np.int64))
        object.__setattr__(self, "matrices", _frozen(self.matrices, np.float64))
        _check_permutation(self.order, "head order")
        if self.matrices.ndim != 3 or len(self.matrices) != len(self.order) or self.matrices.shape[1] != self.matrices.shape[2]:
            raise InputError(f"head map: matrices of shape {self.matrices.shape}, expected ({len(self.order)}, size, size); mend the gauge")

    @property
    def size(self) -> int:
        return len(self.order) * self.matrices.shape[1]

    @property
    def exact(self) -> bool:
        """Whether every matrix is a signed permutation times powers of two."""
        return self._monomial is not None and self._monomial.exact

    @property
    def is_signed_permutation(self) -> bool:
        return self._monomial is not None and self._monomial.is_signed_permutation

    def compose(self, other: HeadMap) -> HeadMap:
        return HeadMap(other.order[self.order], self.matrices @ other.matrices[self.order])

    def inverse(self) -> HeadMap:
        source = _inverted(self.order)
        return HeadMap(source, np.linalg.inv(self.matrices[source]))

    def dual(self) -> HeadMap:
        return HeadMap(self.order, np.linalg.inv(self.matrices).transpose(0, 2, 1))

    def permutation(self) -> HeadMap:
        """The heads' places alone: what a norm's gain does under the maps that the norm admits, one sign per coordinate."""
        return HeadMap(self.order, np.tile(np.eye(self.matrices.shape[1]), (len(self.order), 1, 1)))

    def apply(self, value: torch.Tensor, axis: int = -1) -> torch.Tensor:
        """The tensor with its heads along `axis` moved; exact when every matrix is a signed permutation."""
        _check_size(self.size, value, axis)
        if self._monomial is not None:
            return self._monomial.apply(value, axis)
        rows = value.double().movedim(axis, -1)
        heads = rows.reshape(*rows.shape[:-1], len(self.order), -1)
        moved = torch.empty_like(heads)
        moved[..., torch.tensor(self.order), :] = torch.einsum("...hi,hij->...hj", heads, torch.tensor(self.matrices))
        return moved.reshape(rows.shape).movedim(-1, axis).to(value.dtype).contiguous()

    @cached_property
    def _monomial(self) -> Monomial | None:
        """The same map as a monomial of the whole space, where it is one."""
        full = self.matrices != 0
        if not ((full.sum(1) == 1).all() and (full.sum(2) == 1).all()):
            return None
        size = self.matrices.shape[1]
        within = full.argmax(2)
        factors = np.take_along_axis(self.matrices, within[..., None], 2)[..., 0]
        return Monomial((self.order[:, None] * size + within).ravel(), factors.ravel())


@dataclass(frozen=True, eq=False)
class AttentionGauge:
    """The maps of one attention layer: key/value groups change places, query heads change places within their group, and each
    group's queries, keys and values change coordinates.

    `group_order`: int64 (G,). `head_order`: int64 (G, R), the place of each query head inside its group. `query_maps` and
    `value_maps`: float64 (G, d, d), invertible. Keys move by the dual of the query maps, so every score is unchanged.
    """

    group_order: np.ndarray
    head_order: np.ndarray
    query_maps: np.ndarray
    value_maps: np.ndarray

    def __post_init__(self) -> None:
        for name, dtype in (("group_order", np.int64), ("head_order", np.int64), ("query_maps", np.float64), ("value_maps", np.float64)):
            object.__setattr__(self, name, _frozen(getattr(self, name), dtype))
        _check_permutation(self.group_order, "group order")
        if self.head_order.ndim != 2 or len(self.head_order) != self.groups:
            raise InputError(f"attention gauge: head order of shape {self.head_order.shape}, expected ({self.groups}, heads per group)")
        for places in self.head_order:
            _check_permutation(places, "head order within a group")
        for maps in (self.query_maps, self.value_maps):
            ranks = np.linalg.matrix_rank(maps) if maps.ndim == 3 and len(maps) == self.groups else np.zeros(1)
            if not (ranks == maps.shape[-1]).all():
                raise InputError(f"attention gauge: maps of shape {maps.shape} are not {self.groups} invertible matrices; mend the gauge")

    @classmethod
    def identity(cls, groups: int, repeats: int, query_size: int, value_size: int) -> AttentionGauge:
        def eyes(size: int) -> np.ndarray:
            return np.tile(np.eye(size), (groups, 1, 1))

        return cls(np.arange(groups), np.tile(np.arange(repeats), (groups, 1)), eyes(query_size), eyes(value_size))

    @property
    def groups(self) -> int:
        return len(self.group_order)

    @property
    def exact(self) -> bool:
        """Whether no value is rounded: every map is a signed permutation times powers of two."""
        return self.query.exact and self.value.exact

    @property
    def repeats(self) -> int:
        """Query heads per group."""
        return self.head_order.shape[1]

    def compose(self, other: AttentionGauge) -> AttentionGauge:
        here = self.group_order
        return AttentionGauge(
            other.group_order[here],
            np.take_along_axis(other.head_order[here], self.head_order, 1),
            self.query_maps @ other.query_maps[here],
            self.value_maps @ other.value_maps[here],
        )

    def inverse(self) -> AttentionGauge:
        source = _inverted(self.group_order)
        return AttentionGauge(
            source,
            np.stack([_inverted(self.head_order[group]) for group in source]),
            np.linalg.inv(self.query_maps[source]),
            np.linalg.inv(self.value_maps[source]),
        )

    @property
    def query(self) -> HeadMap:
        return HeadMap(self._heads(), np.repeat(self.query_maps, self.repeats, 0))

    @property
    def key(self) -> HeadMap:
        return HeadMap(self.group_order, self.query_maps).dual()

    @property
    def value(self) -> HeadMap:
        return HeadMap(self.group_order, self.value_maps)

    @property
    def mixed(self) -> HeadMap:
        """The action on the output projection's input: one run of values per query head."""
        return HeadMap(self._heads(), np.repeat(self.value_maps, self.repeats, 0))

    def _heads(self) -> np.ndarray:
        return (self.group_order[:, None] * self.repeats + self.head_order).ravel()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, AttentionGauge) and all(
            np.array_equal(getattr(self, name), getattr(other, name)) for name in ("group_order", "head_order", "query_maps", "value_maps")
        )


Element = Monomial | Orthogonal | AttentionGauge


def compose_all(elements: Sequence[Monomial]) -> Monomial:
    """The product of a chain, first to last; InputError on an empty chain."""
    if not elements:
        raise InputError("a chain of gauges is empty; name at least one")
    product = elements[0]
    for element in elements[1:]:
        product = product.compose(element)
    return product
