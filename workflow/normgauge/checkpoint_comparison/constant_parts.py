"""Constants of layers, queries, keys and units, as parts that no symmetry moves."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from normgauge.anatomy.structure import Anatomy, LinearMap, Norm, Placement
from normgauge.checkpoint_comparison.alignment import Aligned
from normgauge.checkpoint_comparison.components import where_differing
from normgauge.checkpoint_comparison.factor_noise import centred_variance, head_noise, read_noise
from normgauge.checkpoint_comparison.factors import (
    Layer,
    Mode,
    attention_factors,
    attention_layers,
    centred,
    feed_forward_layers,
    matrix,
    read_factor,
)
from normgauge.checkpoint_comparison.pair import Pair
from normgauge.checkpoint_comparison.parts import Part, part_of, stored_values
from normgauge.gauge.folding import bypasses
from normgauge.redundancy.norm_folds import carried_by, folds_bias


def constant_parts(aligned: Aligned) -> Iterator[Part]:
    """What layers add to the stream, what queries and keys ask whatever comes in, and what units
    read of a constant.
    """
    yield from _layer_constants(aligned.stream)
    yield from _query_constants(aligned)
    yield from _unit_constants(aligned)


def _layer_constants(stream: Pair) -> Iterator[Part]:
    """By layer, or by block where both layers write one sum, the constant that it adds to the
    stream: attention weights sum to one, so values' constants are part of it.

    No gauge of heads moves it, so it is taken as stored, where its rounding is known.
    """
    sums: dict[str, list[tuple[list[np.ndarray], list[np.ndarray]]]] = {}
    anatomy = stream.anatomy
    for layer in attention_layers(anatomy):
        found = _attention_constant(stream, layer)
        sums.setdefault(_sum_of(anatomy, layer, "attention"), []).append(found)
    for layer in feed_forward_layers(anatomy):
        found = _output_constant(stream, layer.maps["down"])
        sums.setdefault(_sum_of(anatomy, layer, "mlp"), []).append(found)
    for name, terms in sums.items():
        values = [np.sum([value[side] for value, _ in terms], 0) for side in (0, 1)]
        variances = [np.sum([variance[side] for _, variance in terms], 0) for side in (0, 1)]
        yield part_of(f"{name}: constant", values, variances)


def _sum_of(anatomy: Anatomy, layer: Layer, part: str) -> str:
    shared = anatomy.placement == Placement.PARALLEL
    return layer.prefix.rstrip("/") if shared else f"{layer.prefix}{part}"


def _attention_constant(stream: Pair, layer: Layer) -> tuple[list[np.ndarray], list[np.ndarray]]:
    item, output = layer.maps["value"], layer.maps["attention_output"]
    rows = stream.anatomy.space(item.writes).size
    noise = read_noise(stream, item, np.arange(rows))
    values, variances = _output_constant(stream, output)
    weights = [matrix(side, output) for side in (stream.a, stream.b)]
    weight_noise = where_differing(
        weights, [matrix(side, output, True) for side in (stream.a, stream.b)]
    )
    heads = stream.anatomy.space(layer.maps["query"].writes).heads
    groups = stream.anatomy.space(item.writes).heads
    found, errors = [], []
    for number, side in enumerate((stream.a, stream.b)):
        constant, variance = (
            np.repeat(column.reshape(groups, -1), heads // groups, 0).ravel()
            for column in (read_factor(side, item, Mode.FOLDED)[:, -1], noise[number][:, -1])
        )
        moved = weights[number] @ constant
        spread = weight_noise[number] @ constant**2 + weights[number] ** 2 @ variance
        if centred(stream.anatomy, output.weight):
            moved, spread = moved - moved.mean(), centred_variance(spread[None])[0]
        found.append(values[number] + moved)
        errors.append(variances[number] + spread)
    return found, errors


def _output_constant(stream: Pair, output: LinearMap) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """The bias of a layer's output map, and that of the norm whose output it is added to where one
    takes back what the other gives.
    """
    anatomy = stream.anatomy
    names = [output.bias] if output.bias else []
    names += [norm.bias for norm in anatomy.norms if norm.bias and _adds_to(anatomy, norm, output)]
    size = anatomy.space(output.writes).size
    values, variances = ([np.zeros(size) for _ in "ab"] for _ in range(2))
    for name in names:
        found, noise = stored_values(stream, name)
        values = [first + second for first, second in zip(values, found, strict=True)]
        variances = [first + second for first, second in zip(variances, noise, strict=True)]
    if output.bias and centred(anatomy, output.bias):
        values = [value - value.mean() for value in values]
        variances = [centred_variance(variance[None])[0] for variance in variances]
    return values, variances


def _adds_to(anatomy: Anatomy, norm: Norm, output: LinearMap) -> bool:
    if not (folds_bias(anatomy, norm) and bypasses(anatomy, norm)):
        return False
    carrier = carried_by(anatomy, norm)
    return carrier is not None and carrier.name == output.name


def _query_constants(aligned: Aligned) -> Iterator[Part]:
    """By layer, what a constant of its queries or of its keys asks of the other, head by head: no
    gauge of queries moves it.
    """
    for layer in attention_layers(aligned.stream.anatomy):
        order = aligned.orders[f"{layer.prefix}attention"]
        repeats = len(order) // aligned.stream.anatomy.space(layer.maps["key"].writes).heads
        groups = order[::repeats] // repeats
        noise = [
            head_noise(aligned.stream, layer, part, place)
            for part, place in (("query", order), ("key", groups))
        ]
        for number, part in enumerate(("query", "key")):
            values, variances = [], []
            for side, checkpoint in enumerate((aligned.stream.a, aligned.stream.b)):
                factors = attention_factors(checkpoint, layer, Mode.FOLDED)
                both = [factors.query, factors.key]
                if side:
                    both = [both[0][order], both[1][groups]]
                found = [*both, *(each[side] for each in noise)]
                own, other, own_noise, other_noise = (
                    np.repeat(found[place], len(order) // len(found[place]), 0)
                    for place in (number, 1 - number, 2 + number, 3 - number)
                )
                constant, spread = own[..., -1], own_noise[..., -1]
                values.append(np.einsum("hd,hdn->hn", constant, other))
                variances.append(
                    np.einsum("hd,hdn->hn", spread, other**2)
                    + np.einsum("hd,hdn->hn", constant**2, other_noise)
                )
            yield part_of(f"{layer.prefix}{part}: constant", values, variances)


def _unit_constants(aligned: Aligned) -> Iterator[Part]:
    """By feed-forward layer, the constants of what its units read, in the pair's gauge."""
    for layer in feed_forward_layers(aligned.stream.anatomy):
        order = aligned.orders[f"{layer.prefix}ffn"]
        for part in ("gate", "up"):
            if part not in layer.maps:
                continue
            item = layer.maps[part]
            noise = read_noise(aligned.stream, item, order)
            values, variances = [], []
            sides = zip(
                (aligned.stream.a, aligned.stream.b), (aligned.pair.a, aligned.pair.b), strict=True
            )
            for number, (before, after) in enumerate(sides):
                rows = read_factor(before, item, Mode.FOLDED)
                rows = rows[order] if number else rows
                moved = read_factor(after, item, Mode.FOLDED)
                lengths = [(each**2).sum(1) for each in (moved, rows)]
                scale = np.divide(
                    lengths[0], lengths[1], out=np.ones(len(rows)), where=lengths[1] > 0
                )
                values.append(moved[:, -1])
                variances.append(noise[number][:, -1] * scale)
            yield part_of(f"{layer.prefix}{part}: constant", values, variances)
