"""What continuous changes of coordinates inside a layer leave alone, of two models whose streams
are in one frame: products of a head's factors, turns of rotary pairs and scales of units up to one
factor each. With `rounding`, the verdict "the same up to rounding".
"""

from __future__ import annotations

import numpy as np
from scipy.optimize import linear_sum_assignment

from normgauge.anatomy.structure import Anatomy, LinearMap, SpaceKind
from normgauge.gauge.admissible import Group, QueryMaps, admissible
from normgauge.gauge.model_gauge import HEAD_SPACES
from normgauge.lineage.bounded import Bounded, complex_of, factors, joined
from normgauge.lineage.layout import layout_of
from normgauge.lineage.rounding import Given, Rounding, Sides, compare_rest, find_frames


def up_to_rounding(a: Given, b: Given) -> Rounding | None:
    """How much rounding of stored weights two models of one class and shapes need to be one up to
    changes of coordinates; None where these could not be found, or a tensor not be compared.

    Covered: the discrete groups, general maps of values and unrotated queries, complex factors of
    rotary pairs, scales of units, gains moved into the maps behind them (with their signs), value
    biases moved to the output, and rotations of a stream whose gains are absorbed.
    """
    anatomy = b.anatomy
    sides = Sides(anatomy, layout_of(anatomy), (a, b))
    if not find_frames(sides):
        return None
    done: set[str] = set()
    for space in anatomy.spaces:
        if space.kind == HEAD_SPACES[0]:
            done |= _compare_attention(sides, space.name.removesuffix("query"))
        elif space.kind == SpaceKind.FFN:
            done |= _compare_units(sides, space.name)
    if not compare_rest(sides, done):
        return None
    tensor = max(sides.ratios, key=lambda name: sides.ratios[name])
    rotated = not all(frame.monomial for frame in sides.frames.values())
    return Rounding(sides.ratios[tensor] / 2, tensor, rotated)


def _activated(item: LinearMap) -> bool:
    return item.activation is not None


def _rows(sides: Sides, item: LinearMap) -> tuple[Bounded, Bounded]:
    """(out, in + 1) of A and of B: what a map makes of its space, A's in B's coordinates, and its
    constant.
    """
    found = []
    for side in (0, 1):
        matrix, constant = sides.reading(item, side)
        matrix = sides.into(item.reads, matrix) if side == 0 else matrix
        found.append(joined([matrix, constant[:, None]], 1))
    return found[0], found[1]


def _written(sides: Sides, item: LinearMap) -> tuple[Bounded, Bounded]:
    """(in, out) of A and of B: what a map writes for each coordinate that it reads."""
    first, second = (sides.reading(item, side)[0].transposed for side in (0, 1))
    return sides.into(item.writes, first), second


def _constants(sides: Sides, item: LinearMap) -> tuple[Bounded, Bounded]:
    first, second = (sides.reading(item, side)[1][None] for side in (0, 1))
    return sides.into(item.writes, first), second


def _cosines(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    lengths = [np.linalg.norm(each, axis=1, keepdims=True) for each in (first, second)]
    one, other = (
        each / np.maximum(length, 1e-300)
        for each, length in zip((first, second), lengths, strict=True)
    )
    return one @ other.T


def _compare_units(sides: Sides, space: str) -> set[str]:
    """Compare the rows of the units of a layer, scaled ones up to their factor. Nothing is done
    where a norm acts on units or their maps lie outside known spaces.
    """
    anatomy = sides.anatomy
    reads = [item for item in anatomy.maps if item.writes == space]
    writes = [item for item in anatomy.maps if item.reads == space]
    if (
        len(writes) != 1
        or not all(sides.known(item.reads) for item in reads)
        or not sides.known(writes[0].writes)
        or any(norm.space == space for norm in anatomy.norms)
    ):
        return set()
    group = admissible(anatomy, space).group
    rows = {item.name: _rows(sides, item) for item in reads}
    similarity = sum(
        np.abs(found) if group == Group.MONOMIAL and not _activated(item) else found
        for item in reads
        for found in [_cosines(*(each.value for each in rows[item.name]))]
    )
    order = linear_sum_assignment(-np.asarray(similarity).T)[1]
    first, second = _written(sides, writes[0])
    first = first[order]
    for item in reads:
        one, other = rows[item.name]
        one = one[order]
        if group == Group.POSITIVE_MONOMIAL or (group == Group.MONOMIAL and not _activated(item)):
            factor, inverse = factors(one, other)
            one, first = one * factor, first * inverse
        sides.compare(item.weight, one, other)
    sides.compare(writes[0].weight, first, second)
    sides.compare(writes[0].bias or writes[0].weight, *_constants(sides, writes[0]))
    return _claimed(sides, [*reads, *writes])


def _claimed(sides: Sides, items: list[LinearMap]) -> set[str]:
    sides.compared |= {name for item in items for name in (item.weight, item.bias) if name}
    return {item.name for item in items}


def _compare_attention(sides: Sides, prefix: str) -> set[str]:
    """Compare an attention layer by what its heads score and write. Nothing is done where query or
    key norms act inside.
    """
    anatomy = sides.anatomy
    items = {
        item.name.removeprefix(prefix): item
        for item in anatomy.maps
        if item.name.startswith(prefix)
    }
    parts = [items[kind] for kind in ("query", "key", "value", "attention_output")]
    rule = admissible(anatomy, f"{prefix}attention")
    outer = [item.reads for item in parts[:3]] + [parts[3].writes]
    if rule.query_maps == QueryMaps.SIGNS or not all(sides.known(space) for space in outer):
        return set()
    heads = anatomy.space(f"{prefix}query").heads
    query, key, value = (
        [_split(each, anatomy.space(item.writes).heads, heads) for each in _rows(sides, item)]
        for item in parts[:3]
    )
    output = [_split(each, heads, heads) for each in _written(sides, parts[3])]
    order = np.arange(heads)
    if rule.heads_move:
        order = _head_order(value, output) if heads > 1 else order
    for head, source in enumerate(order):
        own = [
            [kind[side][place] for kind in (query, key, value, output)]
            for side, place in ((0, source), (1, head))
        ]
        writes = [each[2][:, :-1].transposed @ each[3] for each in own]
        sides.compare(parts[2].weight, *writes)
        _compare_scores(sides, anatomy, rule.query_maps, parts[0].weight, own)
    totals = []
    for side, constant in enumerate(_constants(sides, parts[3])):
        for head in range(heads):
            constant = constant + value[side][head][:, -1:].transposed @ output[side][head]
        totals.append(constant)
    sides.compare(parts[3].bias or parts[3].weight, *totals)
    return _claimed(sides, parts)


def _split(rows: Bounded, own: int, heads: int) -> list[Bounded]:
    """The rows of each query head; those of a group once per head."""
    size = len(rows.value) // own
    return [rows[size * (head * own // heads) :][:size] for head in range(heads)]


def _head_order(value: list[list[Bounded]], output: list[list[Bounded]]) -> np.ndarray:
    """For each head of B the head of A that writes most like it: cosines of products, from the
    small inner products of their factors.
    """

    def inner(one: int, other: int) -> np.ndarray:
        stacks = [
            np.einsum(
                "hiw,gjw->hgij", *(np.stack([x.value for x in part[s]]) for s in (one, other))
            )
            for part in (value, output)
        ]
        return (stacks[0] * stacks[1]).sum((2, 3))

    lengths = [np.sqrt(np.maximum(np.diag(inner(side, side)), 1e-300)) for side in (0, 1)]
    return linear_sum_assignment(-(inner(0, 1) / np.outer(*lengths)).T)[1]


def _compare_scores(
    sides: Sides, anatomy: Anatomy, maps: QueryMaps, name: str, own: list[list[Bounded]]
) -> None:
    """Compare what one head scores: the product of its queries and keys, in which a constant of the
    keys adds the same to all scores; of rotary pairs both up to one complex factor.
    """
    turned = 0 if maps == QueryMaps.GENERAL else anatomy.rotary_size
    half = turned // 2
    if half:
        (query, key), (other_query, other_key) = (
            [complex_of(each[part][:half], each[part][half:turned]) for part in (0, 1)]
            for each in own
        )
        factor, inverse = factors(query, other_query)
        sides.compare(name, query * factor, other_query)
        dual = Bounded(inverse.value.conj(), inverse.error)
        sides.compare(name, key * dual, other_key)
    products = [each[0][turned:].transposed @ each[1][turned:, :-1] for each in own]
    sides.compare(name, *products)
