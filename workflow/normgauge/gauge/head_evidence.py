"""Attention heads whose activations leave their match uncertain, decided by their weights.

What a head adds to the stream is the product of its value map and its part of the output
projection, and what it attends to the product of its query and key maps. No change of coordinates
inside the head changes these products, so two heads are compared by the cosine between theirs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from normgauge.anatomy.structure import Anatomy
from normgauge.gauge.admissible import QueryMaps, admissible
from normgauge.gauge.head_matching import HeadMatching, assign_heads
from normgauge.gauge.matching import DEVIATIONS
from normgauge.gauge.weight_evidence import kept
from normgauge.gauge.weight_maps import HeadFactors, Weights, head_factors, head_maps

FORCED = 10.0  # more than any cosine: what a match that is certain scores


def decided_heads(
    anatomy: Anatomy,
    name: str,
    found: HeadMatching,
    source: Weights,
    target: Weights,
    known: Mapping[str, np.ndarray],
) -> HeadMatching:
    """The matching of a layer, its uncertain heads decided by weights where these are certain.

    `source`: with streams in place and heads as they are; `known`: bool, by the target's number,
    the coordinates of other spaces that are certain. Each of them is a sample of a product's rows.
    A head that weights decide is ahead of every rival, and of nothing, by three standard errors
    (infinitesimal jackknife). Where not all are decided, heads with keys and values of their own
    that are not keep what activations say as far as it is free; shared ones all stay.
    """
    mask = known.get(head_maps(anatomy, name)["value"].reads)
    if not found.uncertain.any() or mask is None or not mask.any():
        return found
    sides = [_products(anatomy, name, weights, mask) for weights in (source, target)]
    scores = np.mean([_cosines(*pair) for pair in zip(*sides, strict=True)], axis=0)
    chosen = _assigned(scores, found)
    rows = np.flatnonzero(found.uncertain)
    columns = np.sort(found.order[rows])
    numbers = np.searchsorted(columns, chosen[rows])
    sure = _sure(list(zip(*sides, strict=True)), scores, rows, columns, numbers)
    groups, repeats = found.head_order.shape
    if repeats > 1 and not sure.all():
        return found
    before = np.searchsorted(columns, found.order[rows])
    order = found.order.copy()
    order[rows] = columns[kept(scores[np.ix_(rows, columns)], before, numbers, sure)]
    by_weights = np.zeros(len(order), dtype=bool)
    by_weights[rows] = sure
    cut = order.reshape(groups, repeats)
    return replace(
        found,
        group_order=cut[:, 0] // repeats,
        head_order=cut % repeats,
        uncertain=found.uncertain & ~by_weights,
        silent=found.silent & ~by_weights,
    )


@dataclass(frozen=True, eq=False)
class _Products:
    """Products of heads as two factors: `left` (heads, rows, size), `right` (heads, size, out)."""

    left: np.ndarray
    right: np.ndarray

    @property
    def energy(self) -> np.ndarray:
        """float64 (heads, rows): squared lengths of a product's rows."""
        return np.stack([_inner(self, self, head, head) for head in range(len(self.left))])


def _products(anatomy: Anatomy, name: str, weights: Weights, mask: np.ndarray) -> list[_Products]:
    """Values with outputs; queries with keys as well where any invertible map passes between them,
    which turning positions do not allow.
    """
    factors: HeadFactors = head_factors(anatomy, name, weights)
    rows = np.append(mask, True)  # the constant
    shared = np.repeat(np.arange(len(factors.key)), factors.repeats)
    found = [_Products(factors.value[shared][:, :, rows].transpose(0, 2, 1), factors.output)]
    maps = head_maps(anatomy, name)
    one_stream = maps["query"].reads == maps["value"].reads
    if admissible(anatomy, name).query_maps == QueryMaps.GENERAL and one_stream:
        left = factors.query[:, :, rows].transpose(0, 2, 1)
        found.append(_Products(left, factors.key[shared][:, :, :-1]))
    return found


def _inner(source: _Products, target: _Products, row: int, column: int) -> np.ndarray:
    """float64 (rows,): inner products of the rows of two heads' products."""
    between = source.right[row] @ target.right[column].T
    found: np.ndarray = (source.left[row] @ between * target.left[column]).sum(1)
    return found


def _cosines(source: _Products, target: _Products) -> np.ndarray:
    """float64 (H, H); 0 of a head without weights."""
    heads = range(len(source.left))
    inner = np.array(
        [[_inner(source, target, row, column).sum() for column in heads] for row in heads]
    )
    return inner / np.maximum(_lengths(source)[:, None] * _lengths(target), 1e-300)


def _lengths(products: _Products) -> np.ndarray:
    found: np.ndarray = np.sqrt(products.energy.sum(1))
    return found


def _assigned(scores: np.ndarray, found: HeadMatching) -> np.ndarray:
    """int64 (H,): the best order in which certain heads stay where they are."""
    forced = scores.copy()
    sure = np.flatnonzero(~found.uncertain)
    forced[sure, found.order[sure]] = FORCED
    group_order, head_order = assign_heads(forced, len(found.group_order))
    order: np.ndarray = (group_order[:, None] * head_order.shape[1] + head_order).ravel()
    return order


def _sure(
    kinds: Sequence[tuple[_Products, _Products]],
    scores: np.ndarray,
    rows: np.ndarray,
    columns: np.ndarray,
    numbers: np.ndarray,
) -> np.ndarray:
    """bool (k,): heads whose choice is ahead of every rival among the uncertain, and of nothing."""
    sure = np.zeros(len(rows), dtype=bool)
    for place, (row, column) in enumerate(zip(rows, columns[numbers], strict=True)):
        own, chance = _influences(kinds, row, column), _chance(kinds, row, column)
        score = scores[row, column]
        rivals = [(row, other) for other in columns if other != column]
        rivals += [(other, column) for other in rows if other != row]
        sure[place] = score > DEVIATIONS * chance and all(
            score - scores[rival]
            > DEVIATIONS * np.sqrt(np.square(own - _influences(kinds, *rival)).sum())
            for rival in rivals
        )
    return sure


def _influences(kinds: Sequence[tuple[_Products, _Products]], row: int, column: int) -> np.ndarray:
    """float64 (rows of all kinds,): of each row on the mean cosine of two heads."""
    found = []
    for source, target in kinds:
        inner = _inner(source, target, row, column)
        first, second = _inner(source, source, row, row), _inner(target, target, column, column)
        length = max(float(first.sum() * second.sum()) ** 0.5, 1e-300)
        shares = first / max(float(first.sum()), 1e-300) + second / max(float(second.sum()), 1e-300)
        found.append((inner / length - inner.sum() / length / 2 * shares) / len(kinds))
    return np.concatenate(found)


def _chance(kinds: Sequence[tuple[_Products, _Products]], row: int, column: int) -> float:
    """Standard error of a cosine whose rows have nothing in common."""
    total = 0.0
    for source, target in kinds:
        first, second = _inner(source, source, row, row), _inner(target, target, column, column)
        length = max(float(first.sum() * second.sum()), 1e-300)
        total += float(np.square(_inner(source, target, row, column)).sum() / length)
    return total**0.5 / len(kinds)
