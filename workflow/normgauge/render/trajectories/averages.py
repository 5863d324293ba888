"""Two checkpoints averaged after `normgauge align`, and without it, as a typeset table."""

from __future__ import annotations

from collections.abc import Callable

from matplotlib.figure import Figure

from normgauge.render.declared import Field, share, table, value, words
from normgauge.render.formats import decimals
from normgauge.render.rows import Row, Rows, grouped
from normgauge.schemas.trajectories import PERMUTED, PLACED, RECORDED, SIGNED, UNALIGNED

_WAYS = {
    UNALIGNED: "before",
    PERMUTED: "$S_d$: permutation of streams and units by $C$",
    PLACED: "$S_d$: what align finds, without signs",
    SIGNED: "$B_d$: what align writes",
    RECORDED: "in one basis from the start",
}


def averages(rows: Rows) -> Figure:
    """The loss of the average by pair, text and way. `rows` are of the schema aligned_merges."""
    texts = list(dict.fromkeys(row["text"] for row in rows))
    sections = {
        _heading(pair[0]): [_ends(pair, texts)] + [_line(way) for way in grouped(pair, "way")]
        for pair in grouped(rows, "first", "second")
    }
    fields = (
        words("the second is taken", lambda row: row["way"], flexible=True),
        *(Field(text, _loss(text), "loss of the average, nat per token") for text in texts),
        value("weights\napart", "apart"),
        share("certain", "certain"),
    )
    notes = [
        "Loss of the average of the two checkpoints' weights on sequences that fine-tuning has "
        "left out, with the standard error over sequences of its distance from the mean of the "
        "two ends. The ends: losses of the first and of the second alone. All models are trained "
        "here and small. Fine-tunes start from one base, each in coordinates of its own, which are "
        "recorded; the last line of such a pair undoes the records. certain: share of "
        "coordinates, units, heads and maps that align calls certain.",
    ]
    return table("Align before you average", fields, sections, notes)


def _heading(row: Row) -> str:
    return f"{row['first']} and {row['second']}: {row['kind']}"


def _ends(pair: Rows, texts: list[str]) -> Row:
    """The line of the two ends: what an average has to be compared with."""
    ends = {
        text: next((row["first_loss"], row["second_loss"]) for row in pair if row["text"] == text)
        for text in texts
    }
    said = {text: ", ".join(decimals(loss, 2) for loss in both) for text, both in ends.items()}
    return {"way": "the ends", "apart": None, "certain": None, **said}


def _line(rows: Rows) -> Row:
    first = rows[0]
    said = {
        row["text"]: f"{decimals(row['average_loss'], 2)} ± {decimals(row['rise_error'], 2)}"
        for row in rows
    }
    certain = first["certain"] if first["way"] == SIGNED else None
    return {"way": _WAYS[first["way"]], "apart": first["apart"], "certain": certain, **said}


def _loss(text: str) -> Callable[[Row], str]:
    return lambda row: row[text]
