"""Symmetries inside a layer: heads, feed-forward units, query/key gains, score biases."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np
import torch
from scipy.linalg import block_diag, expm

from normgauge.anatomy.lookup import effective_gain
from normgauge.anatomy.structure import Anatomy, Norm, Positions, Role, SpaceKind
from normgauge.gauge.admissible import Admissible, Group, QueryMaps, admissible, gauge_spaces
from normgauge.gauge.groups import AttentionGauge, Monomial
from normgauge.redundancy.family import Kind, Symmetry, gauged
from normgauge.redundancy.readers import Mutable, Tensors


def attention(anatomy: Anatomy) -> Iterator[Symmetry]:
    """Query and key maps, value and output maps: what `gauge.admissible` allows of each layer."""
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
        yield Symmetry(
            Kind.QUERY_KEY,
            name,
            sizes[0] * per_group,
            partial(_move_queries, anatomy, name, rule.query_maps, shape),
        )
        yield Symmetry(
            Kind.VALUE_OUTPUT,
            name,
            sizes[0] * sizes[2] ** 2,
            partial(_move_values, anatomy, name, shape),
        )


def _move_queries(
    anatomy: Anatomy,
    name: str,
    maps: QueryMaps,
    shape: tuple[int, int, int, int],
    tensors: Tensors,
    coordinates: np.ndarray,
) -> Mutable:
    groups, _, size, _ = shape
    generators = coordinates.reshape(groups, -1)
    if maps == QueryMaps.ROTARY:
        generators = np.stack(
            [_rotary_generator(each, anatomy.rotary_size, size) for each in generators]
        )
    still = AttentionGauge.identity(*shape)
    moving = AttentionGauge(
        still.group_order,
        still.head_order,
        expm(generators.reshape(groups, size, size)),
        still.value_maps,
    )
    return gauged(anatomy, tensors, name, moving)


def _rotary_generator(coordinates: np.ndarray, turning: int, size: int) -> np.ndarray:
    """The real and the imaginary part of each pair's factor, then a matrix on the coordinates that
    do not turn: (size, size).
    """
    half = turning // 2
    real, imaginary = np.diag(coordinates[:half]), np.diag(coordinates[half:turning])
    free = coordinates[turning:].reshape(size - turning, size - turning)
    return block_diag(np.block([[real, imaginary], [-imaginary, real]]), free)


def _move_values(
    anatomy: Anatomy,
    name: str,
    shape: tuple[int, int, int, int],
    tensors: Tensors,
    coordinates: np.ndarray,
) -> Mutable:
    still = AttentionGauge.identity(*shape)
    matrices = expm(coordinates.reshape(still.value_maps.shape))
    return gauged(
        anatomy,
        tensors,
        name,
        AttentionGauge(still.group_order, still.head_order, still.query_maps, matrices),
    )


def feed_forward(anatomy: Anatomy) -> Iterator[Symmetry]:
    """Scales of hidden units, where the group of the space has them."""
    for space in anatomy.spaces:
        if space.kind != SpaceKind.FFN:
            continue
        rule: Admissible = admissible(anatomy, space.name)
        if rule.group in (Group.POSITIVE_MONOMIAL, Group.MONOMIAL):
            yield Symmetry(
                Kind.FEED_FORWARD,
                space.name,
                space.size,
                partial(_scale_units, anatomy, space.name),
            )


def _scale_units(anatomy: Anatomy, name: str, tensors: Tensors, coordinates: np.ndarray) -> Mutable:
    return gauged(
        anatomy, tensors, name, Monomial(np.arange(len(coordinates)), np.exp(coordinates))
    )


def head_gains(anatomy: Anatomy) -> Iterator[Symmetry]:
    """The gain of a query norm against that of the key norm, coordinate by coordinate; the two of a
    rotary pair together.
    """
    for query in anatomy.norms:
        if anatomy.space(query.space).kind == SpaceKind.QUERY and query.gain:
            key = next(
                norm
                for norm in anatomy.norms
                if norm.space == f"{query.space.removesuffix('query')}key"
            )
            half = anatomy.rotary_size // 2
            yield Symmetry(
                Kind.HEAD_GAIN,
                query.name,
                query.size - half,
                partial(_exchange_gains, query, key, half),
            )


def _exchange_gains(
    query: Norm, key: Norm, half: int, tensors: Tensors, coordinates: np.ndarray
) -> Mutable:
    """Coordinates: one per rotary pair, which turns as one, then one per coordinate that does not
    turn.
    """
    factors = torch.from_numpy(np.exp(np.concatenate([coordinates[:half], coordinates])))
    moved = dict(tensors)
    assert query.gain is not None
    assert key.gain is not None
    moved[query.gain] = effective_gain(query, tensors) * factors - query.gain_offset
    moved[key.gain] = effective_gain(key, tensors) / factors - key.gain_offset
    return moved


def score_biases(anatomy: Anatomy) -> Iterator[Symmetry]:
    """A constant on all of a head's relative score biases, which softmax does not see."""
    if anatomy.positions != Positions.RELATIVE:
        return
    for tensor in anatomy.tensors:
        if tensor.alias_of is None and all(axis.role == Role.INDEX for axis in tensor.axes):
            yield Symmetry(
                Kind.SCORE_BIAS, tensor.name, tensor.shape[1], partial(_shift_scores, tensor.name)
            )


def _shift_scores(name: str, tensors: Tensors, coordinates: np.ndarray) -> Mutable:
    return {**tensors, name: tensors[name] + torch.from_numpy(coordinates)}
