"""Storage grids: the float32, float16 and bfloat16 numbers as a discrete subset of the float64
ones.

Everything is float64 in and float64 out, on arrays of any shape, so that a solver never leaves
float64.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from normgauge.errors import InputError

_EXPONENT_BITS = np.int64(0x7FF0000000000000)
_FLOAT64_MANTISSA = 52


@dataclass(frozen=True)
class Grid:
    """A binary floating-point format: explicit mantissa bits and the exponent of its smallest
    normal number.
    """

    name: str
    mantissa: int
    minimum_exponent: int

    @property
    def smallest(self) -> float:
        """The smallest positive grid point, and the spacing of the subnormal range."""
        return 2.0 ** (self.minimum_exponent - self.mantissa)

    @property
    def largest(self) -> float:
        """The largest finite grid point."""
        return (2.0 - 2.0**-self.mantissa) * 2.0 ** (1 - self.minimum_exponent)

    def ulp(self, values: np.ndarray) -> np.ndarray:
        """Spacing of the grid at each value, on the side away from zero."""
        exponents = np.asarray(values, dtype=np.float64).view(np.int64) & _EXPONENT_BITS
        return np.maximum(exponents.view(np.float64) * 2.0**-self.mantissa, self.smallest)

    def round(self, values: np.ndarray) -> np.ndarray:
        """The nearest grid points, ties to even. Values beyond the largest finite number are not
        clipped: no finite weight lies there.
        """
        values = np.ascontiguousarray(values, dtype=np.float64)
        if self.name == "float32":
            # the machine's cast is the same rounding, and several times faster
            with np.errstate(over="ignore"):
                return values.astype(np.float32).astype(np.float64)
        dropped = _FLOAT64_MANTISSA - self.mantissa
        bits = values.view(np.int64)
        odd = (bits >> dropped) & 1
        rounded = ((bits + ((1 << (dropped - 1)) - 1) + odd) >> dropped) << dropped
        small = np.abs(values) < 2.0**self.minimum_exponent
        return np.where(
            small, np.rint(values / self.smallest) * self.smallest, rounded.view(np.float64)
        )

    def boundary_distance(
        self, values: np.ndarray, rounded: np.ndarray | None = None
    ) -> np.ndarray:
        """Distance of each value from the nearest midpoint of neighbouring grid points: how far it
        is from rounding elsewhere.
        """
        values = np.ascontiguousarray(values, dtype=np.float64)
        rounded = self.round(values) if rounded is None else rounded
        outward = (values - rounded) * np.where(np.signbit(rounded), -1.0, 1.0)
        half_out = 0.5 * self.ulp(rounded)
        is_power = (np.abs(rounded) > 2.0**self.minimum_exponent) & (
            (rounded.view(np.int64) & ~_EXPONENT_BITS & np.int64(2**63 - 1)) == 0
        )
        half_in = np.where(is_power, 0.5 * half_out, half_out)
        return np.minimum(half_out - outward, half_in + outward)

    def margin(self, values: np.ndarray, rounded: np.ndarray, noise: np.ndarray) -> np.ndarray:
        """Distance from the rounding boundary in noises, which are at least float64's own; 0 for a
        zero: its sign leaves no trace.
        """
        noise = np.maximum(noise, np.maximum(2.0**-53 * np.abs(values), np.finfo(float).tiny))
        return np.where(rounded == 0, 0.0, self.boundary_distance(values, rounded) / noise)

    def index(self, points: np.ndarray) -> np.ndarray:
        """Order-preserving int64 index of grid points: zero has index 0, neighbours differ by 1,
        the sign is the point's.
        """
        points = np.ascontiguousarray(points, dtype=np.float64)
        magnitude = np.abs(points)
        smallest_normal = 2.0**self.minimum_exponent
        bits = (magnitude.view(np.int64) - np.float64(smallest_normal).view(np.int64)) >> (
            _FLOAT64_MANTISSA - self.mantissa
        )
        subnormal = (np.minimum(magnitude, smallest_normal) / self.smallest).astype(np.int64)
        index = np.where(magnitude < smallest_normal, subnormal, bits + (1 << self.mantissa))
        return np.where(np.signbit(points), -index, index)

    def point(self, index: np.ndarray) -> np.ndarray:
        """The grid points of int64 indices: the inverse of `index`."""
        index = np.asarray(index, dtype=np.int64)
        magnitude = np.abs(index)
        first_normal = 1 << self.mantissa
        bits = (
            np.maximum(magnitude - first_normal, 0) << (_FLOAT64_MANTISSA - self.mantissa)
        ) + np.float64(2.0**self.minimum_exponent).view(np.int64)
        points = np.where(
            magnitude < first_normal, magnitude * self.smallest, bits.view(np.float64)
        )
        return np.where(index < 0, -points, points)

    def neighbours(self, points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The next grid points below and above."""
        index = self.index(points)
        return self.point(index - 1), self.point(index + 1)


GRIDS = {
    "float32": Grid("float32", 23, -126),
    "float16": Grid("float16", 10, -14),
    "bfloat16": Grid("bfloat16", 7, -126),
}


def grid(name: str) -> Grid:
    """The grid of a storage dtype; InputError for a dtype whose values are not a floating-point
    grid.
    """
    if name not in GRIDS:
        raise InputError(
            f"storage dtype {name!r}: expected one of {', '.join(GRIDS)}; recovery needs the "
            "stored floating-point grid"
        )
    return GRIDS[name]
