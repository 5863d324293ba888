"""Figures of the fingerprint study, drawn from its result tables alone (results/tables/*.parquet)."""

from __future__ import annotations

import math
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
from normgauge.render.tables import SCHUR_TAP


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


_POST_NORM = "Grey panels: post-norm models, where each block ends in a norm and depth invariance does not apply."


def figure3(rows: Rows) -> Figure:
    """Depth profile: sigma of X_l over that of X_0 against relative depth, one panel per stack. `rows` are of the schema figure3."""
    rows = _onearithmetic(rows)
    finite = [row["ratio_to_embedding"] for row in rows if row["ratio_to_embedding"] is not None] + [1.0]
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
            _plot_series(axes, panel.of_kind(kind), kind, "relative_depth", lambda row: row["ratio_to_embedding"], lambda row: False)

    handles = [*_series_handles(rows), Line2D([], [], color=GREY, linewidth=0.6, label="ratio 1"), _FLOOR_HANDLE]
    return _small_multiples(
        "Figure 3. Smallest active singular value along the depth",
        rows,
        plot,
        r"relative depth $\ell/L$",
        rf"${SIGMA}(X_\ell)\,/\,{SIGMA}(X_0)$",
        handles,
        [
            f"${SIGMA}$: smallest active singular value of the centred activations. floor: the larger of forward and accumulation floor "
            f"over ${SIGMA}(X_0)$, written out where it lies below the axis.",
            *([_POST_NORM] if any(row["placement"] == "post-norm" for row in rows) else []),
        ],
    )


def figure6(rows: Rows) -> Figure:
    """Schur ratio R = 1 - delta at the query/key/value input by block, one panel per stack. `rows` are of the schema figure6."""
    rows = [row for row in _onearithmetic(rows) if row["tap"] == SCHUR_TAP and row["delta_recovered"] is not None]
    if not rows:
        raise InputError(
            f"figure6: no Schur value at {SCHUR_TAP}; measure at least one model whose query/key/value input is a norm's output"
        )
    positive = [1 - row["delta_recovered"] for row in rows if row["delta_recovered"] < 1]
    span = max(-math.log10(min(positive, default=0.1)), 1.0)
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
                lambda row: max(1 - row["delta_recovered"], limits[0]),
                lambda row: row["below_floor"],
            )

    hollow = Line2D([], [], color="black", linestyle="none", marker="o", markersize=3, markerfacecolor="white", label="below floor (noise)")
    handles = [*_series_handles(rows), Line2D([], [], color=GREY, linewidth=0.6, label=r"$R=1$"), hollow]
    return _small_multiples(
        "Figure 6. Schur ratio at the query/key/value input, block by block",
        rows,
        plot,
        r"block $\ell$",
        rf"$R=\lambda_{{\min}}(A)\,/\,{FORM}=1-\Delta_\gamma$",
        handles,
        [
            rf"$A=X^\mathrm{{T}}\!X/n$ at the input of the query/key/value maps, ${DIRECTION}$ of the norm that feeds them. Hollow: the "
            "value (of the seeds, at least half of the values) lies at or below the rounding floor; a marker on the lower edge stands for "
            "all smaller ratios."
        ],
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


def _plot_series(axes: Axes, rows: Rows, kind: str, x: str, value: Callable[[Row], float | None], is_noise: Callable[[Row], bool]) -> None:
    """A line through the values (over seeds: the median, with a band from smallest to largest), hollow where half or more is noise."""
    values: dict[float, list[float]] = {}
    noise: dict[float, list[bool]] = {}
    for row in rows:
        number_ = value(row)
        if number_ is not None:
            values.setdefault(row[x], []).append(number_)
            noise.setdefault(row[x], []).append(is_noise(row))
    places = sorted(values)
    if not places:
        return
    look = _SERIES[kind]
    middle = [float(numpy.median(values[place])) for place in places]
    size = 3.0 if len(places) <= 13 else 2.2
    if kind == "re-initialised":
        low, high = ([extreme(values[place]) for place in places] for extreme in (min, max))
        axes.fill_between(places, low, high, color=look["color"], alpha=0.3, linewidth=0, zorder=2)
    axes.plot(places, middle, color=look["color"], linestyle=look["linestyle"], linewidth=1.0, zorder=look["zorder"])
    for hollow in (False, True):
        chosen = [index for index, place in enumerate(places) if (numpy.mean(noise[place]) >= 0.5) == hollow]
        axes.plot(
            [places[index] for index in chosen],
            [middle[index] for index in chosen],
            linestyle="none",
            marker=look["marker"],
            markersize=size,
            markeredgewidth=0.7,
            color=look["color"],
            markerfacecolor="white" if hollow else look["color"],
            zorder=look["zorder"] + 1,
            clip_on=False,
        )


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
