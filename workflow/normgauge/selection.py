"""One value out of a table: rows that pass an expression, an expression over their columns, an
aggregate.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pandas

AGGREGATES = ("one", "min", "max", "median", "mean", "sum", "count")


@dataclass(frozen=True)
class Selection:
    """Of the rows of `table` that pass `where`, the aggregate `of` of the expression `value`.

    where, value: pandas expressions over the table's columns; None: all rows, and the rows
        themselves, which are counted.
    """

    table: str
    where: str | None = None
    value: str | None = None
    of: str = "one"

    def values(
        self, rows: pandas.DataFrame, arguments: Mapping[str, str | float] | None = None
    ) -> pandas.Series:
        """The values of the selected rows; ones where rows are counted.

        arguments: what @name stands for in the expressions. Raises ValueError for an expression
        that the columns do not allow.
        """
        local = dict(arguments or {})
        try:
            if self.where:
                rows = rows.query(self.where, engine="python", local_dict=local)
            if self.value is None:
                return pandas.Series(1, index=rows.index)
            found = rows.eval(self.value, engine="python", local_dict=local)
        except Exception as error:  # whatever an expression may raise: it is input
            raise ValueError(
                f"{error}; expected an expression over the columns of {self.table}"
            ) from error
        return found if isinstance(found, pandas.Series) else pandas.Series(found, index=rows.index)

    def aggregated(self, values: pandas.Series) -> Any:
        """One value of the series, None for a missing one.

        Raises ValueError where there is no row, or more than one value for `one`.
        """
        if self.of == "count":
            return len(values)
        if values.empty:
            raise ValueError("no row")
        if self.of == "one":
            distinct = values.drop_duplicates()
            if len(distinct) > 1:
                raise ValueError(f"{len(values)} rows with {len(distinct)} values, expected one")
            value = distinct.iloc[0]
        else:
            value = getattr(values.dropna(), self.of)()
        return None if pandas.isna(value) else value.item() if hasattr(value, "item") else value
