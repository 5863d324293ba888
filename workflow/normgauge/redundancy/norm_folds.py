"""What a norm does and its maps can do instead: gains, biases, and the kernel behind LayerNorm."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np
import torch

from normgauge.anatomy.lookup import fed_maps, is_tied
from normgauge.anatomy.structure import Anatomy, LinearMap, Norm, NormKind
from normgauge.gauge.folding import bypasses, folds_gain, leaves_model, move_gain
from normgauge.redundancy.family import Kind, Symmetry
from normgauge.redundancy.readers import (
    Mutable,
    Tensors,
    add_constant,
    add_to_matrix,
    free_rows,
    matrix_in,
    nonzero_gain_of,
    output_map,
)


def norm_folds(anatomy: Anatomy) -> Iterator[Symmetry]:
    """The families of every norm that feeds maps."""
    for norm in anatomy.norms:
        if folds_gain(anatomy, norm):
            yield Symmetry(Kind.GAIN, norm.name, norm.size, partial(_scale_gain, anatomy, norm))
        if norm.kind == NormKind.LAYER_NORM:
            if folds_bias(anatomy, norm):
                yield Symmetry(Kind.BIAS, norm.name, norm.size, partial(_shift_bias, anatomy, norm))
            for item in fed_maps(anatomy, norm):
                if not is_tied(anatomy, item.weight):
                    free = payable_rows(anatomy, norm, item)
                    act = partial(_add_kernel, anatomy, norm, item)
                    yield Symmetry(Kind.KERNEL, item.name, int(free.sum()), act)


def _scale_gain(anatomy: Anatomy, norm: Norm, tensors: Tensors, coordinates: np.ndarray) -> Mutable:
    return move_gain(anatomy, norm, tensors, torch.from_numpy(np.exp(coordinates)))


def folds_bias(anatomy: Anatomy, norm: Norm) -> bool:
    """Whether a change of the bias can be taken back: by every map that it feeds, and by the stream
    where that carries it on.
    """
    fed = fed_maps(anatomy, norm)
    if not norm.bias or not fed or leaves_model(anatomy, norm):
        return False
    if bypasses(anatomy, norm) and not carried_by(anatomy, norm):
        return False
    return all(free_rows(anatomy, item).all() or not is_tied(anatomy, item.weight) for item in fed)


def carried_by(anatomy: Anatomy, norm: Norm) -> LinearMap | None:
    """The one output map, with a bias, whose result is added to the norm's output."""
    found = {
        output.name: output
        for item in fed_maps(anatomy, norm)
        if (output := output_map(anatomy, item))
    }
    only = next(iter(found.values())) if len(found) == 1 else None
    return only if only and only.bias else None


def _shift_bias(anatomy: Anatomy, norm: Norm, tensors: Tensors, coordinates: np.ndarray) -> Mutable:
    shift = torch.from_numpy(coordinates)
    moved = dict(tensors)
    assert norm.bias is not None
    moved[norm.bias] = tensors[norm.bias] + shift
    for item in fed_maps(anatomy, norm):
        wanted = -matrix_in(anatomy, tensors, item) @ shift
        free = torch.from_numpy(free_rows(anatomy, item))
        if free.any():
            add_constant(anatomy, moved, item, wanted.where(free, 0.0))
        # without a bias of its own: along the norm's kernel, on which its output is constant
        if not free.all():
            direction, constant = kernel(moved, norm)
            add_to_matrix(
                anatomy, moved, item, torch.outer(wanted.where(~free, 0.0) / constant, direction)
            )
    if bypasses(anatomy, norm):
        output = carried_by(anatomy, norm)
        assert output is not None
        add_constant(anatomy, moved, output, -shift)
    return moved


def kernel(tensors: Tensors, norm: Norm) -> tuple[torch.Tensor, torch.Tensor]:
    """The unit vector along 1/gain, and the value that the norm's output has along it whatever
    comes in.
    """
    direction = 1 / nonzero_gain_of(tensors, norm)
    direction = direction / direction.norm()
    return direction, direction @ tensors[norm.bias] if norm.bias else torch.zeros(())


def payable_rows(anatomy: Anatomy, norm: Norm, item: LinearMap) -> np.ndarray:
    """bool (outputs,): the outputs to which multiples of 1/gain may be added, because something
    takes back the constant that this gives. Without a bias of the norm it gives none.
    """
    return free_rows(anatomy, item) | (norm.bias is None)


def unpaid_kernels(anatomy: Anatomy) -> list[Symmetry]:
    """The family of 1/gain in maps behind a LayerNorm to whose outputs no constant can be added:
    where the norm's bias is zero its output has none along 1/gain, and nothing must be paid.
    """
    found = []
    for norm in anatomy.norms:
        for item in fed_maps(anatomy, norm) if norm.kind == NormKind.LAYER_NORM else ():
            bound = ~payable_rows(anatomy, norm, item)
            if bound.any() and not is_tied(anatomy, item.weight):
                act = partial(_add_along, anatomy, norm, item, bound)
                found.append(Symmetry(Kind.KERNEL, item.name, int(bound.sum()), act))
    return found


def _add_along(
    anatomy: Anatomy,
    norm: Norm,
    item: LinearMap,
    rows: np.ndarray,
    tensors: Tensors,
    coordinates: np.ndarray,
) -> Mutable:
    along = torch.zeros(len(rows), dtype=torch.float64)
    along[torch.from_numpy(rows)] = torch.from_numpy(coordinates)
    direction, _ = kernel(tensors, norm)
    moved = dict(tensors)
    add_to_matrix(anatomy, moved, item, torch.outer(along, direction))
    return moved


def _add_kernel(
    anatomy: Anatomy, norm: Norm, item: LinearMap, tensors: Tensors, coordinates: np.ndarray
) -> Mutable:
    free = payable_rows(anatomy, norm, item)
    along = torch.zeros(len(free), dtype=torch.float64)
    along[torch.from_numpy(free)] = torch.from_numpy(coordinates)
    direction, constant = kernel(tensors, norm)
    moved = dict(tensors)
    add_to_matrix(anatomy, moved, item, torch.outer(along, direction))
    if norm.bias:
        add_constant(anatomy, moved, item, -along * constant)
    return moved
