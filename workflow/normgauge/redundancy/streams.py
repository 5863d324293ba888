"""Symmetries of the residual streams: rotations, and multiples of ones before LayerNorm."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

import numpy as np
import torch
from scipy.linalg import expm, null_space, polar

from normgauge.anatomy.lookup import effective_gain
from normgauge.anatomy.structure import Anatomy, NormKind
from normgauge.errors import InputError
from normgauge.gauge.admissible import norms_on
from normgauge.gauge.folding import SUBLAYER, folds_gain, move_gain
from normgauge.gauge.groups import Orthogonal
from normgauge.gauge.null_line import NullLine, null_line_axes, shifted
from normgauge.redundancy.family import Kind, Symmetry, gauged
from normgauge.redundancy.readers import Mutable, Tensors, nonzero_gain_of


def rotations(anatomy: Anatomy) -> Iterator[Symmetry]:
    """Rotations of a stream whose every gain can be moved into maps, rotated, and moved back."""
    for space in dict.fromkeys(stack.space for stack in anatomy.stacks):
        norms = norms_on(anatomy, space)
        through_activation = any(item.writes == space and item.activation for item in anatomy.maps)
        if through_activation or not all(folds_gain(anatomy, norm) for norm in norms):
            continue
        width = anatomy.space(space).size
        fixed = any(norm.kind == NormKind.LAYER_NORM for norm in norms)
        free = width - fixed
        yield Symmetry(
            Kind.ROTATION, space, free * (free - 1) // 2, partial(_rotate, anatomy, space, fixed)
        )


def residual_rotation(width: int, fixes_ones: bool, coordinates: np.ndarray) -> Orthogonal:
    """A rotation of SO(width), or of its subgroup SO(width - 1) that leaves the vector of ones
    where it is.

    `coordinates`: the entries of its generator above the diagonal, as many as the group has
        dimensions (further ones are not used).
    """
    free = width - fixes_ones
    skew = np.zeros((free, free))
    skew[np.triu_indices(free, 1)] = coordinates[: free * (free - 1) // 2]
    # the exponential is orthogonal to some digits less than the nearest orthogonal matrix
    matrix, _ = polar(expm(skew - skew.T))
    if fixes_ones:
        basis = centred_basis(width)
        matrix = basis @ matrix @ basis.T + np.full((width, width), 1 / width)
    return Orthogonal(matrix)


def _rotate(
    anatomy: Anatomy, space: str, fixes_ones: bool, tensors: Tensors, coordinates: np.ndarray
) -> Mutable:
    rotation = residual_rotation(anatomy.space(space).size, fixes_ones, coordinates)
    norms = norms_on(anatomy, space)
    gains = {norm.name: nonzero_gain_of(tensors, norm) for norm in norms}
    moved: Mutable = dict(tensors)
    for norm in norms:
        moved = move_gain(anatomy, norm, moved, 1 / gains[norm.name])
        assert norm.gain is not None
        # exactly one, not to rounding: a rotation needs that
        moved[norm.gain] = torch.full_like(moved[norm.gain], 1 - norm.gain_offset)
    moved = gauged(anatomy, moved, space, rotation)
    for norm in norms:
        moved = move_gain(anatomy, norm, moved, gains[norm.name])
    return moved


def centred_basis(width: int) -> np.ndarray:
    """An orthonormal basis of the vectors whose coordinates sum to zero, (width, width - 1)."""
    return null_space(np.ones((1, width)))


def _null_axes(anatomy: Anatomy) -> dict[str, dict[str, int]]:
    """By space, the tensors that may be shifted by multiples of the vector of ones."""
    found = {}
    for space in dict.fromkeys(
        norm.space for norm in anatomy.norms if anatomy.space(norm.space).kind not in SUBLAYER
    ):
        try:
            found[space] = null_line_axes(anatomy, space)
        except InputError:  # this stream has no null line
            continue
    return found


def shiftable(anatomy: Anatomy) -> set[str]:
    """The tensors that may be shifted by multiples of ones."""
    return {name for axes in _null_axes(anatomy).values() for name in axes}


def null_lines(anatomy: Anatomy) -> Iterator[Symmetry]:
    """Shifts along the vector of ones, one family per tensor."""
    for space, axes in _null_axes(anatomy).items():
        for name, axis in axes.items():
            shape = [
                size for number, size in enumerate(anatomy.tensor(name).shape) if number != axis
            ]
            yield Symmetry(
                Kind.NULL_LINE,
                name,
                int(np.prod(shape)),
                partial(_shift, anatomy, space, name, shape),
            )


def _shift(
    anatomy: Anatomy,
    space: str,
    name: str,
    shape: Sequence[int],
    tensors: Tensors,
    coordinates: np.ndarray,
) -> Mutable:
    return shifted(
        anatomy,
        tensors,
        space,
        NullLine({name: torch.from_numpy(coordinates).reshape(tuple(shape))}),
    )


def affine_distance(rotation: Orthogonal, gain: np.ndarray, bias: np.ndarray | None) -> float:
    """How far a norm's gain and bias, (d,) each, are from passing a rotation Q: |diag(g) Q - Q
    diag(g)| over |g| or |b Q - b| over |(g, b)|, Frobenius norms, whichever is larger; 0 for a
    constant gain without a bias.
    """
    spread = gain - gain.mean()  # what is constant passes, and would only add its rounding
    commutator = 2 * (spread @ spread - spread @ rotation.matrix**2 @ spread)
    distance = np.sqrt(max(commutator, 0.0) / (gain @ gain))
    if bias is not None:
        moved = np.linalg.norm(bias @ rotation.matrix - bias) / np.linalg.norm([*gain, *bias])
        distance = max(distance, moved if bias.any() else 0.0)
    return float(distance)


def rotation_distance(anatomy: Anatomy, tensors: Tensors, rotation: Orthogonal) -> float:
    """The largest `affine_distance` over the norms of the primary stream."""
    distances = [0.0]
    for norm in norms_on(anatomy, anatomy.primary_stack.space):
        if norm.gain:
            gain = effective_gain(norm, tensors).numpy()
            bias = tensors[norm.bias].double().numpy() if norm.bias else None
            distances.append(affine_distance(rotation, gain, bias))
    return max(distances)
