"""The gauge between A and B, found from their weights and taken out: afterwards equal functions have equal tensors.

B is brought to A in the groups that move coordinates as they are (residual stream, heads, units, signs, phases). In those that change the
basis of a product (values, queries and keys, up and down), both are brought to the balanced basis, in which the two factors have equal
Gram matrices, and B is then turned to A by the nearest rotation. The rotation of the swapped pair is the inverse one, so that statistics of
the aligned pair only change sign when A and B are swapped.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from normgauge.anatomy.structure import Anatomy, Role, SpaceKind
from normgauge.comparison.factors import (
    AttentionFactors,
    FeedForwardFactors,
    Layer,
    Mode,
    attention_factors,
    attention_layers,
    feed_forward_factors,
    feed_forward_layers,
    gain,
    matrix,
)
from normgauge.comparison.folds import fold_steps, foldable_norms
from normgauge.comparison.kernels import ratio
from normgauge.comparison.ov import head_kernel
from normgauge.comparison.pair import Pair
from normgauge.comparison.qk import score_kernel
from normgauge.gauge.admissible import Group, QueryMaps, admissible, gauge_spaces
from normgauge.gauge.correlation import FEWEST, CrossCorrelation
from normgauge.gauge.groups import AttentionGauge, Element, Monomial
from normgauge.gauge.head_matching import assign_heads
from normgauge.gauge.matching import Matching, match, match_matrix
from normgauge.gauge.model_gauge import Gauge
from normgauge.gauge.transform import tensor_moves

CORRESPONDS = 0.5  # share of certain matches, or mean similarity of matched heads, above which a correspondence is taken
RANK = 1e-8  # smallest over largest eigenvalue of a Gram matrix that has an inverse


@dataclass(frozen=True, eq=False)
class Aligned:
    """The pair in one gauge, and rows of schema `comparison_alignment` that say what was found and what is left.

    `orders`: by the name of an attention layer or unit space, where its heads or units stand in B as it is stored. `stream`: the pair with
    its residual streams and norm folds in one gauge, but every head and unit as it is stored: what rounding does is known there.
    """

    pair: Pair
    rows: list[dict[str, Any]]
    orders: dict[str, np.ndarray]
    stream: Pair


def align(pair: Pair) -> Aligned:
    """Find the gauge between the sides and take it out, group by group. Nothing is moved where no correspondence is found."""
    rows: list[dict[str, Any]] = []
    orders: dict[str, np.ndarray] = {}
    anatomy = pair.anatomy
    for space in anatomy.spaces:
        if space.kind == SpaceKind.RESIDUAL and space.name in gauge_spaces(anatomy):
            pair, found = _align_residual(pair, space.name)
            rows += found
    stream = pair
    for layer in attention_layers(anatomy):
        pair, found, orders[f"{layer.prefix}attention"] = _align_attention(pair, layer)
        rows += found
    for layer in feed_forward_layers(anatomy):
        pair, found, orders[f"{layer.prefix}ffn"] = _align_units(pair, layer)
        rows += found
    # last: heads and units are told by folded factors, which folds leave alone, and maps can be compared once their outputs are in place
    scales, found = _find_folds(pair)
    rows += found
    return Aligned(_with_folds(pair, scales), rows, orders, _with_folds(stream, scales))


def _with_folds(pair: Pair, scales: Mapping[str, np.ndarray]) -> Pair:
    """The pair with the gains of B's named norms multiplied by the factors; gains are rounded, and so are their ratios."""
    errors: dict[str, tuple[int, np.ndarray]] = {}
    for norm in (norm for norm in foldable_norms(pair.anatomy) if norm.name in scales):
        assert norm.gain is not None
        relative = sum(side.floor(norm.gain) / gain(side, norm) ** 2 for side in (pair.a, pair.b))
        errors |= {item.weight: (item.input_axis, relative) for item in pair.anatomy.maps if item.name in norm.feeds}
    return Pair(pair.a, replace(pair.b.with_steps(fold_steps(pair.anatomy, scales)), scale_errors=errors), pair.unmatched)


def _row(group: str, space: str, found: str, moved: float, certain: float, before: float, after: float) -> dict[str, Any]:
    return {
        "group": group,
        "space": space,
        "found": found,
        "moved": float(moved),
        "certain": float(certain),
        "residual_before": float(before),
        "residual_after": float(after),
    }


def _with_gauges(pair: Pair, first: dict[str, Element], second: dict[str, Element]) -> Pair:
    steps = [tensor_moves(pair.anatomy, Gauge(elements)) for elements in (first, second)]
    return Pair(pair.a.with_steps(steps[0]), pair.b.with_steps(steps[1]), pair.unmatched)


def relative_change(first: Sequence[np.ndarray], second: Sequence[np.ndarray]) -> float:
    """|B - A| / |(A + B) / 2| over several arrays together."""
    moved = sum(float(((after - before) ** 2).sum()) for before, after in zip(first, second, strict=True))
    mean = sum(float(((after + before) ** 2).sum()) for before, after in zip(first, second, strict=True)) / 4
    return ratio(moved, mean) ** 0.5


def _verdict(taken: bool, moved: float) -> str:
    return "none" if not taken else "gauge" if moved else "identity"


# --- the residual stream


def anchor_tables(anatomy: Anatomy, space: str) -> list[str]:
    """Matrices with one axis on the space and the other on coordinates that no gauge moves, such as tokens and positions."""
    moving = set(gauge_spaces(anatomy)) | {
        item.name for item in anatomy.spaces if item.kind in (SpaceKind.QUERY, SpaceKind.KEY, SpaceKind.VALUE)
    }
    names = []
    for tensor in anatomy.tensors:
        spaces = [axis.segments[0].space for axis in tensor.axes]
        if (
            tensor.alias_of is None
            and len(spaces) == 2
            and spaces[1] == space
            and spaces[0] not in moving
            and tensor.axes[1].role != Role.INDEX
        ):
            names.append(tensor.name)
    return names


def _align_residual(pair: Pair, space: str) -> tuple[Pair, list[dict[str, Any]]]:
    tables = anchor_tables(pair.anatomy, space)
    correlation = CrossCorrelation(pair.anatomy.space(space).size)
    for name in tables:
        for before, after in zip(pair.a.rows(name), pair.b.rows(name), strict=True):
            correlation.update(torch.from_numpy(before), torch.from_numpy(after))
    if correlation.n < FEWEST:
        return pair, [_row("residual", space, "none", 0.0, 0.0, float("nan"), float("nan"))]
    group = admissible(pair.anatomy, space).group
    found = match(correlation, group)
    element = found.gauge
    certain = 1 - float(found.uncertain.mean())
    moved = float(((element.target != np.arange(element.size)) | (element.factors != 1)).mean())
    unaligned = _table_change(pair, tables)
    taken = certain > CORRESPONDS
    aligned = _with_gauges(pair, {}, {space: element.inverse()}) if taken and moved else pair
    return aligned, [
        _row("residual", space, _verdict(taken, moved), moved if taken else 0.0, certain, unaligned, _table_change(aligned, tables))
    ]


def _table_change(pair: Pair, names: Sequence[str]) -> float:
    moved = mean = 0.0
    for name in names:
        for before, after in zip(pair.a.rows(name), pair.b.rows(name), strict=True):
            moved += float(((after - before) ** 2).sum())
            mean += float(((after + before) ** 2).sum()) / 4
    return ratio(moved, mean) ** 0.5


# --- norm folds


def _find_folds(pair: Pair) -> tuple[Mapping[str, np.ndarray], list[dict[str, Any]]]:
    """By norm, what B's gains are multiplied by to be A's, where the maps behind it, scaled back, then agree better by half."""
    scales, rows = {}, []
    for norm in foldable_norms(pair.anatomy):
        gains = gain(pair.a, norm), gain(pair.b, norm)
        items = [item for item in pair.anatomy.maps if item.name in norm.feeds]
        maps = [[matrix(side, item) for item in items] for side in (pair.a, pair.b)]
        before = relative_change(maps[0], maps[1])
        usable = bool((gains[0] * gains[1] != 0).all())
        factors = gains[0] / gains[1] if usable else np.ones_like(gains[0])
        after = relative_change(maps[0], [weight / factors for weight in maps[1]])
        taken = usable and after < CORRESPONDS * before
        if taken:
            scales[norm.name] = factors
        found = "gauge" if taken else "identity"
        rows.append(
            _row("folds", norm.name, found, float((factors != 1).mean()) if taken else 0.0, 1.0, before, after if taken else before)
        )
    return scales, rows


# --- attention


def _align_attention(pair: Pair, layer: Layer) -> tuple[Pair, list[dict[str, Any]], np.ndarray]:
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
            pair = _with_gauges(pair, {}, {name: element.inverse()})
            before = [before[0], attention_factors(pair.b, layer, Mode.FOLDED)]
            standing = order
        rows.append(_row("heads", name, _verdict(taken, moved), moved if taken else 0.0, similarity, change, _attention_change(before)))
    raw_queries = _unnormed(pair, layer)
    values = [_value_maps(before, group) for group in range(groups)]
    queries = [_query_maps(rule.query_maps, raw_queries, group, pair.anatomy.rotary_size) for group in range(groups)]
    still_order = np.arange(groups), np.tile(np.arange(shape[1]), (groups, 1))
    elements = [
        AttentionGauge(*still_order, np.stack([maps[side] for maps in queries]), np.stack([maps[side] for maps in values]))
        for side in (0, 1)
    ]
    aligned = _with_gauges(pair, {name: elements[0]}, {name: elements[1]})
    after = [attention_factors(side, layer, Mode.FOLDED) for side in (aligned.a, aligned.b)]
    for group, parts in (("values", ("value", "output")), ("queries", ("query", "key"))):
        changes = [relative_change(*([getattr(side, part) for part in parts] for side in sides)) for sides in (before, after)]
        rows.append(_row(group, name, "balanced", 1.0, 1.0, *changes))
    return aligned, rows, standing


def _attention_change(sides: Sequence[AttentionFactors]) -> float:
    return relative_change(*([side.query, side.key, side.value, side.output] for side in sides))


def _unnormed(pair: Pair, layer: Layer) -> list[AttentionFactors]:
    """Folded factors, with queries and keys as they are before their own norms: the admissible maps act there."""
    folded = [attention_factors(side, layer, Mode.FOLDED) for side in (pair.a, pair.b)]
    spaces = {norm.space: norm for norm in pair.anatomy.norms}
    if layer.maps["query"].writes not in spaces:
        return folded
    plain = []
    for side, factors in zip((pair.a, pair.b), folded, strict=True):
        gains = [gain(side, spaces[layer.maps[part].writes])[:, None] for part in ("query", "key")]
        safe = [np.where(values == 0, 1.0, values) for values in gains]
        plain.append(AttentionFactors(factors.query / safe[0], factors.key / safe[1], factors.value, factors.output))
    return plain


def head_scores(first: AttentionFactors, second: AttentionFactors) -> np.ndarray:
    """(H, H): mean cosine of the O V and the Q^T K kernels of every head of A with every head of B."""
    scores = np.zeros((first.heads, first.heads))
    for kernel in (head_kernel, score_kernel):
        left, right = ([kernel(side, head) for head in range(side.heads)] for side in (first, second))
        norms = [np.array([each.energy() ** 0.5 for each in kernels]) for kernels in (left, right)]
        inner = np.array([[one.inner(other) for other in right] for one in left])
        scale = np.outer(*norms)
        scores += np.divide(inner, scale, out=np.zeros_like(inner), where=scale > 0) / 2
    return scores


def _value_maps(sides: Sequence[AttentionFactors], group: int) -> tuple[np.ndarray, np.ndarray]:
    repeats = sides[0].heads // len(sides[0].key)
    heads = range(group * repeats, (group + 1) * repeats)
    return balanced_maps(*((side.value[group], np.vstack([side.output[head] for head in heads])) for side in sides))


def balanced_maps(first: tuple[np.ndarray, np.ndarray], second: tuple[np.ndarray, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Maps (r, r) of A and of B, h -> h M, that balance the product of a factor (r, n) that writes h and one (m, r) that reads it, and
    turn B's to A's. The identity where a factor has not full rank, or where A and B are equal."""
    if all(np.array_equal(*parts) for parts in zip(first, second, strict=True)):
        return np.eye(len(first[0])), np.eye(len(first[0]))
    maps = [found for found in (_balance(*first), _balance(*second)) if found is not None]
    if len(maps) < 2:
        return np.eye(len(first[0])), np.eye(len(first[0]))
    written = [each.T @ factor for each, factor in zip(maps, (first[0], second[0]), strict=True)]
    reading = [factor @ np.linalg.inv(each).T for each, factor in zip(maps, (first[1], second[1]), strict=True)]
    left, _, right = np.linalg.svd(written[1] @ written[0].T + reading[1].T @ reading[0])
    return maps[0], maps[1] @ (left @ right)


def _balance(written: np.ndarray, reading: np.ndarray) -> np.ndarray | None:
    """Symmetric M with M P M = M^-1 S M^-1 for the Gram matrices P of what is written and S of what reads; None without full rank."""
    grams = written @ written.T, reading.T @ reading
    roots = []
    for gram in grams:
        values, vectors = np.linalg.eigh(gram)
        if values[0] <= RANK * values[-1]:
            return None
        roots.append((vectors * np.sqrt(values)) @ vectors.T)
    inverse = np.linalg.inv(roots[0])
    values, vectors = np.linalg.eigh(roots[0] @ grams[1] @ roots[0])
    mean = inverse @ ((vectors * np.sqrt(values)) @ vectors.T) @ inverse  # the geometric mean of P^-1 and S
    values, vectors = np.linalg.eigh((mean + mean.T) / 2)
    return (vectors * np.sqrt(values)) @ vectors.T


def _query_maps(rule: QueryMaps, sides: Sequence[AttentionFactors], group: int, rotary_size: int) -> tuple[np.ndarray, np.ndarray]:
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
            lengths = [(np.linalg.norm(query[rows]), np.linalg.norm(key[rows])) for query, key in zip(queries, keys, strict=True)]
            if not np.array(lengths).all():
                continue
            scales = [float(np.sqrt(key / query)) for query, key in lengths]
        pairs = [
            np.concatenate([query[rows] * scale, key[rows] / scale], axis=1)
            for query, key, scale in zip(queries, keys, scales, strict=True)
        ]
        numbers = [part[0] + 1j * part[1] for part in pairs]
        overlap = np.vdot(numbers[1], numbers[0])  # sum of conj(B) A: B times its phase is nearest to A
        if np.array_equal(pairs[0], pairs[1]) or not overlap:
            turn = 1.0 + 0.0j
        elif rule == QueryMaps.ROTARY:
            turn = overlap / abs(overlap)
        else:
            turn = complex(np.sign(overlap.real) or 1.0)
        for side, phase in ((0, 1.0 + 0.0j), (1, turn)):
            factor = scales[side] * phase
            maps[side][np.ix_(rows, rows)] = [[factor.real, factor.imag], [-factor.imag, factor.real]]
    if rule == QueryMaps.ROTARY and rotary_size < len(keys[0]):
        free = np.arange(rotary_size, len(keys[0]))
        blocks = balanced_maps(*((query[free], key[free].T) for query, key in zip(queries, keys, strict=True)))
        for side, block in enumerate(blocks):
            maps[side][np.ix_(free, free)] = block
    return maps[0], maps[1]


# --- feed-forward units


def _align_units(pair: Pair, layer: Layer) -> tuple[Pair, list[dict[str, Any]], np.ndarray]:
    name = f"{layer.prefix}ffn"
    group = admissible(pair.anatomy, name).group
    before = [feed_forward_factors(side, layer, Mode.FOLDED) for side in (pair.a, pair.b)]
    found = _match_units(before[0], before[1], group)
    certain = 1 - float(found.uncertain.mean())
    taken = certain > CORRESPONDS
    target = found.gauge.target if taken else np.arange(len(before[0].down))
    moved = float((target != np.arange(len(target))).mean())
    scales = [unit_scales(factors, group) for factors in before]
    signs = np.ones(len(target))
    if group == Group.MONOMIAL and taken:
        products = (before[0].reads[-1] * before[1].reads[-1][target]).sum(1) + (before[0].down * before[1].down[target]).sum(1)
        signs = np.where(products < 0, -1.0, 1.0)
    places = np.arange(len(target))
    back = Monomial(target, signs).inverse()
    elements = [Monomial(places, scales[0]), Monomial(places, scales[1]).compose(back)]
    aligned = _with_gauges(pair, {name: elements[0]}, {name: elements[1]})
    after = [feed_forward_factors(side, layer, Mode.FOLDED) for side in (aligned.a, aligned.b)]
    changes = [relative_change(*([*side.reads, side.down] for side in sides)) for sides in (before, after)]
    return aligned, [_row("units", name, _verdict(taken, moved), moved if taken else 0.0, certain, *changes)], target


def unit_scales(factors: FeedForwardFactors, group: Group) -> np.ndarray:
    """(f,): what a unit's reading row is multiplied by, and its down column divided by, so that both are equally long."""
    lengths = [np.linalg.norm(rows, axis=1) for rows in (factors.reads[-1], factors.down)]
    if group not in (Group.MONOMIAL, Group.POSITIVE_MONOMIAL) or not np.array(lengths).all():
        return np.ones(len(factors.down))
    return np.sqrt(lengths[1] / lengths[0])


def _match_units(first: FeedForwardFactors, second: FeedForwardFactors, group: Group) -> Matching:
    """Match units by what they read and write; where up and down may change sign together, by the product of their cosines."""
    reads = [_cosines(before, after) for before, after in zip(first.reads, second.reads, strict=True)]
    down = _cosines(first.down, second.down)
    signed = group == Group.MONOMIAL and len(reads) > 1
    score = (reads[0] + reads[1] * down) / 2 if signed else np.mean([*reads, down], axis=0)
    samples = first.down.shape[1] * (len(reads) + 1)
    silent = [np.equal(np.linalg.norm(factors.down, axis=1), 0) for factors in (first, second)]
    return match_matrix(score, samples, silent[0], silent[1], Group.PERMUTATION)


def _cosines(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    units = [rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-300) for rows in (first, second)]
    return units[0] @ units[1].T
