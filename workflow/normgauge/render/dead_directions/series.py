"""Series along the depth: lines with their uncertainties, and the handles of their legend."""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from normgauge.render import style
from normgauge.render.labels import seed_count
from normgauge.render.rows import Row, Rows

ERRORS = (
    "Bars: one standard error over sequences (jackknife); band: range over seeds, each with "
    "its error."
)
LOOKS: dict[str, dict[str, Any]] = {
    "trained": {"color": style.TRAINED, "linestyle": "-", "marker": "o", "zorder": 4},
    "re-initialised": {
        "color": style.RANDOM,
        "linestyle": (0, (4, 1.5)),
        "marker": "s",
        "zorder": 3,
    },
}


@dataclass(frozen=True)
class Series:
    """What of a row is drawn: the column it stands at, its value and the error of this, whether it
    is noise and whether it is an upper bound.
    """

    x: str
    value: Callable[[Row], float | None]
    error: Callable[[Row], float | None]
    is_noise: Callable[[Row], bool] = lambda row: False
    is_bound: Callable[[Row], bool] = lambda row: False


def series_handles(rows: Rows) -> list[Any]:
    """A handle for each kind of rows there is."""
    handles: list[Any] = []
    kinds = {row["kind"] for row in rows}
    for kind, look in LOOKS.items():
        if kind in kinds:
            seeds = len(
                {row["seed"] for row in rows if row["kind"] == kind and row["seed"] is not None}
            )
            label = (
                kind
                if kind == "trained"
                else f"random initialisation: median and range, {seed_count(seeds)}"
            )
            shown = {**look, "label": label, "markersize": 3, "linewidth": 1.0}
            handles.append(Line2D([], [], **shown))
    return handles


def plot_series(axes: Axes, rows: Rows, kind: str, series: Series) -> None:
    """A line through the values, with bars of one standard error over sequences.

    Over seeds: the median, with a band from the smallest to the largest, each with its error.
    Markers are hollow where half of the values or more are noise, triangles pointing down where so
    many are upper bounds.
    """
    places: dict[float, list[Row]] = {}
    for row in rows:
        if series.value(row) is not None:
            places.setdefault(row[series.x], []).append(row)
    if not places:
        return
    look = LOOKS[kind]
    depths = sorted(places)
    values = [[float(series.value(row) or 0.0) for row in places[depth]] for depth in depths]
    middle = [float(numpy.median(each)) for each in values]
    errors = [[series.error(row) or 0.0 for row in places[depth]] for depth in depths]
    low = [min(map(operator.sub, *each)) for each in zip(values, errors, strict=True)]
    high = [max(map(operator.add, *each)) for each in zip(values, errors, strict=True)]
    if kind == "re-initialised":
        axes.fill_between(depths, low, high, color=look["color"], alpha=0.3, linewidth=0, zorder=2)
    else:
        axes.vlines(depths, low, high, color=look["color"], linewidth=0.9, zorder=look["zorder"])
    axes.plot(
        depths,
        middle,
        color=look["color"],
        linestyle=look["linestyle"],
        linewidth=1.0,
        zorder=look["zorder"],
    )
    _plot_markers(axes, places, dict(zip(depths, middle, strict=True)), kind, series)


def _plot_markers(
    axes: Axes,
    places: dict[float, list[Row]],
    middle: dict[float, float],
    kind: str,
    series: Series,
) -> None:
    """The markers of a series, by what its values are."""
    look = LOOKS[kind]
    size = 3.0 if len(middle) <= 13 else 2.2
    groups: dict[tuple[bool, bool], list[float]] = {}
    for depth in middle:
        rows = places[depth]
        found = _mostly(rows, series.is_noise), _mostly(rows, series.is_bound)
        groups.setdefault(found, []).append(depth)
    for (noise, bound), depths in sorted(groups.items()):
        axes.plot(
            depths,
            [middle[depth] for depth in depths],
            linestyle="none",
            marker="v" if bound else look["marker"],
            markersize=size + bound,
            markeredgewidth=0.7,
            color=look["color"],
            markerfacecolor="white" if noise else look["color"],
            zorder=look["zorder"] + 1,
            clip_on=False,
        )


def _mostly(rows: Rows, holds: Callable[[Row], bool]) -> bool:
    return bool(numpy.mean([holds(row) for row in rows]) >= 0.5)
