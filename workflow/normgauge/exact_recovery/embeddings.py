"""Lookup tables whose rows are observed as sums: a row of each table is added at every position.

Any constant moved from one table to another leaves every sum as it is: with t tables of width d not
known otherwise the gauge has (t - 1) d dimensions. A tied readout knows the token table by itself;
then one table is left and its rows are differences.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from normgauge.exact_recovery.gauge_line import ACCEPTED_DEVIATIONS
from normgauge.exact_recovery.grids import Grid
from normgauge.exact_recovery.stragglers import REQUIRED_MARGIN

ROUNDING = 2.0**-53


@dataclass(frozen=True)
class TableRows:
    """values: (rows, d) grid points, NaN in rows that no position used. margins: (rows, d), 0
    there.
    """

    values: np.ndarray
    margins: np.ndarray


def row_means(
    observed: np.ndarray, indices: np.ndarray, rows: int, counted: np.ndarray
) -> np.ndarray:
    """Mean of the (N, d) observations of each row that the (N, d) mask `counted` admits: (rows, d),
    NaN where it admits none.
    """
    order = np.argsort(indices, kind="stable")
    starts = np.concatenate([[0], np.cumsum(np.bincount(indices, minlength=rows))[:-1]])
    nothing = np.zeros((1, observed.shape[1]))
    sums, count = (
        np.add.reduceat(np.vstack([values[order], nothing]), starts, axis=0)
        for values in (np.where(counted, observed, 0.0), counted)
    )
    # reduceat gives an empty run its successor's first value
    present = (np.bincount(indices, minlength=rows)[:, None] > 0) & (count > 0)
    return np.where(present, sums / np.maximum(count, 1), np.nan)


def remaining_table(
    total: np.ndarray,
    known: Mapping[str, TableRows],
    indices: Mapping[str, np.ndarray],
    name: str,
    rows: int,
    grid: Grid,
) -> TableRows:
    """The one table left when every other is known: its rows are the sums less the known rows.

    total: (N, d) embedding sums; known: tables by name; indices: (N,) ints by name. Rows with a NaN
    among the known are not used. The noise of a row is the float64 rounding of the sum. A value
    that is only ever seen beside known ones of too small a margin has
    none itself: an error of theirs would be one of its own.
    """
    rest, sure = total.copy(), np.ones(total.shape, dtype=bool)
    for other, table in known.items():
        rest -= table.values[indices[other]]
        sure &= table.margins[indices[other]] >= REQUIRED_MARGIN
    usable = np.broadcast_to(np.isfinite(rest).all(axis=1, keepdims=True), rest.shape)
    by_sure, by_all, size = (
        row_means(values, indices[name], rows, counted)
        for values, counted in ((rest, usable & sure), (rest, usable), (np.abs(total), usable))
    )
    seen = np.isfinite(by_all)
    means = np.where(np.isfinite(by_sure), by_sure, by_all)
    noise = np.where(seen, ROUNDING * (size + np.abs(means)), 1.0)
    filled = np.where(seen, means, 0.0)
    values = grid.round(filled)
    kept = seen & (np.abs(filled - values) <= ACCEPTED_DEVIATIONS * noise)
    margins = np.where(kept & np.isfinite(by_sure), grid.margin(filled, values, noise), 0.0)
    return TableRows(np.where(kept, values, np.nan), margins)
