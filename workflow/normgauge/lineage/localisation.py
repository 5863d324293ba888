"""Which blocks, units and heads of B come from A, and from where in A: any block against any other,
so that moved, spliced and repeated blocks are seen as well.

Where to look, and no test of its own: layers of one model resemble one another.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.stats import binom, poisson

from normgauge.anatomy.structure import Anatomy, LinearMap
from normgauge.gauge.model_gauge import HEAD_SPACES, Gauge
from normgauge.gauge.weight_maps import Weights
from normgauge.lineage.frame_match import agreeing, enough_units, frames_of, similarities
from normgauge.lineage.units import Layer, Side, layers_of, pair_of

LEVEL = 1e-3  # of all pairs of layers together (Bonferroni)


@dataclass(frozen=True, eq=False)
class UnitSource:
    """Where the units of one layer of B come from. source: the layer of A in which most of them are
    found, "" where none has more than chance at LEVEL. units: int64 (k, 2), unit of A and unit of
    B. total: units of B's layer.
    """

    layer: str
    source: str
    units: np.ndarray
    total: int


@dataclass(frozen=True, eq=False)
class HeadSource:
    """Where the query heads of one attention layer of B come from.

    source: the layer of A to which most of them lead, "" where these are no more than chance at
    LEVEL. heads: int64 (k, 2), head of that layer and head of B, on which scores and what is
    written agree. total: heads of B's layer.
    """

    layer: str
    source: str
    heads: np.ndarray
    total: int


@dataclass(frozen=True)
class Localisation:
    """Layer by layer of B, in forward order."""

    units: tuple[UnitSource, ...]
    heads: tuple[HeadSource, ...]


def localise(a: Side, b: Side) -> Localisation:
    """Where each layer of B comes from in A. Raises InputError as `units.pair_of`."""
    frames = frames_of(pair_of(a, b))
    return Localisation(_unit_sources(a, b, frames), _head_sources(a, b, frames))


def _unit_sources(a: Side, b: Side, frames: dict[str, np.ndarray]) -> tuple[UnitSource, ...]:
    first, second = (
        [
            layer
            for layer in layers_of(side.anatomy, side.tensors)
            if layer.stream in frames and enough_units(layer)
        ]
        for side in (a, b)
    )
    bound = LEVEL / max(1, len(first) * len(second))
    return tuple(_unit_source(first, layer, frames, bound) for layer in second)


def _unit_source(
    candidates: list[Layer], layer: Layer, frames: dict[str, np.ndarray], bound: float
) -> UnitSource:
    """The layer with the most units whose nearest by reads is the nearest by writes; its units are
    then matched one to one.
    """
    nowhere = UnitSource(layer.name, "", np.zeros((0, 2), np.int64), layer.units)
    comparable = [x for x in candidates if x.stream == layer.stream and x.gated == layer.gated]
    if not comparable:
        return nowhere
    counts = [_nearest(each, layer, frames[layer.stream]) for each in comparable]
    best = comparable[int(np.argmax(counts))]
    units = agreeing(best, layer, frames[layer.stream])
    sizes = best.units, layer.units
    p = float(poisson.sf(len(units) - 1, min(sizes) / max(sizes)))
    return UnitSource(layer.name, best.name, units, layer.units) if p <= bound else nowhere


def _nearest(first: Layer, second: Layer, frame: np.ndarray) -> int:
    read, write = similarities(first, second, frame)
    return int((read.argmax(0) == write.argmax(0)).sum())


@dataclass(frozen=True, eq=False)
class _Attention:
    """One attention layer: query, key, value (heads, size, width) and what the output projection
    makes of each head, (heads, size, width); keys and values of a group once per query head. Gains
    are folded in, constants left out.
    """

    name: str
    streams: tuple[str, str, str]
    parts: dict[str, np.ndarray]


def _attentions(side: Side) -> list[_Attention]:
    weights = Weights(side.anatomy, side.tensors, Gauge({}))
    found = []
    for space in side.anatomy.spaces:
        if space.kind == HEAD_SPACES[0]:
            prefix = space.name.removesuffix("query")
            found.append(_attention(side.anatomy, weights, prefix))
    return found


def _attention(anatomy: Anatomy, weights: Weights, prefix: str) -> _Attention:
    items: dict[str, LinearMap] = {
        each.name.removeprefix(prefix): each
        for each in anatomy.maps
        if each.name.startswith(prefix)
    }
    heads = anatomy.space(f"{prefix}query").heads
    parts = {}
    for kind in ("query", "key", "value"):
        rows = weights.factor(items[kind])[:, :-1]
        own = anatomy.space(f"{prefix}{kind}").heads
        split = rows.reshape(own, -1, rows.shape[1])
        parts[kind] = np.repeat(split, heads // own, 0)
    output = weights.factor(items["attention_output"])[:, :-1].T
    parts["output"] = output.reshape(heads, -1, output.shape[1])
    streams = tuple(
        items[kind].reads if kind != "attention_output" else items[kind].writes
        for kind in ("query", "key", "attention_output")
    )
    return _Attention(prefix.rstrip("/"), (streams[0], streams[1], streams[2]), parts)


def _head_sources(a: Side, b: Side, frames: dict[str, np.ndarray]) -> tuple[HeadSource, ...]:
    """Heads of B by the head of A, of any layer, that is nearest both by its scores' product and by
    what it writes: unrelated ones agree once in as many as A has.
    """
    found = []
    first = [each for each in _attentions(a) if all(x in frames for x in each.streams)]
    for layer in _attentions(b):
        candidates = [each for each in first if each.streams == layer.streams]
        if candidates:
            found.append(_head_source(candidates, layer, frames))
    return tuple(found)


def _head_source(
    candidates: list[_Attention], layer: _Attention, frames: dict[str, np.ndarray]
) -> HeadSource:
    query, key, written = (frames[stream] for stream in layer.streams)
    scores, writes = (
        np.concatenate([_product_cosines(each, layer, kinds, maps) for each in candidates])
        for kinds, maps in (
            (("query", "key"), (query, key)),
            (("value", "output"), (key, written)),
        )
    )
    places = [(number, head) for number, x in enumerate(candidates) for head in range(_heads(x))]
    nearest = scores.argmax(0), writes.argmax(0)
    agreed = [
        (*places[row], head)
        for head, (row, other) in enumerate(zip(*nearest, strict=True))
        if row == other
    ]
    total = _heads(layer)
    nowhere = HeadSource(layer.name, "", np.zeros((0, 2), np.int64), total)
    if not agreed:
        return nowhere
    best = int(np.bincount([number for number, _, _ in agreed]).argmax())
    heads = np.array([each[1:] for each in agreed if each[0] == best], dtype=np.int64)
    # so many heads in one layer: each goes there, by both, with probability heads / all^2
    chance = _heads(candidates[best]) / len(places) ** 2
    p = float(binom.sf(len(heads) - 1, total, chance)) * len(candidates)
    return HeadSource(layer.name, candidates[best].name, heads, total) if p <= LEVEL else nowhere


def _heads(layer: _Attention) -> int:
    return len(layer.parts["query"])


def _product_cosines(
    first: _Attention,
    second: _Attention,
    kinds: tuple[str, str],
    maps: tuple[np.ndarray, np.ndarray],
) -> np.ndarray:
    """float64 (heads of A, heads of B): cosines of the products of two factors, which no map inside
    a head changes, from the small inner products of the factors.
    """

    def inner(x: _Attention, y: _Attention, turned: bool) -> np.ndarray:
        product = None
        for kind, frame in zip(kinds, maps, strict=True):
            left = x.parts[kind] @ frame if turned else x.parts[kind]
            found = np.einsum("hiw,gjw->hgij", left, y.parts[kind], optimize=True)
            product = found if product is None else product * found
        assert product is not None
        return product.sum((2, 3))

    lengths = [np.sqrt(np.maximum(np.diag(inner(x, x, False)), 1e-300)) for x in (first, second)]
    return inner(first, second, True) / np.outer(*lengths)
