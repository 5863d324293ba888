"""Which elements leave a model's function alone: read off the consumers of each space in the anatomy."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
import torch

from normgauge.anatomy.structure import Anatomy, LinearMap, Norm, NormKind, Positions, Role, Space, SpaceKind
from normgauge.errors import InputError
from normgauge.gauge.groups import AttentionGauge, Element, Monomial, Orthogonal
from normgauge.gauge.model_gauge import HEAD_SPACES, Gauge, attention_of

ODD = ("tanh",)  # f(-x) = -f(x)
HOMOGENEOUS = ("relu",)  # f(c x) = c f(x) for c > 0
COMMUTES = 1e-12  # largest relative entry of a head map outside the pattern that the positions allow


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

    `query_maps` and `heads_move` describe an attention layer's; heads stay where a score bias belongs to each.
    """

    space: str
    size: int
    group: Group
    reason: str
    query_maps: QueryMaps = QueryMaps.GENERAL
    heads_move: bool = True


def gauge_spaces(anatomy: Anatomy) -> tuple[str, ...]:
    """Names of all spaces and attention layers that a gauge may move, in the anatomy's order."""
    names = [attention_of(space.name) if space.kind in HEAD_SPACES else space.name for space in anatomy.spaces if _moves(anatomy, space)]
    return tuple(dict.fromkeys(names))


def _moves(anatomy: Anatomy, space: Space) -> bool:
    """A space inside the model: residual and block spaces, and others that are written in full and read."""
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
    """The group of a space or attention layer. Raises InputError for a name that no gauge may move."""
    if space not in gauge_spaces(anatomy):
        raise InputError(f"{anatomy.architecture}: no gauge moves {space!r}; expected one of {', '.join(gauge_spaces(anatomy)[:8])}, ...")
    if space.endswith("attention"):
        return _attention(anatomy, space)
    found = anatomy.space(space)
    writers = [item for item in anatomy.maps if item.writes == space]
    if found.kind == SpaceKind.FFN and len(writers) > 1:
        return Admissible(space, found.size, Group.MONOMIAL, "the gate passes permutations alone, the linear branch any scale")
    return Admissible(space, found.size, *_elementwise(anatomy, space, writers))


def _elementwise(anatomy: Anatomy, space: str, writers: list[LinearMap]) -> tuple[Group, str]:
    activations = {item.activation for item in writers if item.activation}
    kinds = {norm.kind for norm in anatomy.norms if norm.space == space}
    for name in sorted(activations):
        if name not in (*ODD, *HOMOGENEOUS):
            return Group.PERMUTATION, f"{name} acts on every coordinate and is not odd"
    if NormKind.LAYER_NORM in kinds:
        if activations & set(HOMOGENEOUS):
            return Group.PERMUTATION, "relu is not odd and LayerNorm is no function of single coordinates"
        return Group.COMMON_SIGN, "LayerNorm subtracts the mean over coordinates, which independent signs change"
    if activations & set(HOMOGENEOUS):
        return (Group.PERMUTATION, "relu is not odd, RMSNorm not free of scale") if kinds else (Group.POSITIVE_MONOMIAL, "relu is not odd")
    if kinds or activations:
        reason = "the gain of RMSNorm acts on single coordinates" if kinds else "tanh is odd and not homogeneous"
        return Group.SIGNED_PERMUTATION, reason
    return Group.MONOMIAL, "coordinates are kept"


def _attention(anatomy: Anatomy, name: str) -> Admissible:
    query, key = (anatomy.space(f"{name.removesuffix('attention')}{kind}") for kind in ("query", "key"))
    normed = any(norm.space in (query.name, key.name) for norm in anatomy.norms)
    maps, reason = QueryMaps.GENERAL, "scores are inner products of queries and keys"
    if normed:
        maps, reason = QueryMaps.SIGNS, "query and key norms have gains on single coordinates, shared by all heads"
    elif anatomy.positions == Positions.ROTARY:
        maps, reason = QueryMaps.ROTARY, "rotary positions turn each pair of coordinates at its own rate"
    relative = anatomy.positions == Positions.RELATIVE and not name.endswith("cross_attention")
    if relative:
        reason += "; each head has its own score bias, shared by the blocks"
    return Admissible(name, query.size, Group.ATTENTION, reason, maps, heads_move=not relative)


def require_admissible(anatomy: Anatomy, gauge: Gauge, tensors: Mapping[str, torch.Tensor]) -> None:
    """Refuse a gauge that changes the model's function.

    `tensors` by the names of the class; only gains are read, and only for dense elements. Raises InputError naming the space and
    the reason.
    """
    require_fitting(anatomy, gauge)
    for name, element in gauge.elements.items():
        if isinstance(element, Orthogonal):
            _require_dense(anatomy, admissible(anatomy, name), element, tensors)


def require_fitting(anatomy: Anatomy, gauge: Gauge) -> None:
    """The same as far as it shows without the model's tensors, which an artifact's file does not hold: all but a dense element's gains."""
    for name, element in gauge.elements.items():
        rule = admissible(anatomy, name)
        found = element.query.size if isinstance(element, AttentionGauge) else element.size
        if found != rule.size:
            raise InputError(f"gauge of {name}: {found} coordinates, the model has {rule.size}; use the gauge of this model")
        if isinstance(element, AttentionGauge) != (rule.group == Group.ATTENTION):
            raise InputError(f"gauge of {name}: a {type(element).__name__} cannot act there; expected {rule.group}")
        if isinstance(element, Monomial):
            _require_monomial(rule, element)
        elif isinstance(element, AttentionGauge):
            _require_heads(anatomy, rule, element)


def _require_monomial(rule: Admissible, element: Monomial) -> None:
    factors = element.factors
    allowed = {
        Group.PERMUTATION: (factors == 1).all(),
        Group.COMMON_SIGN: element.is_signed_permutation and (factors == factors[0]).all(),
        Group.SIGNED_PERMUTATION: element.is_signed_permutation,
        Group.POSITIVE_MONOMIAL: (factors > 0).all(),
        Group.MONOMIAL: True,
    }
    if not allowed[rule.group]:
        raise InputError(f"gauge of {rule.space}: its factors leave the group, {rule.group}, because {rule.reason}; use such a gauge")


def _require_dense(anatomy: Anatomy, rule: Admissible, element: Orthogonal, tensors: Mapping[str, torch.Tensor]) -> None:
    for item in anatomy.maps:
        if item.writes == rule.space and item.activation:
            raise InputError(f"gauge of {rule.space}: a dense rotation does not pass {item.activation} of {item.name}; use {rule.group}")
    for scale in scale_tensors(anatomy, rule.space):
        if not _constant(tensors[scale]):
            raise InputError(f"gauge of {rule.space}: a dense rotation does not pass the scale {scale}; use {rule.group}")
    for norm in norms_on(anatomy, rule.space):
        if norm.gain and not _constant(tensors[norm.gain]):
            raise InputError(
                f"gauge of {rule.space}: a dense rotation does not pass the gain of {norm.name}; absorb the gains first (absorb_gains)"
            )
        if norm.kind == NormKind.LAYER_NORM and not element.fixes_ones:
            raise InputError(
                f"gauge of {rule.space}: LayerNorm {norm.name} subtracts the mean over coordinates; "
                f"use a rotation that fixes the vector of ones"
            )


def norms_on(anatomy: Anatomy, space: str) -> list[Norm]:
    return [norm for norm in anatomy.norms if norm.space == space]


def scale_tensors(anatomy: Anatomy, space: str) -> list[str]:
    """Tensors that multiply the space's coordinates outside a norm."""
    return [
        tensor.name
        for tensor in anatomy.tensors
        if any(axis.role == Role.SCALE and axis.segments[0].space == space for axis in tensor.axes)
    ]


def _constant(gain: torch.Tensor) -> bool:
    return bool((gain == gain.reshape(-1)[0]).all())


def _require_heads(anatomy: Anatomy, rule: Admissible, element: AttentionGauge) -> None:
    key = anatomy.space(f"{rule.space.removesuffix('attention')}key")
    value = anatomy.space(f"{rule.space.removesuffix('attention')}value")
    if element.groups != key.heads or element.value.size != value.size:
        raise InputError(
            f"gauge of {rule.space}: {element.groups} groups and {element.value.size} value coordinates, the model has {key.heads} and "
            f"{value.size}; use the gauge of this model"
        )
    still = (element.group_order == np.arange(element.groups)).all() and (element.head_order == np.arange(element.repeats)).all()
    if not rule.heads_move and not still:
        raise InputError(f"gauge of {rule.space}: heads change places, but {rule.reason}; keep their order")
    size = element.query_maps.shape[-1]
    pattern = _pattern(rule.query_maps, anatomy.rotary_size, size)
    for matrix in element.query_maps:
        outside = np.abs(matrix - pattern(matrix)).max()
        if outside > COMMUTES * np.abs(matrix).max():
            raise InputError(f"gauge of {rule.space}: its query maps must be {rule.query_maps}, because {rule.reason}; use such maps")


def nearest_query_maps(anatomy: Anatomy, layer: str, maps: np.ndarray) -> np.ndarray:
    """The nearest maps that an attention layer's queries admit, to maps (groups, d, d): equal to them where they are admissible."""
    pattern = _pattern(admissible(anatomy, layer).query_maps, anatomy.rotary_size, maps.shape[-1])
    return np.stack([pattern(matrix) for matrix in maps])


def _pattern(maps: QueryMaps, rotary_size: int, size: int):
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

    return {QueryMaps.GENERAL: lambda matrix: matrix, QueryMaps.ROTARY: rotary, QueryMaps.SIGNS: signs}[maps]


def random_element(anatomy: Anatomy, space: str, seed: int) -> Element:
    """A random element of the space's group, independent of those of all other spaces under the same seed.

    On the primary stream it is the recorded gauge of the seed (see `Monomial.random`). Scales are drawn between 1/2 and 2, general head
    maps have condition at most 4. Raises InputError for a space that no gauge may move.
    """
    rule = admissible(anatomy, space)
    if rule.group == Group.ATTENTION:
        return _random_attention(anatomy, rule, seed)
    if space == anatomy.primary_stack.space:
        element = Monomial.random(rule.size, seed)
    else:
        order = _generator(space, "order", seed).permutation(rule.size)
        element = Monomial(order, _generator(space, "signs", seed).choice((-1.0, 1.0), rule.size))
    scales = np.exp2(_generator(space, "scales", seed).uniform(-1, 1, rule.size))
    factors = {
        Group.PERMUTATION: np.ones(rule.size),
        Group.COMMON_SIGN: np.full(rule.size, element.factors[0]),
        Group.SIGNED_PERMUTATION: element.factors,
        Group.POSITIVE_MONOMIAL: scales,
        Group.MONOMIAL: scales * element.factors,
    }
    return Monomial(element.target, factors[rule.group])


def _generator(space: str, draw: str, seed: int) -> np.random.Generator:
    """The generator of one kind of draw of one space: spaces of one size would otherwise share their elements."""
    name = int.from_bytes(hashlib.sha256(f"{space}: {draw}".encode()).digest())
    return np.random.default_rng([seed, name])


def _random_attention(anatomy: Anatomy, rule: Admissible, seed: int) -> AttentionGauge:
    prefix = rule.space.removesuffix("attention")
    query, key, value = (anatomy.space(f"{prefix}{kind}") for kind in HEAD_SPACES)
    groups, repeats = key.heads, query.heads // key.heads
    order, within = np.arange(groups), np.tile(np.arange(repeats), (groups, 1))
    if rule.heads_move:
        heads = _generator(rule.space, "order", seed)
        order = heads.permutation(groups)
        within = heads.permuted(within, axis=1)
    pattern = _pattern(rule.query_maps, anatomy.rotary_size, query.size // query.heads)
    drawn = [_generator(rule.space, kind, seed) for kind in ("query maps", "value maps")]
    queries = np.stack([pattern(_well_conditioned(query.size // query.heads, drawn[0])) for _ in range(groups)])
    values = np.stack([_well_conditioned(value.size // value.heads, drawn[1]) for _ in range(groups)])
    return AttentionGauge(order, within, queries, values)


def _well_conditioned(size: int, generator: np.random.Generator) -> np.ndarray:
    left, right = (Orthogonal.random(size, int(generator.integers(2**31))).matrix for _ in range(2))
    return left * np.exp2(generator.uniform(-1, 1, size)) @ right


def random_gauge(anatomy: Anatomy, seed: int, spaces: tuple[str, ...] | None = None) -> Gauge:
    """An independent random element of every named space's group (all of `gauge_spaces` when None), see `random_element`."""
    return Gauge({space: random_element(anatomy, space, seed) for space in (gauge_spaces(anatomy) if spaces is None else spaces)})
