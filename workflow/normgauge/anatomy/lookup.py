"""Questions to an anatomy that every room asks: where a map's rows lie, which maps a norm feeds,
which tensor holds the values of a tied one, what a norm multiplies by.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol, TypeVar

import numpy as np
import torch

from normgauge.anatomy.structure import Anatomy, LinearMap, Norm

Matrix = TypeVar("Matrix", torch.Tensor, np.ndarray)


class Named(Protocol):
    """Tensors by the names of the class: a mapping, or what reads and moves them on demand."""

    def __getitem__(self, name: str, /) -> torch.Tensor: ...


def holder(anatomy: Anatomy, name: str) -> str:
    """The tensor that a tensor is tied to; its own name where it is not an alias."""
    return anatomy.tensor(name).alias_of or name


def is_tied(anatomy: Anatomy, name: str) -> bool:
    """Whether the tensor's values serve under two names."""
    tensor = anatomy.tensor(name)
    return tensor.alias_of is not None or any(other.alias_of == name for other in anatomy.tensors)


def tied_names(anatomy: Anatomy, name: str) -> tuple[str, ...]:
    """All names of the tensor's values: its own first, then the holder's, then the aliases'."""
    source = holder(anatomy, name)
    aliases = (other.name for other in anatomy.tensors if other.alias_of == source)
    return tuple(dict.fromkeys((name, source, *aliases)))


def stored_name(anatomy: Anatomy, name: str, stored: Collection[str]) -> str:
    """The first of a tensor's names under which `stored`, names of a checkpoint's tensors, has it.

    Raises StopIteration where it has none: `check_tensors` refuses such a checkpoint by name.
    """
    if name in stored:
        return name
    return next(each for each in tied_names(anatomy, name) if each in stored)


def rows_of(anatomy: Anatomy, item: LinearMap) -> np.ndarray:
    """int64 (outputs,): where a map's outputs lie on its weight's output axis, and in its bias, in
    the order of the coordinates that it writes.
    """
    axis = anatomy.tensor(item.weight).axes[1 - item.input_axis]
    rows = np.array(axis.indices(item.writes), dtype=np.int64)
    return rows[np.argsort(axis.coordinates(item.writes), kind="stable")]


def matrix_of(anatomy: Anatomy, item: LinearMap, weight: Matrix) -> Matrix:
    """A map as (outputs, inputs), from the value of its weight, which may hold other maps too."""
    return (weight if item.input_axis == 1 else weight.T)[rows_of(anatomy, item)]


def fed_maps(anatomy: Anatomy, norm: Norm) -> tuple[LinearMap, ...]:
    """The maps that read the output of a norm at every call, in the anatomy's order."""
    return tuple(item for item in anatomy.maps if item.norm == norm.name)


def effective_gain(norm: Norm, tensors: Named) -> torch.Tensor:
    """float64 (size,): what a norm multiplies by, gain_offset + stored gain; ones without a gain.

    >>> from normgauge.anatomy.structure import NormKind
    >>> gemma = Norm("norm", NormKind.RMS_NORM, "residual", 2, "w", None, 1e-6, gain_offset=1.0)
    >>> effective_gain(gemma, {"w": torch.tensor([0.0, 0.5])}).tolist()
    [1.0, 1.5]
    """
    if norm.gain is None:
        return torch.ones(norm.size, dtype=torch.float64)
    return tensors[norm.gain].double() + norm.gain_offset
