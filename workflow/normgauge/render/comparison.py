"""Figures of one pair and the table of all pairs of the checkpoint comparison, from its tables alone."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from normgauge.errors import InputError
from normgauge.render import style
from normgauge.render.labels import Rows
from normgauge.render.style import DEVIATES, GREY, TRAINED, Ruler, plain
from normgauge.schemas.comparison import tables
from normgauge.tables import read_metadata

Paths = str | os.PathLike[str]
MAP = "cividis"
PARTS = ("attention", "mlp", "norm")
_MARGIN, _TITLE = 42.0, 22.0
MOST_LABELLED = 16  # columns up to which cells carry their value


def write_summary(pairs: Sequence[tuple[Paths, Paths, Paths, Paths]], outputs: Mapping[str, Paths]) -> None:
    """One row per pair (schema `comparison`) from its inventory, alignment, nulls and decision, as parquet and CSV."""
    rows = [_summary(*paths) for paths in pairs]
    tables.write(outputs["parquet"], "comparison", rows, {})
    tables.write_csv(outputs["csv"], "comparison", rows)


def _summary(inventory: Paths, alignment: Paths, nulls: Paths, decision: Paths) -> dict[str, Any]:
    metadata, rows = read_metadata(inventory), tables.read(inventory, "comparison_inventory")
    total = {row["tensor"]: row for row in rows if row["status"] == "total"}
    blocks = total["matrices of all blocks"]
    found: dict[str, set[str]] = {}
    for row in tables.read(alignment, "comparison_alignment"):
        found.setdefault(row["group"], set()).add(row["found"])
    tests = [row for row in tables.read(nulls, "comparison_nulls") if row["confirmatory"]]
    decided = json.loads(Path(decision).read_text())
    return {
        **{key: metadata[key] for key in ("model_a", "revision_a", "model_b", "revision_b")},
        "tensors": sum(row["status"] == "tensor" for row in rows),
        "unmatched": sum(row["status"] not in ("tensor", "total") for row in rows),
        "values": total["all tensors"]["values"],
        "relative": blocks["relative"],
        "relative_to_a": blocks["relative_to_a"],
        "floor": blocks["floor"],
        "aligned_relative": blocks["aligned_relative"],
        **{group: " and ".join(sorted(found.get(group, set()))) or None for group in ("residual", "heads", "units")},
        "tests": len(tests),
        "significant": sum(row["significant"] for row in tests),
        "smallest_p": min((row["p"] for row in tests), default=None),
        "strongest": _name(tests[0]) if tests and tests[0]["significant"] else None,
        "label": decided["label"],
        **{f"declared_{name}": (decided["declared"] or {}).get(name) for name in ("change", "p", "familywise_p")},
    }


def _name(row: Mapping[str, Any]) -> str:
    """A component in words: `block 3 head 1: ov_energy`."""
    words = [f"{key} {row[key]}" for key in ("block", "head", "unit", "token") if row[key] is not None]
    return f"{' '.join(words) or row['part']}: {row['statistic']}"


def draw(name: str, table: Paths, outputs: Sequence[Paths]) -> None:
    """Draw one figure (a key of DRAWINGS) of one pair into PDF and SVG files. InputError when the table has no rows."""
    kind, drawing = DRAWINGS[name]
    rows = tables.read(table, kind)
    if not rows:
        raise InputError(f"{Path(table)}: no rows to draw; delete it and rerun")
    metadata = read_metadata(table)
    title = " → ".join(plain(f"{metadata[f'model_{side}']} {metadata[f'revision_{side}']}") for side in ("a", "b"))
    with matplotlib.rc_context(style.RC):
        style.save(drawing(rows, title), outputs)


def change_map(rows: Rows, title: str) -> Figure:
    """Relative difference by block and part, and each one's share of the squared difference. `rows`: schema comparison_inventory."""
    totals = {(row["block"], row["part"]): row for row in rows if row["status"] == "total" and row["block"]}
    blocks = sorted({block for block, _ in totals})
    parts = [part for part in PARTS if any(part == other for _, other in totals)]
    panels = [
        ("relative difference |B − A| / |mean|, gauge taken out", "aligned_relative"),
        ("share of the squared difference of all tensors", "squared_share"),
    ]
    grids = [
        (heading, numpy.array([[totals.get((block, part), {}).get(column, math.nan) for block in blocks] for part in parts]))
        for heading, column in panels
    ]
    note = "Rows: attention, feed-forward layer, norms, with their biases. Colours are logarithmic, each panel has its own scale."
    return _grids(f"Where {title} changed", [(heading, grid, list(parts)) for heading, grid in grids], blocks, note)


def head_grid(rows: Rows, title: str) -> Figure:
    """Relative change of every head's two kernels. `rows`: schema comparison_kernels."""
    panels = []
    blocks = sorted({row["block"] for row in rows if row["statistic"] == "ov_relative"})
    for statistic, heading in (
        ("ov_relative", "what a head moves: relative change of the kernel O V"),
        ("qk_relative", "what a head attends to: relative change of the kernel Q^T K at offset 0"),
    ):
        values = {(row["head"], row["block"]): row["change"] for row in rows if row["statistic"] == statistic and row["mode"] == "folded"}
        heads = sorted({head for head, _ in values})
        panels.append((heading, numpy.array([[values.get((head, block), math.nan) for block in blocks] for head in heads]), heads))
    note = "Norm gains, biases and centring are part of the maps (mode folded). Colours are logarithmic, each panel has its own scale."
    return _grids(f"Heads of {title}", panels, blocks, note)


def _sheet(title: str, body: float, note: str) -> tuple[Figure, Callable[[float], float], float]:
    """(figure with its title and note, a height in points above the note as a share of the page, the page's width in points).

    `body`: points between the title and the note.
    """
    full = 72 * style.WIDTH
    lines = Ruler().wrap(note, full - 10, style.NOTE)
    foot = 8 + 10 * len(lines)
    height = _TITLE + body + foot
    figure = Figure(figsize=(style.WIDTH, height / 72))
    figure.text(5 / full, 1 - 12 / height, title, weight="bold", ha="left", va="baseline")
    for below, line in enumerate(lines):
        figure.text(5 / full, (10 * (len(lines) - below) - 6) / height, line, size=style.NOTE, ha="left", va="baseline")
    return figure, lambda points: (foot + points) / height, full


def _grids(title: str, panels: Sequence[tuple[str, numpy.ndarray, Sequence[Any]]], blocks: Sequence[int], note: str) -> Figure:
    """Heat maps one above the other, columns are blocks; cells carry their values where there is room."""
    depths = [max(14.0 * grid.shape[0], 28.0) for _, grid, _ in panels]
    body = sum(depths) + 46.0 * len(panels)
    figure, at, full = _sheet(title, body, note)
    width = (full - _MARGIN - 8) / full
    top = body
    for (heading, grid, names), depth in zip(panels, depths, strict=True):
        figure.text(_MARGIN / full, at(top - 12), heading, ha="left", va="baseline")
        axes = figure.add_axes((_MARGIN / full, at(top - 17 - depth), width, at(depth) - at(0)))
        _heat(axes, grid)
        axes.set_yticks(range(len(names)), [str(name) for name in names])
        step = -(-len(blocks) // 24)
        axes.set_xticks(range(0, len(blocks), step), [str(block) for block in blocks[::step]])
        axes.tick_params(length=0)
        top -= depth + 46
    figure.text(_MARGIN / full + width / 2, at(8), "block", ha="center", va="baseline")
    return figure


def _heat(axes: Axes, grid: numpy.ndarray) -> None:
    positive = grid[numpy.isfinite(grid) & (grid > 0)]
    low, high = (float(positive.min()), float(positive.max())) if positive.size else (0.1, 1.0)
    scale = LogNorm(low, high if high > low else low * 1.01)
    shown = numpy.ma.masked_where(~(grid > 0), grid)
    colours = matplotlib.colormaps[MAP].with_extremes(bad=style.PALE)
    axes.pcolormesh(numpy.arange(grid.shape[1] + 1) - 0.5, numpy.arange(grid.shape[0] + 1) - 0.5, shown, norm=scale, cmap=colours)
    axes.invert_yaxis()
    if grid.shape[1] > MOST_LABELLED:
        return
    for (row, column), value in numpy.ndenumerate(grid):
        if numpy.isfinite(value):
            dark = value > 0 and scale(value) < 0.6
            axes.text(column, row, _short(value), size=style.NOTE, ha="center", va="center_baseline", color="white" if dark else "black")


def _short(value: float) -> str:
    """A value in at most six characters."""
    return "0" if value == 0 else f"{value:.3f}" if value >= 0.001 else f"{value:.0e}".replace("e-0", "e-").replace("-", "−")


COLUMNS = 6


def offset_curves(rows: Rows, title: str) -> Figure:
    """Change of the probes' attention kernel over the offset, one panel per block. `rows`: schema comparison_kernels."""
    curves = [row for row in rows if row["statistic"] == "recency_curve" and row["mode"] == "folded"]
    probe = curves[0]["probe"] if curves else ""
    series: dict[int, dict[int, list[tuple[int, float]]]] = {}
    for row in curves:
        if row["probe"] == probe:
            series.setdefault(row["block"], {}).setdefault(row["head"], []).append((int(row["label"]), row["change"]))
    heading = f"Attention over distance: {title}"
    if not series:
        note = "No rotary positions, or no probe set in the vocabulary: the score kernel between tokens does not depend on their distance."
        return _sheet(heading, 0, note)[0]
    note = (
        f"Change B − A of tr(Z Q^T R(offset) K Z^T) / sum(Z^2), Z the centred embeddings of the set “{plain(probe)}”, by the "
        "offset of query and key. Grey: every head; blue: the head with the largest change, named above. One scale for all panels."
    )
    depth, rows_of_panels = 62.0, -(-len(series) // COLUMNS)
    body = rows_of_panels * (depth + 32) + 22
    figure, at, full = _sheet(heading, body, note)
    largest = max(abs(value) for heads in series.values() for points in heads.values() for _, value in points) or 1.0
    width = (full - _MARGIN - 8 - 8 * (COLUMNS - 1)) / COLUMNS
    for place, (block, heads) in enumerate(sorted(series.items())):
        left, bottom = _MARGIN + place % COLUMNS * (width + 8), body - place // COLUMNS * (depth + 32) - 14 - depth
        axes = figure.add_axes((left / full, at(bottom), width / full, at(depth) - at(0)))
        _curves(axes, block, heads)
        axes.set(ylim=(-1.08 * largest, 1.08 * largest), xlim=(-0.3, 9.4))
        if place % COLUMNS:
            axes.set_yticklabels([])
    figure.text((_MARGIN + (full - _MARGIN - 8) / 2) / full, at(8), "offset, positions", ha="center", va="baseline")
    return figure


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


NULL_COLUMNS = 4


def null_plots(rows: Rows, title: str) -> Figure:
    """Quantile plots of the p-values, one panel per statistic and null. `rows`: schema comparison_nulls."""
    groups: dict[tuple[str, str, str], list[dict[str, Any]]] = {}
    for row in sorted(rows, key=lambda row: (not row["confirmatory"], row["statistic"])):
        groups.setdefault((row["family"], row["statistic"], row["null"]), []).append(row)
    note = (
        "Each point is one test: its p against that expected of as many uniform p-values, as −log10. On the line: no more than chance. "
        "Dashed: the smallest p that the draws can give. Filled: significant after both corrections, which confirmatory tests alone can be."
    )
    depth, rows_of_panels = 84.0, -(-len(groups) // NULL_COLUMNS)
    body = rows_of_panels * (depth + 56) + 18
    figure, at, full = _sheet(f"p-values of {title}", body, note)
    width = (full - _MARGIN - 8 - 22 * (NULL_COLUMNS - 1)) / NULL_COLUMNS
    for place, ((family, statistic, null), members) in enumerate(groups.items()):
        left, top = _MARGIN + place % NULL_COLUMNS * (width + 22), body - place // NULL_COLUMNS * (depth + 56) - 34
        axes = figure.add_axes((left / full, at(top - depth), width / full, at(depth) - at(0)))
        _quantiles(axes, members)
        for above, (text, colour) in enumerate(((null, GREY), (statistic, "black"), (f"{family}, {len(members)} tests", GREY))):
            figure.text(left / full, at(top + 5 + 9 * above), text, size=style.NOTE, color=colour, ha="left", va="baseline")
    figure.text(_MARGIN / full, at(8), "across: expected −log10 p; up: observed −log10 p", ha="left", va="baseline")
    looks = (("significant", DEVIATES, DEVIATES), ("not significant", TRAINED, "white"))
    handles = [
        Line2D([], [], color=colour, marker="o", linestyle="none", markersize=3.5, markerfacecolor=face, label=label)
        for label, colour, face in looks
    ]
    place_of_legend = (1 - 8 / full, at(4))
    figure.legend(handles=handles, loc="lower right", bbox_to_anchor=place_of_legend, ncols=2, frameon=False, borderaxespad=0, borderpad=0)
    return figure


def _quantiles(axes: Axes, members: Rows) -> None:
    ordered = sorted(members, key=lambda row: row["p"])
    expected = [-math.log10((rank + 0.5) / len(ordered)) for rank in range(len(ordered))]
    observed = [-math.log10(row["p"]) for row in ordered]
    least = -math.log10(min(row["smallest_p"] for row in ordered))
    for chosen, colour, face in ((True, DEVIATES, DEVIATES), (False, TRAINED, "white")):
        points = [(x, y) for x, y, row in zip(expected, observed, ordered, strict=True) if row["significant"] == chosen]
        if points:
            axes.plot(
                *zip(*points, strict=True),
                linestyle="none",
                marker="o",
                markersize=3,
                color=colour,
                markerfacecolor=face,
                markeredgewidth=0.6,
            )
    end = max(expected[0], 0.3) * 1.08
    axes.plot((0, end), (0, end), color=GREY, linewidth=0.6, zorder=1)
    axes.axhline(least, color=GREY, linewidth=0.6, linestyle=(0, (3, 2)), zorder=1)
    axes.set(xlim=(0, end), ylim=(0, 1.08 * max(least, end)))


DRAWINGS: dict[str, tuple[str, Callable[[Rows, str], Figure]]] = {
    "map": ("comparison_inventory", change_map),
    "heads": ("comparison_kernels", head_grid),
    "offsets": ("comparison_kernels", offset_curves),
    "nulls": ("comparison_nulls", null_plots),
}
