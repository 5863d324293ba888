"""Who reads and writes what, as the symmetries need it: logical maps inside stored tensors, and
where a constant can go.

Tensors are stored ones, float64, by name; a tied tensor is there once, under the name that it is an
alias of.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch

from normgauge.anatomy.lookup import effective_gain, holder, matrix_of, rows_of
from normgauge.anatomy.structure import Anatomy, LinearMap, Norm, Positions, SpaceKind
from normgauge.errors import InputError
from normgauge.gauge.admissible import norms_on

Tensors = Mapping[str, torch.Tensor]
Mutable = dict[str, torch.Tensor]


def stored(anatomy: Anatomy, tensors: Tensors) -> Mutable:
    """The tensors in float64, each tied one once, under the name that the anatomy gives to its
    values.
    """
    found: Mutable = {}
    for name, value in tensors.items():
        found.setdefault(holder(anatomy, name), value.double())
    return found


def matrix_in(anatomy: Anatomy, tensors: Tensors, item: LinearMap) -> torch.Tensor:
    """The map as (outputs, inputs), from the stored tensors."""
    return matrix_of(anatomy, item, tensors[holder(anatomy, item.weight)])


def add_to_matrix(
    anatomy: Anatomy, tensors: Mutable, item: LinearMap, change: torch.Tensor
) -> None:
    """Add (outputs, inputs) to the map, in place of its weight."""
    name, rows = holder(anatomy, item.weight), torch.from_numpy(rows_of(anatomy, item))
    if item.input_axis == 1:
        tensors[name] = tensors[name].index_add(0, rows, change)
    else:
        tensors[name] = tensors[name].index_add(1, rows, change.T)


def output_map(anatomy: Anatomy, item: LinearMap) -> LinearMap | None:
    """The map that ends the sublayer which `item` begins: the reader of the values, or of the
    feed-forward units, beside it.
    """
    kind = anatomy.space(item.writes).kind
    read = SpaceKind.FFN if kind == SpaceKind.FFN else SpaceKind.VALUE
    hidden = f"{item.writes.removesuffix(str(kind))}{read}"
    return next((other for other in anatomy.maps if other.reads == hidden), None)


def free_rows(anatomy: Anatomy, item: LinearMap) -> np.ndarray:
    """bool (outputs,): the outputs to which a constant may be added, because something takes it
    back (`add_constant`).
    """
    size = anatomy.space(item.writes).size
    kind = anatomy.space(item.writes).kind
    if item.bias:
        return np.ones(size, bool)
    if kind == SpaceKind.KEY:
        return blind_coordinates(anatomy, item.writes)
    if kind == SpaceKind.VALUE:
        output = output_map(anatomy, item)
        return np.full(size, bool(output and output.bias))
    return np.zeros(size, bool)


def blind_coordinates(anatomy: Anatomy, key: str) -> np.ndarray:
    """bool (coordinates,): where a constant on every key does nothing: it adds to all scores of a
    query alike, which softmax does not see.

    Not so where keys turn with their position or meet vectors of positions, or are normalised.
    """
    space = anatomy.space(key)
    if norms_on(anatomy, key) or anatomy.positions == Positions.VECTORS:
        return np.zeros(space.size, bool)
    if not anatomy.turns(key.removesuffix("key")):
        return np.ones(space.size, bool)
    return np.arange(space.size) % (space.size // space.heads) >= anatomy.rotary_size


def add_constant(
    anatomy: Anatomy, tensors: Mutable, item: LinearMap, constant: torch.Tensor
) -> None:
    """Add a constant (outputs,) to what the map gives, without touching its weight: to its bias,
    else, for a value map, to what the output map gives, for attention weights sum to one; else, for
    a key map, nowhere.
    """
    if item.bias:
        _add_to_bias(anatomy, tensors, item, constant)
    elif anatomy.space(item.writes).kind == SpaceKind.VALUE:
        output = output_map(anatomy, item)
        assert output is not None
        _add_to_bias(
            anatomy,
            tensors,
            output,
            matrix_in(anatomy, tensors, output) @ mixed(anatomy, output, constant),
        )


def _add_to_bias(
    anatomy: Anatomy, tensors: Mutable, item: LinearMap, constant: torch.Tensor
) -> None:
    assert item.bias is not None
    name = holder(anatomy, item.bias)
    rows = torch.from_numpy(rows_of(anatomy, item))
    tensors[name] = tensors[name].index_add(0, rows, constant)


def mixed(anatomy: Anatomy, output: LinearMap, values: torch.Tensor) -> torch.Tensor:
    """Coordinates of the value space as the output map reads them: each key/value group once per
    query head.
    """
    segments = anatomy.tensor(output.weight).axes[output.input_axis].segments
    return torch.cat([values[segment.start : segment.stop] for segment in segments])


def nonzero_gain_of(tensors: Tensors, norm: Norm) -> torch.Tensor:
    """The effective gain, where it is divided by. Raises InputError, naming the norm, when one is
    zero.
    """
    gain = effective_gain(norm, tensors)
    if not gain.all():
        number = int((gain == 0).nonzero()[0])
        raise InputError(
            f"norm {norm.name}: gain {number} is zero, so nothing can be divided by it; leave the "
            "checkpoint out of the checks"
        )
    return gain
