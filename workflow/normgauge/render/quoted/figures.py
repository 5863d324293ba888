"""Figures out of tables: selected, aggregated, written as declared."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any

import pandas

from normgauge.errors import InputError
from normgauge.render.quoted.declaration import ABSENT, NULL, Declaration, Figure
from normgauge.schemas.registry import SCHEMAS
from normgauge.tables import read_table

FIELD = re.compile(r"\{(?:[^:}]*)(?::([^}]*))?\}")


class Figures:
    """The figures of a declaration. `read`: how many were read so far; `absences`: what stands
    where there is no row.

    `root`: the repository; `results`: a folder that stands in for its `results/`. Tables are read
        when they are needed.
    """

    def __init__(self, declaration: Declaration, root: Path, results: Path | None = None) -> None:
        self.declaration = declaration
        self.read = 0
        self._root, self._results = root, results
        self.absences = {
            figure.words[ABSENT]
            for figure in declaration.figures.values()
            if ABSENT in figure.words
        }
        self._frames: dict[str, pandas.DataFrame] = {}

    def text(self, name: str, arguments: Mapping[str, str]) -> str:
        """A figure as text. Raises InputError for an unknown figure, table, row or column, or a
        table that is not there.
        """
        figure = self._declared(name)
        values = self._values(name, figure, self._frame(name, figure), arguments)
        self.read += 1
        try:
            return _written(figure, _aggregate(figure, values))
        except ValueError as error:
            raise self._fault(name, f"{error} {self._selection(figure, arguments)}") from error

    def cell(self, template: str, arguments: Mapping[str, str]) -> str:
        """A cell of a block: {argument} is that argument, {figure key=value} the figure with these
        arguments besides.
        """
        parts = []
        for literal, name, given in _fields(template):
            parts.append(literal)
            if name is not None:
                parts.append(
                    arguments[name]
                    if name in arguments
                    else self.text(name, {**arguments, **given})
                )
        return "".join(parts)

    def uses(
        self, template: str, arguments: Mapping[str, str]
    ) -> Iterator[tuple[str, dict[str, str]]]:
        """The figures that a cell reads, with their arguments."""
        for _, name, given in _fields(template):
            if name is not None and name not in arguments:
                yield name, {**arguments, **given}

    def check_columns(self, name: str, arguments: Mapping[str, str]) -> None:
        """Raises InputError where a figure's selection or value names a column that the table's
        schema does not have.
        """
        figure = self._declared(name)
        kind = self._place(name, figure)[1]
        empty = (
            self._frame(name, figure).iloc[:0]
            if kind is None
            else SCHEMAS[kind].empty_table().to_pandas()
        )
        self._values(name, figure, empty, arguments)

    def missing(self) -> list[str]:
        """Paths of declared figures' tables that are not there."""
        paths = {self._place(name, figure)[0] for name, figure in self.declaration.figures.items()}
        return sorted(str(path) for path in paths if not path.is_file())

    def _declared(self, name: str) -> Figure:
        if name not in self.declaration.figures:
            raise InputError(
                f"{self.declaration.path}: no figure {name} is declared; declare it or mend the "
                "mark"
            )
        return self.declaration.figures[name]

    def _place(self, name: str, figure: Figure) -> tuple[Path, str | None]:
        """(path, kind) of a figure's table."""
        if figure.selection.table in self.declaration.tables:
            path, kind = self.declaration.tables[figure.selection.table]
        else:
            path, kind = f"results/tables/{figure.selection.table}.parquet", figure.selection.table
        if kind is not None and kind not in SCHEMAS:
            raise self._fault(
                name,
                f"no table {kind} is known; expected one under tables or a kind of docs/data.md",
            )
        below = path.removeprefix("results/")
        return (
            self._results / below if self._results and below != path else self._root / path
        ), kind

    def _frame(self, name: str, figure: Figure) -> pandas.DataFrame:
        if figure.selection.table not in self._frames:
            path = self._place(name, figure)[0]
            if not path.is_file():
                raise self._fault(
                    name, f"{path} is not there; run the target that makes it (make tables)"
                )
            if path.suffix == ".csv":
                self._frames[figure.selection.table] = pandas.read_csv(path, comment="#")
            else:
                self._frames[figure.selection.table] = read_table(path).to_pandas()
        return self._frames[figure.selection.table]

    def _values(
        self, name: str, figure: Figure, rows: pandas.DataFrame, arguments: Mapping[str, str]
    ) -> pandas.Series:
        """The values of the selected rows; ones where rows are counted. Arguments that are numbers
        are compared as such.
        """
        local = {key: _number(value) for key, value in arguments.items()}
        try:
            return figure.selection.values(rows, local)
        except ValueError as error:
            raise self._fault(name, str(error)) from error

    def _selection(self, figure: Figure, arguments: Mapping[str, str]) -> str:
        given = ", ".join(f"{key}={value}" for key, value in arguments.items())
        where = figure.selection.where or "any row"
        return (
            f"in {figure.selection.table} where {where}{f' ({given})' if given else ''}; mend the "
            "selection"
        )

    def _fault(self, name: str, what: str) -> InputError:
        return InputError(f"{self.declaration.path}: {name}: {what}")


def _number(text: str) -> str | float:
    try:
        return float(text)
    except ValueError:
        return text


def words_of(text: str) -> dict[str, str]:
    """`key=value` words, quoted where they hold spaces. Raises InputError for anything else."""
    try:
        pairs = [word.partition("=") for word in shlex.split(text)]
    except ValueError:
        pairs = [("", "", "")]
    if not all(key and equals for key, equals, _ in pairs):
        raise InputError(f"mark with {text.strip()!r}: expected words key=value; mend the mark")
    return {key: value for key, _, value in pairs}


def _fields(template: str) -> Iterator[tuple[str, str | None, dict[str, str]]]:
    """(literal, name, arguments) of every {name key=value}; the literal behind the last has no
    name.
    """
    end = 0
    for match in re.finditer(r"\{([^{}\s]+)([^{}]*)\}", template):
        yield template[end : match.start()], match[1], words_of(match[2])
        end = match.end()
    yield template[end:], None, {}


def _aggregate(figure: Figure, values: pandas.Series) -> Any:
    """One value of the series, None for a missing one, ABSENT without a row where there is a word
    for that. Raises ValueError as Selection.aggregated does.
    """
    if values.empty and figure.selection.of != "count" and ABSENT in figure.words:
        return ABSENT
    return figure.selection.aggregated(values)


def _written(figure: Figure, value: Any) -> str:
    """The text of a value. Raises ValueError where the format does not fit it."""
    if value is None:
        if NULL not in figure.words:
            raise ValueError("no value")
        return figure.words[NULL]
    if str(value) in figure.words:
        return figure.words[str(value)]
    field = FIELD.search(figure.format)
    if field is None:
        raise ValueError(f"format {figure.format!r} has no field {{}}")
    spec = field[1] or ""
    if isinstance(value, float) and value.is_integer() and not spec.endswith(tuple("efgEFG%")):
        value = int(value)
    try:
        text = _bounded(value, spec, figure.bound) if figure.bound else format(value, spec)
    except ValueError as error:
        raise ValueError(f"format {figure.format!r} does not fit {value!r}") from error
    text = re.sub(r"e([+-])0*(\d)", lambda match: f"e{match[1].replace('+', '')}{match[2]}", text)
    return figure.format[: field.start()] + text + figure.format[field.end() :]


def _bounded(value: float, spec: str, bound: str) -> str:
    """The value rounded up (`upper`) or down to the digits of the format."""
    scale = 100 if spec.endswith("%") else 1
    exact = Decimal(repr(value)) * scale
    rounded = Decimal(format(value, spec).rstrip("%").replace(",", ""))
    exponent = rounded.as_tuple().exponent
    assert isinstance(exponent, int)
    step = Decimal(1).scaleb(exponent)
    if bound == "upper" and rounded < exact:
        rounded += step
    if bound == "lower" and rounded > exact:
        rounded -= step
    return format(rounded / scale, spec)
