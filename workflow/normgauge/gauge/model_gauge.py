"""The gauge of a whole model: one element per space that moves, and its parquet file."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from normgauge.anatomy.structure import Anatomy, SpaceKind
from normgauge.errors import InputError
from normgauge.gauge.groups import AttentionGauge, Element, HeadMap, Monomial, Orthogonal
from normgauge.schemas.signed_permutation import tables

HEAD_SPACES = (SpaceKind.QUERY, SpaceKind.KEY, SpaceKind.VALUE)


def attention_of(space: str) -> str:
    """The name under which a gauge holds the layer that a query, key or value space belongs to:
    `.../query` -> `.../attention`.
    """
    for kind in HEAD_SPACES:
        if space.endswith(str(kind)):
            return f"{space.removesuffix(str(kind))}attention"
    raise ValueError(f"{space} is no query, key or value space")


@dataclass(frozen=True, eq=False)
class Gauge:
    """An element of the product of the spaces' groups.

    `elements`: by the name of a residual, feed-forward or other space, or by the name of an
    attention layer (see `attention_of`), whose three spaces move together. A space without an
    element stays as it is.
    """

    elements: Mapping[str, Element]

    def __post_init__(self) -> None:
        object.__setattr__(self, "elements", MappingProxyType(dict(self.elements)))

    def compose(self, other: Gauge) -> Gauge:
        """This gauge first, then the other. Raises InputError where two elements are of different
        kinds.
        """
        product = dict(self.elements) | dict(other.elements)
        for name in self.elements.keys() & other.elements.keys():
            first, second = self.elements[name], other.elements[name]
            if type(first) is not type(second):
                raise InputError(
                    f"gauge of {name}: a {type(first).__name__} and a {type(second).__name__} do "
                    "not compose; keep to one of them"
                )
            product[name] = first.compose(second)  # type: ignore[arg-type]
        return Gauge(product)

    def inverse(self) -> Gauge:
        return Gauge({name: element.inverse() for name, element in self.elements.items()})

    def without_signs(self) -> Gauge:
        """The permutation-only control: every monomial loses its factors."""
        return Gauge(
            {
                name: element.permutation() if isinstance(element, Monomial) else element
                for name, element in self.elements.items()
            }
        )

    def squared(self) -> Gauge:
        """How elementwise squares of the tensors move. Raises InputError where an element is no
        monomial: squares do not follow it.
        """
        squares: dict[str, Element] = {}
        for name, element in self.elements.items():
            if not isinstance(element, Monomial):
                raise InputError(
                    f"gauge of {name}: elementwise squares do not follow a "
                    f"{type(element).__name__}; use a signed permutation"
                )
            squares[name] = element.squared()
        return Gauge(squares)

    def on_space(self, anatomy: Anatomy, space: str) -> Monomial | Orthogonal | HeadMap | None:
        """What acts on the activations of one space of the model, or None."""
        kind = anatomy.space(space).kind
        if kind not in HEAD_SPACES:
            element = self.elements.get(space)
            return None if isinstance(element, AttentionGauge) else element
        layer = self.elements.get(attention_of(space))
        return getattr(layer, str(kind)) if isinstance(layer, AttentionGauge) else None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Gauge) and dict(self.elements) == dict(other.elements)


def write_gauge(path: str | os.PathLike[str], gauge: Gauge, metadata: Mapping[str, str]) -> None:
    """Write a gauge (schema `gauge`), one row per element, atomically."""
    tables.write(
        path,
        "gauge",
        [{"space": name, **_row(element)} for name, element in gauge.elements.items()],
        metadata,
    )


def _row(element: Element) -> dict[str, Any]:
    row: dict[str, Any] = {
        "kind": _KINDS[type(element)],
        "targets": [],
        "factors": [],
        "matrices": [],
        "shape": [],
    }
    match element:
        case Monomial():
            row |= {
                "targets": element.target.tolist(),
                "factors": element.factors.tolist(),
                "shape": [element.size],
            }
        case Orthogonal():
            row |= {"matrices": element.matrix.ravel().tolist(), "shape": [element.size]}
        case AttentionGauge():
            row |= {
                "targets": [*element.group_order.tolist(), *element.head_order.ravel().tolist()],
                "matrices": [
                    *element.query_maps.ravel().tolist(),
                    *element.value_maps.ravel().tolist(),
                ],
                "shape": [
                    element.groups,
                    element.repeats,
                    element.query_maps.shape[-1],
                    element.value_maps.shape[-1],
                ],
            }
    return row


_KINDS = {Monomial: "monomial", Orthogonal: "orthogonal", AttentionGauge: "attention"}


def read_gauge(path: str | os.PathLike[str]) -> Gauge:
    """A gauge written by `write_gauge`. Raises InputError when the file is another table, moves a
    space twice, or holds what is no element of the shape that it states.
    """
    elements: dict[str, Element] = {}
    for row in tables.read(path, "gauge"):
        if row["space"] in elements:
            raise InputError(
                f"{Path(path).name}: moves {row['space']} twice; record the gauge again"
            )
        try:
            elements[row["space"]] = element = _element(row)
            if _row(element) != {key: row[key] for key in row if key != "space"}:
                raise InputError(
                    f"holds other numbers than a {row['kind']} element of shape {row['shape']} "
                    "has; record the gauge again"
                )
        except (ValueError, TypeError, IndexError, OverflowError, InputError) as error:
            raise InputError(f"{Path(path).name}: gauge of {row['space']}: {error}") from error
    return Gauge(elements)


def _element(row: Mapping[str, Any]) -> Element:
    targets, matrices = np.array(row["targets"], dtype=np.int64), np.array(row["matrices"])
    match row["kind"]:
        case "monomial":
            return Monomial(targets, row["factors"])
        case "orthogonal":
            return Orthogonal(matrices.reshape(row["shape"][0], -1))
        case "attention":
            groups, repeats, query, value = row["shape"]
            split = groups * query * query
            return AttentionGauge(
                targets[:groups],
                targets[groups:].reshape(groups, repeats),
                matrices[:split].reshape(groups, query, query),
                matrices[split:].reshape(groups, value, value),
            )
        case kind:
            raise InputError(
                f"kind {kind!r} is unknown, expected {', '.join(_KINDS.values())}; update normgauge"
            )
