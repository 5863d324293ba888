"""Figures of exact recovery, from its result tables alone."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import cycle
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from normgauge.render import style
from normgauge.render.labels import Names, Row, Rows
from normgauge.render.style import GREY, Ruler, decades, number, plain
from normgauge.render.typeset import BodyRow, Column, Section, cell, draw_table

_LOOKS: tuple[tuple[str, Any], ...] = (
    ("#0072B2", "-"),
    ("#E69F00", (0, (4, 1.5))),
    ("#009E73", (0, (1, 1))),
    ("#CC79A7", (0, (4, 1, 1, 1))),
    ("#56B4E9", (0, (8, 2))),
)
"""Colours and line styles of checkpoints; they begin again where there are more."""


def recovery(rows: Rows) -> Figure:
    """Recovered share by population, one section per checkpoint. `rows` are of the schema recovery."""
    names = Names(rows, ("revision",))
    columns = [
        Column("population", align="left"),
        Column("determined by", align="left", flexible=True),
        Column("tensors"),
        Column("values"),
        Column("recovered"),
        Column("share"),
        Column("flagged"),
        Column("un-\ndetermined"),
        Column("misses"),
        Column("least\nmargin"),
    ]
    sections: dict[str, list[Row]] = {}
    for row in rows:
        sections.setdefault(names.of(row), []).append(row)
    body = []
    for name, members in sections.items():
        groups: dict[tuple[str, str], list[Row]] = {}
        for row in members:
            groups.setdefault((row["population"], row["argument"]), []).append(row)
        lines = [_population(population, argument, group) for (population, argument), group in groups.items()]
        body.append(Section(name, [*lines, _population("all", "", members)]))
    text = [
        "recovered: claimed values whose bits are the stored ones. flagged: not claimed, the margin is below 4. misses: claimed values "
        "whose bits differ. least margin: distance of the "
        "closest value from a rounding boundary, in standard deviations of its noise.",
    ]
    return draw_table("Stored weights that activations determine, bit for bit", columns, body, text)


def _population(population: str, argument: str, rows: Rows) -> BodyRow:
    total = {name: sum(row[name] for row in rows) for name in ("values", "determined", "recovered", "flagged", "misses")}
    margins = [row["min_margin"] for row in rows if row["min_margin"] is not None]
    weight = "bold" if population == "all" else "normal"
    texts = (
        plain(population),
        plain(argument),
        str(len(rows)),
        f"{total['values']:,}",
        f"{total['recovered']:,}",
        _share(total["recovered"], total["values"]),
        f"{total['flagged']:,}",
        f"{total['values'] - total['determined']:,}",
        f"{total['misses']:,}",
        number(min(margins, default=None), 2),
    )
    return BodyRow(tuple(cell(text, weight=weight) for text in texts))


def _share(part: int, whole: int) -> str:
    """A percentage that says 100 only when nothing is left out."""
    return "100%" if part == whole else f"{min(100 * part / whole, 99.99):.2f}%"


def checks(rows: Rows) -> Figure:
    """What was checked of each checkpoint, with the power of each check beside it. `rows` are of the schema exact_recovery."""
    rows = [row for row in rows if row["population"] == "all"]
    names = Names(rows, ("revision",))
    columns = [
        Column("checkpoint", align="left", flexible=True),
        Column("certified", "columns on a line"),
        Column("most\nsurvivors", "columns on a line"),
        Column("residuals", "wrong places"),
        Column("distance", "wrong places"),
        Column("p", "wrong places"),
        Column("true rows", "falsifier"),
        Column("permuted", "falsifier"),
        Column("chance", "falsifier"),
        Column("all", "stragglers"),
        Column("closed", "stragglers"),
        Column("plain", "stragglers"),
        Column("features", "embedding gauge"),
        Column("median\nsurvivors", "embedding gauge"),
        Column("reached", "embedding gauge"),
    ]
    body = [BodyRow((cell(names.of(row)), *(cell(text) for text in _checked(row)))) for row in rows]
    text = [
        "certified: columns for which every other place on the gauge line was excluded. wrong places: rounding residuals there, their "
        "Kolmogorov-Smirnov distance from the uniform distribution and its p-value. falsifier: values that one procedure without any test "
        "of acceptance gives as stored, of those that the true rows decide (true rows: all, or it has no power); with rows permuted; and "
        "how many of the latter equal those of the next column (chance). stragglers: columns that the joint fit leaves undecided; closed "
        "by fresh sequences observed as configured; plain: closed by the outputs of the float64 forward pass in the same sequences. "
        "embedding gauge: shifts between tables that keep every row on the grid, of all there are; reached: features with one such shift, "
        "the stored one.",
        "Published for GPT-2: one column with one survivor of 13,645,404 candidates; no value with rows permuted; eight stragglers, all "
        "closed by plain outputs of 27 chunks; embedding gauge reached for 820,496 of 39,383,808 values, which is 16 of 768 features.",
    ]
    return draw_table("Exact recovery: what was checked, and the power of each check", columns, [Section("", body)], text)


def _checked(row: Row) -> tuple[str, ...]:
    """Cells of `checks`; a dash where there was nothing to check."""
    counted = [f"{row[name]:,}" if row[name] else "—" for name in ("certificates", "most_survivors", "null_residuals")]
    uniform = [number(row[name], 2) for name in ("null_statistic", "null_p")]
    given, asked = row["control_matches"], row["falsifier_values"]
    power = f"{given:,}" if given == asked else f"{given:,} of {asked:,}"
    falsifier = [power, f"{row['falsifier_matches']:,}", f"{row['falsifier_chance']:,}"]
    stragglers = [f"{row[name]:,}" for name in ("stragglers", "closed", "closed_float64")]
    names = ("attacked", "attack_survivors", "attack_reached")
    gauge = [f"{row[name]:,}" if row["attacked"] else "—" for name in names]
    return (*counted, *uniform, *falsifier, *stragglers, *gauge)


def calibration(rows: Rows) -> Figure:
    """Histogram of rounding residuals at wrong places over the uniform expectation. `rows` are of the schema recovery_calibration."""
    groups = {name: members for name, members in _by_checkpoint(rows).items() if any(row["count"] for row in members)}
    handles: list[Line2D] = []

    def plot(axes: Axes) -> None:
        for (name, members), (color, line) in zip(groups.items(), cycle(_LOOKS), strict=False):
            total, edges = sum(row["count"] for row in members), [row["low"] for row in members] + [members[-1]["high"]]
            shares = [row["count"] * len(members) / total for row in members]
            axes.stairs(shares, edges, baseline=None, color=color, linestyle=line, linewidth=1.0)
            test = f"Kolmogorov-Smirnov distance {number(members[0]['statistic'], 2)}, p = {number(members[0]['p'], 2)}"
            handles.append(Line2D([], [], color=color, linestyle=line, linewidth=1.0, label=f"{name}: {total:,} residuals, {test}"))
            if members[0]["score"] is not None:
                axes.plot(members[0]["score"], 0, marker="v", markersize=5, color=color, clip_on=False, zorder=4)
        axes.axhline(1, color=GREY, linewidth=0.6, zorder=1)
        axes.set(xlim=(0, 0.5), ylim=(0, 1.5))
        axes.set(xlabel="rounding residual at a wrong place on the gauge line, ulp", ylabel="count / uniform")

    return _one_panel(
        "Rounding residuals at wrong places",
        plot,
        handles,
        "Certified columns of every map behind a LayerNorm, the coordinates that the search window moves by "
        "16 grid spacings or more, at random wrong places in it; grey: the uniform distribution, from which the "
        "distance is taken. Triangles: the worst residual over the well determined coordinates at the recovered places.",
    )


def trend(rows: Rows) -> Figure:
    """Margins of the hardest value and of the stragglers against the observations. `rows` are of the schema recovery_trend."""
    handles: list[Line2D] = []
    rows = [row for row in rows if row["margin"] > 0]  # with few observations the value may not be determined at all

    def plot(axes: Axes) -> None:
        for (name, members), (color, line) in zip(_by_checkpoint(rows).items(), cycle(_LOOKS), strict=False):
            columns: dict[tuple[str, str, int], list[Row]] = {}
            for row in members:
                columns.setdefault((row["method"], row["module"], row["column"]), []).append(row)
            for (method, *_), fits in columns.items():
                marker = "o" if method == "joint fit" else "s"
                places, margins = [row["rows"] for row in fits], [row["margin"] for row in fits]
                axes.plot(places, margins, color=color, linestyle=line, marker=marker, markersize=3, linewidth=1.0)
            handles.append(Line2D([], [], color=color, linestyle=line, linewidth=1.0, label=name))
        if not rows:
            _nothing(axes)
            return
        axes.axhline(4, color=GREY, linewidth=0.6, zorder=1)
        low, high = min(row["rows"] for row in rows) / 1.2, max(row["rows"] for row in rows) * 1.2
        axes.plot([low, high], [8, 8 * (high / low) ** 0.5], color=GREY, linewidth=0.6, linestyle=(0, (1, 2)), zorder=1)
        ticks = [2**power for power in range(math.ceil(math.log2(low)), math.floor(math.log2(high)) + 1)]
        axes.set(xscale="log", xlim=(low, high), xlabel="observations N", ylabel="margin, noises")
        axes.set_xticks(ticks, [f"{tick:,}" for tick in ticks])
        _whole_decades(axes, "y", [row["margin"] for row in rows] + [4.0])
        axes.minorticks_off()

    return _one_panel(
        "Margins and the number of observations",
        plot,
        handles,
        "Circles: the closest value behind a norm that the joint fit decides, fitted on the first observations. Squares: columns that it "
        "left undecided, their decided coordinates held, with fresh sequences, whose outputs are rounded once. Grey: margin 4, from which "
        "on a value is claimed, and a slope of one half.",
    )


def gains(rows: Rows) -> Figure:
    """Margins of the hardest column of each checkpoint against the gains of its inputs. `rows` are of the schema recovery_gains."""
    handles: list[Line2D] = []
    rows = [row for row in rows if row["weight"] and row["gain"] and row["margin"] > 0]

    def plot(axes: Axes) -> None:
        for (name, members), (color, _) in zip(_by_checkpoint(rows).items(), cycle(_LOOKS), strict=False):
            for negative in (False, True):
                chosen = [row for row in members if (row["gain"] < 0) == negative]
                places, margins = [abs(row["gain"]) for row in chosen], [row["margin"] for row in chosen]
                axes.scatter(places, margins, s=7, color="white" if negative else color, edgecolors=color, linewidths=0.6, zorder=3)
            least = min(members, key=lambda row: row["margin"])
            label = f"{name}: {least['module']}, column {least['column']}; gain {number(least['gain'], 2)} at the least margin"
            handles.append(Line2D([], [], color=color, linestyle="none", marker="o", markersize=3, label=label))
        if not rows:
            _nothing(axes)
            return
        axes.axhline(4, color=GREY, linewidth=0.6, zorder=1)
        _whole_decades(axes, "x", [abs(row["gain"]) for row in rows])
        _whole_decades(axes, "y", [row["margin"] for row in rows] + [4.0])
        axes.set(xlabel="|gain| of the input's feature", ylabel="margin of its weight, noises")
        axes.minorticks_off()

    return _one_panel(
        "The hardest column of each checkpoint and the gains before it",
        plot,
        handles,
        "Every input of the column behind a norm that holds the closest value which the joint fit decides; hollow: negative gain. Grey: "
        "margin 4, from which on a value is claimed.",
    )


def _whole_decades(axes: Axes, axis: str, values: Sequence[float]) -> None:
    """A logarithmic axis between powers of ten around the values, few of them labelled."""
    limits = (10.0 ** math.floor(math.log10(min(values) / 1.1)), 10.0 ** math.ceil(math.log10(max(values) * 1.1)))
    axes.set(**{f"{axis}scale": "log", f"{axis}lim": limits, f"{axis}ticks": decades(limits)})


def _nothing(axes: Axes) -> None:
    axes.set(xticks=[], yticks=[])
    axes.text(0.5, 0.5, "no value behind a norm is decided", ha="center", va="center", transform=axes.transAxes)


def _by_checkpoint(rows: Rows) -> dict[str, list[Row]]:
    names = Names(rows, ("revision",))
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(names.of(row), []).append(row)
    return groups


def _one_panel(title: str, plot: Callable[[Axes], None], handles: list[Line2D], note: str) -> Figure:
    """One wide panel with its legend above and a note below; `plot` draws and fills `handles`."""
    with matplotlib.rc_context(style.RC):
        full = 72 * style.WIDTH
        lines = Ruler().wrap(note, full - 10, style.NOTE)
        probe = Figure()
        plot(probe.add_axes((0, 0, 1, 1)))
        legend = 11.0 * len(handles)
        handles.clear()
        top, depth, foot = 20.0 + legend, 150.0, 32.0 + 10 * len(lines)
        height = top + depth + foot
        figure = Figure(figsize=(style.WIDTH, height / 72))
        plot(figure.add_axes((36 / full, foot / height, (full - 46) / full, depth / height)))
        figure.text(5 / full, 1 - 11 / height, title, weight="bold", ha="left", va="baseline")
        place = (5 / full, 1 - 15 / height)
        figure.legend(
            handles=handles, loc="upper left", bbox_to_anchor=place, frameon=False, borderaxespad=0, borderpad=0, labelspacing=0.25
        )
        for below, text in enumerate(lines):
            figure.text(5 / full, (foot - 34 - 10 * below) / height, text, ha="left", va="baseline", size=style.NOTE)
        return figure


_PARTS = (("recovered", "#0072B2", ""), ("flagged", "#E69F00", "////"), ("misses", "#D55E00", "xxxx"), ("undetermined", style.PALE, ""))
"""What may become of a stored value, with a colour and a hatch for each."""
_LEADING, _COUNTS = 11.0, 110.0


def share(rows: Rows) -> Figure:
    """Recovered, flagged and undetermined share of the stored values by population. `rows` are of the schema exact_recovery."""
    groups = _by_checkpoint([row for row in rows if row["population"] != "all"])
    with matplotlib.rc_context(style.RC):
        full, left, top, foot = 72 * style.WIDTH, 105.0, 34.0, 26.0
        depth = _LEADING * sum(len(members) + 1.3 for members in groups.values())
        height = top + depth + foot
        figure = Figure(figsize=(style.WIDTH, height / 72))
        axes = figure.add_axes((left / full, foot / height, (full - left - _COUNTS) / full, depth / height))
        y = 0.5 * _LEADING
        for name, members in groups.items():
            figure.text(5 / full, (foot + depth - y) / height, name, style="italic", va="center")
            for row in members:
                y += _LEADING
                place = (foot + depth - y) / height
                figure.text(12 / full, place, row["population"], va="center")
                figure.text(1 - 5 / full, place, f"{row['recovered']:,} of {row['values']:,}", va="center", ha="right", size=style.NOTE)
                start = 0.0
                for part, color, hatch in _PARTS:
                    length = row[part] / row["values"]
                    axes.barh(y, length, 0.75 * _LEADING, start, color=color, hatch=hatch, edgecolor=GREY, linewidth=0.3)
                    start += length
            y += 1.3 * _LEADING
        axes.set(xlim=(0, 1), ylim=(depth, 0), yticks=[], xlabel="share of the stored values")
        axes.spines["left"].set_visible(False)
        figure.text(
            5 / full, 1 - 11 / height, "Stored values recovered bit for bit, by population", weight="bold", ha="left", va="baseline"
        )
        handles = [Patch(facecolor=color, hatch=hatch, edgecolor=GREY, linewidth=0.3, label=part) for part, color, hatch in _PARTS]
        corner = (5 / full, 1 - 16 / height)
        figure.legend(handles=handles, loc="upper left", bbox_to_anchor=corner, ncols=4, frameon=False, borderaxespad=0, borderpad=0)
        return figure


DRAWINGS: dict[str, Callable[[Rows], Figure]] = {
    "recovery": recovery,
    "recovery_calibration": calibration,
    "exact_recovery": share,
    "recovery_checks": checks,
    "recovery_trend": trend,
    "recovery_gains": gains,
}
