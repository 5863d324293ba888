"""The heads of a pair in one order, and their values, queries and keys in one basis.

In the groups that change the basis of a product both sides are brought to the balanced basis, in
which the two factors have equal Gram matrices, and B is then turned to A by the nearest rotation.
The rotation of the swapped pair is the inverse one, so that statistics of the aligned pair only
change sign when A and B are swapped.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from normgauge.checkpoint_comparison.alignment_rows import (
    CORRESPONDS,
    alignment_row,
    relative_change,
    verdict,
    with_gauges,
)
from normgauge.checkpoint_comparison.factors import (
    AttentionFactors,
    Layer,
    Mode,
    attention_factors,
    gain,
)
from normgauge.checkpoint_comparison.ov import head_kernel
from normgauge.checkpoint_comparison.pair import Pair
from normgauge.checkpoint_comparison.qk import score_kernel
from normgauge.gauge.admissible import QueryMaps, admissible
from normgauge.gauge.groups import AttentionGauge
from normgauge.gauge.head_matching import assign_heads
from normgauge.gauge.product_maps import balanced_pair

RANK = 1e-8  # smallest over largest singular value of a product that has full rank


def align_heads(pair: Pair, layer: Layer) -> tuple[Pair, list[dict[str, Any]], np.ndarray]:
    name = f"{layer.prefix}attention"
    rule = admissible(pair.anatomy, name)
    before = [attention_factors(side, layer, Mode.FOLDED) for side in (pair.a, pair.b)]
    rows = []
    groups, heads = len(before[0].key), before[0].heads
    standing = np.arange(heads)
    shape = (groups, heads // groups, before[0].query.shape[1], before[0].value.shape[1])
    if rule.heads_move and heads > 1:
        scores = head_scores(before[0], before[1])
        group_order, head_order = assign_heads(scores, groups)
        order = (group_order[:, None] * shape[1] + head_order).ravel()
        similarity = float(scores[np.arange(heads), order].mean())
        moved = float((order != np.arange(heads)).mean())
        taken = similarity > CORRESPONDS
        change = _attention_change(before)
        if taken and moved:
            still = AttentionGauge.identity(*shape)
            element = AttentionGauge(group_order, head_order, still.query_maps, still.value_maps)
            pair = with_gauges(pair, {}, {name: element.inverse()})
            before = [before[0], attention_factors(pair.b, layer, Mode.FOLDED)]
            standing = order
        rows.append(
            alignment_row(
                "heads",
                name,
                verdict(taken, moved),
                moved if taken else 0.0,
                similarity,
                change,
                _attention_change(before),
            )
        )
    raw_queries = _unnormed(pair, layer)
    values = [_value_maps(before, group) for group in range(groups)]
    queries = [
        _query_maps(rule.query_maps, raw_queries, group, pair.anatomy.rotary_size)
        for group in range(groups)
    ]
    still_order = np.arange(groups), np.tile(np.arange(shape[1]), (groups, 1))
    elements = [
        AttentionGauge(
            *still_order,
            np.stack([maps[side] for maps in queries]),
            np.stack([maps[side] for maps in values]),
        )
        for side in (0, 1)
    ]
    aligned = with_gauges(pair, {name: elements[0]}, {name: elements[1]})
    after = [attention_factors(side, layer, Mode.FOLDED) for side in (aligned.a, aligned.b)]
    for group, parts in (("values", ("value", "output")), ("queries", ("query", "key"))):
        changes = [
            relative_change(*([getattr(side, part) for part in parts] for side in sides))
            for sides in (before, after)
        ]
        rows.append(alignment_row(group, name, "balanced", 1.0, 1.0, *changes))
    return aligned, rows, standing


def _attention_change(sides: Sequence[AttentionFactors]) -> float:
    return relative_change(*([side.query, side.key, side.value, side.output] for side in sides))


def _unnormed(pair: Pair, layer: Layer) -> list[AttentionFactors]:
    """Folded factors, with queries and keys as they are before their own norms: the admissible maps
    act there.
    """
    folded = [attention_factors(side, layer, Mode.FOLDED) for side in (pair.a, pair.b)]
    spaces = {norm.space: norm for norm in pair.anatomy.norms}
    if layer.maps["query"].writes not in spaces:
        return folded
    plain = []
    for side, factors in zip((pair.a, pair.b), folded, strict=True):
        gains = [
            np.abs(gain(side, spaces[layer.maps[part].writes]))[:, None]
            for part in ("query", "key")
        ]
        safe = [np.where(values == 0, 1.0, values) for values in gains]
        plain.append(
            AttentionFactors(
                factors.query / safe[0], factors.key / safe[1], factors.value, factors.output
            )
        )
    return plain


def head_scores(first: AttentionFactors, second: AttentionFactors) -> np.ndarray:
    """(H, H): mean cosine of the O V and the Q^T K kernels of every head of A with every head
    of B.
    """
    scores = np.zeros((first.heads, first.heads))
    for kernel in (head_kernel, score_kernel):
        left, right = (
            [kernel(side, head) for head in range(side.heads)] for side in (first, second)
        )
        norms = [np.array([each.energy() ** 0.5 for each in kernels]) for kernels in (left, right)]
        inner = np.array([[one.inner(other) for other in right] for one in left])
        scale = np.outer(*norms)
        scores += np.divide(inner, scale, out=np.zeros_like(inner), where=scale > 0) / 2
    return scores


def _value_maps(sides: Sequence[AttentionFactors], group: int) -> tuple[np.ndarray, np.ndarray]:
    repeats = sides[0].heads // len(sides[0].key)
    heads = range(group * repeats, (group + 1) * repeats)
    return balanced_maps(
        *((side.value[group], np.vstack([side.output[head] for head in heads])) for side in sides)
    )


def balanced_maps(
    first: tuple[np.ndarray, np.ndarray], second: tuple[np.ndarray, np.ndarray]
) -> tuple[np.ndarray, np.ndarray]:
    """Maps (r, r) of A and of B, h -> h M, that balance the product of a factor (r, n) that writes
    h and one (m, r) that reads it, and turn B's to A's. The identity where a product has not full
    rank, or where A and B are equal.
    """
    still = np.eye(len(first[0]))
    if all(np.array_equal(*parts) for parts in zip(first, second, strict=True)):
        return still, still
    one, other = ((written.T, reading.T) for written, reading in (first, second))
    return balanced_pair(one, other, RANK) or (still, still)


def _query_maps(
    rule: QueryMaps, sides: Sequence[AttentionFactors], group: int, rotary_size: int
) -> tuple[np.ndarray, np.ndarray]:
    """Query maps of A and of B that balance and align one group; keys move by their duals."""
    repeats = sides[0].heads // len(sides[0].key)
    heads = slice(group * repeats, (group + 1) * repeats)
    queries = [np.concatenate(list(side.query[heads]), axis=1) for side in sides]
    keys = [side.key[group] for side in sides]
    if rule == QueryMaps.GENERAL:
        return balanced_maps((queries[0], keys[0].T), (queries[1], keys[1].T))
    maps = [np.eye(len(keys[0])) for _ in sides]
    half = rotary_size // 2
    for first, second in zip(range(half), range(half, rotary_size), strict=True):
        rows = [first, second]
        scales = [1.0, 1.0]
        if rule == QueryMaps.ROTARY:
            lengths = [
                (np.linalg.norm(query[rows]), np.linalg.norm(key[rows]))
                for query, key in zip(queries, keys, strict=True)
            ]
            if not np.array(lengths).all():
                continue
            scales = [float(np.sqrt(key / query)) for query, key in lengths]
        pairs = [
            np.concatenate([query[rows] * scale, key[rows] / scale], axis=1)
            for query, key, scale in zip(queries, keys, scales, strict=True)
        ]
        numbers = [part[0] + 1j * part[1] for part in pairs]
        # sum of conj(B) A: B times its phase is nearest to A
        overlap = np.vdot(numbers[1], numbers[0])
        if np.array_equal(pairs[0], pairs[1]) or not overlap:
            turn = 1.0 + 0.0j
        elif rule == QueryMaps.ROTARY:
            turn = overlap / abs(overlap)
        else:
            turn = complex(np.sign(overlap.real) or 1.0)
        for side, phase in ((0, 1.0 + 0.0j), (1, turn)):
            factor = scales[side] * phase
            maps[side][np.ix_(rows, rows)] = [
                [factor.real, factor.imag],
                [-factor.imag, factor.real],
            ]
    if rule == QueryMaps.ROTARY and rotary_size < len(keys[0]):
        free = np.arange(rotary_size, len(keys[0]))
        blocks = balanced_maps(
            *((query[free], key[free].T) for query, key in zip(queries, keys, strict=True))
        )
        for side, block in enumerate(blocks):
            maps[side][np.ix_(free, free)] = block
    return maps[0], maps[1]
