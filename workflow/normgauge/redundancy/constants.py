"""Constants that something else takes back: key and value biases, and the addends of one sum."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

import numpy as np
import torch
from scipy.linalg import null_space

from normgauge.anatomy.lookup import holder, is_tied
from normgauge.anatomy.structure import Anatomy, LinearMap, NormKind, Placement, Role, SpaceKind
from normgauge.gauge.folding import SUBLAYER
from normgauge.redundancy.family import Kind, Symmetry
from normgauge.redundancy.norm_folds import kernel
from normgauge.redundancy.readers import (
    Mutable,
    Tensors,
    add_constant,
    add_to_matrix,
    blind_coordinates,
    matrix_in,
    mixed,
    output_map,
)
from normgauge.redundancy.streams import centred_basis, shiftable


def biases(anatomy: Anatomy) -> Iterator[Symmetry]:
    """Constants on keys, which softmax does not see, and on values, which the output map's bias
    takes back or the output map loses.
    """
    null = shiftable(anatomy)
    for item in anatomy.maps:
        kind = anatomy.space(item.writes).kind
        if item.bias and kind == SpaceKind.KEY:
            blind = blind_coordinates(anatomy, item.writes)
            yield Symmetry(
                Kind.KEY_BIAS,
                item.name,
                int(blind.sum()),
                partial(_shift_keys, anatomy, item, blind),
            )
        output = output_map(anatomy, item) if kind == SpaceKind.VALUE else None
        if output and output.bias and item.bias:
            size = anatomy.space(item.writes).size
            yield Symmetry(
                Kind.VALUE_BIAS, item.name, size, partial(_shift_values, anatomy, item, output)
            )
        if output and not output.bias and (item.bias or _behind_layer_norm(anatomy, item)):
            centred = holder(anatomy, output.weight) in null
            size = anatomy.space(item.writes).size - anatomy.space(output.writes).size + centred
            yield Symmetry(
                Kind.LOST_VALUE,
                item.name,
                max(size, 0),
                partial(_shift_lost_values, anatomy, item, output, centred),
            )


def _behind_layer_norm(anatomy: Anatomy, item: LinearMap) -> bool:
    if item.norm is None or is_tied(anatomy, item.weight):
        return False
    norm = anatomy.norm(item.norm)
    return norm.kind == NormKind.LAYER_NORM and norm.bias is not None


def _shift_lost_values(
    anatomy: Anatomy,
    item: LinearMap,
    output: LinearMap,
    centred: bool,
    tensors: Tensors,
    coordinates: np.ndarray,
) -> Mutable:
    """Constants on the values that the output map sends to zero, or to multiples of ones that
    nothing sees.
    """
    size = anatomy.space(item.writes).size
    sent = np.stack(
        [
            (matrix_in(anatomy, tensors, output) @ mixed(anatomy, output, unit)).numpy()
            for unit in torch.eye(size).double()
        ],
        1,
    )
    lost = null_space(sent - sent.mean(0) if centred else sent)
    shift = torch.from_numpy(lost @ coordinates)
    moved = dict(tensors)
    if item.bias:
        add_constant(anatomy, moved, item, shift)
    else:
        assert item.norm is not None
        direction, constant = kernel(tensors, anatomy.norm(item.norm))
        add_to_matrix(anatomy, moved, item, torch.outer(shift / constant, direction))
    return moved


def _shift_keys(
    anatomy: Anatomy, item: LinearMap, blind: np.ndarray, tensors: Tensors, coordinates: np.ndarray
) -> Mutable:
    shift = torch.zeros(len(blind), dtype=torch.float64)
    shift[torch.from_numpy(blind)] = torch.from_numpy(coordinates)
    moved = dict(tensors)
    add_constant(anatomy, moved, item, shift)
    return moved


def _shift_values(
    anatomy: Anatomy, item: LinearMap, output: LinearMap, tensors: Tensors, coordinates: np.ndarray
) -> Mutable:
    shift = torch.from_numpy(coordinates)
    moved = dict(tensors)
    add_constant(anatomy, moved, item, shift)
    add_constant(
        anatomy, moved, output, -matrix_in(anatomy, tensors, output) @ mixed(anatomy, output, shift)
    )
    return moved


def constants(anatomy: Anatomy) -> Iterator[Symmetry]:
    """Constants that move between what is added up before anything reads the sum."""
    null = shiftable(anatomy)
    for place, names in sums(anatomy):
        width = anatomy.tensor(names[0]).shape[-1]
        centred = null.issuperset(names)  # multiples of ones are counted there, one by one
        size = (len(names) - 1) * (width - centred)
        yield Symmetry(Kind.CONSTANT, place, size, partial(_exchange, names, width, centred))
        for item, table in tied_readouts(anatomy, place):
            act = partial(_exchange_with_readout, anatomy, item, table, names[0])
            yield Symmetry(Kind.CONSTANT, table, 1, act)


def tied_readouts(anatomy: Anatomy, place: str) -> Iterator[tuple[LinearMap, str]]:
    """(readout with a bias behind a LayerNorm, the table of the sum at `place` that it is tied
    to).
    """
    for item in anatomy.maps:
        table = anatomy.tensor(item.weight).alias_of
        normed = item.norm and anatomy.norm(item.norm).kind == NormKind.LAYER_NORM
        if table and item.reads == place and item.bias and normed:
            yield item, table


def sums(anatomy: Anatomy) -> Iterator[tuple[str, list[str]]]:
    """(place, tensors whose last axis is added to one sum at every position)."""
    of_maps = {name for item in anatomy.maps for name in (item.weight, item.bias)}
    of_norms = {name for norm in anatomy.norms for name in (norm.gain, norm.bias)}
    for space in dict.fromkeys(
        norm.space for norm in anatomy.norms if anatomy.space(norm.space).kind not in SUBLAYER
    ):
        tables = [
            tensor.name
            for tensor in anatomy.tensors
            if tensor.name not in of_maps | of_norms
            and not is_tied(anatomy, tensor.name)
            and tensor.axes[-1].role == Role.WRITE
            and tensor.axes[-1].segments[0].space == space
        ]
        if tables:
            yield space, tables
    if anatomy.placement == Placement.PARALLEL:
        blocks: dict[str, list[str]] = {}
        for item in anatomy.maps:
            if anatomy.space(item.reads).kind in SUBLAYER and item.bias:
                blocks.setdefault(item.name.rpartition("/")[0], []).append(
                    holder(anatomy, item.bias)
                )
        yield from ((place, names) for place, names in blocks.items())


def _exchange(
    names: Sequence[str], width: int, centred: bool, tensors: Tensors, coordinates: np.ndarray
) -> Mutable:
    shifts = coordinates.reshape(len(names) - 1, -1)
    if centred:
        shifts = shifts @ centred_basis(width).T
    moved = dict(tensors)
    for name, shift in zip(names, [*shifts, -shifts.sum(0)], strict=True):
        moved[name] = moved[name] + torch.from_numpy(shift)
    return moved


def _exchange_with_readout(
    anatomy: Anatomy,
    item: LinearMap,
    table: str,
    other: str,
    tensors: Tensors,
    coordinates: np.ndarray,
) -> Mutable:
    """A table that is also the readout behind a LayerNorm gives only a multiple of 1/gain: there it
    adds a constant to every output.
    """
    assert item.norm is not None
    direction, constant = kernel(tensors, anatomy.norm(item.norm))
    step = float(coordinates[0])
    moved = dict(tensors)
    moved[table] = tensors[table] + step * direction
    moved[other] = tensors[other] - step * direction
    add_constant(
        anatomy,
        moved,
        item,
        torch.full((len(tensors[table]),), -step, dtype=torch.float64) * constant,
    )
    return moved
