"""Where on the gauge line does a stored column lie? Found by lattice reduction.

At the stored alpha every coordinate w_j + alpha v_j is a grid point. For a handful of coordinates
that is an approximate simultaneous congruence, alpha v_j = -w_j (mod q) up to the noise of w_j. Its
lattice, spanned by q e_j and a small step delta v, is the same for every column of every map behind
the norm, so it is reduced once (Lenstra, Lenstra and Lovasz 1982) and each column costs one run of
Babai's nearest plane (1986). The step is so small that v itself is the one short vector; all others
must be longer than the noise, and are by construction: coordinates are added until the Gram-Schmidt
lengths say so. Where no number of coordinates suffices (equal gains, or gains in small integer
ratios), the line meets the grid at many places and the answer is "undetermined".

A column is first scaled by a power of two to unit size, so that one spacing q serves all.
"""

from __future__ import annotations

from dataclasses import dataclass

import flint
import numpy as np

from normgauge.exact_recovery import gauge_line
from normgauge.exact_recovery.gauge_line import WINDOW, GaugeLine
from normgauge.exact_recovery.grids import Grid

SEPARATION = 14.0
"""Least Gram-Schmidt length, in noises, of every basis vector but the step: nearest plane then
fails beyond 7 noises only.
"""
REACH = 2.0**12
"""A lattice is separated over so many search windows: a column that lies outside of its own must
not be found at another place inside.
"""
MOST_COORDINATES = 40
MOST_DRAWS = 48
STEP_BITS = 3
SCALE_BITS = 72
COLUMNS_AT_ONCE = 512
PROBES = 96
"""Coordinates on which a found place is accepted; far more than its null probability needs."""


@dataclass(frozen=True)
class Lattice:
    """A reduced lattice for some coordinates.

    basis: (m + 1, m + 1) reduced rows in units of the noise; directions: its Gram-Schmidt vectors;
    steps: (m + 1,) int64, how many delta each row moves alpha, modulo 2^64; spacing: q; step:
    delta; units: (m,) powers of two near the noise of each coordinate.
    """

    coordinates: np.ndarray
    basis: np.ndarray
    directions: np.ndarray
    steps: np.ndarray
    spacing: float
    step: float
    units: np.ndarray

    @property
    def separation(self) -> float:
        """The least Gram-Schmidt length apart from the first vector's, the step itself."""
        return float(np.sqrt((self.directions[1:] ** 2).sum(axis=1)).min())

    def nearest(self, values: np.ndarray) -> np.ndarray:
        """alpha (k,) at which (m, k) scaled values are nearest to multiples of the spacing, by
        Babai's nearest plane.
        """
        offset = np.rint(values / self.spacing) * self.spacing - values
        rest = np.vstack([offset / self.units[:, None], np.zeros((1, values.shape[1]))])
        count = np.zeros(values.shape[1], dtype=np.int64)
        for row in range(len(self.basis) - 1, -1, -1):
            direction = self.directions[row]
            multiples = np.rint(direction @ rest / (direction @ direction))
            rest -= np.outer(self.basis[row], multiples)
            count += self.steps[row] * multiples.astype(np.int64)
        return count * self.step


def reduced(
    direction: np.ndarray,
    noise: np.ndarray,
    half_width: float,
    spacing: float,
    coordinates: np.ndarray,
) -> Lattice:
    """LLL-reduce the lattice of some coordinates. direction, noise: (m,) of those; half_width: of
    the searched alpha.
    """
    count = len(coordinates)
    exponents = np.floor(np.log2(noise)).astype(int)
    step = 2.0 ** np.floor(np.log2((noise / np.abs(direction)).min()) - STEP_BITS)
    spacing_exponent = round(np.log2(spacing))
    rows = [[0] * (count + 1) for _ in range(count + 1)]
    for index in range(count):
        scaled = np.frexp(direction[index] * step)
        shift = SCALE_BITS - int(exponents[index]) + int(scaled[1]) - 53
        mantissa = int(np.ldexp(scaled[0], 53))
        rows[0][index] = (
            mantissa << shift if shift >= 0 else (mantissa + (1 << (-shift - 1))) >> -shift
        )
        rows[index + 1][index] = 1 << (SCALE_BITS + spacing_exponent - int(exponents[index]))
    # the last coordinate counts steps, on a scale that makes the whole window as long as a few
    # noises
    window_unit = max(1, round(2.0**SCALE_BITS * 4 * step / half_width))
    rows[0][count] = window_unit
    matrix = flint.fmpz_mat(rows).lll().tolist()
    steps = np.array([_signed(int(row[count]) // window_unit) for row in matrix], dtype=np.int64)
    basis = np.array([[float(int(entry)) for entry in row] for row in matrix]) * 2.0**-SCALE_BITS
    return Lattice(coordinates, basis, _gram_schmidt(basis), steps, spacing, step, 2.0**exponents)


def _signed(value: int) -> int:
    """The representative of a residue modulo 2^64 in the range of int64."""
    return (value + (1 << 63)) % (1 << 64) - (1 << 63)


def _gram_schmidt(basis: np.ndarray) -> np.ndarray:
    orthogonal, triangle = np.linalg.qr(basis.T)
    return (orthogonal * np.diag(triangle)).T


@dataclass(frozen=True)
class Search:
    """What a search found. alpha: (k,) NaN where nothing was accepted; alpha_noise: (k,); draws:
    lattices used; separable: whether any was.

    A place is accepted here on the best determined coordinates; `gauge_line.place` then judges all
    of them.
    """

    alpha: np.ndarray
    alpha_noise: np.ndarray
    draws: int
    separable: bool


def search(line: GaugeLine, values: np.ndarray, noise: np.ndarray, grid: Grid, seed: int) -> Search:
    """Find alpha for every column of (n, k) values on the line with (n, k) noise, zero at the
    pivot.
    """
    count = values.shape[1]
    alpha, alpha_noise = np.full(count, np.nan), np.full(count, np.nan)
    if not count:
        return Search(alpha, alpha_noise, 0, False)
    usable, by_coordinate, by_column = _noises(line, values, noise)
    probes = usable[:PROBES]
    generator = np.random.default_rng(seed)
    pending, draws = np.arange(count), 0
    while len(pending) and draws < MOST_DRAWS:
        typical = by_coordinate * np.quantile(by_column[pending], 0.9)
        lattice = _draw(line, usable, typical, grid, generator)
        if lattice is None:
            break
        draws += 1
        for start in range(0, len(pending), COLUMNS_AT_ONCE):
            chosen = pending[start : start + COLUMNS_AT_ONCE]
            found, found_noise = _places(lattice, line, values[:, chosen], noise[:, chosen])
            direction, probed, probed_noise = (
                line.direction[probes],
                values[np.ix_(probes, chosen)],
                noise[np.ix_(probes, chosen)],
            )
            placed = gauge_line.place(probed, probed_noise, direction, found, found_noise, grid)
            kept = chosen[placed.accepted]
            refined, refined_noise = gauge_line.refine(
                placed, probed, probed_noise, direction, grid
            )
            alpha[kept], alpha_noise[kept] = (
                refined[placed.accepted],
                refined_noise[placed.accepted],
            )
        pending = pending[np.isnan(alpha[pending])]
    return Search(alpha, alpha_noise, draws, draws > 0)


def draw(
    line: GaugeLine,
    values: np.ndarray,
    noise: np.ndarray,
    grid: Grid,
    generator: np.random.Generator,
) -> Lattice | None:
    """A separated lattice on random coordinates for columns with the (n, k) noise of these, or
    None.
    """
    usable, by_coordinate, by_column = _noises(line, values, noise)
    return _draw(line, usable, by_coordinate * np.quantile(by_column, 0.9), grid, generator)


@dataclass(frozen=True)
class Best:
    """Of the places that some lattices find, the one whose rounding residuals are least on the
    mean. alpha, alpha_noise, residual: (k,), the last in ulp. Nothing is accepted or refused.
    """

    alpha: np.ndarray
    alpha_noise: np.ndarray
    residual: np.ndarray

    @classmethod
    def none(cls, columns: int) -> Best:
        """Without a lattice: the place where the pivot is zero."""
        return cls(np.zeros(columns), np.zeros(columns), np.full(columns, np.inf))

    def or_of(
        self, lattice: Lattice, line: GaugeLine, values: np.ndarray, noise: np.ndarray, grid: Grid
    ) -> Best:
        """The better of this and what another lattice finds, for each of (n, k) columns."""
        found, found_noise = _places(lattice, line, values, noise)
        placed = gauge_line.place(values, noise, line.direction, found, found_noise, grid)
        found, found_noise = gauge_line.refine(placed, values, noise, line.direction, grid)
        placed = gauge_line.place(values, noise, line.direction, found, found_noise, grid)
        residual = (placed.residual / grid.ulp(placed.values)).mean(axis=0)
        better = residual < self.residual
        pairs = ((found, self.alpha), (found_noise, self.alpha_noise), (residual, self.residual))
        return Best(*(np.where(better, new, old) for new, old in pairs))


def _noises(
    line: GaugeLine, values: np.ndarray, noise: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The measured weights, the least noisy first, their mean noise, and by how much that of each
    column, (k,), is larger when it is scaled to unit size.
    """
    by_coordinate = noise.mean(axis=1)
    usable = np.flatnonzero((np.arange(len(line.direction)) < line.weights) & (by_coordinate > 0))
    usable = usable[np.argsort(by_coordinate[usable])]
    return (
        usable,
        by_coordinate[usable],
        noise.mean(axis=0) / noise.mean() / _scale(line, line.window(values)[1]),
    )


def _places(
    lattice: Lattice, line: GaugeLine, values: np.ndarray, noise: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """alpha and its noise (k,) of (n, k) columns by one lattice."""
    drawn = lattice.coordinates
    centre, half_width = line.window(values)
    scale = _scale(line, half_width)
    least = (values[drawn] + np.outer(line.direction[drawn], centre)) / scale
    return centre + lattice.nearest(least) * scale, (
        noise[drawn] / np.abs(line.direction[drawn, None])
    ).min(axis=0)


def _scale(line: GaugeLine, half_width: np.ndarray) -> np.ndarray:
    """The powers of two (k,) nearest to the columns' size."""
    return _power_of_two(half_width / _half_width(line))


def _half_width(line: GaugeLine) -> float:
    """Half the searched window of a column whose weights have a root mean square of 1."""
    return float(WINDOW * np.sqrt(line.weights) / np.linalg.norm(line.direction[: line.weights]))


def _power_of_two(values: np.ndarray) -> np.ndarray:
    return 2.0 ** np.rint(np.log2(np.where(values > 0, values, 1.0)))


def _draw(
    line: GaugeLine,
    usable: np.ndarray,
    noise: np.ndarray,
    grid: Grid,
    generator: np.random.Generator,
) -> Lattice | None:
    """A separated lattice on random coordinates of the better determined half of `usable`, or None
    when no spacing gives one.

    noise: of the usable coordinates, ascending, for columns of unit size.
    """
    half_width = REACH * _half_width(line)
    best = max(MOST_COORDINATES, len(usable) // 2)
    coordinates, noise = usable[:best], np.maximum(noise[:best], 2.0**-53)
    for slack, count in _plans(line.direction[coordinates], noise, half_width, grid):
        spacing = 2.0 ** -(slack + grid.mantissa)
        lattice = _separated(
            line.direction[coordinates], coordinates, noise, half_width, spacing, count, generator
        )
        if lattice is not None:
            return lattice
    return None


def _plans(
    direction: np.ndarray, noise: np.ndarray, half_width: float, grid: Grid
) -> list[tuple[int, int]]:
    """(slack, coordinates) pairs, the likeliest to fit a column first.

    Coordinates with |W| above 2^-slack of the column's size are multiples of the spacing 2^-(slack
    + mantissa). A finer spacing fits more coordinates but leaves fewer bits for each above the
    noise, so that more are needed.
    """
    needed = np.log2(half_width * np.median(np.abs(direction) / noise)) + STEP_BITS
    plans = []
    for slack in range(13):
        bits = -slack - grid.mantissa - np.median(np.log2(noise))
        spare = bits - np.log2(SEPARATION) - 1.5
        if spare > 0:
            count = max(4, int(np.ceil(needed / spare)))
            if count <= MOST_COORDINATES:
                plans.append((count * np.log1p(-0.8 * 2.0**-slack), slack, count))
    return [(slack, count) for _, slack, count in sorted(plans, reverse=True)]


def _separated(
    direction: np.ndarray,
    coordinates: np.ndarray,
    noise: np.ndarray,
    half_width: float,
    spacing: float,
    count: int,
    generator: np.random.Generator,
) -> Lattice | None:
    """A lattice on `count` or a few more random coordinates, as many as its separation takes, or
    None.
    """
    order = generator.permutation(len(coordinates))
    while count <= min(MOST_COORDINATES, len(coordinates)):
        drawn = order[:count]
        lattice = reduced(direction[drawn], noise[drawn], half_width, spacing, coordinates[drawn])
        if lattice.separation >= SEPARATION:
            return lattice
        count += 2
    return None
