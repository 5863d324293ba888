"""Axes: where the ticks of a logarithmic axis stand, and a panel without data."""

from __future__ import annotations

import math
from collections.abc import Sequence

from matplotlib.axes import Axes


def decades(limits: tuple[float, float]) -> list[float]:
    """Powers of ten inside the limits, one in so many that there are at most five."""
    first, last = math.ceil(math.log10(limits[0])), math.floor(math.log10(limits[1]))
    step = math.ceil((last - first + 1) / 5)
    return [10.0**power for power in range(first, last + 1) if power % step == 0]


def whole_decades(axes: Axes, axis: str, values: Sequence[float]) -> None:
    """A logarithmic axis between powers of ten around the values, few of them labelled."""
    limits = (
        10.0 ** math.floor(math.log10(min(values) / 1.1)),
        10.0 ** math.ceil(math.log10(max(values) * 1.1)),
    )
    axes.set(**{f"{axis}scale": "log", f"{axis}lim": limits, f"{axis}ticks": decades(limits)})


def round_numbers(low: float, high: float) -> list[float]:
    """1, 2 and 5 times the powers of ten between the two, or some of the powers alone where that is
    more than eight.
    """
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    found = [
        float(f"{step}e{power}")
        for power in powers
        for step in (1, 2, 5)
        if low <= float(f"{step}e{power}") <= high
    ]
    return found if len(found) <= 8 else decades((low, high))


def nothing(axes: Axes, text: str) -> None:
    """An empty panel that says why."""
    axes.set(xticks=[], yticks=[])
    axes.text(
        0.5,
        0.5,
        text,
        ha="center",
        va="center",
        transform=axes.transAxes,
    )
