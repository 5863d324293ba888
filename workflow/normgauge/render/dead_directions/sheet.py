"""What the typeset tables of the dead directions share: sections, uncertainties, closing notes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from normgauge.render import style
from normgauge.render.formats import count, near_one, number
from normgauge.render.labels import arithmetic
from normgauge.render.rows import Row, Rows
from normgauge.render.style import DEVIATES, GREY
from normgauge.render.text import plain
from normgauge.render.typeset import Cell, Line, cell

_DASH = "— not defined or not measured for this model."
UNCERTAINTY = (
    "±: one standard error over sequences, by the jackknife over groups of them; none where "
    "rounding hides it. "
    "[ ] beneath: smallest and largest over seeds."
)
_DEVIATION = (
    "* bold: differs from the published value by more than the tolerance in config/published/."
)


def sections(rows: Rows) -> dict[str, Rows]:
    """Rows by norm kind and placement, in the order in which these first appear."""
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(f"{row['norm_kind']}, {row['placement']}", []).append(row)
    return dict(groups)


def closing(rows: Rows) -> str:
    """The note that ends a table: what a dash and an asterisk are."""
    return " ".join([_DASH, *([_DEVIATION] if any(row["deviations"] for row in rows) else [])])


def counts_note(rows: Rows) -> str:
    """How many tokens, and in which arithmetic."""
    tokens = sorted({row["n"] for row in rows})
    counts = (
        " and ".join(map(count, tokens))
        if len(tokens) < 3
        else f"{count(tokens[0])} to {count(tokens[-1])}"
    )
    return f"$n$ = {counts} tokens; {arithmetic(rows)}."


def uncertain(row: Row, name: str, text: Callable[[float], str] = number) -> Cell:
    """What stands under a number: its standard error over sequences, and its range over seeds where
    it is pooled from several.
    """
    error, low, high = (
        row.get(f"{name}_se"),
        row.get(f"{name}_seed_low"),
        row.get(f"{name}_seed_high"),
    )
    texts = [] if error is None or row[name] is None else [f"± {number(error, 1)}"]
    if low is not None and high is not None and low < high:
        ends = text(low), text(high)
        texts += [] if ends[0] == ends[1] == text(row[name]) else [f"[{ends[0]}, {ends[1]}]"]
    return tuple(Line(each, size=style.NOTE, color=GREY) for each in texts)


def four(value: float) -> str:
    """A cosine with four decimals."""
    return near_one(value, 4)


def deviating(text: str) -> Cell:
    """A number that differs from the published one."""
    return cell(text, weight="bold", color=DEVIATES, hanging="*")


def between(low: float, high: float) -> str:
    """Two ends of a range."""
    return f"{number(low)} – {number(high)}"


def printed(value: float) -> str:
    """A published number as its page prints it, without digits of our own."""
    return f"{value:g}"


def blank(value: Any, text: Callable[[Any], str]) -> str:
    """A value in words, nothing where there is none."""
    return "" if value is None else text(value)


_FLAGS = {
    "degenerate-bottom": "which direction is the bottom one after the terminal norm is left to "
    "rounding",
    "sigma-min-below-floor": "the smallest singular value after the terminal norm lies below its "
    "floor, as a kernel's must",
    "n-over-d-below-10": "fewer than ten different samples of $X_0$ per coordinate",
}
_SAID_OF_WEIGHTS = ("stored-half", "stored-quantised")  # by a note on the weights


def flags_in_words(flags: list[str]) -> list[str]:
    """Flags in words; docs/dead_directions.md lists them."""
    return [
        _FLAGS.get(flag, plain(flag.replace("_", " ")))
        for flag in flags
        if flag not in _SAID_OF_WEIGHTS
    ]
