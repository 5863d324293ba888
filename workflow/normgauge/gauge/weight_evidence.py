"""Coordinates whose activations leave their match uncertain, decided by the weights around them.

Two units that hardly fire, or fire alike, cannot be told apart by what they do on the probes; the
weights that write and read them can. What is compared are the entries of these weights that lie in
coordinates whose match is certain: they are the samples, the units are what is correlated.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from normgauge.anatomy.lookup import runs_of
from normgauge.anatomy.structure import Anatomy, Axis, Role, SpaceKind
from normgauge.gauge.admissible import admissible
from normgauge.gauge.correlation import FEWEST
from normgauge.gauge.groups import Monomial
from normgauge.gauge.matching import DEVIATIONS, Cost, Matching, assign, cost_of
from normgauge.gauge.model_gauge import Gauge
from normgauge.gauge.weight_maps import Weights

MOST = 4096  # entries along an axis of token or position numbers that are used, evenly spaced
Spaces = Mapping[str, Matching]


@dataclass(frozen=True, eq=False)
class _Rows:
    """What one tensor holds of the coordinates of a space.

    `source`, `target`: float64 (d, n), as stored, a row for each coordinate. `signed`: whether the
    coordinate's sign acts on them, which it does not on a gate's.
    """

    source: np.ndarray
    target: np.ndarray
    signed: bool


def decided(
    anatomy: Anatomy, found: Spaces, source: Mapping, target: Mapping
) -> dict[str, Matching]:
    """The matchings, their uncertain coordinates decided by weights where these are certain.

    `found`: of streams and feed-forward units, by space; `source`, `target`: tensors by name. A
    coordinate that weights decide is certain by the same three standard errors. Of what stays
    uncertain no cycle of exchanged numbers is kept that leaves the weights further apart than the
    identity does. A space whose common sign is not certain stays as it is.
    """
    result = dict(found)
    goal = Weights(anatomy, target, Gauge({}))
    order = sorted(result, key=lambda name: (anatomy.space(name).kind != SpaceKind.RESIDUAL, name))
    for name in order:
        matching = result[name]
        if not matching.uncertain.any() or not matching.sign_certain:
            continue
        moved = Gauge({other: each.gauge for other, each in result.items() if other != name})
        known = {
            other: by_target(each, ~each.uncertain)
            for other, each in result.items()
            if other != name
        }
        rows = _incident(anatomy, name, Weights(anatomy, source, moved), goal, known)
        if sum(each.source.shape[1] for each in rows) >= FEWEST:
            result[name] = _resolved(matching, rows, cost_of(admissible(anatomy, name).group))
    return result


def by_target(matching: Matching, mask: np.ndarray) -> np.ndarray:
    """A mask of a matching's source coordinates by their target's number."""
    found = np.zeros_like(mask)
    found[matching.gauge.target] = mask
    return found


def _incident(
    anatomy: Anatomy,
    name: str,
    source: Weights,
    target: Weights,
    known: Mapping[str, np.ndarray],
) -> list[_Rows]:
    """The tensors that write or read a space, a row for each of its coordinates, with the entries
    that lie at tokens, positions and known coordinates of other spaces.
    """
    found = []
    for tensor in anatomy.tensors:
        if tensor.alias_of or len(tensor.axes) < 2:
            continue
        if source.stored(tensor.name).shape != target.stored(tensor.name).shape:
            continue
        for number, axis in enumerate(tensor.axes):
            if axis.role not in (Role.READ, Role.WRITE) or not axis.indices(name):
                continue
            used = [
                _used(other, known) for place, other in enumerate(tensor.axes) if place != number
            ]
            if not all(len(each) for each in used):
                continue
            gates: Collection[int] = (
                source.gates.get(tensor.name, ()) if axis.role == Role.WRITE else ()
            )
            for run, places in enumerate(runs_of(axis, name)):
                own, other = (
                    weights[tensor.name]
                    .movedim(number, 0)
                    .numpy()[np.ix_(places, *used)]
                    .reshape(len(places), -1)
                    for weights in (source, target)
                )
                found.append(_Rows(own, other, run not in gates))
    return found


def _used(axis: Axis, known: Mapping[str, np.ndarray]) -> np.ndarray:
    """Places along an axis whose entries mean the same in both models."""
    if axis.role == Role.INDEX:
        return np.unique(np.linspace(0, axis.size - 1, min(axis.size, MOST)).astype(np.int64))
    used = np.zeros(axis.size, dtype=bool)
    for space, mask in known.items():
        for places in runs_of(axis, space) if axis.indices(space) else ():
            if len(places) == len(mask):
                used[places] = mask
    return np.flatnonzero(used)


class _Evidence:
    """Correlations of uncertain source with uncertain target coordinates over all weights.

    `score`: float64 (k, k), with the signs that the group allows; `signs`: the sign of each entry.
    """

    def __init__(self, rows: Sequence[_Rows], left: np.ndarray, right: np.ndarray, cost: Cost):
        self.signed = np.concatenate([np.full(each.source.shape[1], each.signed) for each in rows])
        standardised = [_standardised(each, left, right, cost) for each in rows]
        self.source, self.target = (
            np.concatenate(side, 1) / len(rows) ** 0.5 for side in zip(*standardised, strict=True)
        )
        free = self.source[:, self.signed] @ self.target[:, self.signed].T
        fixed = self.source[:, ~self.signed] @ self.target[:, ~self.signed].T
        self.signs = np.where(free < 0, -1.0, 1.0) if cost == Cost.ABSOLUTE else np.ones_like(free)
        self.score = self.signs * free + fixed

    def influences(self, row: np.ndarray, column: np.ndarray) -> np.ndarray:
        """float64 (k, n): of each entry of the weights on the score of pairs."""
        signs = np.where(self.signed, self.signs[row, column][:, None], 1.0)
        first, second = self.source[row], signs * self.target[column]
        both = np.square(first) + np.square(second)
        return first * second - self.score[row, column][:, None] / 2 * both


def _standardised(
    rows: _Rows, left: np.ndarray, right: np.ndarray, cost: Cost
) -> tuple[np.ndarray, np.ndarray]:
    """(k, n) of source and target: entries in units of their spread over coordinates, so that no
    place counts for many, and rows of length one, so that scales of units do not count. What all
    coordinates have in common is taken off where no signs hide it.
    """
    sides = []
    for side, chosen in ((rows.source, left), (rows.target, right)):
        mean = 0.0 if rows.signed and cost == Cost.ABSOLUTE else side.mean(0)
        spread = np.sqrt(np.square(side - mean).mean(0))
        scaled = (side[chosen] - mean) / np.where(spread > 0, spread, 1.0)
        length = np.linalg.norm(scaled, axis=1, keepdims=True)
        sides.append(scaled / np.where(length > 0, length, 1.0))
    return sides[0], sides[1]


def _resolved(matching: Matching, rows: Sequence[_Rows], cost: Cost) -> Matching:
    left = np.flatnonzero(matching.uncertain)
    target, factors = matching.gauge.target.copy(), matching.gauge.factors.copy()
    right = np.sort(target[left])
    common = factors[0] if cost == Cost.COMMON else 1.0
    if common < 0:
        rows = [replace(each, target=-each.target if each.signed else each.target) for each in rows]
    evidence = _Evidence(rows, left, right, cost)
    chosen, _, _ = assign(evidence.score)
    sure = _sure(evidence, chosen)
    before = np.searchsorted(right, target[left])  # what activations chose, by number in `right`
    places = kept(evidence.score, before, chosen, sure)
    places = _no_worse_than_identity(_nearness(rows, left, right, cost), left, right, places, sure)
    target[left] = right[places]
    if cost == Cost.ABSOLUTE:
        changed = places != before
        signs = evidence.signs[np.arange(len(left)), places]
        factors[left] = np.where(sure | changed, signs * np.abs(factors[left]), factors[left])
    by_weights = np.zeros(len(target), dtype=bool)
    by_weights[left] = sure
    return replace(
        matching,
        gauge=Monomial(target, factors),
        uncertain=matching.uncertain & ~by_weights,
        by_weights=by_weights,
        certified=False,
    )


def _sure(evidence: _Evidence, chosen: np.ndarray) -> np.ndarray:
    """bool (k,): matches that are ahead of every rival, and of nothing, beyond doubt."""
    numbers = np.arange(len(chosen))
    score = evidence.score[numbers, chosen]
    own = evidence.influences(numbers, chosen)
    chance = np.square(evidence.source * evidence.target[chosen]).sum(1)
    sure = score > DEVIATIONS * np.sqrt(chance)
    if len(chosen) == 1:
        return sure
    others = evidence.score.copy()
    others[numbers, chosen] = -np.inf
    for row, column in ((numbers, others.argmax(1)), (others.argmax(0)[chosen], chosen)):
        error = np.sqrt(np.square(own - evidence.influences(row, column)).sum(1))
        sure &= score - evidence.score[row, column] > DEVIATIONS * error
    return sure


def kept(score: np.ndarray, before: np.ndarray, chosen: np.ndarray, sure: np.ndarray) -> np.ndarray:
    """The weights' choice where it is sure, else the activations', or where that is taken the best
    of what is left.
    """
    result = np.where(sure, chosen, -1)
    taken = set(chosen[sure].tolist())
    for number in np.flatnonzero(~sure):
        if before[number] not in taken:
            result[number] = before[number]
    open_rows = np.flatnonzero(result < 0)
    if len(open_rows):
        free = np.setdiff1d(np.arange(len(result)), result)
        result[open_rows] = free[assign(score[np.ix_(open_rows, free)])[0]]
    return result


def _nearness(rows: Sequence[_Rows], left: np.ndarray, right: np.ndarray, cost: Cost) -> np.ndarray:
    """float64 (k, k): inner products of the stored weights. The larger their sum over a match, the
    less the weights are apart, since permutations keep lengths.
    """
    free, fixed = np.zeros((len(left), len(right))), np.zeros((len(left), len(right)))
    for each in rows:
        products = each.source[left] @ each.target[right].T
        if each.signed:
            free += products
        else:
            fixed += products
    return fixed + (np.abs(free) if cost == Cost.ABSOLUTE else free)


def _no_worse_than_identity(
    nearness: np.ndarray, left: np.ndarray, right: np.ndarray, kept: np.ndarray, sure: np.ndarray
) -> np.ndarray:
    """The match with numbers put back along every path of exchanged ones where that brings the
    weights no further apart: a cycle whole, an open path but for its ends.
    """
    kept = kept.copy()
    place = {coordinate: number for number, coordinate in enumerate(right.tolist())}
    by_source = {coordinate: number for number, coordinate in enumerate(left.tolist())}
    doubtful = {
        number for number in np.flatnonzero(~sure).tolist() if right[kept[number]] != left[number]
    }
    reached = {int(right[kept[number]]) for number in doubtful}
    starts = [number for number in sorted(doubtful) if int(left[number]) not in reached]
    for start in [*starts, *sorted(doubtful)]:
        path = []
        number: int | None = start
        while number is not None and number in doubtful:
            doubtful.discard(number)
            path.append(number)
            number = by_source.get(int(right[kept[number]]))
        if not path:
            continue
        columns = kept[path]
        still = [place.get(int(left[number])) for number in path]
        closed = still[0] is not None and still[0] == columns[-1]
        back = np.array(still if closed else [columns[-1], *still[1:]])
        if nearness[path, back].sum() >= nearness[path, columns].sum():
            kept[path] = back
    return kept
