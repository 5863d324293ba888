"""The maps of one attention layer: heads change places, and each group's queries, keys and values
change coordinates.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch

from normgauge.errors import InputError
from normgauge.gauge.monomial import Monomial, check_permutation, check_size, frozen, inverted


@dataclass(frozen=True, eq=False)
class HeadMap:
    """Head h goes to `order[h]` and is multiplied by `matrices[h]`: order int64 (H,), matrices
    float64 (H, d_h, d_h), invertible.
    """

    order: np.ndarray
    matrices: np.ndarray

    def __post_init__(self) -> None:
        object.__setattr__(self, "order", frozen(self.order, np.int64))
        object.__setattr__(self, "matrices", frozen(self.matrices, np.float64))
        check_permutation(self.order, "head order")
        if (
            self.matrices.ndim != 3
            or len(self.matrices) != len(self.order)
            or self.matrices.shape[1] != self.matrices.shape[2]
        ):
            raise InputError(
                f"head map: matrices of shape {self.matrices.shape}, expected ({len(self.order)}, "
                "size, size); mend the gauge"
            )

    @property
    def size(self) -> int:
        return len(self.order) * self.matrices.shape[1]

    @property
    def exact(self) -> bool:
        """Whether every matrix is a signed permutation times powers of two."""
        return self.monomial is not None and self.monomial.exact

    @property
    def is_signed_permutation(self) -> bool:
        return self.monomial is not None and self.monomial.is_signed_permutation

    def compose(self, other: HeadMap) -> HeadMap:
        return HeadMap(other.order[self.order], self.matrices @ other.matrices[self.order])

    def inverse(self) -> HeadMap:
        source = inverted(self.order)
        return HeadMap(source, np.linalg.inv(self.matrices[source]))

    def dual(self) -> HeadMap:
        return HeadMap(self.order, np.linalg.inv(self.matrices).transpose(0, 2, 1))

    def permutation(self) -> HeadMap:
        """The heads' places alone: what a norm's gain does under the maps that the norm admits, one
        sign per coordinate.
        """
        return HeadMap(self.order, np.tile(np.eye(self.matrices.shape[1]), (len(self.order), 1, 1)))

    def apply(self, value: torch.Tensor, axis: int = -1) -> torch.Tensor:
        """The tensor with its heads along `axis` moved; exact when every matrix is a signed
        permutation.
        """
        check_size(self.size, value, axis)
        if self.monomial is not None:
            return self.monomial.apply(value, axis)
        rows = value.double().movedim(axis, -1)
        heads = rows.reshape(*rows.shape[:-1], *self.matrices.shape[:2])
        moved = torch.empty_like(heads)
        moved[..., torch.tensor(self.order), :] = torch.einsum(
            "...hi,hij->...hj", heads, torch.tensor(self.matrices)
        )
        return moved.reshape(rows.shape).movedim(-1, axis).to(value.dtype).contiguous()

    @cached_property
    def monomial(self) -> Monomial | None:
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
    """The maps of one attention layer: key/value groups change places, query heads change places
    within their group, and each group's queries, keys and values change coordinates.

    `group_order`: int64 (G,). `head_order`: int64 (G, R), the place of each query head inside its
        group. `query_maps` and
    `value_maps`: float64 (G, d, d), invertible. Keys move by the dual of the query maps, so every
        score is unchanged.
    """

    group_order: np.ndarray
    head_order: np.ndarray
    query_maps: np.ndarray
    value_maps: np.ndarray

    def __post_init__(self) -> None:
        for name, dtype in (
            ("group_order", np.int64),
            ("head_order", np.int64),
            ("query_maps", np.float64),
            ("value_maps", np.float64),
        ):
            object.__setattr__(self, name, frozen(getattr(self, name), dtype))
        check_permutation(self.group_order, "group order")
        if self.head_order.ndim != 2 or len(self.head_order) != self.groups:
            raise InputError(
                f"attention gauge: head order of shape {self.head_order.shape}, expected "
                f"({self.groups}, heads per group)"
            )
        for places in self.head_order:
            check_permutation(places, "head order within a group")
        for maps in (self.query_maps, self.value_maps):
            ranks = (
                np.linalg.matrix_rank(maps)
                if maps.ndim == 3 and len(maps) == self.groups
                else np.zeros(1)
            )
            if not (ranks == maps.shape[-1]).all():
                raise InputError(
                    f"attention gauge: maps of shape {maps.shape} are not {self.groups} invertible "
                    "matrices; mend the gauge"
                )

    @classmethod
    def identity(
        cls, groups: int, repeats: int, query_size: int, value_size: int
    ) -> AttentionGauge:
        def eyes(size: int) -> np.ndarray:
            return np.tile(np.eye(size), (groups, 1, 1))

        return cls(
            np.arange(groups),
            np.tile(np.arange(repeats), (groups, 1)),
            eyes(query_size),
            eyes(value_size),
        )

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
        source = inverted(self.group_order)
        return AttentionGauge(
            source,
            np.stack([inverted(self.head_order[group]) for group in source]),
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
            np.array_equal(getattr(self, name), getattr(other, name))
            for name in ("group_order", "head_order", "query_maps", "value_maps")
        )
