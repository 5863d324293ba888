"""How many of the stored values are not recovered bit for bit, by population."""

from __future__ import annotations

import math

from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from normgauge.render import style
from normgauge.render.axes import decades
from normgauge.render.labels import by_checkpoint
from normgauge.render.page import AXIS, EDGE, FULL, Page
from normgauge.render.rows import Rows
from normgauge.render.style import GREY

_LEFT_OVER = (
    ("flagged", "#E69F00", "s"),
    ("undetermined", style.GREY, "o"),
    ("misses", "#D55E00", "X"),
)
"""What may become of a stored value that is not recovered, with a colour and a marker for each."""
_ONE = 0.7  # where the logarithmic axis of counts begins, so that one value has a place
_LEADING, _LABELS, _COUNTS = 11.0, 105.0, 110.0
_NOTE = (
    "Bars: stored values. Markers: those that are not recovered, on the same logarithmic "
    "scale; none where all are. Flagged: the "
    "margin is too small for a claim. Undetermined: no activation tells. Misses: claimed "
    "with wrong bits."
)


def share(rows: Rows) -> Figure:
    """How many of the stored values are not recovered, by population. `rows` are of the schema
    exact_recovery.
    """
    groups = by_checkpoint([row for row in rows if row["population"] != "all"])
    depth = _LEADING * sum(len(members) + 1.3 for members in groups.values())
    handles = [
        Line2D([], [], color=color, marker=marker, markersize=4.5, linestyle="none", label=part)
        for part, color, marker in _LEFT_OVER
    ]
    title = "Stored values, and those that are not recovered bit for bit"
    page = Page(title, depth + AXIS, _NOTE, handles, len(handles))
    axes = page.axes(_LABELS, 0, FULL - _LABELS - _COUNTS, depth)
    down = 0.5 * _LEADING
    for name, members in groups.items():
        page.text(EDGE, down, name, style="italic", va="center")
        for row in members:
            down += _LEADING
            recovered = f"{row['recovered']:,} of {row['values']:,}"
            page.text(EDGE + 7, down, row["population"], va="center")
            page.text(FULL - EDGE, down, recovered, va="center", ha="right", size=style.NOTE)
            axes.barh(
                down,
                row["values"] - _ONE,
                0.6 * _LEADING,
                _ONE,
                color=style.PALE,
                edgecolor=GREY,
                linewidth=0.3,
            )
            for part, color, marker in _LEFT_OVER:
                if row[part]:
                    axes.plot(
                        row[part],
                        down,
                        marker=marker,
                        markersize=4.5,
                        color=color,
                        linestyle="none",
                        clip_on=False,
                    )
        down += 1.3 * _LEADING
    largest = max((row["values"] for members in groups.values() for row in members), default=10)
    limits = (_ONE, 10.0 ** math.ceil(math.log10(largest)))
    axes.set(xscale="log", xlim=limits, ylim=(depth, 0), yticks=[], xlabel="values")
    axes.set(xticks=decades(limits))
    axes.minorticks_off()
    axes.spines["left"].set_visible(False)
    return page.figure
