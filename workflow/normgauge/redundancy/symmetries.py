"""The continuous symmetries of a model's parameters, read off its anatomy: what moves, in how many directions, and by what.

A symmetry is a family of changes of the stored tensors, smooth in `dimension` coordinates, the identity at zero, that leaves the function
alone at every value of them. Families never overlap, so the directions that leave the function alone are the sum of their dimensions.
docs/redundancy.md derives each. The function is what the model's head returns; without a head, its last hidden states.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import partial

import numpy as np
import torch
from scipy.linalg import block_diag, expm, null_space, polar

from normgauge.anatomy.structure import Anatomy, LinearMap, Norm, NormKind, Placement, Positions, Role, SpaceKind
from normgauge.errors import InputError
from normgauge.gauge.absorb import scale_readers
from normgauge.gauge.admissible import Admissible, Group, QueryMaps, admissible, gauge_spaces, norms_on, scale_tensors
from normgauge.gauge.groups import AttentionGauge, Monomial, Orthogonal
from normgauge.gauge.model_gauge import Gauge
from normgauge.gauge.null_line import NullLine, null_line_axes, shifted
from normgauge.gauge.transform import transform
from normgauge.redundancy.readers import (
    SUBLAYER,
    Mutable,
    Tensors,
    add_constant,
    add_to_matrix,
    blind_coordinates,
    bypasses,
    fed_maps,
    free_rows,
    gain_of,
    holder,
    is_tied,
    leaves_model,
    matrix_of,
    mixed,
    nonzero_gain_of,
    output_map,
)


class Kind(StrEnum):
    """The families, by what moves."""

    QUERY_KEY = "query and key maps"
    VALUE_OUTPUT = "value and output maps"
    FEED_FORWARD = "feed-forward scales"
    ROTATION = "rotation of the residual stream"
    GAIN = "norm gain against its maps"
    BIAS = "norm bias against biases"
    KERNEL = "1/gain added behind LayerNorm"
    NULL_LINE = "ones added before LayerNorm"
    KEY_BIAS = "key bias"
    VALUE_BIAS = "value bias against output bias"
    LOST_VALUE = "values that the output map loses"
    CONSTANT = "constants between addends"
    HEAD_GAIN = "query gain against key gain"
    SCORE_BIAS = "score bias of a head"


@dataclass(frozen=True, eq=False)
class Symmetry:
    """One family. `place`: the space, norm, map or layer. `act(tensors, coordinates)`: the moved tensors; `tensors` are the stored ones in
    float64 (`readers.stored`), `coordinates` float64 (dimension,)."""

    kind: Kind
    place: str
    dimension: int
    act: Callable[[Tensors, np.ndarray], Mutable]


def symmetries(anatomy: Anatomy) -> tuple[Symmetry, ...]:
    """Every family of the model. Raises InputError, naming the part, for a model with parts whose symmetries are not derived."""
    _require_derived(anatomy)
    parts = (_attention, _feed_forward, _rotations, _norms, _null_lines, _biases, _constants, _score_biases)
    return tuple(found for part in parts for found in part(anatomy) if found.dimension)


def _require_derived(anatomy: Anatomy) -> None:
    reason = next(_underived_parts(anatomy), None)
    if reason:
        raise InputError(f"{anatomy.architecture}: {reason}, and the symmetries of that are not derived; leave it out of the counts")


def _underived_parts(anatomy: Anatomy) -> Iterator[str]:
    for stack in anatomy.stacks:
        if len(set(stack.blocks)) < len(stack.blocks):
            yield "its blocks share their weights"
        if scales := scale_tensors(anatomy, stack.space):
            yield f"{scales[0]} scales the stream"
        if anatomy.placement != Placement.POST and any(item.reads == stack.space and not item.norm for item in anatomy.maps):
            yield "a head reads the stream beside its last norm"
    for space in anatomy.spaces:
        writers = [item for item in anatomy.maps if item.writes == space.name]
        read = any(item.reads == space.name for item in anatomy.maps)
        if space.kind == SpaceKind.OTHER and read and not norms_on(anatomy, space.name) and not any(item.activation for item in writers):
            yield f"two maps meet in {space.name} with nothing between them"
        if space.kind in (SpaceKind.QUERY, SpaceKind.VALUE) and space.size // space.heads >= anatomy.primary_stack.width:
            yield f"a head of {space.name} is as wide as the stream"
    for tensor in anatomy.tensors:
        if any(segment.space == "singleton" for axis in tensor.axes for segment in axis.segments):
            yield f"{tensor.name} enters the stream at some positions alone"


# ---------------------------------------------------------------- attention and feed-forward: groups of the room gauge


def _attention(anatomy: Anatomy) -> Iterator[Symmetry]:
    for name in gauge_spaces(anatomy):
        if not name.endswith("attention"):
            continue
        rule = admissible(anatomy, name)
        prefix = name.removesuffix("attention")
        key, value = anatomy.space(f"{prefix}key"), anatomy.space(f"{prefix}value")
        sizes = key.heads, key.size // key.heads, value.size // value.heads
        repeats = rule.size // sizes[1] // sizes[0]
        turning = anatomy.rotary_size
        per_group = {
            QueryMaps.GENERAL: sizes[1] ** 2,
            QueryMaps.ROTARY: turning + (sizes[1] - turning) ** 2,
            QueryMaps.SIGNS: 0,
        }[rule.query_maps]
        shape = sizes[0], repeats, sizes[1], sizes[2]
        yield Symmetry(Kind.QUERY_KEY, name, sizes[0] * per_group, partial(_move_queries, anatomy, name, rule.query_maps, shape))
        yield Symmetry(Kind.VALUE_OUTPUT, name, sizes[0] * sizes[2] ** 2, partial(_move_values, anatomy, name, shape))


def _move_queries(
    anatomy: Anatomy, name: str, maps: QueryMaps, shape: tuple[int, int, int, int], tensors: Tensors, coordinates: np.ndarray
) -> Mutable:
    groups, _, size, _ = shape
    generators = coordinates.reshape(groups, -1)
    if maps == QueryMaps.ROTARY:
        generators = np.stack([_rotary_generator(each, anatomy.rotary_size, size) for each in generators])
    still = AttentionGauge.identity(*shape)
    moving = AttentionGauge(still.group_order, still.head_order, expm(generators.reshape(groups, size, size)), still.value_maps)
    return _gauged(anatomy, tensors, name, moving)


def _rotary_generator(coordinates: np.ndarray, turning: int, size: int) -> np.ndarray:
    """The real and the imaginary part of each pair's factor, then a matrix on the coordinates that do not turn: (size, size)."""
    half = turning // 2
    real, imaginary = np.diag(coordinates[:half]), np.diag(coordinates[half:turning])
    free = coordinates[turning:].reshape(size - turning, size - turning)
    return block_diag(np.block([[real, imaginary], [-imaginary, real]]), free)


def _move_values(anatomy: Anatomy, name: str, shape: tuple[int, int, int, int], tensors: Tensors, coordinates: np.ndarray) -> Mutable:
    still = AttentionGauge.identity(*shape)
    matrices = expm(coordinates.reshape(still.value_maps.shape))
    return _gauged(anatomy, tensors, name, AttentionGauge(still.group_order, still.head_order, still.query_maps, matrices))


def _feed_forward(anatomy: Anatomy) -> Iterator[Symmetry]:
    for space in anatomy.spaces:
        if space.kind != SpaceKind.FFN:
            continue
        rule: Admissible = admissible(anatomy, space.name)
        if rule.group in (Group.POSITIVE_MONOMIAL, Group.MONOMIAL):
            yield Symmetry(Kind.FEED_FORWARD, space.name, space.size, partial(_scale_units, anatomy, space.name))


def _scale_units(anatomy: Anatomy, name: str, tensors: Tensors, coordinates: np.ndarray) -> Mutable:
    return _gauged(anatomy, tensors, name, Monomial(np.arange(len(coordinates)), np.exp(coordinates)))


def _gauged(anatomy: Anatomy, tensors: Tensors, name: str, element: AttentionGauge | Monomial | Orthogonal) -> Mutable:
    return dict(transform(anatomy, tensors, Gauge({name: element})))


# ---------------------------------------------------------------- norms


def folds_gain(anatomy: Anatomy, norm: Norm) -> bool:
    """Whether what the gain does can be done by maps instead: they alone read the norm's output, and serve nothing else."""
    fed = fed_maps(anatomy, norm)
    inside = bool(fed) and not bypasses(anatomy, norm) and not leaves_model(anatomy, norm)
    return inside and bool(norm.gain) and not any(is_tied(anatomy, item.weight) for item in fed)


def _norms(anatomy: Anatomy) -> Iterator[Symmetry]:
    for norm in anatomy.norms:
        if folds_gain(anatomy, norm):
            yield Symmetry(Kind.GAIN, norm.name, norm.size, partial(_scale_gain, anatomy, norm))
        if norm.kind == NormKind.LAYER_NORM:
            if _folds_bias(anatomy, norm):
                yield Symmetry(Kind.BIAS, norm.name, norm.size, partial(_shift_bias, anatomy, norm))
            for item in fed_maps(anatomy, norm):
                if not is_tied(anatomy, item.weight):
                    free = int(free_rows(anatomy, item).sum())
                    yield Symmetry(Kind.KERNEL, item.name, free, partial(_add_kernel, anatomy, norm, item))
    yield from _head_gains(anatomy)


def _scale_gain(anatomy: Anatomy, norm: Norm, tensors: Tensors, coordinates: np.ndarray) -> Mutable:
    return _move_gain(anatomy, norm, tensors, torch.from_numpy(np.exp(coordinates)))


def _move_gain(anatomy: Anatomy, norm: Norm, tensors: Tensors, factors: torch.Tensor) -> Mutable:
    """Gain and bias times the factors, (size,), none of them zero, what the norm's maps read divided by them."""
    moved = dict(tensors)
    assert norm.gain is not None
    moved[norm.gain] = gain_of(tensors, norm) * factors - norm.gain_offset
    if norm.bias:
        moved[norm.bias] = tensors[norm.bias] * factors
    scale_readers(anatomy, norm, moved, 1 / factors)
    return moved


def _folds_bias(anatomy: Anatomy, norm: Norm) -> bool:
    """Whether a change of the bias can be taken back: by every map that it feeds, and by the stream where that carries it on."""
    fed = fed_maps(anatomy, norm)
    if not norm.bias or not fed or leaves_model(anatomy, norm):
        return False
    if bypasses(anatomy, norm) and not _carried_by(anatomy, norm):
        return False
    return all(free_rows(anatomy, item).all() or not is_tied(anatomy, item.weight) for item in fed)


def _carried_by(anatomy: Anatomy, norm: Norm) -> LinearMap | None:
    """The one output map, with a bias, whose result is added to the norm's output."""
    found = {output.name: output for item in fed_maps(anatomy, norm) if (output := output_map(anatomy, item))}
    only = next(iter(found.values())) if len(found) == 1 else None
    return only if only and only.bias else None


def _shift_bias(anatomy: Anatomy, norm: Norm, tensors: Tensors, coordinates: np.ndarray) -> Mutable:
    shift = torch.from_numpy(coordinates)
    moved = dict(tensors)
    assert norm.bias is not None
    moved[norm.bias] = tensors[norm.bias] + shift
    for item in fed_maps(anatomy, norm):
        wanted = -matrix_of(anatomy, tensors, item) @ shift
        free = torch.from_numpy(free_rows(anatomy, item))
        if free.any():
            add_constant(anatomy, moved, item, wanted.where(free, 0.0))
        if not free.all():  # without a bias of its own: along the norm's kernel, on which its output is constant
            direction, constant = _kernel(moved, norm)
            add_to_matrix(anatomy, moved, item, torch.outer(wanted.where(~free, 0.0) / constant, direction))
    if bypasses(anatomy, norm):
        output = _carried_by(anatomy, norm)
        assert output is not None
        add_constant(anatomy, moved, output, -shift)
    return moved


def _kernel(tensors: Tensors, norm: Norm) -> tuple[torch.Tensor, torch.Tensor]:
    """The unit vector along 1/gain, and the value that the norm's output has along it whatever comes in."""
    assert norm.bias is not None
    direction = 1 / nonzero_gain_of(tensors, norm)
    direction = direction / direction.norm()
    return direction, direction @ tensors[norm.bias]


def _add_kernel(anatomy: Anatomy, norm: Norm, item: LinearMap, tensors: Tensors, coordinates: np.ndarray) -> Mutable:
    free = free_rows(anatomy, item)
    along = torch.zeros(len(free), dtype=torch.float64)
    along[torch.from_numpy(free)] = torch.from_numpy(coordinates)
    direction, constant = _kernel(tensors, norm)
    moved = dict(tensors)
    add_to_matrix(anatomy, moved, item, torch.outer(along, direction))
    add_constant(anatomy, moved, item, -along * constant)
    return moved


def _head_gains(anatomy: Anatomy) -> Iterator[Symmetry]:
    for query in anatomy.norms:
        if anatomy.space(query.space).kind == SpaceKind.QUERY and query.gain:
            key = next(norm for norm in anatomy.norms if norm.space == f"{query.space.removesuffix('query')}key")
            half = anatomy.rotary_size // 2
            yield Symmetry(Kind.HEAD_GAIN, query.name, query.size - half, partial(_exchange_gains, query, key, half))


def _exchange_gains(query: Norm, key: Norm, half: int, tensors: Tensors, coordinates: np.ndarray) -> Mutable:
    """Coordinates: one per rotary pair, which turns as one, then one per coordinate that does not turn."""
    factors = torch.from_numpy(np.exp(np.concatenate([coordinates[:half], coordinates])))
    moved = dict(tensors)
    assert query.gain is not None
    assert key.gain is not None
    moved[query.gain] = gain_of(tensors, query) * factors - query.gain_offset
    moved[key.gain] = gain_of(tensors, key) / factors - key.gain_offset
    return moved


# ---------------------------------------------------------------- the residual streams


def _stream_norms(anatomy: Anatomy, space: str) -> list[Norm]:
    return [norm for norm in anatomy.norms if norm.space == space]


def _rotations(anatomy: Anatomy) -> Iterator[Symmetry]:
    """Rotations of a stream whose every gain can be moved into maps, rotated, and moved back."""
    for space in dict.fromkeys(stack.space for stack in anatomy.stacks):
        norms = _stream_norms(anatomy, space)
        through_activation = any(item.writes == space and item.activation for item in anatomy.maps)
        if through_activation or not all(folds_gain(anatomy, norm) for norm in norms):
            continue
        width = anatomy.space(space).size
        fixed = any(norm.kind == NormKind.LAYER_NORM for norm in norms)
        free = width - fixed
        yield Symmetry(Kind.ROTATION, space, free * (free - 1) // 2, partial(_rotate, anatomy, space, fixed))


def residual_rotation(width: int, fixes_ones: bool, coordinates: np.ndarray) -> Orthogonal:
    """A rotation of SO(width), or of its subgroup SO(width - 1) that leaves the vector of ones where it is.

    `coordinates`: the entries of its generator above the diagonal, as many as the group has dimensions (further ones are not used).
    """
    free = width - fixes_ones
    skew = np.zeros((free, free))
    skew[np.triu_indices(free, 1)] = coordinates[: free * (free - 1) // 2]
    matrix, _ = polar(expm(skew - skew.T))  # the exponential is orthogonal to some digits less than the nearest orthogonal matrix
    if fixes_ones:
        basis = _centred_basis(width)
        matrix = basis @ matrix @ basis.T + np.full((width, width), 1 / width)
    return Orthogonal(matrix)


def _rotate(anatomy: Anatomy, space: str, fixes_ones: bool, tensors: Tensors, coordinates: np.ndarray) -> Mutable:
    rotation = residual_rotation(anatomy.space(space).size, fixes_ones, coordinates)
    norms = _stream_norms(anatomy, space)
    gains = {norm.name: nonzero_gain_of(tensors, norm) for norm in norms}
    moved: Mutable = dict(tensors)
    for norm in norms:
        moved = _move_gain(anatomy, norm, moved, 1 / gains[norm.name])
        assert norm.gain is not None
        moved[norm.gain] = torch.full_like(moved[norm.gain], 1 - norm.gain_offset)  # exactly one, not to rounding: a rotation needs that
    moved = _gauged(anatomy, moved, space, rotation)
    for norm in norms:
        moved = _move_gain(anatomy, norm, moved, gains[norm.name])
    return moved


def _centred_basis(width: int) -> np.ndarray:
    """An orthonormal basis of the vectors whose coordinates sum to zero, (width, width - 1)."""
    return null_space(np.ones((1, width)))


def _null_axes(anatomy: Anatomy) -> dict[str, dict[str, int]]:
    """By space, the tensors that may be shifted by multiples of the vector of ones."""
    found = {}
    for space in dict.fromkeys(norm.space for norm in anatomy.norms if anatomy.space(norm.space).kind not in SUBLAYER):
        try:
            found[space] = null_line_axes(anatomy, space)
        except InputError:  # this stream has no null line
            continue
    return found


def _shiftable(anatomy: Anatomy) -> set[str]:
    return {name for axes in _null_axes(anatomy).values() for name in axes}


def _null_lines(anatomy: Anatomy) -> Iterator[Symmetry]:
    for space, axes in _null_axes(anatomy).items():
        for name, axis in axes.items():
            shape = [size for number, size in enumerate(anatomy.tensor(name).shape) if number != axis]
            yield Symmetry(Kind.NULL_LINE, name, int(np.prod(shape)), partial(_shift, anatomy, space, name, shape))


def _shift(anatomy: Anatomy, space: str, name: str, shape: Sequence[int], tensors: Tensors, coordinates: np.ndarray) -> Mutable:
    return shifted(anatomy, tensors, space, NullLine({name: torch.from_numpy(coordinates).reshape(tuple(shape))}))


# ---------------------------------------------------------------- constants


def _biases(anatomy: Anatomy) -> Iterator[Symmetry]:
    null = _shiftable(anatomy)
    for item in anatomy.maps:
        kind = anatomy.space(item.writes).kind
        if item.bias and kind == SpaceKind.KEY:
            blind = blind_coordinates(anatomy, item.writes)
            yield Symmetry(Kind.KEY_BIAS, item.name, int(blind.sum()), partial(_shift_keys, anatomy, item, blind))
        output = output_map(anatomy, item) if kind == SpaceKind.VALUE else None
        if output and output.bias and item.bias:
            size = anatomy.space(item.writes).size
            yield Symmetry(Kind.VALUE_BIAS, item.name, size, partial(_shift_values, anatomy, item, output))
        if output and not output.bias and (item.bias or _behind_layer_norm(anatomy, item)):
            centred = holder(anatomy, output.weight) in null
            size = anatomy.space(item.writes).size - anatomy.space(output.writes).size + centred
            yield Symmetry(Kind.LOST_VALUE, item.name, max(size, 0), partial(_shift_lost_values, anatomy, item, output, centred))


def _behind_layer_norm(anatomy: Anatomy, item: LinearMap) -> bool:
    return item.norm is not None and anatomy.norm(item.norm).kind == NormKind.LAYER_NORM and not is_tied(anatomy, item.weight)


def _shift_lost_values(
    anatomy: Anatomy, item: LinearMap, output: LinearMap, centred: bool, tensors: Tensors, coordinates: np.ndarray
) -> Mutable:
    """Constants on the values that the output map sends to zero, or to multiples of ones that nothing sees."""
    size = anatomy.space(item.writes).size
    sent = np.stack([(matrix_of(anatomy, tensors, output) @ mixed(anatomy, output, unit)).numpy() for unit in torch.eye(size).double()], 1)
    lost = null_space(sent - sent.mean(0) if centred else sent)
    shift = torch.from_numpy(lost @ coordinates)
    moved = dict(tensors)
    if item.bias:
        add_constant(anatomy, moved, item, shift)
    else:
        assert item.norm is not None
        direction, constant = _kernel(tensors, anatomy.norm(item.norm))
        add_to_matrix(anatomy, moved, item, torch.outer(shift / constant, direction))
    return moved


def _shift_keys(anatomy: Anatomy, item: LinearMap, blind: np.ndarray, tensors: Tensors, coordinates: np.ndarray) -> Mutable:
    shift = torch.zeros(len(blind), dtype=torch.float64)
    shift[torch.from_numpy(blind)] = torch.from_numpy(coordinates)
    moved = dict(tensors)
    add_constant(anatomy, moved, item, shift)
    return moved


def _shift_values(anatomy: Anatomy, item: LinearMap, output: LinearMap, tensors: Tensors, coordinates: np.ndarray) -> Mutable:
    shift = torch.from_numpy(coordinates)
    moved = dict(tensors)
    add_constant(anatomy, moved, item, shift)
    add_constant(anatomy, moved, output, -matrix_of(anatomy, tensors, output) @ mixed(anatomy, output, shift))
    return moved


def _constants(anatomy: Anatomy) -> Iterator[Symmetry]:
    """Constants that move between what is added up before anything reads the sum."""
    null = _shiftable(anatomy)
    for place, names in _sums(anatomy):
        width = anatomy.tensor(names[0]).shape[-1]
        centred = null.issuperset(names)  # multiples of ones are counted there, one by one
        size = (len(names) - 1) * (width - centred)
        yield Symmetry(Kind.CONSTANT, place, size, partial(_exchange, names, width, centred))
        for item in anatomy.maps:
            table = anatomy.tensor(item.weight).alias_of
            if table and item.reads == place and item.bias and item.norm and anatomy.norm(item.norm).kind == NormKind.LAYER_NORM:
                yield Symmetry(Kind.CONSTANT, table, 1, partial(_exchange_with_readout, anatomy, item, table, names[0]))


def _sums(anatomy: Anatomy) -> Iterator[tuple[str, list[str]]]:
    """(place, tensors whose last axis is added to one sum at every position)."""
    of_maps = {name for item in anatomy.maps for name in (item.weight, item.bias)}
    of_norms = {name for norm in anatomy.norms for name in (norm.gain, norm.bias)}
    for space in dict.fromkeys(norm.space for norm in anatomy.norms if anatomy.space(norm.space).kind not in SUBLAYER):
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
                blocks.setdefault(item.name.rpartition("/")[0], []).append(holder(anatomy, item.bias))
        yield from ((place, names) for place, names in blocks.items())


def _exchange(names: Sequence[str], width: int, centred: bool, tensors: Tensors, coordinates: np.ndarray) -> Mutable:
    shifts = coordinates.reshape(len(names) - 1, -1)
    if centred:
        shifts = shifts @ _centred_basis(width).T
    moved = dict(tensors)
    for name, shift in zip(names, [*shifts, -shifts.sum(0)], strict=True):
        moved[name] = moved[name] + torch.from_numpy(shift)
    return moved


def _exchange_with_readout(anatomy: Anatomy, item: LinearMap, table: str, other: str, tensors: Tensors, coordinates: np.ndarray) -> Mutable:
    """A table that is also the readout behind a LayerNorm gives only a multiple of 1/gain: there it adds a constant to every output."""
    assert item.norm is not None
    direction, constant = _kernel(tensors, anatomy.norm(item.norm))
    step = float(coordinates[0])
    moved = dict(tensors)
    moved[table] = tensors[table] + step * direction
    moved[other] = tensors[other] - step * direction
    add_constant(anatomy, moved, item, torch.full((len(tensors[table]),), -step, dtype=torch.float64) * constant)
    return moved


def _score_biases(anatomy: Anatomy) -> Iterator[Symmetry]:
    """A constant on all of a head's relative score biases, which softmax does not see."""
    if anatomy.positions != Positions.RELATIVE:
        return
    for tensor in anatomy.tensors:
        if tensor.alias_of is None and all(axis.role == Role.INDEX for axis in tensor.axes):
            yield Symmetry(Kind.SCORE_BIAS, tensor.name, tensor.shape[1], partial(_shift_scores, tensor.name))


def _shift_scores(name: str, tensors: Tensors, coordinates: np.ndarray) -> Mutable:
    return {**tensors, name: tensors[name] + torch.from_numpy(coordinates)}


def dimensions(found: Sequence[Symmetry]) -> Mapping[Kind, int]:
    """Directions by family, in the order of `Kind`; families that the model does not have are left out."""
    totals = {kind: sum(each.dimension for each in found if each.kind == kind) for kind in Kind}
    return {kind: total for kind, total in totals.items() if total}
