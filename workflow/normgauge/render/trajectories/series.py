"""Panels side by side with the same few series in each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from normgauge.render import style
from normgauge.render.page import AXIS, FULL, Page
from normgauge.render.rows import Row, Rows

DEPTH, LEFT, GAP = 112.0, 40.0, 12.0
LOOKS: tuple[Mapping[str, Any], ...] = (
    {"color": style.TRAINED, "marker": "o", "linestyle": "-"},
    {"color": style.DEVIATES, "marker": "^", "linestyle": "--"},
    {"color": style.RANDOM, "marker": "s", "linestyle": "-."},
    {"color": style.BLACK, "marker": "D", "linestyle": ":"},
    {"color": style.GREY, "marker": "v", "linestyle": (0, (4, 1, 1, 1))},
)
"""Of series, in order: told apart by marker and line as well as by colour."""


def page_of(
    title: str, panels: Sequence[str], series: Sequence[str], note: str
) -> tuple[Page, list[Axes]]:
    """A page with a row of panels of one height, each under its title, and a legend of series."""
    handles = [
        Line2D([], [], markersize=4, linewidth=1, label=name, **look)
        for name, look in zip(series, LOOKS, strict=False)
    ]
    page = Page(title, DEPTH + AXIS + 12, note, handles, min(len(handles), 3) or 1)
    width = (FULL - LEFT - GAP * len(panels)) / len(panels)
    drawn = []
    for number, name in enumerate(panels):
        axes = page.axes(LEFT + number * (width + GAP), 12, width, DEPTH)
        axes.set_title(name, fontsize=style.SMALL, loc="left", pad=3)
        axes.tick_params(labelleft=not number)
        drawn.append(axes)
    return page, drawn


def plot(
    axes: Axes, number: int, points: Sequence[tuple[float, float]], joined: bool = True
) -> None:
    """A series, number `number` of the legend."""
    look = dict(LOOKS[number])
    if not joined:
        look["linestyle"] = "none"
    if points:
        across, up = zip(*points, strict=True)
        axes.plot(across, up, markersize=3.5, linewidth=1, clip_on=False, **look)


def mean(rows: Rows, key: str) -> float:
    """The mean of a column."""
    return sum(row[key] for row in rows) / len(rows)


def spaces_of(rows: Rows) -> list[tuple[str, str]]:
    """Spaces and sites of the rows, in their order."""
    return list(dict.fromkeys((row["space"], row["sites"]) for row in rows))


def named(space: tuple[str, str]) -> str:
    """A space in words."""
    name = space[0].replace("decoder/block.", "units of block ").replace("/ffn", "")
    return f"{name}, last block" if space[1].startswith("last") else name


def of_space(rows: Rows, space: tuple[str, str]) -> list[Row]:
    """The rows of a space."""
    return [row for row in rows if (row["space"], row["sites"]) == space]
