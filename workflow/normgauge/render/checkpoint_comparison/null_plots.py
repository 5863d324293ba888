"""p-values of one pair against those expected by chance."""

from __future__ import annotations

import math
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from normgauge.render import style
from normgauge.render.page import FULL, Page
from normgauge.render.rows import Rows, grouped
from normgauge.render.style import DEVIATES, GREY, TRAINED

_STATISTICS = {
    "mlp_unit_terms": "feed-forward units",
    "ov_copy": "copying of the probes, by head",
    "ov_copy_all_heads": "copying, all heads",
    "ov_energy": "what a head moves",
    "qk_energy": "what a head attends to",
    "table_row_energy": "rows of the tables",
    "ov_common_share": "share common to the heads",
    "ov_probe_energy": "how heads move the probes",
    "ov_probe_write_share": "share written to the probes",
    "qk_contrast": "attention between probe sets",
    "recency_transport": "recency against copying",
}
"""The statistics of the tests, in words that fit above a panel."""

_LOOKS: dict[bool, dict[str, Any]] = {
    True: {"label": "significant", "color": DEVIATES, "markerfacecolor": DEVIATES},
    False: {"label": "not significant", "color": TRAINED, "markerfacecolor": "white"},
}
_COLUMNS, _LEFT, _GUTTER = 4, 42.0, 22.0
_DEPTH, _HEADS, _FEET = 84.0, 34.0, 22.0
_NOTE = (
    "Each point is one test: −log10 of its p against that expected of as many uniform "
    "p-values. On the line: no more than chance. "
    "Dashed: the smallest p that the draws can give. Filled: significant after both "
    "corrections, which confirmatory tests alone can be."
)


def null_plots(rows: Rows, title: str) -> Figure:
    """Quantile plots of the p-values, one panel per statistic and null. `rows`: schema
    checkpoint_comparison_nulls.
    """
    ordered = sorted(rows, key=lambda row: (not row["confirmatory"], row["statistic"]))
    groups = grouped(ordered, "family", "statistic", "null")
    depth = -(-len(groups) // _COLUMNS) * (_HEADS + _DEPTH + _FEET) + 8
    handles = [
        Line2D([], [], marker="o", linestyle="none", markersize=3.5, **look)
        for look in _LOOKS.values()
    ]
    page = Page(f"p-values of {title}", depth, _NOTE, handles, len(handles))
    width = (FULL - _LEFT - 8 - _GUTTER * (_COLUMNS - 1)) / _COLUMNS
    for place, members in enumerate(groups):
        row, column = divmod(place, _COLUMNS)
        left = _LEFT + column * (width + _GUTTER)
        top = row * (_HEADS + _DEPTH + _FEET) + _HEADS
        axes = page.axes(left, top, width, _DEPTH)
        _quantiles(axes, members)
        first = members[0]
        lines = (
            (first["null"], GREY),
            (_STATISTICS[first["statistic"]], "black"),
            (f"{first['family']}, {len(members)} tests", GREY),
        )
        for above, (text, color) in enumerate(lines):
            page.text(left, top - 5 - 9 * above, text, size=style.NOTE, color=color)
        if column == 0:
            axes.set_ylabel("observed", labelpad=3)
        if place + _COLUMNS >= len(groups):
            axes.set_xlabel("expected", labelpad=2)
    return page.figure


def _quantiles(axes: Axes, members: Rows) -> None:
    ordered = sorted(members, key=lambda row: row["p"])
    expected = [-math.log10((rank + 0.5) / len(ordered)) for rank in range(len(ordered))]
    observed = [-math.log10(row["p"]) for row in ordered]
    least = -math.log10(min(row["smallest_p"] for row in ordered))
    for chosen, look in _LOOKS.items():
        points = [
            (x, y)
            for x, y, row in zip(expected, observed, ordered, strict=True)
            if row["significant"] == chosen
        ]
        if points:
            axes.plot(
                *zip(*points, strict=True),
                linestyle="none",
                marker="o",
                markersize=3,
                markeredgewidth=0.6,
                clip_on=False,
                **look,
            )
    end = max(expected[0], 0.3) * 1.08
    axes.plot((0, end), (0, end), color=GREY, linewidth=0.6, zorder=1)
    axes.axhline(least, color=GREY, linewidth=0.6, linestyle=(0, (3, 2)), zorder=1)
    axes.set(xlim=(0, end), ylim=(0, 1.08 * max(least, end)))
