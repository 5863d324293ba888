"""The feed-forward units of a pair in one order, their signs and scales."""

from __future__ import annotations

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
    FeedForwardFactors,
    Layer,
    Mode,
    feed_forward_factors,
)
from normgauge.checkpoint_comparison.pair import Pair
from normgauge.gauge.admissible import Group, admissible
from normgauge.gauge.groups import Monomial
from normgauge.gauge.matching import Matching, match_matrix


def align_units(pair: Pair, layer: Layer) -> tuple[Pair, list[dict[str, Any]], np.ndarray]:
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
        products = (before[0].reads[-1] * before[1].reads[-1][target]).sum(1) + (
            before[0].down * before[1].down[target]
        ).sum(1)
        signs = np.where(products < 0, -1.0, 1.0)
    places = np.arange(len(target))
    back = Monomial(target, signs).inverse()
    elements = [Monomial(places, scales[0]), Monomial(places, scales[1]).compose(back)]
    aligned = with_gauges(pair, {name: elements[0]}, {name: elements[1]})
    after = [feed_forward_factors(side, layer, Mode.FOLDED) for side in (aligned.a, aligned.b)]
    changes = [
        relative_change(*([*side.reads, side.down] for side in sides)) for sides in (before, after)
    ]
    return (
        aligned,
        [
            alignment_row(
                "units", name, verdict(taken, moved), moved if taken else 0.0, certain, *changes
            )
        ],
        target,
    )


def unit_scales(factors: FeedForwardFactors, group: Group) -> np.ndarray:
    """(f,): what a unit's reading row is multiplied by, and its down column divided by, so that
    both are equally long.
    """
    lengths = [np.linalg.norm(rows, axis=1) for rows in (factors.reads[-1], factors.down)]
    if group not in (Group.MONOMIAL, Group.POSITIVE_MONOMIAL) or not np.array(lengths).all():
        return np.ones(len(factors.down))
    return np.sqrt(lengths[1] / lengths[0])


def _match_units(first: FeedForwardFactors, second: FeedForwardFactors, group: Group) -> Matching:
    """Match units by what they read and write; where up and down may change sign together, by the
    product of their cosines.
    """
    reads = [
        _cosines(before, after) for before, after in zip(first.reads, second.reads, strict=True)
    ]
    down = _cosines(first.down, second.down)
    signed = group == Group.MONOMIAL and len(reads) > 1
    score = (reads[0] + reads[1] * down) / 2 if signed else np.mean([*reads, down], axis=0)
    samples = first.down.shape[1] * (len(reads) + 1)
    silent = [np.equal(np.linalg.norm(factors.down, axis=1), 0) for factors in (first, second)]
    return match_matrix(score, samples, silent[0], silent[1], Group.PERMUTATION)


def _cosines(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    units = [
        rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-300)
        for rows in (first, second)
    ]
    return units[0] @ units[1].T
