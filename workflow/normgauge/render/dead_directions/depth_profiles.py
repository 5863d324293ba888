"""Figure 3: the smallest active singular value along the depth."""

from __future__ import annotations

import math

import numpy
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from normgauge.render import style
from normgauge.render.axes import decades
from normgauge.render.dead_directions.panels import PLACE, Panel, one_arithmetic, small_multiples
from normgauge.render.dead_directions.series import (
    ERRORS,
    LOOKS,
    Series,
    plot_series,
    series_handles,
)
from normgauge.render.formats import number
from normgauge.render.rows import Row, Rows, grouped
from normgauge.render.style import GREY, SIGMA

_POST_NORM = (
    "Grey panels: post-norm models, where each block ends in a norm and depth invariance "
    "does not apply."
)
_FLOOR_HANDLE = Patch(
    facecolor="white", edgecolor=GREY, hatch="//////", linewidth=0.5, label="below floor"
)
_FIXED_RANK = Series(
    "relative_depth",
    lambda row: row["fixed_rank_ratio"],
    lambda row: row["fixed_rank_ratio_se"],
)


def figure3(rows: Rows) -> Figure:
    """Depth profile: sigma of X_l over that of X_0 against relative depth, one panel per stack.
    `rows` are of the schema figure3.

    Where a block's own smallest active value is another one, its ratio, the published statistic, is
    dotted.
    """
    rows = one_arithmetic(rows)
    limits = _limits(rows)

    def plot(axes: Axes, panel: Panel) -> None:
        axes.set(
            xlim=(-0.03, 1.03),
            ylim=limits,
            yscale="log",
            yticks=decades(limits),
            xticks=(0, 0.5, 1),
        )
        axes.set_xticklabels(("0", "0.5", "1"))
        axes.axhline(1, color=GREY, linewidth=0.6, zorder=1)
        if panel.rows[0]["placement"] == "post-norm":
            axes.set_facecolor(style.PALE)
        _plot_floor(axes, panel, limits[0])
        for kind in ("re-initialised", "trained"):
            plot_series(axes, panel.of_kind(kind), kind, _FIXED_RANK)
            _plot_smallest_active(axes, panel.of_kind(kind), kind)

    handles = [*series_handles(rows), Line2D([], [], color=GREY, linewidth=0.6, label="ratio 1")]
    if any(_floor_on_axis(panel, limits[0]) for panel in grouped(rows, *PLACE)):
        handles.append(_FLOOR_HANDLE)
    if any(_differs_at_fixed_rank(row) for row in rows):
        handles.append(
            Line2D([], [], color="black", linestyle=":", linewidth=1.0, label="smallest active")
        )
    return small_multiples(
        "Figure 3. Smallest singular value along the depth",
        rows,
        plot,
        (r"relative depth $\ell/L$", rf"${SIGMA}(X_\ell)\,/\,{SIGMA}(X_0)$"),
        handles,
        [
            f"${SIGMA}$: the $r_0$-th largest singular value of the centred activations, $r_0$ the "
            "active rank of $X_0$. "
            "floor: the larger of forward and accumulation floor "
            f"over ${SIGMA}(X_0)$, written out where it lies below the axis. {ERRORS}",
            *([_POST_NORM] if any(row["placement"] == "post-norm" for row in rows) else []),
        ],
    )


def _limits(rows: Rows) -> tuple[float, float]:
    """Ends of the axis of ratios, two labelled decades apart at least."""
    columns = ("fixed_rank_ratio", "ratio_to_embedding")
    finite = [row[name] for row in rows for name in columns if row[name] is not None] + [1.0]
    low, high = min(finite), max(finite)
    room = 10 ** (0.2 * max(math.log10(high / low), 1.0))
    return (
        min(low / room, 0.07),
        max(high * 10 ** (0.07 * max(math.log10(high / low), 1.0)), 15.0),
    )


def _differs_at_fixed_rank(row: Row) -> bool:
    return bool(row["ratio_to_embedding"] != row["fixed_rank_ratio"])


def _plot_smallest_active(axes: Axes, rows: Rows, kind: str) -> None:
    """Medians of the published ratio, dotted, in series that have another one at some block."""
    if not any(_differs_at_fixed_rank(row) for row in rows):
        return
    values: dict[float, list[float]] = {}
    for row in rows:
        if row["ratio_to_embedding"] is not None:
            values.setdefault(row["relative_depth"], []).append(row["ratio_to_embedding"])
    places = sorted(values)
    medians = [float(numpy.median(values[place])) for place in places]
    axes.plot(places, medians, color=LOOKS[kind]["color"], linestyle=":", linewidth=1.0, zorder=2)


def _plot_floor(axes: Axes, panel: Panel, bottom: float) -> None:
    """The floor of the checkpoint (else of the first seed) relative to its embedding: hatched where
    the axis shows it, else in words.
    """
    depth, floor = _relative_floor(panel.rows)
    if not floor:
        axes.text(
            0.5,
            0.5,
            "embedding below floor:\nno ratio",
            transform=axes.transAxes,
            ha="center",
            va="center",
            size=style.NOTE,
            color=GREY,
        )
        return
    if _floor_on_axis(panel.rows, bottom):
        axes.fill_between(
            depth,
            bottom,
            floor,
            facecolor="none",
            edgecolor=GREY,
            hatch="//////",
            linewidth=0.5,
            zorder=1,
        )
    else:
        axes.text(
            0.02,
            0.03,
            rf"floor $\leq$ {number(max(floor), 1)}",
            transform=axes.transAxes,
            ha="left",
            va="bottom",
            size=style.NOTE,
            color=GREY,
        )


def _relative_floor(rows: Rows) -> tuple[list[float], list[float]]:
    """Relative depths and floors over the embedding's value, of the checkpoint, else of the first
    seed; empty without such a value.
    """
    own = [row for row in rows if row["kind"] == "trained"] or [
        row for row in rows if row["seed"] == min(each["seed"] for each in rows)
    ]
    own = sorted(own, key=lambda row: row["block"])
    reference = next((row["sigma_active_min"] for row in own if row["block"] == 0), None)
    return (
        ([row["relative_depth"] for row in own], [row["floor"] / reference for row in own])
        if reference
        else ([], [])
    )


def _floor_on_axis(rows: Rows, bottom: float) -> bool:
    return max(_relative_floor(rows)[1], default=0.0) > bottom
