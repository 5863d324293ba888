"""The table of controls and its sheet, from the tables of the studies alone."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure

from normgauge.render.controls.reading import Must, Row, Rows, rows_of
from normgauge.render.controls.registry import CONTROLS, SCHEMAS
from normgauge.render.style import BLACK, DEVIATES, GREY, number, plain
from normgauge.render.typeset import BodyRow, Column, Section, cell, draw_table
from normgauge.schemas.controls import tables
from normgauge.schemas.verdicts import Verdict
from normgauge.tables import read_metadata

Path = str | os.PathLike[str]


def write_table(inputs: Mapping[str, Sequence[Path]], parquet: Path, csv: Path) -> None:
    """Write the table `controls` as parquet and CSV. `inputs`: files by kind of table; kinds without files are left out."""
    found = {kind: [row for path in paths for row in read_rows(kind, path)] for kind, paths in inputs.items()}
    rows = [row for control in CONTROLS for row in rows_of(control, found.get(control.table, ()))]
    tables.write(parquet, "controls", rows, {})
    tables.write_csv(csv, "controls", rows)


def read_rows(kind: str, path: Path) -> Iterator[dict[str, Any]]:
    """Rows of a study's table; where they do not name their models, as `model` and `revision` or as `pair`, its metadata does."""
    metadata = read_metadata(path)
    owner: dict[str, Any] = {key: metadata[key] for key in ("model", "revision") if key in metadata}
    if "model_a" in metadata:
        owner = {"pair": " to ".join(f"{metadata[f'model_{side}']}@{metadata[f'revision_{side}']}" for side in "ab")}
    for row in SCHEMAS[kind][0].read(path, kind):
        yield {**owner, **row}


def draw_controls(rows: Rows) -> Figure:
    """One line per control, its models pooled. `rows` are of the schema `controls`."""
    columns = [
        Column("control", align="left", flexible=True),
        Column("would detect", align="left", flexible=True),
        Column("least", group="effect / tolerance"),
        Column("read", group="effect / tolerance"),
        Column("passed", group="models"),
        Column("failed", group="models"),
        Column("no power", group="models"),
    ]
    studies = list(dict.fromkeys(row["study"] for row in rows))
    sections = [Section(plain(study), [_line(members) for members in _controls(rows, study)]) for study in studies]
    without = [row for row in rows if row["verdict"] == Verdict.NO_POWER]
    notes = [
        "least: smallest effect that the fault would have had (or that was predicted of a change that must show), over the largest that "
        "counts as none, among the models in which it stands out. read: what was measured, over the same tolerance, the worst of them. "
        "Without a tolerance the effect itself is given. no power: nothing could have been seen, so nothing was shown.",
        *([f"Without power: {plain('; '.join(_places(without)))}."] if without else []),
    ]
    return draw_table("Controls, and what each could have shown", columns, sections, notes)


def _controls(rows: Rows, study: str) -> list[list[Row]]:
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        if row["study"] == study:
            groups.setdefault((row["control"], row["fault"]), []).append(row)
    return list(groups.values())


def _line(rows: Sequence[Row]) -> BodyRow:
    powered = [row for row in rows if row["verdict"] != Verdict.NO_POWER]
    counts = [sum(row["verdict"] == verdict for row in rows) for verdict in (Verdict.PASSED, Verdict.FAILED, Verdict.NO_POWER)]
    worst = min if rows[0]["must"] == Must.SHOW else max
    color = BLACK if powered else GREY
    return BodyRow(
        (
            cell(plain(rows[0]["control"]), color=color),
            cell(plain(rows[0]["fault"]), color=color),
            cell(_over(powered, "expected", min), color=color),
            cell(_over(powered, "measured", worst), color=color),
            cell(str(counts[0]), color=color),
            cell(str(counts[1]), color=DEVIATES if counts[1] else color),
            cell(str(counts[2]), color=color),
        )
    )


def _over(rows: Sequence[Row], key: str, choose) -> str:
    values = [row[key] / row["tolerance"] if row["tolerance"] else row[key] for row in rows if row[key] is not None]
    return number(choose(values), 2) if values else "—"


def _places(rows: Sequence[Row]) -> list[str]:
    """Where controls have no power: each control with the first models."""
    places: dict[str, list[str]] = {}
    for row in rows:
        places.setdefault(row["control"], []).append(row["model"])
    return [
        f"{control}: {', '.join(models[:3])}{f' and {len(models) - 3} more' if len(models) > 3 else ''}"
        for control, models in places.items()
    ]


DRAWINGS = {"controls": draw_controls}
