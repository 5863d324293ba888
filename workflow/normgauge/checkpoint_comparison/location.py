"""Where the change is: the energy of every component's change against that of a random change of
the same energy over all components.

For a kernel L R of a head, a random change dL, dR with independent entries of variance v has the
expected energy v n (|L|^2 + |R|^2), in the balanced basis 2 v n s with s the sum of singular values
of L R; it is spread over the components with one v for all, which is matched to the energy
observed. On top of it comes what storage rounding alone gives each component. The statistic is the
ratio of the energy observed to the one expected.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from normgauge.anatomy.structure import SpaceKind
from normgauge.checkpoint_comparison.align_streams import anchor_tables
from normgauge.checkpoint_comparison.alignment import Aligned
from normgauge.checkpoint_comparison.components import (
    Components,
    Noise,
    joined,
    square_variance,
    where_differing,
)
from normgauge.checkpoint_comparison.factors import (
    attention_layers,
    feed_forward_layers,
)
from normgauge.checkpoint_comparison.head_components import head_components
from normgauge.checkpoint_comparison.nulls import Test, energy_ratios, largest_energy_ratios
from normgauge.checkpoint_comparison.pair import Pair
from normgauge.checkpoint_comparison.unit_components import unit_components

NULL = "energy-matched random difference"

MEMBERS = 8  # rows of a table below which it is not tested


def location_tests(aligned: Aligned, count: int, generator: np.random.Generator) -> Iterator[Test]:
    """One confirmatory test per head's O V and Q^T K kernel, per feed-forward layer and per table
    of the stream.

    A layer's test is that of its most changed unit, a table's that of its most changed row, against
    the largest of as many draws.
    """
    for components in head_components(aligned):
        for place, ratio, shape in zip(components.places, *components.ratios(), strict=True):
            draws = energy_ratios(float(shape), count, generator)
            yield Test(components.statistic, NULL, float(ratio), draws, True, place)
    units = unit_components(aligned)
    if units is not None:
        ratios, shapes = units.ratios()
        blocks = np.array([place["block"] for place in units.places])
        for block in np.unique(blocks):
            members = np.flatnonzero(blocks == block)
            strongest = members[ratios[members].argmax()]
            draws = largest_energy_ratios(shapes[members], count, generator)
            yield Test(
                units.statistic,
                NULL,
                float(ratios[strongest]),
                draws,
                True,
                units.places[strongest],
            )
    for name in table_names(aligned.pair):
        table = table_components(aligned, name)
        ratios, shapes = table.ratios()
        row = int(ratios.argmax())
        place = {
            "part": "embedding",
            "row": row,
            "token": row if _holds_tokens(aligned.pair, name) else None,
            "label": name,
        }
        draws = largest_energy_ratios(shapes, count, generator)
        yield Test(table.statistic, NULL, float(ratios.max()), draws, True, place)


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
    """The rows of one table, such as the tokens of the embedding."""
    energies = np.concatenate(
        [
            ((after - before) ** 2).sum(1)
            for before, after in zip(
                aligned.pair.a.rows(name), aligned.pair.b.rows(name), strict=True
            )
        ]
    )
    noises = []
    sides = (aligned.stream.a, aligned.stream.b)
    for first, second, *floors in zip(
        *(side.rows(name) for side in sides),
        *(side.floor_rows(name) for side in sides),
        strict=True,
    ):
        parts = where_differing((first, second), floors)
        variances = [square_variance(part, np.ones(len(part))) for part in parts]
        noises.append(Noise(parts[0].sum(1) + parts[1].sum(1), variances[0] + variances[1]))
    spreads = np.full(len(energies), 2 / aligned.pair.anatomy.tensor(name).shape[1])
    return Components(
        "table_row_energy", [], energies, np.ones_like(energies), spreads, joined(noises)
    )
