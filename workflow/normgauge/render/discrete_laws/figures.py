"""The least example, and the discrete part of rotations between runs, as figures."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from normgauge.render import style
from normgauge.render.formats import decimals
from normgauge.render.page import AXIS, FULL, Page
from normgauge.render.rows import Row, Rows, grouped
from normgauge.render.text import plain
from normgauge.schemas.discrete_laws import DRAWN, PERMUTED, SIGNED, UNALIGNED

_LOOKS = {
    UNALIGNED: {"color": style.TRAINED, "marker": "o", "linestyle": "-"},
    PERMUTED: {"color": style.DEVIATES, "marker": "^", "linestyle": "--"},
    SIGNED: {"color": style.BLACK, "marker": "D", "linestyle": ":"},
}


def minimal_example(rows: Rows) -> Figure:
    """The two-coordinate model mixed with its gauged copy. `rows` are of the schema
    minimal_example.
    """
    note = (
        "Two coordinates of equal variance, and the same function after a quarter turn. Left: "
        "where the average takes the unit circle (grey). Right: loss along the line between the "
        "two, over the mean square of the input; published for the middle: 1/4 unaligned, 1/2 "
        "by the permutation alone, 0 by the signed permutation."
    )
    handles = [
        Line2D([], [], markersize=4, linewidth=1, label=way, **look)  # type: ignore[arg-type]
        for way, look in _LOOKS.items()
    ]
    depth = 120.0
    page = Page(
        "The least example: a permutation alone is worse than nothing",
        depth + AXIS,
        note,
        handles,
        3,
    )
    circle, line = page.axes(40, 0, depth, depth), page.axes(220, 0, FULL - 230, depth)
    angles = np.linspace(0, 2 * np.pi, 100)
    points = np.column_stack([np.cos(angles), np.sin(angles)])
    circle.plot(*points.T, color=style.GREY, linewidth=0.6)
    for way, look in _LOOKS.items():
        own = [row for row in rows if row["way"] == way]
        middle = next(row for row in own if row["share"] == 0.5)
        image = points @ np.reshape(middle["map"], (2, 2))
        circle.plot(*image.T, color=look["color"], linestyle=look["linestyle"], linewidth=1.3)
        line.plot(
            [row["share"] for row in own],
            [row["loss"] for row in own],
            linewidth=1,
            markersize=3,
            clip_on=False,
            **look,  # type: ignore[arg-type]
        )
    circle.set(xlim=(-1.1, 1.1), ylim=(-1.1, 1.1), xticks=(-1, 0, 1), yticks=(-1, 0, 1))
    line.set(xlim=(0, 1), ylim=(0, 0.55), ylabel="loss over mean square")
    line.set_xlabel("share of the copy", labelpad=2)
    return page.figure


def scaffold(rows: Rows) -> Figure:
    """The chosen entry of every row of a rotation between two runs, largest first, a panel for each
    pair. `rows` are of the schema scaffold.
    """
    pairs = [list(each) for each in grouped(rows, "first", "second") if each[0]["first"] != DRAWN]
    drawn = [row for row in rows if row["first"] == DRAWN]
    note = (
        "A rotation Q that brings the activations of one run nearest to another's (Procrustes), "
        "by site of the stream: the entry of each row that the nearest signed permutation "
        "takes. Above the line at the root of one half an entry is certain from Q alone. Grey, "
        "dotted: a rotation drawn at random. right: places and signs as recorded. The distance "
        "of the rest from the identity, row by row, is below 0.765 where all are certain."
    )
    colours = (style.TRAINED, style.RANDOM, style.DEVIATES, style.BLACK, style.GREY)
    sites = list(dict.fromkeys(row["site"] for pair in pairs for row in pair))
    handles = [
        Line2D([], [], color=colours[k % 5], linestyle=("-", "--")[k // 5 % 2], label=plain(site))
        for k, site in enumerate(sites)
    ]
    columns, depth, gap, left = 2, 96.0, 34.0, 36.0
    lines = -(-len(pairs) // columns)
    page = Page(
        "The signed permutation inside a rotation between two runs",
        lines * (depth + gap) + 8,
        note,
        handles,
        3,
    )
    width = (FULL - columns * left - 10) / columns
    for k, pair in enumerate(pairs):
        across, down = k % columns, k // columns
        axes = page.axes(left + across * (width + left), 14 + down * (depth + gap), width, depth)
        for row in [*drawn, *pair]:
            site = row["site"]
            look = (
                {"color": style.GREY, "linestyle": ":"}
                if row["first"] == DRAWN
                else {
                    "color": colours[sites.index(site) % 5],
                    "linestyle": ("-", "--")[sites.index(site) // 5 % 2],
                }
            )
            _plot_entries(axes, row, look)
        axes.axhline(np.sqrt(0.5), color=style.BLACK, linewidth=0.5)
        axes.set(xlim=(0, 1), ylim=(0, 1.02))
        axes.set_title(plain(_pair(pair)), fontsize=style.NOTE, loc="left", pad=3)
        if not across:
            axes.set_ylabel("entry of |Q|")
        axes.set_xlabel("share of the rows", labelpad=1)
    return page.figure


def _plot_entries(axes: Axes, row: Row, look: dict[str, str]) -> None:
    entries = row["entries"]
    places = (np.arange(len(entries)) + 0.5) / len(entries)
    axes.plot(places, entries, linewidth=1, clip_on=False, **look)  # type: ignore[arg-type]


def _pair(rows: Rows) -> str:
    """A pair in words, with what was found at its last site."""
    last = rows[-1]
    first, second = (last[side].replace("-step40", "") for side in ("first", "second"))
    model, _, end = second.partition("@")
    name = f"{first} and {end if first.startswith(f'{model}@') else second}"
    right = (
        ""
        if last["signed_places"] is None
        else f", {decimals(100 * last['signed_places'], 0)}% right"
    )
    return f"{name}{right}"
