"""Which elements leave a model's function alone: read off the consumers of each space in the
anatomy.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from normgauge.anatomy.structure import (
    Anatomy,
    LinearMap,
    Norm,
    NormKind,
    Positions,
    Role,
    Space,
    SpaceKind,
)
from normgauge.errors import InputError
from normgauge.gauge.model_gauge import HEAD_SPACES, attention_of

ODD = ("tanh",)  # f(-x) = -f(x)

HOMOGENEOUS = ("relu",)  # f(c x) = c f(x) for c > 0


class Group(StrEnum):
    """The groups that occur, of one space or of one attention layer."""

    PERMUTATION = "permutation"
    COMMON_SIGN = "permutation with a common sign"
    SIGNED_PERMUTATION = "signed permutation"
    POSITIVE_MONOMIAL = "permutation with positive scales"
    MONOMIAL = "permutation with scales"
    ATTENTION = "head maps"


class QueryMaps(StrEnum):
    """What the position encoding and the query/key norms leave of GL(d_h) on queries and keys."""

    GENERAL = "any invertible matrix"
    ROTARY = "one complex factor per rotary pair"
    SIGNS = "one sign per rotary pair"


@dataclass(frozen=True)
class Admissible:
    """The group of one space (or attention layer), and why it is no larger.

    `query_maps` and `heads_move` describe an attention layer's; heads stay where a score bias
    belongs to each.
    """

    space: str
    size: int
    group: Group
    reason: str
    query_maps: QueryMaps = QueryMaps.GENERAL
    heads_move: bool = True


def gauge_spaces(anatomy: Anatomy) -> tuple[str, ...]:
    """Names of all spaces and attention layers that a gauge may move, in the anatomy's order."""
    names = [
        attention_of(space.name) if space.kind in HEAD_SPACES else space.name
        for space in anatomy.spaces
        if _moves(anatomy, space)
    ]
    return tuple(dict.fromkeys(names))


def _moves(anatomy: Anatomy, space: Space) -> bool:
    """A space inside the model: residual and block spaces, and others that are written in full and
    read.
    """
    if space.kind in (SpaceKind.RESIDUAL, SpaceKind.FFN, *HEAD_SPACES):
        return True
    if space.kind != SpaceKind.OTHER or not any(item.reads == space.name for item in anatomy.maps):
        return False
    written = {
        coordinate
        for tensor in anatomy.tensors
        for axis in tensor.axes
        if axis.role == Role.WRITE
        for segment in axis.segments
        if segment.space == space.name
        for coordinate in range(segment.start, segment.stop)
    }
    return len(written) == space.size


def admissible(anatomy: Anatomy, space: str) -> Admissible:
    """The group of a space or attention layer. Raises InputError for a name that no gauge may
    move.
    """
    if space not in gauge_spaces(anatomy):
        raise InputError(
            f"{anatomy.architecture}: no gauge moves {space!r}; expected one of "
            f"{', '.join(gauge_spaces(anatomy)[:8])}, ..."
        )
    if space.endswith("attention"):
        return _attention(anatomy, space)
    found = anatomy.space(space)
    writers = [item for item in anatomy.maps if item.writes == space]
    if found.kind == SpaceKind.FFN and len(writers) > 1:
        return Admissible(
            space,
            found.size,
            Group.MONOMIAL,
            "the gate passes permutations alone, the linear branch any scale",
        )
    return Admissible(space, found.size, *_elementwise(anatomy, space, writers))


def _elementwise(anatomy: Anatomy, space: str, writers: list[LinearMap]) -> tuple[Group, str]:
    activations = {item.activation for item in writers if item.activation}
    kinds = {norm.kind for norm in anatomy.norms if norm.space == space}
    for name in sorted(activations):
        if name not in (*ODD, *HOMOGENEOUS):
            return Group.PERMUTATION, f"{name} acts on every coordinate and is not odd"
    if NormKind.LAYER_NORM in kinds:
        if activations & set(HOMOGENEOUS):
            return (
                Group.PERMUTATION,
                "relu is not odd and LayerNorm is no function of single coordinates",
            )
        return (
            Group.COMMON_SIGN,
            "LayerNorm subtracts the mean over coordinates, which independent signs change",
        )
    if activations & set(HOMOGENEOUS):
        return (
            (Group.PERMUTATION, "relu is not odd, RMSNorm not free of scale")
            if kinds
            else (Group.POSITIVE_MONOMIAL, "relu is not odd")
        )
    if kinds or activations:
        reason = (
            "the gain of RMSNorm acts on single coordinates"
            if kinds
            else "tanh is odd and not homogeneous"
        )
        return Group.SIGNED_PERMUTATION, reason
    return Group.MONOMIAL, "coordinates are kept"


def _attention(anatomy: Anatomy, name: str) -> Admissible:
    query, key = (
        anatomy.space(f"{name.removesuffix('attention')}{kind}") for kind in ("query", "key")
    )
    normed = any(norm.space in (query.name, key.name) for norm in anatomy.norms)
    maps, reason = QueryMaps.GENERAL, "scores are inner products of queries and keys"
    if normed:
        maps, reason = (
            QueryMaps.SIGNS,
            "query and key norms have gains on single coordinates, shared by all heads",
        )
    elif anatomy.turns(name.removesuffix("attention")):
        maps, reason = (
            QueryMaps.ROTARY,
            "rotary positions turn each pair of coordinates at its own rate",
        )
    relative = anatomy.positions == Positions.RELATIVE and not name.endswith("cross_attention")
    if relative:
        reason += "; each head has its own score bias, shared by the blocks"
    return Admissible(name, query.size, Group.ATTENTION, reason, maps, heads_move=not relative)


def norms_on(anatomy: Anatomy, space: str) -> list[Norm]:
    return [norm for norm in anatomy.norms if norm.space == space]


def scale_tensors(anatomy: Anatomy, space: str) -> list[str]:
    """Tensors that multiply the space's coordinates outside a norm."""
    return [
        tensor.name
        for tensor in anatomy.tensors
        if any(axis.role == Role.SCALE and axis.segments[0].space == space for axis in tensor.axes)
    ]


def nearest_query_maps(anatomy: Anatomy, layer: str, maps: np.ndarray) -> np.ndarray:
    """The nearest maps that an attention layer's queries admit, to maps (groups, d, d): equal to
    them where they are admissible.
    """
    pattern = query_form(admissible(anatomy, layer).query_maps, anatomy.rotary_size, maps.shape[-1])
    return np.stack([pattern(matrix) for matrix in maps])


def query_form(maps: QueryMaps, rotary_size: int, size: int):
    """The nearest matrix of the allowed form, as a function of the matrix."""
    half = rotary_size // 2
    first, second = np.arange(half), np.arange(half) + half
    free = np.arange(rotary_size, size)

    def rotary(matrix: np.ndarray) -> np.ndarray:
        allowed = np.zeros_like(matrix)
        real = (matrix[first, first] + matrix[second, second]) / 2
        imaginary = (matrix[first, second] - matrix[second, first]) / 2
        allowed[first, first] = allowed[second, second] = real
        allowed[first, second], allowed[second, first] = imaginary, -imaginary
        allowed[np.ix_(free, free)] = matrix[np.ix_(free, free)]
        return allowed

    def signs(matrix: np.ndarray) -> np.ndarray:
        diagonal = np.where(np.diag(matrix) < 0, -1.0, 1.0)
        diagonal[second] = diagonal[first]
        return np.diag(diagonal)

    return {
        QueryMaps.GENERAL: lambda matrix: matrix,
        QueryMaps.ROTARY: rotary,
        QueryMaps.SIGNS: signs,
    }[maps]
