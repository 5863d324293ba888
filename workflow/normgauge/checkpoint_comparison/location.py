"""Where the change is: the energy of every component's change against that of a random change of
the same energy over all components.

For a kernel L R of a head, a random change dL, dR with independent entries of variance v has the
expected energy v n (|L|^2 + |R|^2), in the balanced basis 2 v n s with s the sum of singular values
of L R; it is spread over the components with one v for all, which is matched to the energy
observed. On top of it comes what storage rounding alone gives each component. The statistic is the
ratio of the energy observed to the one expected.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from normgauge.anatomy.structure import SpaceKind
from normgauge.checkpoint_comparison.addends import (
    exchanged,
    reader_of,
    seen_rows,
    table_mean,
)
from normgauge.checkpoint_comparison.align_streams import anchor_tables
from normgauge.checkpoint_comparison.alignment import Aligned
from normgauge.checkpoint_comparison.components import (
    Components,
    Noise,
    arithmetic,
    joined,
    square_variance,
    where_differing,
)
from normgauge.checkpoint_comparison.factor_noise import norm_values
from normgauge.checkpoint_comparison.factors import (
    attention_layers,
    feed_forward_layers,
)
from normgauge.checkpoint_comparison.head_components import head_components
from normgauge.checkpoint_comparison.nulls import Test, energy_ratios, largest_energy_ratios
from normgauge.checkpoint_comparison.pair import Pair
from normgauge.checkpoint_comparison.unit_components import UNITS, unit_components

NULL = "energy-matched random difference"

MEMBERS = 8  # rows of a table below which it is not tested


def located(aligned: Aligned) -> list[Components]:
    """The components that are located: heads' O V and Q^T K kernels, units, rows of tables."""
    units = unit_components(aligned)
    tables = [table_components(aligned, name) for name in table_names(aligned.pair)]
    return [*head_components(aligned), *([] if units is None else [units]), *tables]


def location_tests(
    pair: Pair, components: Sequence[Components], count: int, generator: np.random.Generator
) -> Iterator[Test]:
    """One confirmatory test per head's O V and Q^T K kernel, per feed-forward layer and per table
    of the stream.

    A layer's test is that of its most changed unit, a table's that of its most changed row, against
    the largest of as many draws.
    """
    for each in components:
        if each.table:
            yield _table_test(pair, each, count, generator)
        elif each.statistic == UNITS:
            yield from _unit_tests(each, count, generator)
        else:
            for place, ratio, shape in zip(each.places, *each.ratios(), strict=True):
                draws = energy_ratios(float(shape), count, generator)
                yield Test(each.statistic, NULL, float(ratio), draws, True, place)


def _unit_tests(units: Components, count: int, generator: np.random.Generator) -> Iterator[Test]:
    ratios, shapes = units.ratios()
    blocks = np.array([place["block"] for place in units.places])
    for block in np.unique(blocks):
        members = np.flatnonzero(blocks == block)
        strongest = members[ratios[members].argmax()]
        draws = largest_energy_ratios(shapes[members], count, generator)
        place = units.places[strongest]
        yield Test(units.statistic, NULL, float(ratios[strongest]), draws, True, place)


def _table_test(pair: Pair, rows: Components, count: int, generator: np.random.Generator) -> Test:
    assert rows.table is not None
    ratios, shapes = rows.ratios()
    row = int(ratios.argmax())
    place = {
        "part": "embedding",
        "row": row,
        "token": row if _holds_tokens(pair, rows.table) else None,
        "label": rows.table,
    }
    draws = largest_energy_ratios(shapes, count, generator)
    return Test(rows.statistic, NULL, float(ratios.max()), draws, True, place)


def _holds_tokens(pair: Pair, table: str) -> bool:
    spaces = (axis.segments[0].space for axis in pair.anatomy.tensor(table).axes)
    return any(pair.anatomy.space(space).kind == SpaceKind.VOCABULARY for space in spaces)


def test_count(pair: Pair) -> int:
    """How many tests `location_tests` makes."""
    heads = sum(
        pair.anatomy.space(layer.maps["query"].writes).heads
        for layer in attention_layers(pair.anatomy)
    )
    return 2 * heads + len(feed_forward_layers(pair.anatomy)) + len(table_names(pair))


def table_names(pair: Pair) -> list[str]:
    """The tables of the primary stream with enough rows to tell one from the others."""
    names = [
        name
        for name in anchor_tables(pair.anatomy, pair.anatomy.primary_stack.space)
        if name not in pair.unused
    ]
    return [name for name in names if pair.anatomy.tensor(name).shape[0] >= MEMBERS]


def table_components(aligned: Aligned, name: str) -> Components:
    """The rows of one table, such as the tokens of the embedding, without what LayerNorm does not
    see of them, and without their mean where another table can take it.
    """
    sides = (aligned.pair.a, aligned.pair.b)
    mean = table_mean(sides[1], name) - table_mean(sides[0], name)
    mean = mean if name in exchanged(aligned.pair.anatomy) else np.zeros_like(mean)
    parts = [
        (((after - before - mean) ** 2).sum(1), ((before**2).sum(1) + (after**2).sum(1)) / 2)
        for before, after in zip(seen_rows(sides[0], name), seen_rows(sides[1], name), strict=True)
    ]
    energies, sizes = (np.concatenate(column) for column in zip(*parts, strict=True))
    noise = joined(list(_row_noise(aligned.stream, name))) + arithmetic(energies, sizes)
    spreads = np.full(len(energies), 2 / aligned.pair.anatomy.tensor(name).shape[1])
    ones = np.ones_like(energies)
    return Components("table_row_energy", [], energies, ones, spreads, noise, sizes, name)


def _row_noise(stream: Pair, name: str) -> Iterator[Noise]:
    """Of the rows in runs."""
    sides = (stream.a, stream.b)
    reader = reader_of(stream.anatomy, name)
    norm = stream.anatomy.norm(reader.norm) if reader and reader.norm else None
    gains, gain_noise = norm_values(stream, norm, stream.anatomy.tensor(name).shape[1])
    runs = [side.rows(name) for side in sides] + [side.floor_rows(name) for side in sides]
    for *rows, first, second in zip(*runs, strict=True):
        parts = [
            noise * gains[side] ** 2 + rows[side] ** 2 * gain_noise[side]
            for side, noise in enumerate(where_differing(rows, (first, second)))
        ]
        variances = [square_variance(part, np.ones(len(part))) for part in parts]
        yield Noise(parts[0].sum(1) + parts[1].sum(1), variances[0] + variances[1])
