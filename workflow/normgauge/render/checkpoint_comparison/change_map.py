"""Where a checkpoint changed: by block and part."""

from __future__ import annotations

import math

import numpy
from matplotlib.figure import Figure

from normgauge.render.checkpoint_comparison.heat_maps import HeatMap, depth_of, draw_maps
from normgauge.render.page import Page
from normgauge.render.rows import Rows

_PARTS = ("attention", "mlp", "norm")
_MAPS = {
    "relative difference |B − A| / |mean|, gauge taken out": "aligned_relative",
    "share of the squared difference of all tensors": "squared_share",
}
_NOTE = (
    "Rows: attention, feed-forward layer, norms, with their biases. Colours are logarithmic over a "
    "decade at least."
)


def change_map(rows: Rows, title: str) -> Figure:
    """Relative difference by block and part, and each one's share of the squared one. `rows`:
    schema checkpoint_comparison_inventory.
    """
    totals = {
        (row["block"], row["part"]): row
        for row in rows
        if row["status"] == "total" and row["block"]
    }
    blocks = sorted({block for block, _ in totals})
    parts = [part for part in _PARTS if any(part == other for _, other in totals)]
    maps = [
        HeatMap(
            heading,
            numpy.array(
                [
                    [totals.get((block, part), {}).get(column, math.nan) for block in blocks]
                    for part in parts
                ]
            ),
            parts,
        )
        for heading, column in _MAPS.items()
    ]
    page = Page(f"Where {title} changed", depth_of(maps), _NOTE)
    draw_maps(page, maps, blocks)
    return page.figure
