"""Questions to an anatomy that every room asks: where a map's rows lie, which maps a norm feeds,
which tensor holds the values of a tied one, what a norm multiplies by.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Protocol, TypeVar

import numpy as np
import torch

from normgauge.anatomy.structure import (
    Anatomy,
    Axis,
    LinearMap,
    Norm,
    Role,
    SpaceKind,
    Tensor,
)

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
    return runs_of(anatomy.tensor(item.weight).axes[1 - item.input_axis], item.writes)[item.run]


def runs_of(axis: Axis, space: str) -> np.ndarray:
    """int64 (runs, coordinates): where the coordinates of a space lie on an axis, in their order,
    once for each time that it lies there.
    """
    if len(axis.segments) == 1 and axis.segments[0].start == 0:
        return np.arange(axis.size)[None]  # as most axes: nothing to sort
    places = np.array(axis.indices(space), dtype=np.int64)
    coordinates = np.array(axis.coordinates(space), dtype=np.int64)
    order = np.argsort(coordinates, kind="stable")
    return places[order].reshape(len(np.unique(coordinates)), -1).T


def gate_runs(anatomy: Anatomy) -> dict[str, frozenset[int]]:
    """Which runs over its space along the output axis a gate writes, by weights and biases of the
    gates: maps whose activation multiplies another map's output.
    """
    linear = {
        item.writes
        for item in anatomy.maps
        if not item.activation and anatomy.space(item.writes).kind == SpaceKind.FFN
    }
    gates = [item for item in anatomy.maps if item.activation and item.writes in linear]
    return {
        name: frozenset({item.run}) for item in gates for name in (item.weight, item.bias) if name
    }


def cut_apart(
    anatomy: Anatomy, tensors: Mapping[str, torch.Tensor]
) -> tuple[Anatomy, Mapping[str, torch.Tensor]]:
    """The model with each tensor that holds several maps of one space cut into one tensor for each,
    by the number of its run after its name. `tensors` need not hold all.
    """
    several = {
        name: item.run
        for item in anatomy.maps
        for name in (item.weight, item.bias)
        if name and item.run
    }
    if not several:
        return anatomy, tensors
    parts: list[Tensor] = []
    values = dict(tensors)
    for tensor in anatomy.tensors:
        if tensor.name not in several:
            parts.append(tensor)
            continue
        number = next(place for place, axis in enumerate(tensor.axes) if axis.role == Role.WRITE)
        axis, start = tensor.axes[number], 0
        whole = values.pop(tensor.name, None)
        for run, segment in enumerate(axis.segments):
            axes = list(tensor.axes)
            axes[number] = Axis(axis.role, (segment,))
            name = f"{tensor.name}, run {run}"
            parts.append(Tensor(name, tuple(axes)))
            if whole is not None:
                values[name] = whole.narrow(number, start, axes[number].size)
            start += axes[number].size
    maps = tuple(
        replace(
            item,
            weight=f"{item.weight}, run {item.run}" if item.weight in several else item.weight,
            bias=f"{item.bias}, run {item.run}" if item.bias in several else item.bias,
            run=0,
        )
        for item in anatomy.maps
    )
    return replace(anatomy, tensors=tuple(parts), maps=maps), values


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
