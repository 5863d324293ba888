"""Rounding residuals at wrong places, over what is expected of uniform ones."""

from __future__ import annotations

from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from normgauge.render.exact_recovery.looks import checkpoints_with_looks
from normgauge.render.formats import number
from normgauge.render.page import panel
from normgauge.render.rows import Rows
from normgauge.render.style import GREY

_NOTE = (
    "Certified columns of every map behind a LayerNorm, the coordinates that the search window "
    "moves by "
    "16 grid spacings or more, at random wrong places in it; grey: the uniform distribution, "
    "from which the "
    "distance is taken. Triangles: the worst residual over the well determined coordinates at "
    "the recovered places."
)


def calibration(rows: Rows) -> Figure:
    """Histogram of rounding residuals at wrong places over the uniform expectation. `rows` are of
    the schema exact_recovery_null.
    """
    found = [each for each in checkpoints_with_looks(rows) if any(row["count"] for row in each[1])]
    handles = [
        Line2D([], [], color=color, linestyle=line, linewidth=1.0, label=_tested(name, members))
        for name, members, color, line in found
    ]
    page, axes = panel("Rounding residuals at wrong places", _NOTE, handles)
    for _, members, color, line in found:
        total = sum(row["count"] for row in members)
        edges = [row["low"] for row in members] + [members[-1]["high"]]
        shares = [row["count"] * len(members) / total for row in members]
        axes.stairs(shares, edges, baseline=None, color=color, linestyle=line, linewidth=1.0)
        if members[0]["score"] is not None:
            axes.plot(
                members[0]["score"],
                0,
                marker="v",
                markersize=5,
                color=color,
                clip_on=False,
                zorder=4,
            )
    axes.axhline(1, color=GREY, linewidth=0.6, zorder=1)
    axes.set(
        xlim=(0, 0.5),
        ylim=(0, 1.5),
        xlabel="rounding residual at a wrong place on the gauge line, ulp",
        ylabel="count / uniform",
    )
    return page.figure


def _tested(name: str, rows: Rows) -> str:
    """A checkpoint in the legend: its residuals and the test of their distribution."""
    total = sum(row["count"] for row in rows)
    distance, p = (number(rows[0][key], 2) for key in ("statistic", "p"))
    return f"{name}: {total:,} residuals, Kolmogorov-Smirnov distance {distance}, p = {p}"
