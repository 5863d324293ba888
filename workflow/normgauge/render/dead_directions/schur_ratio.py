"""Table 1: the Schur ratio along the inverse-gain direction, beside the published values."""

from __future__ import annotations

import math

from matplotlib.figure import Figure

from normgauge.render import style
from normgauge.render.dead_directions.schur_ratio_rows import mostly_below_floor
from normgauge.render.dead_directions.sheet import (
    UNCERTAINTY,
    closing,
    counts_note,
    deviating,
    sections,
    uncertain,
)
from normgauge.render.declared import Field, counted, table, words
from normgauge.render.formats import NOTHING, decimals, number, percent
from normgauge.render.labels import Names, input_notes, weight_notes
from normgauge.render.rows import Row, Rows
from normgauge.render.style import DIRECTION, FORM, GREY
from normgauge.render.text import Footnotes
from normgauge.render.typeset import Cell, Line, cell

_PARTS = ("random", "trained")


def table1(rows: Rows) -> Figure:
    """Schur delta at the query/key/value input, random and trained, beside the published values.
    `rows` are of the schema table1.
    """
    notes, names = Footnotes(), Names(rows, ("revision", "stack"))

    def name(row: Row) -> str:
        return names.of(row) + notes.mark([*weight_notes(row), *input_notes(row)])

    trained = r"$\Delta_\gamma$ trained"
    fields = (
        Field("model", name, "", "left", True, {"published": lambda row: "published"}),
        counted("$h$", "width"),
        counted("$n$", "n"),
        words("forward", "forward_dtype"),
        Field("seeds", lambda row: str(row["random_seeds"] or NOTHING)),
        _delta("random", r"$\Delta_\gamma$ at random init.", ""),
        _delta("trained", "measured", trained),
        Field("predicted", lambda row: _predicted_delta(row, "trained"), trained, "left"),
        Field(r"$|\cos(w,u)|$", lambda row: decimals(row["trained_bottom_cos_gamma_inv"], 3)),
        Field("beat", lambda row: number(row["trained_directional_beat"], 2)),
    )
    return table(
        r"Table 1. Schur ratio $\Delta_\gamma$ along the inverse-gain direction",
        fields,
        sections(rows),
        [*_notes(rows), closing(rows)],
        lines=_lines,
        footnotes=notes,
    )


def _lines(row: Row) -> list[str]:
    return ["", "published"] if any(_published_delta(row, part) for part in _PARTS) else [""]


def _delta(part: str, head: str, group: str) -> Field:
    under = {"published": lambda row: _published_delta(row, part)}
    return Field(head, lambda row: _delta_cell(row, part), group, "left", under=under)


def _notes(rows: Rows) -> list[str]:
    """What the columns are, and what the signs mean that occur in these rows."""
    text = [
        rf"Median over blocks (and seeds) of $\Delta_\gamma=1-\lambda_{{\min}}(A)/{FORM}$, "
        rf"${DIRECTION}$, at the input of the "
        "query/key/value maps [quartiles]; below it, in grey, $1-\\Delta_\\gamma$. "
        f"{counts_note(rows)}",
        r"predicted: behind a LayerNorm, $1-1/(1+T^2)$ with the median of "
        r"$T^2=m^\mathrm{T}C^{+}\!m$, $m$ and $C$ being the mean and the "
        r"covariance of the norm's output. $\Delta_\gamma$ near 1 says that $T^2$ is large, not "
        r"that a direction of $C$ lies deeper "
        r"than $u$. $w$: bottom eigenvector of $A$, trained. beat: smallest $A_{ii}$, the best "
        f"axis, over ${FORM}$, trained, median over blocks; below 1 an axis beats $u$.",
        f"below floor: in at least half of the pooled values ${FORM}$ lies at or below the "
        "rounding floor of the forward pass or of "
        "the accumulation; the reading is noise and is printed only to show it, with the medians "
        f"of ${FORM}$ and of the floor.",
    ]
    if any(row[f"{part}_lower_bound"] for row in rows for part in _PARTS):
        text.append(
            r"≥: $\lambda_{\min}$ lies below floor in some of the values; they count as their "
            r"lower bounds, and the median is one."
        )
    text.append(UNCERTAINTY)
    if any(0 < (row[f"{part}_below_floor"] or 0) < 0.5 for row in rows for part in _PARTS):
        text.append(
            "A percentage after a value is the share of the pooled values that lie below floor."
        )
    return text


def _delta_cell(row: Row, part: str) -> Cell:
    median, low, high = (
        row[f"{part}_{statistic}"] for statistic in ("median", "first_quartile", "third_quartile")
    )
    if median is None:
        return cell(NOTHING)
    bounded = row[f"{part}_lower_bound"]
    value = (
        f"{_bound(median, 4) if bounded else decimals(median, 4)} [{decimals(low, 3)}, "
        f"{decimals(high, 3)}]"
    )
    if mostly_below_floor(row, part):
        form, floor = number(row[f"{part}_quadratic_form"], 2), number(row[f"{part}_floor"], 2)
        reading = (f"reads {value}", f"${FORM}$ {form}, floor {floor}")
        return (
            Line("below floor", slant="italic"),
            *(Line(text, size=style.NOTE, color=GREY) for text in reading),
        )
    share = row[f"{part}_below_floor"]
    text = value + (f" {percent(share, 0)}" if share else "")
    first = deviating(text) if row[f"{part}_status"] == "deviates" else cell(text)
    return (
        first
        + _ratio(median, "≤ " if bounded else "")
        + uncertain(row, f"{part}_median", lambda end: decimals(end, 4))
    )


def _bound(value: float, places: int) -> str:
    """A lower bound, rounded down, so that it stays one."""
    return f"≥ {decimals(math.floor(value * 10**places) / 10**places, places)}"


def _ratio(delta: float, prefix: str = "") -> Cell:
    """1 - delta on a line of its own, where the decimals of delta do not show it."""
    return (Line(prefix + number(1 - delta), size=style.NOTE, color=GREY),) if delta > 0.99 else ()


def _predicted_delta(row: Row, part: str) -> Cell:
    predicted = row[f"{part}_predicted"]
    return (
        cell(NOTHING)
        if predicted is None
        else cell(decimals(predicted, 4)) + _ratio(predicted) + uncertain(row, f"{part}_predicted")
    )


def _published_delta(row: Row, part: str) -> str:
    median, low, high = (
        row.get(f"published_{part}_{statistic}")
        for statistic in ("median", "first_quartile", "third_quartile")
    )
    if median is None:
        return ""
    return decimals(median, 3) + (
        "" if low is None else f" [{decimals(low, 2)}, {decimals(high, 2)}]"
    )
