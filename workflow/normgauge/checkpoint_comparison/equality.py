"""Whether two checkpoints are one function in two sets of weights, up to storage rounding: every
part of a model that no symmetry of docs/redundancy.md moves, compared in the pair's gauge.

The parts determine the function. A part is equal when its change is within what rounding both
sides' stored values can do: ALLOWED times its expected energy and DEVIATIONS of its spread.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from normgauge.anatomy.lookup import holder
from normgauge.anatomy.structure import (
    LinearMap,
    NormKind,
    Positions,
    Role,
    SpaceKind,
)
from normgauge.checkpoint_comparison.addends import exchanged, table_mean, table_sums
from normgauge.checkpoint_comparison.align_gains import head_norms
from normgauge.checkpoint_comparison.alignment import Aligned
from normgauge.checkpoint_comparison.components import Components, where_differing
from normgauge.checkpoint_comparison.constant_parts import constant_parts
from normgauge.checkpoint_comparison.factor_noise import (
    centred_variance,
    norm_values,
    read_noise,
    shift_values,
)
from normgauge.checkpoint_comparison.factors import (
    Layer,
    Mode,
    attention_layers,
    bias,
    centred,
    feed_forward_layers,
    gain,
    read_factor,
)
from normgauge.checkpoint_comparison.kernels import ratio
from normgauge.checkpoint_comparison.pair import Pair
from normgauge.checkpoint_comparison.parts import (
    ALLOWED,
    DEVIATIONS,
    Part,
    part_of,
    stored_values,
    sum_of,
)
from normgauge.gauge.folding import folds_gain
from normgauge.redundancy.norm_folds import folds_bias


def differing(aligned: Aligned, components: Sequence[Components]) -> list[Part]:
    """The parts whose change is more than rounding, the relatively largest first; none where A and
    B are equal. `components`: those of the heads, the units and the rows of tables.
    """
    tables = [each.table for each in components if each.table]
    found = [*_component_parts(components), *_other_parts(aligned, tables)]
    apart = [part for part in found if not part.equal]
    return sorted(apart, key=lambda part: -ratio(part.energy, part.size))


def _component_parts(components: Sequence[Components]) -> Iterator[Part]:
    """Those components that differ: there are as many as tokens."""
    for each in components:
        bounds = ALLOWED * each.noise.mean + DEVIATIONS * np.sqrt(each.noise.variance)
        for number in np.flatnonzero(each.energies > bounds):
            place = {"row": number, "of": each.table} if each.table else each.places[number]
            words = [f"{key} {value}" for key, value in place.items() if key != "part"]
            yield Part(
                f"{' '.join(words)}: {each.statistic}",
                *(float(values[number]) for values in (each.energies, bounds, each.sizes)),
            )


def _other_parts(aligned: Aligned, tables: Sequence[str]) -> Iterator[Part]:
    """All but heads, units and the rows of `tables`."""
    yield from _norm_parts(aligned.stream)
    yield from _head_norm_parts(aligned)
    yield from constant_parts(aligned)
    yield from _map_parts(aligned)
    yield from _table_parts(aligned.stream, tables)


def _norm_parts(pair: Pair) -> Iterator[Part]:
    """Gains and biases that no map can take over."""
    anatomy = pair.anatomy
    for norm in anatomy.norms:
        if anatomy.space(norm.space).kind in (SpaceKind.QUERY, SpaceKind.KEY):
            continue
        if norm.gain and not folds_gain(anatomy, norm):
            yield part_of(norm.gain, *stored_values(pair, norm.gain))
        if norm.bias and not folds_bias(anatomy, norm):
            yield part_of(norm.bias, *stored_values(pair, norm.bias))


def _head_norm_parts(aligned: Aligned) -> Iterator[Part]:
    """With query and key norms: the rows in front of them, and the products of their gains."""
    pair = aligned.stream
    anatomy, half = pair.anatomy, pair.anatomy.rotary_size // 2
    for norms in head_norms(anatomy):
        values, variances = [], []
        for side in (pair.a, pair.b):
            gains = [gain(side, norm) for norm in norms]
            noise = [side.floor(norm.gain) for norm in norms if norm.gain]
            products, variance = [], []
            for partner in (np.arange(len(gains[0])), _partners(len(gains[0]), half)):
                products.append(gains[0] * gains[1][partner])
                variance.append(
                    noise[0] * gains[1][partner] ** 2 + noise[1][partner] * gains[0] ** 2
                )
            values.append(np.stack(products))
            variances.append(np.stack(variance))
        yield part_of(f"{norms[0].name} with {norms[1].name}", values, variances)
    for layer in attention_layers(anatomy):
        for part in ("query", "key"):
            item = layer.maps[part]
            if any(norm.space == item.writes for norm in anatomy.norms):
                yield _reader(aligned, item, _row_order(aligned, layer, item))


def _partners(size: int, half: int) -> np.ndarray:
    """(d_h,): the coordinate that turns together with each; itself where none does."""
    numbers = np.arange(size)
    return np.concatenate([numbers[half : 2 * half], numbers[:half], numbers[2 * half :]])


def _row_order(aligned: Aligned, layer: Layer, item: LinearMap) -> np.ndarray:
    """Where the rows of a query or key map stand in B as stored."""
    order = aligned.orders[f"{layer.prefix}attention"]
    space = aligned.pair.anatomy.space(item.writes)
    repeats = len(order) // space.heads
    heads, size = order[::repeats] // repeats, space.size // space.heads
    return (heads[:, None] * size + np.arange(size)).ravel()


def _reader(aligned: Aligned, item: LinearMap, order: np.ndarray) -> Part:
    """A map outside of heads and units, or in front of a query or key norm, folded. `order`: the
    row of B as stored that stands where A's is.
    """
    values = [read_factor(side, item, Mode.FOLDED) for side in (aligned.pair.a, aligned.pair.b)]
    return part_of(item.name, values, read_noise(aligned.stream, item, order))


def _map_parts(aligned: Aligned) -> Iterator[Part]:
    """The maps outside of heads and units."""
    anatomy = aligned.stream.anatomy
    inside = {
        item.name
        for layer in (*attention_layers(anatomy), *feed_forward_layers(anatomy))
        for item in layer.maps.values()
    }
    for item in anatomy.maps:
        tensor = anatomy.tensor(item.weight)
        if item.name in inside:
            continue
        if anatomy.space(item.writes).kind == SpaceKind.VOCABULARY and item.input_axis == 1:
            yield _readout(aligned.stream, item)
        elif len(tensor.axes) == 2:
            size = anatomy.space(item.writes).size
            yield _reader(aligned, item, np.arange(size))
        else:
            for name in (item.weight, item.bias):
                if name:
                    yield part_of(name, *stored_values(aligned.stream, name))


def _readout(pair: Pair, item: LinearMap) -> Part:
    """A map into the vocabulary, folded, a run of its rows at a time."""
    sides = (pair.a, pair.b)
    norm = pair.anatomy.norm(item.norm) if item.norm else None
    gains, gain_noise = norm_values(pair, norm, pair.anatomy.space(item.reads).size)
    shifts, shift_noise = shift_values(pair, norm, pair.anatomy.space(item.reads).size)
    biases = [bias(side, item) for side in sides]
    bias_noise = where_differing(biases, [bias(side, item, True) for side in sides])
    parts, first = [], 0
    for *rows, floor_a, floor_b in zip(
        *(side.rows(item.weight) for side in sides),
        *(side.floor_rows(item.weight) for side in sides),
        strict=True,
    ):
        run = slice(first, first + len(rows[0]))
        first = run.stop
        values, variances = [], []
        for side, noise in enumerate(where_differing(rows, (floor_a, floor_b))):
            folded = rows[side] * gains[side]
            variance = noise * gains[side] ** 2 + rows[side] ** 2 * gain_noise[side]
            constant = rows[side] @ shifts[side] + biases[side][run]
            constant_variance = noise @ shifts[side] ** 2 + rows[side] ** 2 @ shift_noise[side]
            if norm is not None and norm.kind == NormKind.LAYER_NORM:
                folded = folded - folded.mean(1, keepdims=True)
                variance = centred_variance(variance)
            values.append(np.column_stack([folded, constant]))
            variances.append(np.column_stack([variance, constant_variance + bias_noise[side][run]]))
        parts.append(part_of(item.name, values, variances))
    return sum_of(item.name, parts)


def _table_parts(pair: Pair, located: Sequence[str]) -> Iterator[Part]:
    """Tensors that belong to no map and no norm, but for the tables that are `located` by row."""
    anatomy = pair.anatomy
    known = {holder(anatomy, item.bias) for item in anatomy.maps if item.bias}
    known |= {item.weight for item in anatomy.maps}  # not the table that a readout is tied to
    known |= {name for norm in anatomy.norms for name in (norm.gain, norm.bias) if name}
    for tensor in pair.tensors():
        if tensor.name in known or tensor.name in located:
            continue
        values, variances = stored_values(pair, tensor.name)
        if tensor.name in exchanged(anatomy):
            values = [value - value.mean(-1, keepdims=True) for value in values]
            values = [value - value.mean(0) for value in values]
        elif anatomy.positions == Positions.RELATIVE and all(
            axis.role == Role.INDEX for axis in tensor.axes
        ):
            values = [value - value.mean(0) for value in values]
        elif centred(anatomy, tensor.name):
            values = [value - value.mean(-1, keepdims=True) for value in values]
        yield part_of(tensor.name, values, variances)
    for names in table_sums(anatomy):
        if len(names) > 1:
            yield _mean_part(pair, names)


def _mean_part(pair: Pair, names: Sequence[str]) -> Part:
    """What the tables of one sum give on the mean, together."""
    values, variances = [], []
    unseen = any(centred(pair.anatomy, name) for name in names)
    for side in (pair.a, pair.b):
        rows = [side.anatomy.tensor(name).shape[0] for name in names]
        total = np.sum([table_mean(side, name) for name in names], axis=0)
        values.append(total - total.mean() if unseen else total)
        variances.append(
            sum(
                sum(part.sum(0) for part in side.floor_rows(name)) / count**2
                for name, count in zip(names, rows, strict=True)
            )
        )
    return part_of("mean of " + " and ".join(names), values, variances)
