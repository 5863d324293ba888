"""A control, its readings, and what they come to."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from normgauge.schemas.verdicts import POWER, Verdict, summarised

Row = Mapping[str, Any]
Rows = Sequence[Row]
CRITICAL = 2.0
"""By how many critical values of a test the fault must stand out of chance. A critical value holds
chance already.
"""


class Must(StrEnum):
    """What a control has to do."""

    SHOW = "show"
    NOT_SHOW = "not show"


@dataclass(frozen=True)
class Reading:
    """One row's: see the columns of the schema `controls`. `judged`: the row's own verdict, where
    its table has one.
    """

    model: str
    expected: float | None
    tolerance: float
    measured: float | None
    judged: str | None = None


@dataclass(frozen=True)
class Control:
    """One control of a study.

    `table`: the kind of schema that it is read from; `columns` of it show the control. `elsewhere`:
        by other table, columns that are made
    from these. `power`: tolerances that the expected effect must reach. `read`: rows of the table
        to readings.
    """

    study: str
    name: str
    table: str
    columns: tuple[str, ...]
    fault: str
    must: Must
    unit: str
    read: Callable[[Rows], Iterable[Reading]]
    elsewhere: Mapping[str, tuple[str, ...]]
    power: float = POWER


def verdict_of(control: Control, reading: Reading) -> Verdict:
    """No power where nothing could have been seen, whatever was measured; then the table's own
    verdict, or ours.
    """
    expected, measured = reading.expected, reading.measured
    if (
        measured is None
        or expected is None
        or not (expected > 0 and expected >= control.power * reading.tolerance)
    ):
        return Verdict.NO_POWER
    if reading.judged is not None:
        return Verdict(reading.judged)
    seen = not measured <= reading.tolerance
    return Verdict.PASSED if seen == (control.must == Must.SHOW) else Verdict.FAILED


def rows_of(control: Control, rows: Rows) -> list[dict[str, Any]]:
    """Rows of schema `controls`: one per model, in order of appearance."""
    models: dict[str, list[Reading]] = {}
    for reading in control.read(rows):
        models.setdefault(reading.model, []).append(reading)
    return [_row(control, model, readings) for model, readings in models.items()]


def _row(control: Control, model: str, readings: Sequence[Reading]) -> dict[str, Any]:
    """The readings of one model together; those without power are counted and, beside others, do
    not enter the numbers.
    """
    verdicts = [verdict_of(control, reading) for reading in readings]
    powered = [
        reading
        for reading, verdict in zip(readings, verdicts, strict=True)
        if verdict != Verdict.NO_POWER
    ]
    shown = powered or readings
    measured = [reading.measured for reading in shown if reading.measured is not None]
    worst = min if control.must == Must.SHOW else max
    return {
        "study": control.study,
        "control": control.name,
        "table": control.table,
        "columns": list(control.columns),
        "model": model,
        "fault": control.fault,
        "must": str(control.must),
        "readings": len(readings),
        "without_power": len(readings) - len(powered),
        "unit": control.unit,
        "expected": min(
            (reading.expected for reading in shown if reading.expected is not None), default=None
        ),
        "tolerance": max(reading.tolerance for reading in shown),
        "measured": worst(measured, default=None),
        "verdict": str(
            summarised([verdict for verdict in verdicts if verdict != Verdict.NO_POWER])
        ),
    }


def model_of(row: Row) -> str:
    """model@revision, and the stream where the row has one."""
    name = f"{row['model']}@{row['revision']}"
    return f"{name}, {row['stack']}" if "stack" in row else name
