"""Lookup tables whose rows are observed as sums: a row of each table is added at every position.

Any constant moved from one table to another leaves every sum as it is: with t tables of width d not known otherwise the gauge has
(t - 1) d dimensions. A tied readout knows the token table by itself; then one table is left and its rows are differences.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from normgauge.recovery import certificate
from normgauge.recovery.gauge_line import ACCEPTED_DEVIATIONS, GaugeLine
from normgauge.recovery.grids import Grid
from normgauge.recovery.stragglers import REQUIRED_MARGIN

ROUNDING = 2.0**-53


@dataclass(frozen=True)
class TableRows:
    """values: (rows, d) grid points, NaN in rows that no position used. margins: (rows, d), 0 there."""

    values: np.ndarray
    margins: np.ndarray


def row_means(observed: np.ndarray, indices: np.ndarray, rows: int, counted: np.ndarray) -> np.ndarray:
    """Mean of the (N, d) observations of each row that the (N, d) mask `counted` admits: (rows, d), NaN where it admits none."""
    order = np.argsort(indices, kind="stable")
    starts = np.concatenate([[0], np.cumsum(np.bincount(indices, minlength=rows))[:-1]])
    nothing = np.zeros((1, observed.shape[1]))
    sums, count = (
        np.add.reduceat(np.vstack([values[order], nothing]), starts, axis=0) for values in (np.where(counted, observed, 0.0), counted)
    )
    present = (np.bincount(indices, minlength=rows)[:, None] > 0) & (count > 0)  # reduceat gives an empty run its successor's first value
    return np.where(present, sums / np.maximum(count, 1), np.nan)


def remaining_table(
    total: np.ndarray, known: Mapping[str, TableRows], indices: Mapping[str, np.ndarray], name: str, rows: int, grid: Grid
) -> TableRows:
    """The one table left when every other is known: its rows are the sums less the known rows.

    total: (N, d) embedding sums; known: tables by name; indices: (N,) ints by name. Rows with a NaN among the known are not used.
    The noise of a row is the float64 rounding of the sum. A value that is only ever seen beside known ones of too small a margin has
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


def fixed_gauge(total: np.ndarray, tokens: np.ndarray, others: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Token rows and other rows, (rows, d) each, NaN where not seen, whose sums are the observed (N, d) ones; the commonest other row is 0.

    tokens, others: (N,) row indices. Rows are reached from that one through the sums in which a known row occurs.
    """
    first, second = np.full((tokens.max() + 1, total.shape[1]), np.nan), np.full((others.max() + 1, total.shape[1]), np.nan)
    second[np.bincount(others).argmax()] = 0.0
    known = -1
    while (reached := int(np.isfinite(first[:, 0]).sum() + np.isfinite(second[:, 0]).sum())) != known:
        known = reached
        for table, index, other, other_index in ((first, tokens, second, others), (second, others, first, tokens)):
            usable = np.isfinite(other[other_index, 0]) & ~np.isfinite(table[index, 0])
            table[index[usable]] = total[usable] - other[other_index[usable]]
    return first, second


@dataclass(frozen=True)
class LatticeAttack:
    """features: those tried; constants: their gauge constants where exactly one survived, else NaN; survivors: how many each has."""

    features: np.ndarray
    constants: np.ndarray
    survivors: np.ndarray

    @property
    def reached(self) -> np.ndarray:
        return self.survivors == 1


def lattice_attack(tokens: np.ndarray, others: np.ndarray, features: np.ndarray, grid: Grid, seed: int) -> LatticeAttack:
    """Try to break the gauge by the grid, feature by feature: shifts of one table against the other that keep both on the grid.

    tokens: (rows, d), others: (rows', d), as of `fixed_gauge`. A uniform shift is nearly a translation of the grid, so that many
    shifts survive: only a feature with a very small and a very large value can have one alone.
    """
    constants, survivors = np.full(len(features), np.nan), np.zeros(len(features), dtype=np.int64)
    generator = np.random.default_rng(seed)
    direction = np.concatenate([np.ones(len(tokens)), -np.ones(len(others))])
    for place, feature in enumerate(features):
        values = np.concatenate([tokens[:, feature], others[:, feature]])
        line = GaugeLine(direction, 0, len(direction))
        given = certificate.candidates(line, values, np.full(len(values), 4 * ROUNDING) * np.abs(values).max(), grid)
        # the coarse grids that exclude a candidate quickly elsewhere are the ones that every shift keeps: any order will do
        kept = certificate.sieve(replace(given, order=generator.permutation(given.order)))
        survivors[place] = len(kept)
        if len(kept) == 1:
            constants[place] = given.alpha(kept)[0]
    return LatticeAttack(features, constants, survivors)
