"""The axis of deviations under changes of coordinates, which a figure and the audit page share."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from normgauge.render import style
from normgauge.render.rows import Rows
from normgauge.render.style import GREY
from normgauge.schemas.verdicts import Verdict, summarised

_INSIDE, _OUTSIDE = style.TRAINED, style.DEVIATES
_EDGES = 1e-17, 1e2


def worst(rows: Rows, forward_dtype: str, key: str, admissible: bool) -> float | None:
    """The largest deviation of an admissible gauge, the smallest of a control, over seeds."""
    values = [row[key] for row in rows if row["forward_dtype"] == forward_dtype]
    return (max if admissible else min)(values, default=None)


def prepare_deviations(axes: Axes) -> None:
    """The axis of relative deviations, with the float64 tolerance and what a control must
    exceed.
    """
    axes.set(xscale="log", xlim=_EDGES)
    axes.set_xlabel("relative deviation of the outputs", labelpad=2)
    for value in (1e-10, 1e-7):
        axes.axvline(value, color=GREY, linewidth=0.6, linestyle=(0, (3, 2)), zorder=1)


def plot_deviations(axes: Axes, place: float, group: Rows) -> None:
    """The markers of one change of coordinates at height `place`: float64 full, float32 hollow,
    controls as triangles, as crosses where they have no power.
    """
    inside = group[0]["admissible"]
    color, marker = (_INSIDE, "o") if inside else (_OUTSIDE, "^")
    if summarised(row["verdict"] for row in group) == Verdict.NO_POWER:
        color, marker = GREY, "x"
    axes.axhline(place, color="#dddddd", linewidth=0.4, zorder=0)
    for forward_dtype, face in (("float64", color), ("float32", "white")):
        value = worst(group, forward_dtype, "relative_deviation", inside)
        if value is not None:
            shown = min(max(value, _EDGES[0]), _EDGES[1])
            axes.plot(
                shown,
                place,
                linestyle="none",
                marker=marker,
                color=color,
                markerfacecolor=face,
                markersize=4.5,
                clip_on=False,
            )


def deviation_handles() -> list[Line2D]:
    """The legend of `plot_deviations`."""
    looks = (
        ("o", _INSIDE, _INSIDE, "in the group, float64"),
        ("o", _INSIDE, "white", "in the group, float32"),
        ("^", _OUTSIDE, _OUTSIDE, "control, float64"),
    )
    return [
        Line2D(
            [],
            [],
            linestyle="none",
            marker=marker,
            color=color,
            markerfacecolor=face,
            markersize=4.5,
            label=label,
        )
        for marker, color, face, label in looks
    ]
