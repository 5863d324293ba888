"""Tables and figures drawn from the result tables alone (results/tables/*.parquet): one pure function per target, and one that saves."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
import numpy
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from normgauge import tables
from normgauge.errors import InputError
from normgauge.render import style
from normgauge.render.style import DEVIATES, GREY, Footnotes, Ruler, decimals, number, plain, precision_notes
from normgauge.render.tables import SCHUR_TAP, mostly_below_floor
from normgauge.render.typeset import BodyRow, Cell, Column, Line, Section, cell, draw_table, quiet

Row = dict[str, Any]
Rows = Sequence[Row]

_DASH = "— not defined or not measured for this model."
_DEVIATION = "* bold: differs from the published value by more than the tolerance in config/published.yaml."


def draw(name: str, table: str | os.PathLike[str], outputs: Iterable[str | os.PathLike[str]]) -> None:
    """Draw the target `name` (table1, table2, trained_vs_random, figure3, figure6) from its result table into PDF and SVG files.

    InputError when the table has no rows.
    """
    rows = tables.read(table, name)
    if not rows:
        raise InputError(f"{Path(table)}: no rows to draw; list at least one model for this target in the configuration")
    style.save(DRAWINGS[name](rows), outputs)


# --- tables ---------------------------------------------------------------------------------------------------------------------------------


def table1(rows: Rows) -> Figure:
    """Schur delta at the query/key/value input, random and trained, beside the published values. `rows` are of the schema table1."""
    notes, names = Footnotes(), _Names(rows)
    columns = [
        Column("model", align="left", flexible=True),
        Column("$h$"),
        Column("$n$"),
        Column("forward", align="left"),
        Column("seeds"),
        Column("ours", r"$\Delta_\gamma$ at random initialisation", "left"),
        Column("published", r"$\Delta_\gamma$ at random initialisation", "left"),
        Column("ours", r"$\Delta_\gamma$ trained", "left"),
        Column("published", r"$\Delta_\gamma$ trained", "left"),
    ]

    def body(row: Row) -> list[BodyRow]:
        cells = (
            cell(names.of(row) + notes.mark(precision_notes(row))),
            cell(str(row["width"])),
            cell(_count(row["n"])),
            cell(row["forward_dtype"]),
            cell(str(row["random_seeds"] or "—")),
            _delta_cell(row, "random"),
            _published_delta(row, "random"),
            _delta_cell(row, "trained"),
            _published_delta(row, "trained"),
        )
        return [BodyRow(cells)]

    text = [
        r"Median over blocks (and seeds) of $\Delta_\gamma=1-\lambda_{\min}(A)/u^\top\!Au$, $u=\gamma^{-1}/\|\gamma^{-1}\|$, at the input of the "
        "query/key/value maps [quartiles]. " + _counts_note(rows),
        "below floor: in at least half of the pooled values an eigenvalue lies at or below the rounding floor of the forward pass or of the "
        r"accumulation; the reading is noise and is printed only to show it, with the medians of $u^\top\!Au$ and of the floor.",
    ]
    if any(0 < (row[f"{part}_below_floor"] or 0) < 0.5 for row in rows for part in ("random", "trained")):
        text.append("A percentage after a value is the share of the pooled values that lie below floor.")
    return draw_table(
        r"Table 1. Schur ratio $\Delta_\gamma$ along the inverse-gain direction",
        columns,
        _sections(rows, body),
        text + _closing(rows, columns, notes),
    )


def _delta_cell(row: Row, part: str) -> Cell:
    median, low, high = (row[f"{part}_{statistic}"] for statistic in ("median", "low", "high"))
    if median is None:
        return cell("—")
    value = f"{decimals(median, 4)} [{decimals(low, 3)}, {decimals(high, 3)}]"
    if mostly_below_floor(row, part):
        form, floor = number(row[f"{part}_quadratic_form"], 2), number(row[f"{part}_floor"], 2)
        small = {"size": style.NOTE, "color": GREY}
        return (
            Line("below floor", slant="italic"),
            Line(f"reads {value}", **small),  # type: ignore[arg-type]
            Line(rf"$u^\top\!Au$ {form}, floor {floor}", **small),  # type: ignore[arg-type]
        )
    share = row[f"{part}_below_floor"]
    text = value + (f" {100 * share:.0f}%" if share else "")
    if row[f"{part}_status"] == "deviates":
        return cell(f"{text}*", weight="bold", color=DEVIATES)
    return cell(text)


def _published_delta(row: Row, part: str) -> Cell:
    median, low, high = (row.get(f"published_{part}_{statistic}") for statistic in ("median", "low", "high"))
    if median is None:
        return cell("")
    spread = "" if low is None else f" [{decimals(low, 2)}, {decimals(high, 2)}]"
    return cell(decimals(median, 3) + spread)


def table2(rows: Rows) -> Figure:
    """Residual-stream fingerprint: a row per stack, the re-initialised twins and the published values under it. `rows`: schema table2."""
    notes, names = Footnotes(), _Names(rows)
    columns = [
        Column("model", align="left", flexible=True),
        Column("objective", align="left", flexible=True),
        Column("$L$"),
        Column("$h$"),
        Column("$n/d$"),
        Column(r"body $\sigma_{(r_0)}$", align="center"),
        Column("behaviour", align="left", flexible=True),
        Column(r"$|\cos(u_\perp,\gamma^{-1})|$"),
        Column(r"$|\cos(u_\perp,\mathbf{1})|$"),
    ]

    def body(row: Row) -> list[BodyRow]:
        marks = notes.mark([*precision_notes(row), *_disagreements(row), *map(plain, row["protocol"]), *map(_flag, row["flags"])])
        deviates = set(row["deviations"])

        def value(text: str, *names: str) -> Cell:
            return cell(f"{text}*", weight="bold", color=DEVIATES) if deviates.intersection(names) else cell(text)

        sigma = "below floor" if row["body_sigma_low"] is None else _range(row["body_sigma_low"], row["body_sigma_high"])
        measured = (
            value(sigma, "body_sigma_low", "body_sigma_high"),
            value(plain(row["behaviour"]), "behaviour"),
            value(decimals(row["post_norm_cos_gamma_inv"], 4), "post_norm_cos_gamma_inv"),
            value(decimals(row["post_norm_cos_ones"], 4), "post_norm_cos_ones"),
        )
        if row["kind"] == "re-initialised":
            label = quiet(f"re-initialised, {_seeds(row['seeds'])}{marks}")
            greyed = tuple(tuple(Line(line.text, size=style.SMALL, color=GREY) for line in each) for each in measured)
            return [BodyRow((label, quiet(""), quiet(""), quiet(""), quiet(""), *greyed), subordinate=True)]
        label = names.of(row) + (f", {_seeds(row['seeds'])}" if row["seeds"] else "")
        shape = (
            cell(plain(row["objective"] or "—")),
            value(str(row["blocks"]), "blocks"),
            value(str(row["width"]), "width"),
            cell(number(row["n_over_d"], 2)),
        )
        lines = [BodyRow((cell(label + marks), *shape, *measured))]
        if row["status"] != "not published":
            lines.append(_published_table2(row))
        return lines

    text = [
        r"body $\sigma_{(r_0)}$: smallest and largest over the block outputs $X_1,\ldots,X_L$ of the smallest active singular value of the centred "
        r"activations (not divided by $\sqrt{n}$). behaviour: of $\sigma_{(r_0)}(X_\ell)/\sigma_{(r_0)}(X_0)$ along the depth. Cosines: of the "
        r"bottom singular direction $u_\perp$ of the centred activations after the terminal norm (post-norm models: at the last block output). "
        + _counts_note(rows),
        "re-initialised: the same architecture from fresh seeds; medians over them, words counted where seeds differ.",
    ]
    return draw_table("Table 2. Residual-stream fingerprint", columns, _sections(rows, body), text + _closing(rows, columns, notes))


def _published_table2(row: Row) -> BodyRow:
    low, high = row["published_body_sigma_low"], row["published_body_sigma_high"]
    texts = (
        "published",
        "",
        "" if row["published_blocks"] is None else str(row["published_blocks"]),
        "" if row["published_width"] is None else str(row["published_width"]),
        _blank(row["published_n_over_d"], lambda value: number(value, 2)),
        "" if low is None else _range(low, high),
        row["published_behaviour"] or "",
        _blank(row["published_post_norm_cos_gamma_inv"], lambda value: decimals(value, 3)),
        _blank(row["published_post_norm_cos_ones"], lambda value: decimals(value, 3)),
    )
    return BodyRow(tuple(quiet(text) for text in texts), subordinate=True)


def _disagreements(row: Row) -> list[str]:
    if row["norm_kinds_agree"]:
        return []
    return [f"the activations read as {row['norm_kind_activations']}, the parameters as {row['norm_kind_parameters']}"]


def trained_vs_random(rows: Rows) -> Figure:
    """Growth of the smallest active singular value, trained against re-initialised. `rows` are of the schema trained_vs_random."""
    notes, names = Footnotes(), _Names(rows)
    maximum, minimum = r"$\max_\ell r_\ell$", r"$\min_\ell r_\ell$"
    terminal, cosine = r"$r$ after the terminal norm", r"$|\cos(u_\perp,\gamma^{-1})|$"
    columns = [
        Column("model", align="left", flexible=True),
        Column("$L$"),
        Column("seeds"),
        *(Column(head, group) for group in (maximum, minimum, terminal, cosine) for head in ("trained", "re-init.")),
    ]

    def body(row: Row) -> list[BodyRow]:
        deviates = set(row["deviations"])

        def value(name: str, suffix: str = "") -> Cell:
            text = number(row[name]) + (suffix if row[name] is not None else "")
            return cell(f"{text}*", weight="bold", color=DEVIATES) if name in deviates else cell(text)

        spread = ""
        if row["random_max_ratio_low"] is not None and row["random_seeds"] > 1:
            spread = f" [{number(row['random_max_ratio_low'])}, {number(row['random_max_ratio_high'])}]"
        marks = notes.mark([*precision_notes(row), *map(_flag, row["notes"])])
        cells = (
            cell(names.of(row) + marks),
            cell(str(row["blocks"])),
            cell(str(row["random_seeds"] or "—")),
            value("trained_max_ratio"),
            value("random_max_ratio", spread),
            value("trained_min_ratio"),
            value("random_min_ratio"),
            value("trained_post_norm_ratio"),
            value("random_post_norm_ratio"),
            cell(decimals(row["trained_cos_gamma_inv"], 4)),
            cell(decimals(row["random_cos_gamma_inv"], 4)),
        )
        lines = [BodyRow(cells)]
        if row["status"] != "not published":
            published = [
                _blank(row.get(f"published_{name}"), number)
                for name in ("trained_max_ratio", "random_max_ratio", None, None, "trained_post_norm_ratio", "random_post_norm_ratio")
            ]
            texts = ("published", _blank(row["published_blocks"], str), "", *published, "", "")
            lines.append(BodyRow(tuple(quiet(text) for text in texts), subordinate=True))
        return lines

    text = [
        r"$r_\ell=\sigma_{(r_0)}(X_\ell)/\sigma_{(r_0)}(X_0)$: smallest active singular value of the centred block outputs over that of the "
        "embedding. re-init.: the same architecture from fresh seeds, medians over them [smallest, largest]. In post-norm models every block ends in a "
        "norm, so the ratios describe the norms and do not test depth invariance. " + _counts_note(rows)
    ]
    return draw_table("Trained against re-initialised", columns, _sections(rows, body), text + _closing(rows, columns, notes))


class _Names:
    """How a row is called: the model, with its revision or stack where the table holds several of them."""

    def __init__(self, rows: Rows) -> None:
        self.revisions: dict[str, set[str]] = {}
        self.stacks: dict[str, set[str]] = {}
        for row in rows:
            self.revisions.setdefault(row["model"], set()).add(row["revision"])
            self.stacks.setdefault(row["model"], set()).add(row["stack"])

    def of(self, row: Mapping[str, Any]) -> str:
        name = row["model"]
        if len(self.revisions[name]) > 1:
            name += f" @ {row['revision']}"
        if len(self.stacks[row["model"]]) > 1:
            name += f", {row['stack']}"
        return plain(name)


def _sections(rows: Rows, body: Callable[[Row], list[BodyRow]]) -> list[Section]:
    """Rows grouped by norm kind and placement, in the order in which these first appear."""
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(f"{_norm_kind(row)}, {row['placement']}", []).append(row)
    return [Section(heading, [line for row in members for line in body(row)]) for heading, members in groups.items()]


def _norm_kind(row: Row) -> str:
    return row["norm_kind"] if "norm_kind" in row else row["norm_kind_parameters"]


def _closing(rows: Rows, columns: Sequence[Column], notes: Footnotes) -> list[str]:
    closing = [_DASH]
    statuses = {row[name] for row in rows for name in ("status", "random_status", "trained_status") if name in row}
    if "deviates" in statuses:
        closing.append(_DEVIATION)
    return closing + notes.lines()


def _counts_note(rows: Rows) -> str:
    tokens = sorted({row["n"] for row in rows})
    arithmetic = sorted({f"forward {row['forward_dtype']}, accumulation {row['accumulation']}" for row in rows})
    counts = ", ".join(map(_count, tokens)) if len(tokens) < 4 else f"{_count(tokens[0])} to {_count(tokens[-1])}"
    return f"$n$ = {counts} tokens; {'; '.join(arithmetic)}."


def _count(value: int) -> str:
    return f"{value:,}"


def _seeds(count: int) -> str:
    return f"{count} seed{'s' if count > 1 else ''}"


def _range(low: float, high: float) -> str:
    return f"{number(low)} – {number(high)}"


def _blank(value: Any, text: Callable[[Any], str]) -> str:
    return "" if value is None else text(value)


def _flag(flag: str) -> str:
    return plain(flag.replace("_", " "))


# --- figures --------------------------------------------------------------------------------------------------------------------------------


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


_COLUMNS, _PANEL_HEIGHT, _LEFT, _RIGHT, _GUTTER = 4, 68.0, 38.0, 5.0, 13.0
_TITLE_LEADING, _LEGEND, _XLABEL = 9.0, 20.0, 26.0


def figure3(rows: Rows) -> Figure:
    """Depth profile: sigma of X_l over that of X_0 against relative depth, one panel per stack. `rows` are of the schema figure3."""
    rows = _one_arithmetic(rows)
    finite = [row["ratio_to_embedding"] for row in rows if row["ratio_to_embedding"] is not None] + [1.0]
    low, high = min(finite), max(finite)
    room = 10 ** (0.2 * max(math.log10(high / low), 1.0))
    limits = (low / room, high * 10 ** (0.07 * max(math.log10(high / low), 1.0)))

    def plot(axes: Axes, panel: _Panel) -> None:
        axes.set(xlim=(-0.03, 1.03), ylim=limits, yscale="log", xticks=(0, 0.5, 1), xticklabels=("0", "0.5", "1"))
        axes.axhline(1, color=GREY, linewidth=0.6, zorder=1)
        _plot_floor(axes, panel, limits[0])
        for kind in ("re-initialised", "trained"):
            _plot_series(axes, panel.of_kind(kind), kind, "relative_depth", lambda row: row["ratio_to_embedding"], lambda row: False)

    handles = [*_series_handles(rows), Line2D([], [], color=GREY, linewidth=0.6, label="ratio 1"), _FLOOR_HANDLE]
    return _small_multiples(
        rows,
        plot,
        r"relative depth $\ell/L$",
        r"$\sigma_{(r_0)}(X_\ell)\,/\,\sigma_{(r_0)}(X_0)$",
        handles,
        [
            r"$\sigma_{(r_0)}$: smallest active singular value of the centred activations. Grey panels: post-norm models, where each block ends in a norm and "
            "depth invariance does not apply. floor: the larger of the forward and accumulation floors over $\\sigma_{(r_0)}(X_0)$, written out where it lies "
            "below the axis."
        ],
    )


def figure6(rows: Rows) -> Figure:
    """Schur ratio R = 1 - delta at the query/key/value input by block, one panel per stack. `rows` are of the schema figure6."""
    rows = [row for row in _one_arithmetic(rows) if row["tap"] == SCHUR_TAP and row["delta_recovered"] is not None]
    if not rows:
        raise InputError(f"figure6: no Schur value at {SCHUR_TAP}; measure at least one model whose query/key/value input is a norm's output")
    positive = [1 - row["delta_recovered"] for row in rows if row["delta_recovered"] < 1]
    span = max(-math.log10(min(positive, default=0.1)), 1.0)
    limits = (10 ** (-1.08 * span), 10 ** (0.08 * span))

    def plot(axes: Axes, panel: _Panel) -> None:
        blocks = max(row["block"] for row in panel.rows)
        axes.set(xlim=(0.5 - 0.02 * blocks, blocks + 0.5 + 0.02 * blocks), ylim=limits, yscale="log", xticks=_block_ticks(blocks))
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
        rows,
        plot,
        r"block $\ell$",
        r"$R=\lambda_{\min}(A)\,/\,u^\top\!Au=1-\Delta_\gamma$",
        handles,
        [
            r"$A=X^\top\!X/n$ at the input of the query/key/value maps, $u=\gamma^{-1}/\|\gamma^{-1}\|$ of the norm that feeds them. Hollow: the value (of the seeds, "
            "at least half of the values) lies at or below the rounding floor; on the lower edge: at or below it."
        ],
    )


def _one_arithmetic(rows: Rows) -> list[Row]:
    """Rows of one forward arithmetic per stack: float32, the published protocol, where it was measured, else the first by name."""
    dtypes: dict[tuple[str, str, str], set[str]] = {}
    for row in rows:
        dtypes.setdefault(_place(row), set()).add(row["forward_dtype"])
    chosen = {place: "float32" if "float32" in names else min(names) for place, names in dtypes.items()}
    return [row for row in rows if row["forward_dtype"] == chosen[_place(row)]]


def _place(row: Row) -> tuple[str, str, str]:
    return row["model"], row["revision"], row["stack"]


_SERIES = {
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
            label = kind if kind == "trained" else f"random initialisation: median and range, {_seeds(seeds)}"
            shown = {**look, "label": label, "markersize": 3, "linewidth": 1.0}
            handles.append(Line2D([], [], **shown))
    return handles


def _plot_series(
    axes: Axes, rows: Rows, kind: str, x: str, value: Callable[[Row], float | None], is_noise: Callable[[Row], bool]
) -> None:
    """A line through the values (over seeds: the median, with a band from smallest to largest); markers hollow where half or more is noise."""
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
    look: dict[str, Any] = dict(_SERIES[kind])
    middle = [float(numpy.median(values[place])) for place in places]
    size = 3.0 if len(places) <= 13 else 2.2
    if kind == "re-initialised":
        band = [[extreme(values[place]) for place in places] for extreme in (min, max)]
        axes.fill_between(places, *band, color=look["color"], alpha=0.3, linewidth=0, zorder=2)
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
    """The floor of the checkpoint (else of the first seed) relative to its embedding: hatched where the axis shows it, otherwise in words."""
    own = panel.of_kind("trained") or [row for row in panel.rows if row["seed"] == min(each["seed"] for each in panel.rows)]
    own = sorted(own, key=lambda row: row["block"])
    reference = next((row["sigma_active_min"] for row in own if row["block"] == 0), None)
    if not reference:
        axes.text(0.5, 0.5, "embedding below floor:\nno ratio", transform=axes.transAxes, ha="center", va="center", size=style.NOTE, color=GREY)
        return
    depth, floor = [row["relative_depth"] for row in own], [row["floor"] / reference for row in own]
    if max(floor) > bottom:
        axes.fill_between(depth, bottom, floor, facecolor="none", edgecolor=GREY, hatch="//////", linewidth=0.5, zorder=1)
    else:
        axes.text(0.02, 0.03, rf"floor $\leq$ {number(max(floor), 1)}", transform=axes.transAxes, ha="left", va="bottom", size=style.NOTE, color=GREY)


def _block_ticks(blocks: int) -> list[int]:
    step = max(1, math.ceil(blocks / 4))
    return sorted({1, *range(step, blocks + 1, step)} - ({step} if step in (2,) and blocks > 2 else set()))


def _panels(rows: Rows, ruler: Ruler, width: float, notes: Footnotes) -> list[_Panel]:
    names = _Names(rows)
    groups: dict[tuple[str, str, str], list[Row]] = {}
    for row in rows:
        groups.setdefault(_place(row), []).append(row)
    panels = []
    for members in groups.values():
        first = members[0]
        name = ruler.wrap(names.of(first) + notes.mark(precision_notes(first)), width, style.BODY, "bold")
        facts = f"{first['norm_kind']}, {first['placement']}, $n$ = {_count(first['n'])}"
        panels.append(_Panel(members, tuple(name), tuple(ruler.wrap(facts, width, style.NOTE))))
    order = list(dict.fromkeys((panel.rows[0]["norm_kind"], panel.rows[0]["placement"]) for panel in panels))
    return sorted(panels, key=lambda panel: order.index((panel.rows[0]["norm_kind"], panel.rows[0]["placement"])))


def _small_multiples(
    rows: Rows, plot: Callable[[Axes, _Panel], None], xlabel: str, ylabel: str, handles: Sequence[Any], notes: Sequence[str]
) -> Figure:
    """Panels in rows of four with shared limits, a legend above and notes below; sizes in points, so that nothing overlaps however many there are."""
    with matplotlib.rc_context(style.RC):
        ruler, footnotes = Ruler(), Footnotes()
        full = 72 * style.WIDTH
        width = (full - _LEFT - _RIGHT - _GUTTER * (_COLUMNS - 1)) / _COLUMNS
        panels = _panels(rows, ruler, width, footnotes)
        chunks = [panels[start : start + _COLUMNS] for start in range(0, len(panels), _COLUMNS)]
        titles = [max(panel.lines for panel in chunk) * _TITLE_LEADING + 4 for chunk in chunks]
        arithmetic = sorted({f"forward {row['forward_dtype']}, accumulation {row['accumulation']}" for row in rows})
        texts = [f"{' '.join(notes)} $n$: tokens per site. {'; '.join(arithmetic)}.", *footnotes.lines()]
        closing = [line for text in texts for line in ruler.wrap(text, full - 2 * _RIGHT, style.NOTE)]
        last = len(chunks) - 1
        bodies = [_PANEL_HEIGHT + (_XLABEL if index >= last - 1 else 14.0) for index in range(len(chunks))]
        height = _LEGEND + sum(titles) + sum(bodies) + len(closing) * _TITLE_LEADING + 8
        figure = Figure(figsize=(style.WIDTH, height / 72))
        figure.legend(
            handles=list(handles),
            loc="upper left",
            bbox_to_anchor=(_LEFT / full, 1 - 2 / height),
            ncols=len(handles),
            frameon=False,
            borderaxespad=0,
            borderpad=0,
            handlelength=2.4,
            columnspacing=1.4,
        )
        y = _LEGEND
        top = y + titles[0]
        for index, chunk in enumerate(chunks):
            y += titles[index]
            for column, panel in enumerate(chunk):
                x = _LEFT + column * (width + _GUTTER)
                axes = figure.add_axes((x / full, 1 - (y + _PANEL_HEIGHT) / height, width / full, _PANEL_HEIGHT / height))
                if panel.rows[0]["placement"] == "post-norm":
                    axes.set_facecolor(style.PALE)
                plot(axes, panel)
                _title(axes, panel)
                axes.tick_params(labelleft=column == 0)
                axes.minorticks_off()
                if index == last or (index == last - 1 and column >= len(chunks[last])):
                    axes.set_xlabel(xlabel, labelpad=2)
            y += bodies[index]
        middle = (top + y - bodies[last] + _PANEL_HEIGHT) / 2
        figure.text(2 / full, 1 - middle / height, ylabel, rotation=90, ha="left", va="center", size=style.BODY)
        for line in closing:
            y += _TITLE_LEADING
            figure.text(_RIGHT / full, 1 - y / height, line, ha="left", va="baseline", size=style.NOTE)
        return figure


def _title(axes: Axes, panel: _Panel) -> None:
    entries = [(line, style.NOTE, "normal", GREY) for line in reversed(panel.subtitle)]
    entries += [(line, style.BODY, "bold", "black") for line in reversed(panel.title)]
    for row, (text, size, weight, color) in enumerate(entries):
        axes.annotate(
            text,
            (0, 1),
            xytext=(0, 4 + row * _TITLE_LEADING),
            xycoords="axes fraction",
            textcoords="offset points",
            size=size,
            weight=weight,
            color=color,
            annotation_clip=False,
        )


DRAWINGS: dict[str, Callable[[Rows], Figure]] = {
    "table1": table1,
    "table2": table2,
    "trained_vs_random": trained_vs_random,
    "figure3": figure3,
    "figure6": figure6,
}
