"""Typesets a table as one vector figure: rules above, below and under the head, aligned columns,
wrapped text, notes at the foot.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from normgauge.render.style import BLACK, BODY, GREY, NOTE, SMALL, WIDTH, look
from normgauge.render.text import Ruler

_MARGIN, _GAP, _PADDING, _LEADING, _INDENT = 6.0, 7.0, 2.6, 1.2, 7.0
_POINTS = 72 * WIDTH


@dataclass(frozen=True)
class Line:
    """One line of a cell, before wrapping. `hanging` is set in the gap to the right of it, so that
    marked numbers stay aligned.
    """

    text: str
    size: float = BODY
    color: str = BLACK
    weight: str = "normal"
    slant: str = "normal"
    hanging: str = ""


Cell = tuple[Line, ...]


@dataclass(frozen=True)
class Column:
    """A column: its head, the head it shares with its neighbours, its alignment, and whether its
    text may be wrapped.
    """

    head: str
    group: str = ""
    align: str = "right"
    flexible: bool = False


@dataclass(frozen=True)
class BodyRow:
    """One row of cells; a subordinate row (twin, published values) is set smaller, in grey,
    indented under the row above.
    """

    cells: tuple[Cell, ...]
    subordinate: bool = False


@dataclass(frozen=True)
class Section:
    """Rows under a common italic heading."""

    heading: str
    rows: Sequence[BodyRow]


def cell(text: str, **style: Any) -> Cell:
    """A cell of one line."""
    return (Line(text, **style),)


def quiet(text: str) -> Cell:
    """A cell of a subordinate row."""
    return (Line(text, size=SMALL, color=GREY),)


def draw_table(
    title: str, columns: Sequence[Column], sections: Sequence[Section], footnotes: Sequence[str]
) -> Figure:
    """A figure of `WIDTH` inches, as high as the table needs. Text uses matplotlib's mathematics
    between dollar signs.
    """
    with look():
        return _Sheet(title, columns, sections, footnotes).figure()


class _Sheet:
    """Lays the table out from the top, in points; `figure` draws what was laid out."""

    def __init__(
        self,
        title: str,
        columns: Sequence[Column],
        sections: Sequence[Section],
        footnotes: Sequence[str],
    ) -> None:
        self.ruler = Ruler()
        self.columns = columns
        self.texts: list[tuple[float, float, str, Line]] = []
        self.rules: list[tuple[float, float, float, float]] = []
        self.y = _MARGIN
        self.left, self.width = self._columns(sections)
        self._paragraph(Line(title, weight="bold"))
        self._head()
        for number, section in enumerate(sections):
            self._section(section, first=number == 0)
        self._rule(0.9)
        self.y += _PADDING
        for footnote in footnotes:
            self._paragraph(Line(footnote, size=NOTE))
        self.height = self.y + _MARGIN

    def _columns(self, sections: Sequence[Section]) -> tuple[list[float], list[float]]:
        """Left edges and widths: natural widths if they fit, otherwise the flexible columns share
        what the others leave.
        """
        rows = [row for section in sections for row in section.rows]
        natural, least = [], []
        for index, column in enumerate(self.columns):
            lines = [
                (line, _INDENT * (row.subordinate and index == 0))
                for row in rows
                for line in row.cells[index]
            ]
            lines += [(Line(part), 0.0) for part in column.head.split("\n")]
            natural.append(max(self._width(line) + indent for line, indent in lines))
            least.append(
                max(
                    self.ruler.narrowest(line.text, line.size, line.weight, line.slant) + indent
                    for line, indent in lines
                )
            )
        for group, members in self._groups():
            lack = (
                self.ruler.width(group, BODY)
                - sum(natural[index] for index in members)
                - _GAP * (len(members) - 1)
            )
            for index in members:
                natural[index] += max(lack, 0.0) / len(members)
        available = _POINTS - 2 * _MARGIN - _GAP * (len(self.columns) - 1)
        flexible = [index for index, column in enumerate(self.columns) if column.flexible]
        widths = _fit(natural, least, flexible, available)
        gap = _GAP + max(available - sum(widths), 0.0) / max(len(widths) - 1, 1)
        left = [_MARGIN + sum(widths[:index]) + gap * index for index in range(len(widths))]
        return left, widths

    def _groups(self) -> list[tuple[str, list[int]]]:
        """Heads that neighbouring columns share, with the numbers of these columns."""
        runs = groupby(range(len(self.columns)), key=lambda index: self.columns[index].group)
        return [(group, list(members)) for group, members in runs if group]

    def _width(self, line: Line) -> float:
        return self.ruler.width(line.text, line.size, line.weight, line.slant)

    def _rule(
        self, thickness: float, start: float = _MARGIN, stop: float = _POINTS - _MARGIN
    ) -> None:
        self.rules.append((start, stop, self.y, thickness))

    def _paragraph(self, line: Line) -> None:
        for text in self.ruler.wrap(
            line.text, _POINTS - 2 * _MARGIN, line.size, line.weight, line.slant
        ):
            self.y += line.size * _LEADING
            self._put(text, _MARGIN, _POINTS, "left", line)
        self.y += _PADDING

    def _put(self, text: str, left: float, width: float, align: str, line: Line) -> None:
        x = {"left": left, "right": left + width, "center": left + width / 2}[align]
        self.texts.append((x, self.y, align, replace(line, text=text)))
        if line.hanging:
            end = (
                x
                + self._width(replace(line, text=text))
                * {"left": 1, "right": 0, "center": 0.5}[align]
            )
            self.texts.append((end, self.y, "left", replace(line, text=line.hanging)))

    def _head(self) -> None:
        self._rule(0.9)
        if any(column.group for column in self.columns):
            self.y += _PADDING + BODY * _LEADING
            for group, members in self._groups():
                start, stop = (
                    self.left[members[0]],
                    self.left[members[-1]] + self.width[members[-1]],
                )
                self._put(group, start, stop - start, "center", Line(group))
                self.rules.append((start, stop, self.y + _PADDING, 0.4))
            self.y += _PADDING
        heads = [column.head.split("\n") for column in self.columns]
        lines = max(map(len, heads))
        top = self.y + _PADDING
        for index, head in enumerate(heads):
            self.y = top + (lines - len(head)) * BODY * _LEADING
            for text in head:
                self.y += BODY * _LEADING
                self._put(
                    text, self.left[index], self.width[index], self.columns[index].align, Line(text)
                )
        self.y = top + lines * BODY * _LEADING + _PADDING
        self._rule(0.5)

    def _section(self, section: Section, first: bool) -> None:
        if not first:
            self.y += _PADDING
            self._rule(0.3)
        self.y += _PADDING + BODY * _LEADING
        self._put(section.heading, _MARGIN, _POINTS, "left", Line(section.heading, slant="italic"))
        self.y += _PADDING / 2
        for row in section.rows:
            self._row(row)
        self.y += _PADDING

    def _row(self, row: BodyRow) -> None:
        top = self.y + (0.0 if row.subordinate else _PADDING / 2)
        bottom = top
        for index, lines in enumerate(row.cells):
            indent = _INDENT if row.subordinate and index == 0 else 0.0
            self.y = top
            for line in lines:
                limit = self.width[index] - indent + 0.01
                for text in self.ruler.wrap(line.text, limit, line.size, line.weight, line.slant):
                    self.y += line.size * _LEADING
                    self._put(
                        text,
                        self.left[index] + indent,
                        self.width[index] - indent,
                        self.columns[index].align,
                        line,
                    )
            bottom = max(bottom, self.y)
        self.y = bottom

    def figure(self) -> Figure:
        figure = Figure(figsize=(WIDTH, self.height / 72))
        axes = figure.add_axes((0, 0, 1, 1), xlim=(0, _POINTS), ylim=(self.height, 0))
        axes.set_axis_off()
        for start, stop, y, thickness in self.rules:
            axes.plot(
                (start, stop), (y, y), color=BLACK, linewidth=thickness, solid_capstyle="butt"
            )
        for x, y, align, line in self.texts:
            axes.text(
                x,
                y,
                line.text,
                ha=align,
                va="baseline",
                size=line.size,
                color=line.color,
                weight=line.weight,
                style=line.slant,
            )
        return figure


def _fit(
    natural: Sequence[float], least: Sequence[float], flexible: Sequence[int], available: float
) -> list[float]:
    """Natural widths if they fit; else flexible columns are cut to one common width, but not below
    whole words unless they must.
    """

    def cut(level: float) -> list[float]:
        return [
            max(least[index], min(width, level)) if index in flexible else width
            for index, width in enumerate(natural)
        ]

    if sum(natural) <= available:
        return list(natural)
    if sum(cut(0)) < available:
        levels = sorted(
            {0.0, *(widths[index] for widths in (natural, least) for index in flexible)}
        )
        # the sum is linear between these
        return cut(float(np.interp(available, [sum(cut(level)) for level in levels], levels)))
    words = sum(least[index] for index in flexible)
    share = 1 - (sum(cut(0)) - available) / words
    return [width * share if index in flexible else width for index, width in enumerate(cut(0))]
