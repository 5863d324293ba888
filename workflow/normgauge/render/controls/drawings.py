"""The table of controls, typeset: one line for each control, its models pooled."""

from __future__ import annotations

from collections.abc import Callable

from matplotlib.figure import Figure

from normgauge.render.controls.reading import Must
from normgauge.render.declared import Drawing, Field, counted, table, value, words
from normgauge.render.rows import Row, Rows, grouped
from normgauge.render.style import DEVIATES, GREY
from normgauge.render.text import plain
from normgauge.render.typeset import Cell, cell
from normgauge.schemas.verdicts import Verdict

_EFFECT, _MODELS = "effect / tolerance", "models"


def _failed(row: Row) -> str | Cell:
    return cell(str(row["failed"]), color=DEVIATES) if row["failed"] else "0"


_FIELDS = (
    words("control", "control", flexible=True),
    words("would detect", "fault", flexible=True),
    value("least", "least", _EFFECT),
    value("read", "read", _EFFECT),
    counted("passed", "passed", _MODELS),
    Field("failed", _failed, _MODELS),
    counted("no power", "no power", _MODELS),
)


def draw_controls(rows: Rows) -> Figure:
    """One line per control, its models pooled. `rows` are of the schema `controls`."""
    sections = {
        plain(each[0]["study"]): [_pooled(group) for group in grouped(each, "control", "fault")]
        for each in grouped(rows, "study")
    }
    without = [row for row in rows if row["verdict"] == Verdict.NO_POWER]
    notes = [
        "least: smallest effect that the fault would have had (or that was predicted of a change "
        "that must show), over the largest that "
        "counts as none, among the models in which it stands out. read: what was measured, over "
        "the same tolerance, the worst of them. "
        "Without a tolerance the effect itself is given. no power: nothing could have been seen, "
        "so nothing was shown.",
        *([f"Without power: {plain('; '.join(_places(without)))}."] if without else []),
    ]
    return table(
        "Controls, and what each could have shown",
        _FIELDS,
        sections,
        notes,
        look=lambda row: {} if row["passed"] or row["failed"] else {"color": GREY},
    )


def _pooled(rows: Rows) -> Row:
    """One control over its models."""
    powered = [row for row in rows if row["verdict"] != Verdict.NO_POWER]
    return {
        "control": rows[0]["control"],
        "fault": rows[0]["fault"],
        "least": _over(powered, "expected", min),
        "read": _over(powered, "measured", min if rows[0]["must"] == Must.SHOW else max),
        **{str(verdict): sum(row["verdict"] == verdict for row in rows) for verdict in Verdict},
    }


def _over(rows: Rows, key: str, choose: Callable[..., float | None]) -> float | None:
    """The chosen value over its tolerance, where there is one."""
    values = [
        row[key] / row["tolerance"] if row["tolerance"] else row[key]
        for row in rows
        if row[key] is not None
    ]
    return choose(values, default=None)


def _places(rows: Rows) -> list[str]:
    """Where controls have no power: each control with the first models."""
    places: dict[str, list[str]] = {}
    for row in rows:
        places.setdefault(row["control"], []).append(row["model"])
    return [
        f"{control}: {', '.join(models[:3])}" + _rest(len(models) - 3)
        for control, models in places.items()
    ]


def _rest(count: int) -> str:
    return f" and {count} more" if count > 0 else ""


DRAWINGS = {"controls": Drawing("controls", draw_controls)}
