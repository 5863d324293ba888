"""The minimum-norm fit behind a LayerNorm: the outputs of the stored weights, and other weights."""

from __future__ import annotations

import math

from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from normgauge.render.axes import decades, nothing
from normgauge.render.exact_recovery.looks import checkpoints_with_looks
from normgauge.render.formats import count, number
from normgauge.render.page import panel
from normgauge.render.rows import Rows
from normgauge.render.style import GREY

_LEAST, _MOST, _PUBLISHED = 1e-17, 1e-12, 1e-13
_NOTE = (
    "One mark for each map behind a LayerNorm, its first columns. Hollow: the minimum-norm fit; "
    "filled: the recovered place on the same "
    "line. Both give the observed outputs to rounding; the stored values are those of the second "
    "alone (Theorem 1). Grey: the published 1e-13."
)


def minimum_norm(rows: Rows) -> Figure:
    """Share of stored values that the minimum-norm fit and the recovered place give, against the
    distance of their outputs. `rows` are of the schema exact_recovery_minimum_norm.
    """
    found = list(checkpoints_with_looks(rows))
    handles = [
        Line2D([], [], color=color, marker="o", markersize=3, linestyle="none", label=label)
        for color, label in ((color, _counted(name, each)) for name, each, color, _ in found)
    ]
    page, axes = panel("What the minimum-norm fit gives, and the recovered place", _NOTE, handles)
    for _, members, color, _ in found:
        places = [row for row in members if row["place_distance"] is not None]
        for chosen, distance, matches, face in (
            (members, "distance", "matches", "white"),
            (places, "place_distance", "place_matches", color),
        ):
            axes.scatter(
                [max(row[distance], _LEAST) for row in chosen],
                [100 * row[matches] / row["values"] for row in chosen],
                s=12,
                color=face,
                edgecolors=color,
                linewidths=0.7,
                clip_on=False,
                zorder=3,
            )
    if rows:
        distances = [row["distance"] for row in rows if row["distance"]]
        limits = (_LEAST, max(_MOST, 10.0 ** math.ceil(math.log10(max(distances, default=_MOST)))))
        axes.axvline(_PUBLISHED, color=GREY, linewidth=0.6, zorder=1)
        axes.set(xscale="log", xlim=limits, ylim=(0, 100), yticks=[0, 25, 50, 75, 100])
        axes.set(xticks=decades(limits), xlabel="deviation of the outputs over their size")
        axes.set(ylabel="stored values given, %")
        axes.minorticks_off()
    else:
        nothing(axes, "no map lies behind a LayerNorm")
    return page.figure


def _counted(name: str, rows: Rows) -> str:
    given, values = (sum(row[key] for row in rows) for key in ("matches", "values"))
    worst = max(row["distance"] for row in rows)
    return (
        f"{name}: minimum norm gives {count(given)} of {count(values)} values, outputs within "
        f"{number(worst, 2)}"
    )
