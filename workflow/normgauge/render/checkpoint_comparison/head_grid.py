"""How each head changed, and its attention over the distance."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from normgauge.render import style
from normgauge.render.checkpoint_comparison.heat_maps import LEFT, HeatMap, depth_of, draw_maps
from normgauge.render.page import FULL, Page
from normgauge.render.rows import Rows
from normgauge.render.style import GREY, TRAINED
from normgauge.render.text import plain

_MAPS = {
    "ov_relative": "what a head moves: relative change of the kernel O V",
    "qk_relative": ("what a head attends to: relative change of the kernel Q^T K at offset 0"),
}
_COLUMNS, _CURVES, _GAP = 6, 62.0, 32.0  # points: a panel of curves, and between two rows of them
Series = dict[int, dict[int, list[tuple[int, float]]]]  # block -> head -> (offset, change)


def head_grid(rows: Rows, title: str) -> Figure:
    """Relative change of every head's two kernels. `rows`: schema checkpoint_comparison_kernels."""
    blocks = sorted({row["block"] for row in rows if row["statistic"] == "ov_relative"})
    maps = [_map(rows, statistic, heading, blocks) for statistic, heading in _MAPS.items()]
    curves, probe = _curves_of(rows)
    note = (
        "Norm gains, biases and centring are part of the maps (mode folded). Colours are "
        "logarithmic over a decade at least."
    )
    if curves:
        note += (
            " Below: change B − A of tr(Z Q^T R(offset) K Z^T) / sum(Z^2), Z the centred "
            f"embeddings of the set “{plain(probe)}”, by the "
            "offset of query and key. Grey: every head; blue: the head with the largest change, "
            "named above. One scale for all of them."
        )
    above = depth_of(maps)
    page = Page(f"Heads of {title}", above + _curves_depth(curves), note)
    draw_maps(page, maps, blocks)
    if curves:
        _offset_curves(page, above, curves)
    return page.figure


def _map(rows: Rows, statistic: str, heading: str, blocks: Sequence[int]) -> HeatMap:
    """One kernel of every head, folded."""
    values = {
        (row["head"], row["block"]): row["change"]
        for row in rows
        if row["statistic"] == statistic and row["mode"] == "folded"
    }
    heads = sorted({head for head, _ in values})
    grid = [[values.get((head, block), math.nan) for block in blocks] for head in heads]
    return HeatMap(heading, numpy.array(grid), heads)


def _curves_of(rows: Rows) -> tuple[Series, str]:
    """The curves over the offset for the first probe set, and its name; none without rotary
    positions or probes.
    """
    curves = [
        row for row in rows if row["statistic"] == "recency_curve" and row["mode"] == "folded"
    ]
    probe = curves[0]["probe"] if curves else ""
    series: Series = {}
    for row in curves:
        if row["probe"] == probe:
            series.setdefault(row["block"], {}).setdefault(row["head"], []).append(
                (int(row["label"]), row["change"])
            )
    return series, probe


def _curves_depth(series: Series) -> float:
    """Points that the panels of curves take."""
    return 18 + -(-len(series) // _COLUMNS) * (_CURVES + _GAP) + 22 if series else 0.0


def _offset_curves(page: Page, down: float, series: Series) -> None:
    """Change of the probes' attention kernel over the offset, one panel per block, below `down`."""
    changes = [
        abs(value) for heads in series.values() for points in heads.values() for _, value in points
    ]
    largest = max(changes) or 1.0
    width = (FULL - LEFT - 8 - 8 * (_COLUMNS - 1)) / _COLUMNS
    page.text(LEFT, down + 10, "attention over distance: change between the probe tokens")
    for place, (block, heads) in enumerate(sorted(series.items())):
        row, column = divmod(place, _COLUMNS)
        top = down + 18 + row * (_CURVES + _GAP) + 14
        axes = page.axes(LEFT + column * (width + 8), top, width, _CURVES)
        _curves(axes, block, heads)
        axes.set(ylim=(-1.08 * largest, 1.08 * largest), xlim=(-0.3, 9.4))
        if column:
            axes.set_yticklabels([])
    below = down + _curves_depth(series) - 8
    page.text(LEFT + (FULL - LEFT - 8) / 2, below, "offset, positions", ha="center")


def _curves(axes: Axes, block: int, heads: Mapping[int, Sequence[tuple[int, float]]]) -> None:
    """The curves of one block's heads over the offset, the one with the largest value marked."""
    strongest = max(heads, key=lambda name: max(abs(value) for _, value in heads[name]))
    for name, points in sorted(heads.items(), key=lambda item: item[0] == strongest):
        marked = name == strongest
        offsets, values = zip(*sorted(points), strict=True)
        axes.plot(
            [math.log2(1 + offset) for offset in offsets],
            values,
            color=TRAINED if marked else "#a6a6a6",
            linewidth=1.1 if marked else 0.6,
            marker="o" if marked else None,
            markersize=2,
            zorder=3 if marked else 2,
        )
    axes.axhline(0, color=GREY, linewidth=0.5, zorder=1)
    axes.set_xticks([0, math.log2(9), math.log2(65), math.log2(513)], ["0", "8", "64", "512"])
    axes.set_title(f"block {block}, head {strongest}", size=style.NOTE, loc="left", pad=3)
