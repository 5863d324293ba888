"""Figures of the fingerprint study, drawn from its result tables alone (results/tables/*.parquet)."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib
import numpy
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from normgauge.errors import InputError
from normgauge.render import sheets, style
from normgauge.render.labels import Names, Row, Rows, arithmetic, seed_count, token_count
from normgauge.render.style import DIRECTION, FORM, GREY, SIGMA, Footnotes, Ruler, decades, input_notes, number, weight_notes
from normgauge.render.tables import SCHUR_TAP, known_delta


@dataclass(frozen=True)
class _Panel:
    """One small multiple: the rows of one stack of one model, and its title, already wrapped."""

    rows: Rows
    title: tuple[str, ...]
    subtitle: tuple[str, ...]

    @property
    def lines(self) -> int:
        return len(self.title) + len(self.subtitle)

    def of_kind(self, kind: str) -> list[Row]:
        return [row for row in self.rows if row["kind"] == kind]


_COLUMNS, _LEFT, _RIGHT, _GUTTER = 4, 38.0, 5.0, 13.0
_LEADING, _HEADING, _LEGEND, _TICKS, _XLABEL = 9.5, 16.0, 14.0, 18.0, 12.0


_ERRORS = "Bars: one standard error over sequences (jackknife); band: range over seeds, each with its error."
_POST_NORM = "Grey panels: post-norm models, where each block ends in a norm and depth invariance does not apply."


def figure3(rows: Rows) -> Figure:
    """Depth profile: sigma of X_l over that of X_0 against relative depth, one panel per stack. `rows` are of the schema figure3.

    Where a block's own smallest active value is another one, its ratio, the published statistic, is dotted.
    """
    rows = _onearithmetic(rows)
    columns = ("fixed_rank_ratio", "ratio_to_embedding")
    finite = [row[name] for row in rows for name in columns if row[name] is not None] + [1.0]
    low, high = min(finite), max(finite)
    room = 10 ** (0.2 * max(math.log10(high / low), 1.0))
    limits = (low / room, high * 10 ** (0.07 * max(math.log10(high / low), 1.0)))

    def plot(axes: Axes, panel: _Panel) -> None:
        axes.set(xlim=(-0.03, 1.03), ylim=limits, yscale="log", yticks=decades(limits), xticks=(0, 0.5, 1))
        axes.set_xticklabels(("0", "0.5", "1"))
        axes.axhline(1, color=GREY, linewidth=0.6, zorder=1)
        if panel.rows[0]["placement"] == "post-norm":
            axes.set_facecolor(style.PALE)
        _plot_floor(axes, panel, limits[0])
        for kind in ("re-initialised", "trained"):
            _plot_series(
                axes,
                panel.of_kind(kind),
                kind,
                "relative_depth",
                lambda row: row["fixed_rank_ratio"],
                lambda row: row["fixed_rank_ratio_se"],
            )
            _plot_smallest_active(axes, panel.of_kind(kind), kind)

    handles = [*_series_handles(rows), Line2D([], [], color=GREY, linewidth=0.6, label="ratio 1"), _FLOOR_HANDLE]
    if any(_differs_at_fixed_rank(row) for row in rows):
        handles.append(Line2D([], [], color="black", linestyle=":", linewidth=1.0, label="smallest active"))
    return _small_multiples(
        "Figure 3. Smallest singular value along the depth",
        rows,
        plot,
        r"relative depth $\ell/L$",
        rf"${SIGMA}(X_\ell)\,/\,{SIGMA}(X_0)$",
        handles,
        [
            f"${SIGMA}$: the $r_0$-th largest singular value of the centred activations, $r_0$ the active rank of $X_0$. "
            "floor: the larger of forward and accumulation floor "
            f"over ${SIGMA}(X_0)$, written out where it lies below the axis. {_ERRORS}",
            *([_POST_NORM] if any(row["placement"] == "post-norm" for row in rows) else []),
        ],
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
    axes.plot(places, medians, color=_SERIES[kind]["color"], linestyle=":", linewidth=1.0, zorder=2)


def figure6(rows: Rows) -> Figure:
    """Schur ratio R = 1 - delta at the query/key/value input by block, one panel per stack. `rows` are of the schema figure6."""
    rows = [row for row in _onearithmetic(rows) if row["tap"] == SCHUR_TAP and row["delta_recovered"] is not None]
    if not rows:
        raise InputError(
            f"figure6: no Schur value at {SCHUR_TAP}; measure at least one model whose query/key/value input is a norm's output"
        )
    predicted = any(row["predicted_ratio"] is not None for row in rows)
    shown = [1 - known_delta(row) for row in rows] + [row["predicted_ratio"] for row in rows if row["predicted_ratio"]]
    span = max(-math.log10(min((value for value in shown if value > 0), default=0.1)), 1.0)
    limits = (10 ** (-1.08 * span), 10 ** (0.08 * span))

    def plot(axes: Axes, panel: _Panel) -> None:
        blocks = max(row["block"] for row in panel.rows)
        axes.set(xlim=(0.5 - 0.02 * blocks, blocks + 0.5 + 0.02 * blocks), ylim=limits, yscale="log")
        axes.set(xticks=_block_ticks(blocks), yticks=decades(limits))
        axes.axhline(1, color=GREY, linewidth=0.6, zorder=1)
        for kind in ("re-initialised", "trained"):
            _plot_series(
                axes,
                panel.of_kind(kind),
                kind,
                "block",
                lambda row: max(1 - known_delta(row), limits[0]),
                lambda row: row["delta_se"],
                lambda row: row["below_floor"],
                lambda row: row["delta_lower"] is not None,
            )
        trained = [row for row in panel.of_kind("trained") if row["predicted_ratio"]]
        axes.plot([row["block"] for row in trained], [row["predicted_ratio"] for row in trained], **_PREDICTED)

    hollow = Line2D([], [], color="black", linestyle="none", marker="o", markersize=3, markerfacecolor="white", label="below floor (noise)")
    handles = [*_series_handles(rows), Line2D([], [], color=GREY, linewidth=0.6, label=r"$R=1$"), hollow]
    notes = [
        rf"$A=X^\mathrm{{T}}\!X/n$ at the input of the query/key/value maps, ${DIRECTION}$ of the norm that feeds them. Hollow: ${FORM}$ "
        "(of the seeds, at least half of the values) lies at or below the rounding floor; a marker on the lower edge stands for "
        f"all smaller ratios. {_ERRORS}"
    ]
    if predicted:
        handles.append(Line2D([], [], **_PREDICTED, label=r"$1/(1+T^2)$"))
        notes.append(
            r"$T^2=m^\mathrm{T}C^{+}\!m$ of mean and covariance of the norm's output: behind a LayerNorm $R$ is $1/(1+T^2)$ to first "
            "order, and never above it."
        )
    if any(row["delta_lower"] is not None for row in rows):
        notes.append(r"Triangles pointing down: $\lambda_{\min}$ lies below floor, $R$ is at most this.")
    return _small_multiples(
        "Figure 6. Schur ratio at the query/key/value input, block by block",
        rows,
        plot,
        r"block $\ell$",
        rf"$R=\lambda_{{\min}}(A)\,/\,{FORM}=1-\Delta_\gamma$",
        handles,
        notes,
    )


def _onearithmetic(rows: Rows) -> list[Row]:
    """Rows of one forward arithmetic per stack: float32, the published protocol, where it was measured, else the first by name."""
    dtypes: dict[tuple[str, str, str], set[str]] = {}
    for row in rows:
        dtypes.setdefault(_place(row), set()).add(row["forward_dtype"])
    chosen = {place: "float32" if "float32" in names else min(names) for place, names in dtypes.items()}
    return [row for row in rows if row["forward_dtype"] == chosen[_place(row)]]


def _place(row: Row) -> tuple[str, str, str]:
    return row["model"], row["revision"], row["stack"]


_SERIES: dict[str, dict[str, Any]] = {
    "trained": {"color": style.TRAINED, "linestyle": "-", "marker": "o", "zorder": 4},
    "re-initialised": {"color": style.RANDOM, "linestyle": (0, (4, 1.5)), "marker": "s", "zorder": 3},
}
_PREDICTED: dict[str, Any] = {"color": "black", "linestyle": "none", "marker": "x", "markersize": 3.5, "markeredgewidth": 0.8, "zorder": 6}
_FLOOR_HANDLE = Patch(facecolor="white", edgecolor=GREY, hatch="//////", linewidth=0.5, label="below floor")


def _series_handles(rows: Rows) -> list[Any]:
    handles: list[Any] = []
    kinds = {row["kind"] for row in rows}
    for kind, look in _SERIES.items():
        if kind in kinds:
            seeds = len({row["seed"] for row in rows if row["kind"] == kind and row["seed"] is not None})
            label = kind if kind == "trained" else f"random initialisation: median and range, {seed_count(seeds)}"
            shown = {**look, "label": label, "markersize": 3, "linewidth": 1.0}
            handles.append(Line2D([], [], **shown))
    return handles


def _plot_series(
    axes: Axes,
    rows: Rows,
    kind: str,
    x: str,
    value: Callable[[Row], float | None],
    error: Callable[[Row], float | None],
    is_noise: Callable[[Row], bool] = lambda row: False,
    is_bound: Callable[[Row], bool] = lambda row: False,
) -> None:
    """A line through the values, with bars of one standard error over sequences.

    Over seeds: the median, with a band from the smallest to the largest, each with its error.
    Markers are hollow where half of the values or more are noise, triangles pointing down where so many are upper bounds.
    """
    places: dict[float, list[Row]] = {}
    for row in rows:
        if value(row) is not None:
            places.setdefault(row[x], []).append(row)
    if not places:
        return
    look = _SERIES[kind]
    depths = sorted(places)
    values = [[float(value(row) or 0.0) for row in places[depth]] for depth in depths]
    middle = [float(numpy.median(each)) for each in values]
    size = 3.0 if len(depths) <= 13 else 2.2
    errors = [[error(row) or 0.0 for row in places[depth]] for depth in depths]
    low = [min(map(operator.sub, *each)) for each in zip(values, errors, strict=True)]
    high = [max(map(operator.add, *each)) for each in zip(values, errors, strict=True)]
    if kind == "re-initialised":
        axes.fill_between(depths, low, high, color=look["color"], alpha=0.3, linewidth=0, zorder=2)
    else:
        axes.vlines(depths, low, high, color=look["color"], linewidth=0.9, zorder=look["zorder"])
    axes.plot(depths, middle, color=look["color"], linestyle=look["linestyle"], linewidth=1.0, zorder=look["zorder"])
    kinds = [(_mostly(places[depth], is_noise), _mostly(places[depth], is_bound)) for depth in depths]
    for noise, bound in sorted(set(kinds)):
        chosen = [index for index, found in enumerate(kinds) if found == (noise, bound)]
        axes.plot(
            [depths[index] for index in chosen],
            [middle[index] for index in chosen],
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


def _plot_floor(axes: Axes, panel: _Panel, bottom: float) -> None:
    """The floor of the checkpoint (else of the first seed) relative to its embedding: hatched where the axis shows it, else in words."""
    own = panel.of_kind("trained") or [row for row in panel.rows if row["seed"] == min(each["seed"] for each in panel.rows)]
    own = sorted(own, key=lambda row: row["block"])
    reference = next((row["sigma_active_min"] for row in own if row["block"] == 0), None)
    if not reference:
        axes.text(
            0.5, 0.5, "embedding below floor:\nno ratio", transform=axes.transAxes, ha="center", va="center", size=style.NOTE, color=GREY
        )
        return
    depth, floor = [row["relative_depth"] for row in own], [row["floor"] / reference for row in own]
    if max(floor) > bottom:
        axes.fill_between(depth, bottom, floor, facecolor="none", edgecolor=GREY, hatch="//////", linewidth=0.5, zorder=1)
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


def _block_ticks(blocks: int) -> list[int]:
    step = math.ceil(blocks / 4)
    return sorted({1, *range(step, blocks + 1, step)})


def _panels(rows: Rows, ruler: Ruler, width: float, notes: Footnotes) -> list[_Panel]:
    names = Names(rows)
    groups: dict[tuple[str, str, str], list[Row]] = {}
    for row in rows:
        groups.setdefault(_place(row), []).append(row)
    panels = []
    for members in groups.values():
        first = members[0]
        name = ruler.wrap(names.of(first) + notes.mark([*weight_notes(first), *input_notes(first)]), width, style.BODY, "bold")
        facts = f"{first['norm_kind']}, {first['placement']}, $n={token_count(first['n']).replace(',', '{,}')}$"
        panels.append(_Panel(members, tuple(name), tuple(ruler.wrap(facts, width, style.NOTE))))
    order = list(dict.fromkeys((panel.rows[0]["norm_kind"], panel.rows[0]["placement"]) for panel in panels))
    return sorted(panels, key=lambda panel: order.index((panel.rows[0]["norm_kind"], panel.rows[0]["placement"])))


def _small_multiples(
    title: str,
    rows: Rows,
    plot: Callable[[Axes, _Panel], None],
    xlabel: str,
    ylabel: str,
    handles: Sequence[Any],
    notes: Sequence[str],
) -> Figure:
    """Panels in rows of up to four, a legend above and notes below; sizes are in points, so that any number of panels stays legible."""
    with matplotlib.rc_context(style.RC):
        ruler, footnotes = Ruler(), Footnotes()
        full = 72 * style.WIDTH
        columns = min(_COLUMNS, len({_place(row) for row in rows}))
        width = (full - _LEFT - _RIGHT - _GUTTER * (columns - 1)) / columns
        depth = 70.0 if columns > 2 else 120.0
        panels = _panels(rows, ruler, width, footnotes)
        chunks = [panels[start : start + columns] for start in range(0, len(panels), columns)]
        texts = [*notes, f"$n$: tokens per site; {arithmetic(rows)}.", footnotes.text()]
        closing = ruler.wrap(" ".join(text for text in texts if text), full - 2 * _RIGHT, style.NOTE)
        labelled = [index == len(chunks) - 1 or len(chunks[index + 1]) < columns for index in range(len(chunks))]
        heads = [max(panel.lines for panel in chunk) * _LEADING + 4 for chunk in chunks]
        feet = [_TICKS + (_XLABEL if label else 0) for label in labelled]
        tops = [_HEADING + _LEGEND + sum(heads[: index + 1]) + index * depth + sum(feet[:index]) for index in range(len(chunks))]
        bottom = tops[-1] + depth + feet[-1]
        height = bottom + len(closing) * _LEADING + 6
        figure = Figure(figsize=(style.WIDTH, height / 72))
        figure.text(_RIGHT / full, 1 - 10 / height, title, weight="bold", ha="left", va="baseline")
        figure.legend(
            handles=list(handles),
            loc="upper left",
            bbox_to_anchor=(_RIGHT / full, 1 - _HEADING / height),
            ncols=len(handles),
            frameon=False,
            borderaxespad=0,
            borderpad=0,
            handlelength=2.6,
            columnspacing=1.6,
        )
        for index, chunk in enumerate(chunks):
            for column, panel in enumerate(chunk):
                x, y = _LEFT + column * (width + _GUTTER), tops[index] + depth
                axes = figure.add_axes((x / full, 1 - y / height, width / full, depth / height))
                plot(axes, panel)
                _title(axes, panel)
                axes.tick_params(labelleft=column == 0)
                axes.minorticks_off()
                if index == len(chunks) - 1 or column >= len(chunks[index + 1]):
                    axes.set_xlabel(xlabel, labelpad=2)
        middle = (tops[0] + tops[-1] + depth) / 2
        figure.text(2 / full, 1 - middle / height, ylabel, rotation=90, ha="left", va="center", size=style.BODY)
        for line_number, line in enumerate(closing, 1):
            figure.text(_RIGHT / full, 1 - (bottom + line_number * _LEADING) / height, line, ha="left", va="baseline", size=style.NOTE)
        return figure


def _title(axes: Axes, panel: _Panel) -> None:
    entries = [(line, style.NOTE, "normal", GREY) for line in reversed(panel.subtitle)]
    entries += [(line, style.BODY, "bold", "black") for line in reversed(panel.title)]
    for row, (text, size, weight, color) in enumerate(entries):
        axes.annotate(
            text,
            (0, 1),
            xytext=(0, 4 + row * _LEADING),
            xycoords="axes fraction",
            textcoords="offset points",
            size=size,
            weight=weight,
            color=color,
            annotation_clip=False,
        )


DRAWINGS: dict[str, Callable[[Rows], Figure]] = {
    "table1": sheets.table1,
    "table2": sheets.table2,
    "trained_vs_random": sheets.trained_vs_random,
    "figure3": figure3,
    "figure6": figure6,
}
