"""What a table or a figure is: a declaration that `drawing` reads.

A typeset table is a sequence of fields, each with its head and with what of a row stands in it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from matplotlib.figure import Figure

from normgauge.render import style
from normgauge.render.formats import count, number, percent
from normgauge.render.rows import Row, Rows
from normgauge.render.style import DEVIATES
from normgauge.render.text import Footnotes, plain
from normgauge.render.typeset import BodyRow, Cell, Column, Section, cell, draw_table, quiet
from normgauge.schemas.verdicts import Verdict

_SAID = {Verdict.PASSED: "yes", Verdict.FAILED: "NO", Verdict.NO_POWER: "no power"}
"""Whether something is as it must be, in a column of a table."""


@dataclass(frozen=True)
class Drawing:
    """A table or figure: the kind of table that its rows are of, and what draws them.

    of_pair: it is of one pair of checkpoints, whose names `draw` is given as its second argument.
    """

    table: str
    draw: Callable[..., Figure]
    of_pair: bool = False

    def __call__(self, rows: Rows, *title: str) -> Figure:
        with style.look():
            return self.draw(rows, *title)


@dataclass(frozen=True)
class Field:
    """A column: its head, and what of a row stands in it, as text or as cells.

    under: the same for the subordinate lines, by their names; nothing where a name is absent.
    """

    head: str
    of: Callable[[Row], str | Cell]
    group: str = ""
    align: str = "right"
    flexible: bool = False
    under: Mapping[str, Callable[[Row], str | Cell]] = field(default_factory=dict)

    def column(self) -> Column:
        return Column(self.head, self.group, self.align, self.flexible)


def words(
    head: str, of: str | Callable[[Row], str], group: str = "", flexible: bool = False
) -> Field:
    """A column of text, from a key or from a function of the row."""
    said = of if callable(of) else lambda row: plain(row[of])
    return Field(head, said, group, "left", flexible)


def counted(head: str, key: str, group: str = "") -> Field:
    """A column of whole numbers."""
    return Field(head, lambda row: count(row[key]), group)


def value(head: str, key: str, group: str = "", digits: int = 2) -> Field:
    """A column of numbers with so many significant digits."""
    return Field(head, lambda row: number(row[key], digits), group)


def share(head: str, key: str, group: str = "", places: int = 1) -> Field:
    """A column of percentages."""
    return Field(head, lambda row: percent(row[key], places), group)


def verdict(head: str, key: str, group: str = "") -> Field:
    """A column that says whether something is as it must be; a failure is coloured."""

    def of(row: Row) -> str | Cell:
        found = Verdict(row[key])
        return cell(_SAID[found], color=DEVIATES) if found == Verdict.FAILED else _SAID[found]

    return Field(head, of, group)


def verdicts(head: str, keys: Mapping[str, str]) -> Field:
    """One column for several verdicts, key -> what it judges: "yes" where all are as they must be,
    else the exceptions by name.
    """

    def of(row: Row) -> str | Cell:
        found = {named: Verdict(row[key]) for key, named in keys.items()}
        exceptions: dict[Verdict, list[str]] = {}
        for named, each in found.items():
            if each != Verdict.PASSED:
                exceptions.setdefault(each, []).append(named)
        if len(exceptions) == 1 and len(*exceptions.values()) == len(found):
            text = _SAID[next(iter(exceptions))]
        else:
            text = "; ".join(
                f"{', '.join(of_it)}: {_SAID[each]}" for each, of_it in exceptions.items()
            )
        failed = Verdict.FAILED in exceptions
        return cell(text, color=DEVIATES) if failed else text or _SAID[Verdict.PASSED]

    return Field(head, of)


def table(
    title: str,
    fields: Sequence[Field],
    sections: Mapping[str, Rows],
    notes: Sequence[str],
    look: Callable[[Row], Mapping[str, Any]] = lambda row: {},
    lines: Callable[[Row], Sequence[str]] = lambda row: [""],
    footnotes: Footnotes | None = None,
) -> Figure:
    """A typeset table: the lines of each row under the heading of its section.

    look: colour and weight of a row's text. lines: which lines a row has: "" is the main one, the
    others are set smaller and hold what the fields declare `under` that name. footnotes: those that
    the fields mark; they end the notes.
    """

    def line(row: Row, name: str) -> BodyRow:
        if name:
            return _subordinate(fields, row, name)
        return BodyRow(tuple(_cell(each.of(row), look(row)) for each in fields))

    body = [
        Section(heading, [line(row, name) for row in rows for name in lines(row)])
        for heading, rows in sections.items()
    ]
    marked = footnotes.text() if footnotes else ""
    closing = [*notes, marked] if marked else notes
    return draw_table(title, [each.column() for each in fields], body, closing)


def _cell(shown: str | Cell, look: Mapping[str, Any]) -> Cell:
    return cell(shown, **look) if isinstance(shown, str) else shown


def _subordinate(fields: Sequence[Field], row: Row, name: str) -> BodyRow:
    shown: list[Any] = [each.under[name](row) if name in each.under else "" for each in fields]
    cells = tuple(quiet(each) if isinstance(each, str) else each for each in shown)
    return BodyRow(cells, subordinate=True)
