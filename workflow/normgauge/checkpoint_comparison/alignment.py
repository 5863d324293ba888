"""The gauge between A and B, found from their weights and taken out: afterwards equal functions
have equal tensors.

B is brought to A in the groups that move coordinates as they are (residual stream, heads, units,
signs, phases). In those that change the basis of a product (values, queries and keys, up and down),
both are brought to the balanced basis, and B is turned to A there.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from normgauge.anatomy.structure import SpaceKind
from normgauge.checkpoint_comparison.align_gains import with_normal_gains
from normgauge.checkpoint_comparison.align_heads import align_heads
from normgauge.checkpoint_comparison.align_rotation import find_rotation, with_rotation
from normgauge.checkpoint_comparison.align_streams import align_stream
from normgauge.checkpoint_comparison.align_units import align_units
from normgauge.checkpoint_comparison.alignment_rows import alignment_row
from normgauge.checkpoint_comparison.factors import (
    attention_layers,
    feed_forward_layers,
)
from normgauge.checkpoint_comparison.folds import find_folds, with_folds
from normgauge.checkpoint_comparison.pair import Pair
from normgauge.gauge.admissible import gauge_spaces


@dataclass(frozen=True, eq=False)
class Aligned:
    """The pair in one gauge, and rows of schema `checkpoint_comparison_alignment` that say what was
    found and what is left.

    `orders`: by the name of an attention layer or unit space, where its heads or units stand in B
    as it is stored. `stream`: the pair with its residual streams in one gauge, but every head and
    unit, and all gains of norms, as they are stored: what rounding does is known there.
    """

    pair: Pair
    rows: list[dict[str, Any]]
    orders: dict[str, np.ndarray]
    stream: Pair


def align(pair: Pair) -> Aligned:
    """Find the gauge between the sides and take it out, group by group. Nothing is moved where no
    correspondence is found.
    """
    rows: list[dict[str, Any]] = []
    orders: dict[str, np.ndarray] = {}
    anatomy = pair.anatomy
    pair = replace(pair, a=with_normal_gains(pair.a), b=with_normal_gains(pair.b))
    for space in anatomy.spaces:
        if space.kind == SpaceKind.RESIDUAL and space.name in gauge_spaces(anatomy):
            pair, found = align_stream(pair, space.name)
            if turn := find_rotation(pair, space.name):
                element, before, after = turn
                pair = with_rotation(pair, space.name, element)
                found = [alignment_row("residual", space.name, "rotation", 1, 1, before, after)]
            rows += found
    stream = pair
    for layer in attention_layers(anatomy):
        pair, found, orders[f"{layer.prefix}attention"] = align_heads(pair, layer)
        rows += found
    for layer in feed_forward_layers(anatomy):
        pair, found, orders[f"{layer.prefix}ffn"] = align_units(pair, layer)
        rows += found
    # last: heads and units are told by folded factors, which folds leave alone, and maps can be
    # compared once their outputs are in place
    scales, found = find_folds(pair)
    rows += found
    return Aligned(with_folds(pair, scales), rows, orders, stream)
