"""Exclusion: every place on a column's searched gauge line at which one coordinate, the probe, is a
grid point, tried against all others.

The lattice search finds a place; it does not exclude others. Here every grid point of the probe
within the window is a candidate (the probe is the coordinate with the fewest), and the survivors
are counted. `sieve` tries each candidate and leaves at the first coordinate that is off the grid.
`walk` visits only the candidates at which a second coordinate is on the grid too: along a stretch
of constant spacings these are the returns of a rotation to an interval, at most three gaps apart
(Sos 1958; Swierczkowski 1959), so it steps from one to the next. Both give the same survivors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from scipy import stats

from normgauge.exact_recovery.gauge_line import ACCEPTED_DEVIATIONS, GaugeLine
from normgauge.exact_recovery.grids import Grid

CHUNK = 1 << 16
MODULUS = 1 << 62
NULL_BINS = 50
SLACK = 2.0**-24
"""Widening of the walk's interval, in ulp, for its own rounding; what it lets through is tried
exactly.
"""


@dataclass(frozen=True)
class Candidates:
    """One column's candidates: the grid points first..last (grid indices) of the coordinate
    `probe`.

    values, direction, spread: (n,) the column, the line and the noise of each coordinate at a
        candidate.
    order: the other coordinates, the one that excludes most first.
    """

    values: np.ndarray
    direction: np.ndarray
    spread: np.ndarray
    probe: int
    first: int
    last: int
    order: np.ndarray
    grid: Grid

    @property
    def count(self) -> int:
        return self.last - self.first + 1

    def alpha(self, index: np.ndarray) -> np.ndarray:
        """Places on the line of candidates given by the probe's grid indices."""
        return (self.grid.point(index) - self.values[self.probe]) / self.direction[self.probe]


@dataclass(frozen=True)
class Certificate:
    """candidates: how many places were tried; survivors: their alphas; tolerance: how far alpha may
    move (`tolerance`).
    """

    candidates: int
    survivors: np.ndarray
    half_width: float
    tolerance: float


def window(line: GaugeLine, values: np.ndarray, alpha: float | None = None) -> tuple[float, float]:
    """Centre and half-width of one column's window, (n,) values, made wide enough to hold a place
    `alpha` twice over.
    """
    centre, half_width = (float(part[0]) for part in line.window(values[:, None]))
    return centre, half_width if alpha is None or abs(alpha - centre) < half_width else 2 * abs(
        alpha - centre
    )


def candidates(
    line: GaugeLine, values: np.ndarray, noise: np.ndarray, grid: Grid, alpha: float | None = None
) -> Candidates:
    """The candidates of one column in its window, which `alpha` may widen. values, noise: (n,)."""
    centre, half_width = window(line, values, alpha)
    reach = np.abs(line.direction) * half_width
    middle = values + line.direction * centre
    low, high = grid.index(grid.round(middle - reach)), grid.index(grid.round(middle + reach))
    typical = np.median(grid.ulp(middle))
    count = np.where((reach > 0) & (noise < typical / 64), high - low + 1, np.iinfo(np.int64).max)
    probe = int(np.argmin(count))
    spread = np.sqrt(noise**2 + (line.direction * noise[probe] / line.direction[probe]) ** 2)
    spread = np.maximum(
        spread, 2.0**-53 * (np.abs(values) + np.abs(line.direction) * (abs(centre) + half_width))
    )
    passing = spread / grid.ulp(np.maximum(np.abs(middle), 0.5 * reach))
    order = np.argsort(passing)
    return Candidates(
        values,
        line.direction,
        spread,
        probe,
        int(low[probe]),
        int(high[probe]),
        order[order != probe],
        grid,
    )


def tolerance(line: GaugeLine, weights: np.ndarray, grid: Grid) -> float:
    """How far alpha may move before some stored weight (fan_in,) rounds elsewhere: min_j
    half_ulp(W_j) |g_j|.
    """
    return float((0.5 * grid.ulp(weights) / np.abs(line.direction[: line.weights])).min())


def sieve(given: Candidates) -> np.ndarray:
    """Grid indices of the candidates at which every coordinate is on the grid: all of them tried,
    each until its first failure.
    """
    survivors = [
        _passing(given, np.arange(start, min(start + CHUNK, given.last + 1), dtype=np.int64))
        for start in range(given.first, given.last + 1, CHUNK)
    ]
    return np.concatenate(survivors)


def _passing(given: Candidates, index: np.ndarray) -> np.ndarray:
    alpha = given.alpha(index)
    for coordinate in given.order:
        if not len(index):
            break
        moved = given.values[coordinate] + given.direction[coordinate] * alpha
        on_grid = (
            np.abs(moved - given.grid.round(moved))
            <= ACCEPTED_DEVIATIONS * given.spread[coordinate]
        )
        if not on_grid.all():
            index, alpha = index[on_grid], alpha[on_grid]
    return index


def walk(given: Candidates) -> np.ndarray:
    """The survivors of `sieve`, found by visiting only the candidates at which the first coordinate
    of the order is on the grid.
    """
    visited: list[int] = []
    for start, stop in _stretches(given):
        visited.extend(_visits(given, start, stop))
    return _passing(given, np.unique(np.array(visited, dtype=np.int64)))


def _stretches(given: Candidates) -> list[tuple[int, int]]:
    """Ranges [start, stop) of candidates along which the spacings of the probe and of the second
    coordinate are constant.
    """
    second, grid = given.order[0], given.grid
    ends = given.values[second] + given.direction[second] * given.alpha(
        np.array([given.first, given.last])
    )
    low, high = grid.index(grid.round(np.sort(ends)))
    per_binade = 1 << grid.mantissa
    powers = grid.point(np.arange(-(-low // per_binade), high // per_binade + 1) * per_binade)
    at = (
        given.values[given.probe]
        + given.direction[given.probe] * (powers - given.values[second]) / given.direction[second]
    )
    crossings = grid.index(grid.round(at))
    own = np.arange(-(-given.first // per_binade), given.last // per_binade + 1) * per_binade
    cuts = np.concatenate([[given.first, given.last + 1], crossings, crossings + 1, own, own + 1])
    cuts = np.unique(np.clip(cuts, given.first, given.last + 1)).tolist()
    return list(pairwise(cuts))


def _visits(given: Candidates, start: int, stop: int) -> list[int]:
    """Candidates in [start, stop) at which the second coordinate is within its tolerance of the
    grid.
    """
    second, grid = given.order[0], given.grid
    if stop - start < 64:
        return list(range(start, stop))
    ends = grid.point(np.array([start, start + 1, (start + stop) // 2]))
    positions = given.values[second] + given.direction[second] * given.alpha(
        np.array([start, (start + stop) // 2])
    )
    ulp = float(grid.ulp(positions[1:])[0])
    half = ACCEPTED_DEVIATIONS * given.spread[second] / ulp + SLACK
    if half >= 0.25:
        return list(range(start, stop))
    stride = (
        float(ends[1] - ends[0])
        * float(given.direction[second])
        / float(given.direction[given.probe])
        / ulp
    )
    rotation = _fraction(stride)
    position = _fraction(float(np.fmod(positions[0], ulp)) / ulp + half)
    width = int(2 * half * MODULUS)
    return [start + step for step in _returns(position, rotation, width, stop - start)]


def _fraction(value: float) -> int:
    """The fractional part of a float, exactly, as a multiple of 1 / MODULUS (rounded down)."""
    numerator, denominator = value.as_integer_ratio()
    return (numerator * MODULUS // denominator) % MODULUS


def _returns(position: int, rotation: int, width: int, limit: int) -> list[int]:
    """All k in [0, limit) with (position + k rotation) mod MODULUS in [0, width], by the three gaps
    between returns.
    """
    step = _first(rotation, MODULUS, -position, width)
    if step is None or step >= limit:
        return []
    right = _first(rotation, MODULUS, -rotation, width)
    left = _first(rotation, MODULUS, -width - rotation, width - 1)
    forward = limit if right is None else right + 1
    backward = limit if left is None else left + 1
    move_forward = forward * rotation % MODULUS
    move_backward = MODULUS - backward * rotation % MODULUS
    place = (position + step * rotation) % MODULUS
    visits = []
    while step < limit:
        visits.append(step)
        to_right, to_left = place + move_forward <= width, place >= move_backward
        if to_right and not (to_left and backward < forward):
            step, place = step + forward, place + move_forward
        elif to_left:
            step, place = step + backward, place - move_backward
        else:
            step, place = step + forward + backward, place + move_forward - move_backward
    return visits


def _first(rotation: int, modulus: int, low: int, width: int) -> int | None:
    """The least k >= 0 with (k rotation) mod modulus in [low, low + width] mod modulus, or None;
    Euclid's algorithm.
    """
    low %= modulus
    if low == 0 or low + width >= modulus:
        return 0
    return _first_between(rotation % modulus, modulus, low, low + width)


def _first_between(rotation: int, modulus: int, low: int, high: int) -> int | None:
    if rotation == 0:
        return None
    if 2 * rotation > modulus:
        return _first_between(modulus - rotation, modulus, modulus - high, modulus - low)
    count = -(-low // rotation)
    if count * rotation <= high:
        return count
    wraps = _first_between(modulus % rotation, rotation, -high % rotation, -low % rotation)
    return None if wraps is None else -(-(low + modulus * wraps) // rotation)


def certify(
    line: GaugeLine,
    values: np.ndarray,
    noise: np.ndarray,
    weights: np.ndarray,
    grid: Grid,
    full: bool,
    alpha: float | None = None,
) -> Certificate:
    """The certificate of one column: values, noise (n,), recovered weights (fan_in,); `full` tries
    every candidate, else the walk.

    `alpha`, the place found, widens the window where it lies outside.
    """
    given = candidates(line, values, noise, grid, alpha)
    survivors = sieve(given) if full else walk(given)
    return Certificate(
        given.count,
        given.alpha(survivors),
        window(line, values, alpha)[1],
        tolerance(line, weights, grid),
    )


def null_residuals(
    line: GaugeLine,
    values: np.ndarray,
    noise: np.ndarray,
    grid: Grid,
    count: int,
    generator: np.random.Generator,
) -> tuple[np.ndarray, int]:
    """Residuals in ulp, (count times coordinates,), of one column, (n,) values with their noise, at
    random wrong places in its window: uniform on [0, 1/2]. Coordinates that the window does not
    sweep are left out; how many residuals that are is the second value.
    """
    centre, half_width = (
        float(part[0]) for part in line.measured_window(values[:, None], noise[:, None])
    )
    swept = line.swept(values[:, None], noise[:, None], grid)[:, 0]
    alpha = centre + half_width * generator.uniform(-1, 1, count)
    moved = values[swept] + alpha[:, None] * line.direction[swept]
    rounded = grid.round(moved)
    return (np.abs(moved - rounded) / grid.ulp(rounded)).ravel(), count * int((~swept).sum())


def null_summary(residuals: Sequence[np.ndarray], left_out: int) -> dict[str, Any]:
    """Histogram of residuals in ulp over [0, 1/2] and the Kolmogorov-Smirnov test of their
    uniformity (None of no residuals).
    """
    joined = np.concatenate(residuals) if residuals else np.empty(0)
    test = stats.kstest(joined, "uniform", (0, 0.5), method="asymp") if len(joined) else None
    return {
        "counts": np.histogram(joined, NULL_BINS, (0, 0.5))[0].tolist(),
        "residuals": len(joined),
        "left_out": left_out,
        "statistic": None if test is None else float(test.statistic),
        "p": None if test is None else float(test.pvalue),
    }
