"""The grid against the gauge between embedding tables: which shifts of one table against another
keep every row on the grid?

Tables that are only seen as sums are known up to a constant per feature. The argument that finds a
column's place on its gauge line is run on that constant. It nearly fails, since a uniform shift is
nearly a translation of the grid; here it is counted exactly how nearly, for every feature and over
all shifts at once.

For one feature let z (n,) hold the rows, known up to one alpha: every z_i + alpha lies on the grid.
The largest of the spacings there is that of the largest or of the smallest z, so that two
half-lines cover every alpha. On one of them let m be that row. Spacings are powers of two, and z_m
+ alpha is a multiple of the largest. Hence z_i + alpha lies on the grid if and only if its spacing
divides z_i - z_m: it is at most as large as the grid holds with the lowest set bit of that
difference. This is an interval for alpha, one per row, and the survivors are the grid points z_m +
alpha in the intersection.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from normgauge.exact_recovery import grids
from normgauge.exact_recovery.description import Description
from normgauge.exact_recovery.grids import Grid

ROUNDING = 2.0**-53
FEATURES_AT_ONCE = 64


@dataclass(frozen=True)
class GaugedRows:
    """Rows of a table up to a constant per feature. values: (rows, d), NaN where not seen; errors:
    (rows, d) bounds on their rounding.
    """

    values: np.ndarray
    errors: np.ndarray


def fixed_gauge(
    total: np.ndarray, rounding: np.ndarray, tokens: np.ndarray, others: np.ndarray
) -> tuple[GaugedRows, GaugedRows]:
    """Token rows and other rows whose sums are the observed (N, d) ones; the commonest other row is
    0.

    rounding: (N, d) bounds on the error of the sums. tokens, others: (N,) row indices. Rows are
    reached from that one through the sums in which a known row occurs.
    """
    width = total.shape[1]
    first, second = (
        GaugedRows(np.full((index.max() + 1, width), np.nan), np.zeros((index.max() + 1, width)))
        for index in (tokens, others)
    )
    second.values[np.bincount(others).argmax()] = 0.0
    known = -1
    while (
        reached := int(
            np.isfinite(first.values[:, 0]).sum() + np.isfinite(second.values[:, 0]).sum()
        )
    ) != known:
        known = reached
        for table, index, other, other_index in (
            (first, tokens, second, others),
            (second, others, first, tokens),
        ):
            usable = np.flatnonzero(
                np.isfinite(other.values[other_index, 0]) & ~np.isfinite(table.values[index, 0])
            )
            difference, rounded_off = _difference(total[usable], other.values[other_index[usable]])
            errors = rounding[usable] + other.errors[other_index[usable]] + rounded_off
            # of several sums with a row the last, least uncertain one stays
            order = np.argsort(-errors.sum(axis=1), kind="stable")
            table.values[index[usable[order]]], table.errors[index[usable[order]]] = (
                difference[order],
                errors[order],
            )
    return first, second


def _difference(first: np.ndarray, second: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """first - second in float64, and the size of what its rounding dropped (Knuth's exact
    addition).
    """
    difference = first - second
    virtual = first - difference
    return difference, np.abs((first - (difference + virtual)) + (virtual - second))


def rounding_of(values: np.ndarray) -> np.ndarray:
    """Half the float64 spacing at each value: the largest error of a sum that was rounded to it."""
    return 0.5 * np.spacing(np.abs(values))


@dataclass(frozen=True)
class HalfLine:
    """Survivors on one half-line, per feature. row: (d,) the row m of largest spacing. low, high:
    (d,) the first and the last grid point that it may be, low > high where there is none. count:
    (d,) how many.
    """

    row: np.ndarray
    low: np.ndarray
    high: np.ndarray
    count: np.ndarray

    def shift(self, values: np.ndarray) -> np.ndarray:
        """(d,) the first surviving alpha of each feature. values: (n, d) rows as given to
        `grid_shifts`.
        """
        return self.low - values[self.row, np.arange(values.shape[1])]


def grid_shifts(values: np.ndarray, errors: np.ndarray, grid: Grid) -> tuple[HalfLine, HalfLine]:
    """Every shift per feature that keeps all rows on the grid: where the largest value has the
    largest spacing, and where the smallest has.

    values: (n, d), finite; errors: (n, d) bounds on their rounding. An error widens what a row
    admits: the true shift is never lost.
    """
    blocks = [
        slice(start, start + FEATURES_AT_ONCE)
        for start in range(0, values.shape[1], FEATURES_AT_ONCE)
    ]
    sides = [
        [_half_line(values[:, block], errors[:, block], grid, sign) for block in blocks]
        for sign in (1.0, -1.0)
    ]
    upper, lower = (
        HalfLine(
            *(
                np.concatenate([getattr(part, name) for part in parts])
                for name in ("row", "low", "high", "count")
            )
        )
        for parts in sides
    )
    return upper, lower


def _half_line(values: np.ndarray, errors: np.ndarray, grid: Grid, sign: float) -> HalfLine:
    """Survivors where the largest row (sign 1) or the smallest (-1) has the largest spacing; a tie
    counts to the first.

    The format is symmetric about zero: the second is the first of the mirrored rows.
    """
    values = sign * values
    columns = np.arange(values.shape[1])
    row = values.argmax(axis=0)
    differences, rounded_off = _difference(values, values[row, columns])
    errors = errors + errors[row, columns] + rounded_off
    reach = np.minimum(
        (2.0 ** (grid.mantissa + 1) - 1) * _lowest_bits(differences, errors), grid.largest
    )
    reach += errors + ROUNDING * (np.abs(differences) + reach)
    low, high = (-differences - reach).max(axis=0), (reach - differences).min(axis=0)
    half, error = -0.5 * differences.min(axis=0), errors.max(axis=0)
    low = np.maximum(low, half - error if sign > 0 else half + 2 * error)
    first, last = (
        _index_at_least(low, grid),
        -_index_at_least(-np.minimum(high, grid.largest), grid),
    )
    if sign < 0:  # the tie, where both have the same spacing, is the other half-line's
        first += grid.point(first) == half
    count = np.maximum(last - first + 1, 0)
    ends = grid.point(first), grid.point(last)
    return HalfLine(row, *(ends if sign > 0 else (-ends[1], -ends[0])), count)


def _index_at_least(values: np.ndarray, grid: Grid) -> np.ndarray:
    """Index of the first grid point that is not below each value."""
    rounded = grid.round(values)
    return grid.index(rounded) + (rounded < values)


def _lowest_bits(differences: np.ndarray, errors: np.ndarray) -> np.ndarray:
    """The lowest set bit of each difference as a power of two, never below that of the exact one;
    infinite for zero.

    Differences are rounded to multiples of a power of two above twice their error: the exact one,
    if it is such a multiple, is then found.
    """
    steps = np.exp2(np.floor(np.log2(np.maximum(2 * errors, 2.0**-1000))) + 1)
    bits = np.abs(np.rint(differences / steps) * steps).view(np.int64)
    exponents = np.maximum(bits >> 52, 1)
    mantissas = (bits & ((1 << 52) - 1)) | np.where(bits >> 52, np.int64(1) << 52, np.int64(0))
    return np.where(
        mantissas == 0,
        np.inf,
        np.ldexp((mantissas & -mantissas).astype(np.float64), exponents - 1075),
    )


@dataclass(frozen=True)
class Attack:
    """What the grid says of the gauge of `table`, feature by feature.

    survivors: (d,) shifts that keep every row on the grid. sides: the half-lines, each with
    `table`, `row`, `low` and `high` (d,): where the stored value of that row must lie for its shift
    to be among them. features: those with one survivor; rows: (n,) of the first table; values: (n,
    len(features)) what these then hold. constraints: how many rows were on the grid at once.
    """

    table: str
    survivors: np.ndarray
    sides: list[dict[str, Any]]
    features: np.ndarray
    rows: np.ndarray
    values: np.ndarray
    constraints: int


def attack(description: Description, folder: Path) -> Attack | None:
    """The attack on the embedding sums alone, for all features; None where there is no sum of two
    tables or more.

    With more than two tables only the first table's rows must be on the grid: sums of several
    tables' rows lie on none.
    """
    if description.embedding is None or len(description.tables) < 2:
        return None
    total = description.read_sums(folder)
    first, *rest = description.tables
    others = np.zeros(len(total), dtype=np.int64)
    for table in rest:
        rows = description.tensor(table.weight).shape[0]
        others = others * rows + table.read_all_indices(folder, rows)
    rounding = rounding_of(total)
    if len(rest) > 1:  # the partial sums are rounded too, whose size is not seen
        rounding = rounding + (len(rest) - 1) * rounding.max(axis=0)
    tokens, summed = fixed_gauge(
        total,
        rounding,
        first.read_all_indices(folder, description.tensor(first.weight).shape[0]),
        others,
    )
    seen, also = (np.flatnonzero(np.isfinite(part.values[:, 0])) for part in (tokens, summed))
    also = also[: len(also) if len(rest) == 1 else 0]
    values = np.vstack([tokens.values[seen], -summed.values[also]])
    errors = np.vstack([tokens.errors[seen], summed.errors[also]])
    grid = grids.grid(description.tensor(first.weight).dtype)
    sides = grid_shifts(values, errors, grid)
    survivors = sides[0].count + sides[1].count
    single = np.flatnonzero(survivors == 1)
    shifts = np.where(sides[0].count == 1, sides[0].shift(values), sides[1].shift(values))[single]
    recovered = grid.round(tokens.values[np.ix_(seen, single)] + shifts)
    return Attack(
        first.weight,
        survivors,
        [_in_stored_terms(side, seen, also, (first.weight, rest[0].weight)) for side in sides],
        single,
        seen,
        recovered,
        len(values),
    )


def _in_stored_terms(
    side: HalfLine, seen: np.ndarray, also: np.ndarray, names: tuple[str, str]
) -> dict[str, Any]:
    """Which stored value must lie between which, per feature; a row of the second table enters with
    the other sign.
    """
    own = side.row < len(seen)
    places = np.concatenate([seen, also])[side.row]
    low, high = np.where(own, side.low, -side.high), np.where(own, side.high, -side.low)
    return {
        "table": [names[0] if is_own else names[1] for is_own in own],
        "row": places.tolist(),
        "low": low.tolist(),
        "high": high.tolist(),
    }
