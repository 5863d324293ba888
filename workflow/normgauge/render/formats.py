"""Numbers in words: the only formats of a number, a share and a count in tables and figures."""

from __future__ import annotations

import math

NOTHING = "—"
"""Stands where there is no value."""


def number(value: float | None, digits: int = 3) -> str:
    """A value with `digits` significant digits: plain between 0.001 and 10000, else as a power of
    ten; a dash when there is none.
    """
    if value is None:
        return NOTHING
    if value == 0 or not math.isfinite(value):
        return f"{value + 0.0:g}"  # a negative zero becomes one without a sign
    mantissa, exponent = f"{value:.{digits - 1}e}".split("e")
    power = int(exponent)
    if -3 <= power < 4:
        return f"{value:.{max(digits - 1 - power, 0)}f}".replace("-", "−")
    return rf"${mantissa}\times10^{{{power}}}$"


def decimals(value: float | None, places: int) -> str:
    """A value with a fixed number of decimals; a dash when there is none."""
    return NOTHING if value is None else f"{value:.{places}f}".replace("-", "−")


COSINE_ROUNDING = 1e-12


def near_one(value: float | None, places: int) -> str:
    """A cosine with a fixed number of decimals; where they would show a bare 1, the power of ten by
    which it is nearer.

    A cosine of vectors in float64 is not known better than `COSINE_ROUNDING`, and nothing nearer to
    1 is printed.
    """
    if value is None or 1 - abs(value) >= 0.5 * 10**-places:
        return decimals(value, places)
    power = math.ceil(math.log10(max(1 - abs(value), COSINE_ROUNDING)))
    return rf"$>1-10^{{{power}}}$"


def count(value: int | None) -> str:
    """A whole number with commas between thousands; a dash when there is none."""
    return NOTHING if value is None else f"{value:,}"


def percent(share: float | None, places: int = 1) -> str:
    """A share as a percentage that says 100 only when nothing is left out, and 0 only when nothing
    is in.
    """
    if share is None:
        return NOTHING
    if share in (0, 1):
        return f"{100 * share:.0f}%"
    step = 10.0**-places
    return f"{min(max(100 * share, step), 100 - step):.{places}f}%"


def short(value: float) -> str:
    """A value in at most six characters, for the cell of a heat map."""
    if value == 0:
        return "0"
    if value >= 0.001:
        return f"{value:.3f}"
    return f"{value:.0e}".replace("e-0", "e-").replace("-", "−")
