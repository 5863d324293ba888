"""How far the hardest values lie from a rounding boundary: by observations, and by gains."""

from __future__ import annotations

import math

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from normgauge.render import style
from normgauge.render.axes import nothing, round_numbers, whole_decades
from normgauge.render.exact_recovery.looks import checkpoints_with_looks
from normgauge.render.formats import number
from normgauge.render.page import panel
from normgauge.render.rows import Rows, grouped
from normgauge.render.style import GREY

_NONE = "no value behind a norm is decided"
_TREND_NOTE = (
    "Circles: the closest value behind a norm that the joint fit decides, fitted on the first "
    "observations. Squares: columns that it "
    "left undecided, their decided coordinates held, with fresh sequences, whose outputs are "
    "rounded once. Grey: margin 4, from which "
    "on a value is claimed, and a slope of one half."
)
_GAINS_NOTE = (
    "Every input of the column behind a norm that holds the closest value which the joint fit "
    "decides; hollow: negative gain. Grey: "
    "margin 4, from which on a value is claimed."
)


def trend(rows: Rows) -> Figure:
    """Margins of the hardest value and of the stragglers against the observations. `rows` are of
    the schema exact_recovery_margins.
    """
    # with few observations the value may not be determined at all
    rows = [row for row in rows if row["margin"] > 0]
    found = list(checkpoints_with_looks(rows))
    handles = [
        Line2D([], [], color=color, linestyle=line, linewidth=1.0, label=name)
        for name, _, color, line in found
    ]
    page, axes = panel("Margins and the number of observations", _TREND_NOTE, handles)
    for _, members, color, line in found:
        for fits in grouped(members, "method", "module", "column"):
            axes.plot(
                [row["rows"] for row in fits],
                [row["margin"] for row in fits],
                color=color,
                linestyle=line,
                marker="o" if fits[0]["method"] == "joint fit" else "s",
                markersize=3,
                linewidth=1.0,
            )
    if rows:
        _guides(axes, rows)
    else:
        nothing(axes, _NONE)
    return page.figure


def _guides(axes: Axes, rows: Rows) -> None:
    """The axes of `trend`, the margin from which on a value is claimed, and a slope of one half."""
    axes.axhline(4, color=GREY, linewidth=0.6, zorder=1)
    low, high = min(row["rows"] for row in rows) / 1.2, max(row["rows"] for row in rows) * 1.2
    axes.plot(
        [low, high],
        [8, 8 * (high / low) ** 0.5],
        color=GREY,
        linewidth=0.6,
        linestyle=(0, (1, 2)),
        zorder=1,
    )
    axes.annotate(
        "slope 1/2",
        (low, 8 * 1.1),
        (3, 0),
        textcoords="offset points",
        size=style.NOTE,
        color=GREY,
        va="bottom",
    )
    axes.annotate(
        "claimed from here on",
        (high, 4 * 0.9),
        (-3, 0),
        textcoords="offset points",
        size=style.NOTE,
        color=GREY,
        ha="right",
        va="top",
    )
    ticks = [
        2**power for power in range(math.ceil(math.log2(low)), math.floor(math.log2(high)) + 1)
    ]
    axes.set(xscale="log", xlim=(low, high), xlabel="observations N", ylabel="margin, noises")
    axes.set_xticks(ticks, [f"{tick:,}" for tick in ticks])
    whole_decades(axes, "y", [row["margin"] for row in rows] + [4.0])
    axes.minorticks_off()


def gains(rows: Rows) -> Figure:
    """Margins of the hardest column of each checkpoint against the gains of its inputs. `rows` are
    of the schema exact_recovery_columns.
    """
    rows = [row for row in rows if row["weight"] and row["gain"] and row["margin"] > 0]
    found = list(checkpoints_with_looks(rows))
    handles = [
        Line2D([], [], color=color, linestyle="none", marker="o", markersize=3, label=label)
        for color, label in ((color, _hardest(name, each)) for name, each, color, _ in found)
    ]
    title = "The hardest column of each checkpoint and the gains before it"
    page, axes = panel(title, _GAINS_NOTE, handles)
    for _, members, color, _ in found:
        for negative in (False, True):
            chosen = [row for row in members if (row["gain"] < 0) == negative]
            axes.scatter(
                [abs(row["gain"]) for row in chosen],
                [row["margin"] for row in chosen],
                s=7,
                color="white" if negative else color,
                edgecolors=color,
                linewidths=0.6,
                zorder=3,
            )
    if rows:
        _gain_axes(axes, rows)
    else:
        nothing(axes, _NONE)
    return page.figure


def _hardest(name: str, rows: Rows) -> str:
    """A checkpoint in the legend: its hardest column, and the gain at its least margin."""
    least = min(rows, key=lambda row: row["margin"])
    return (
        f"{name}: {least['module']}, column {least['column']}; gain "
        f"{number(least['gain'], 2)} at the least margin"
    )


def _gain_axes(axes: Axes, rows: Rows) -> None:
    axes.axhline(4, color=GREY, linewidth=0.6, zorder=1)
    places = [abs(row["gain"]) for row in rows]
    low, high = min(places) / 1.2, max(places) * 1.2
    axes.set(xscale="log", xlim=(low, high))
    axes.set_xticks(round_numbers(low, high), [f"{tick:g}" for tick in round_numbers(low, high)])
    whole_decades(axes, "y", [row["margin"] for row in rows] + [4.0])
    axes.set(xlabel="|gain| of the input's feature", ylabel="margin of its weight, noises")
    axes.minorticks_off()
