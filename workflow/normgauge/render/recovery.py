"""Tables and figures of exact recovery, from the maps of the checkpoints alone."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from itertools import cycle

import matplotlib
from matplotlib.figure import Figure

from normgauge.render import style
from normgauge.render.labels import Names, Row, Rows
from normgauge.render.style import GREY, Ruler, number, plain
from normgauge.render.typeset import BodyRow, Column, Section, cell, draw_table
from normgauge.schemas.recovery import tables
from normgauge.tables import read_metadata

Paths = Sequence[str | os.PathLike[str]]

_LOOKS = (("#0072B2", "-"), ("#E69F00", (0, (4, 1.5))), ("#009E73", (0, (1, 1))), ("#CC79A7", (0, (4, 1, 1, 1))), ("#56B4E9", (0, (8, 2))))
"""Colours and line styles of checkpoints; they begin again where there are more."""


def write_tables(maps: Paths, nulls: Paths, outputs: Mapping[str, str | os.PathLike[str]]) -> None:
    """Concatenate recovery/{map,null}.parquet of checkpoints, in the order given, into recovery{,_calibration} as parquet and CSV.

    `outputs`: paths by recovery, recovery_csv, calibration, calibration_csv.
    """
    rows = [{**_checkpoint(path), **row} for path in maps for row in tables.read(path, "recovery_map")]
    scores: dict[tuple[str, str], float] = {}
    for row in rows:
        if row["score"] is not None:
            place = row["model"], row["revision"]
            scores[place] = max(scores.get(place, 0.0), row["score"])
    calibration = []
    for path in nulls:
        identity = _checkpoint(path)
        score = scores.get((identity["model"], identity["revision"]))
        calibration += [{**identity, **row, "score": score} for row in tables.read(path, "recovery_null")]
    for key, kind, content in (("recovery", "recovery", rows), ("calibration", "recovery_calibration", calibration)):
        tables.write(outputs[key], kind, content, {})
        tables.write_csv(outputs[f"{key}_csv"], kind, content)


def _checkpoint(path: str | os.PathLike[str]) -> dict[str, str]:
    metadata = read_metadata(path)
    return {key: metadata[key] for key in ("model", "revision")}


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


def calibration(rows: Rows) -> Figure:
    """Histogram of rounding residuals at wrong places over the uniform expectation. `rows` are of the schema recovery_calibration."""
    names = Names(rows, ("revision",))
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(names.of(row), []).append(row)
    groups = {name: members for name, members in groups.items() if any(row["count"] for row in members)}
    note = (
        "Certified columns of every map behind a LayerNorm, all their coordinates, at random wrong places in the search window; grey: the "
        "uniform distribution. Triangles: the worst residual over the well determined coordinates at the recovered places."
    )
    with matplotlib.rc_context(style.RC):
        full = 72 * style.WIDTH
        lines = Ruler().wrap(note, full - 10, style.NOTE)
        top, depth, foot = 20.0 + 11 * len(groups), 110.0, 32.0 + 10 * len(lines)
        height = top + depth + foot
        figure = Figure(figsize=(style.WIDTH, height / 72))
        axes = figure.add_axes((36 / full, foot / height, (full - 46) / full, depth / height))
        for (name, members), (color, line) in zip(groups.items(), cycle(_LOOKS), strict=False):
            total, edges = sum(row["count"] for row in members), [row["low"] for row in members] + [members[-1]["high"]]
            shares = [row["count"] * len(members) / total for row in members]
            axes.stairs(shares, edges, baseline=None, color=color, linestyle=line, linewidth=1.0, label=f"{name}: {total:,} residuals")
            if members[0]["score"] is not None:
                axes.plot(members[0]["score"], 0, marker="v", markersize=5, color=color, clip_on=False, zorder=4)
        axes.axhline(1, color=GREY, linewidth=0.6, zorder=1)
        axes.set(xlim=(0, 0.5), ylim=(0, 1.5))
        axes.set(xlabel="rounding residual at a wrong place on the gauge line, ulp", ylabel="count / uniform")
        figure.text(5 / full, 1 - 11 / height, "Rounding residuals at wrong places", weight="bold", ha="left", va="baseline")
        place = (5 / full, 1 - 15 / height)
        figure.legend(loc="upper left", bbox_to_anchor=place, frameon=False, borderaxespad=0, borderpad=0, labelspacing=0.25)
        for below, text in enumerate(lines):
            figure.text(5 / full, (foot - 34 - 10 * below) / height, text, ha="left", va="baseline", size=style.NOTE)
        return figure


DRAWINGS: dict[str, Callable[[Rows], Figure]] = {"recovery": recovery, "recovery_calibration": calibration}
