"""The close calls of a joint fit: values with a small margin, kept to see how often these are
wrong.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from normgauge.exact_recovery.grids import Grid

KEPT_BELOW = 8.0
EDGES = (0.0, 0.25, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 4.0, KEPT_BELOW)
"""Bins of the margin; 4 is the margin from which on a value is claimed."""
NEIGHBOURS = 40
"""Grid points on either side that a value may have come from."""


@dataclass(frozen=True)
class Calls:
    """Values of one map with margins below KEPT_BELOW, (m,) each.

    coordinates: of the input, fan_in is the bias; columns: of the output; values: the grid points;
    margins, widths: distance to the nearest rounding boundary, and between both, in noises.
    """

    coordinates: np.ndarray
    columns: np.ndarray
    values: np.ndarray
    margins: np.ndarray
    widths: np.ndarray

    @classmethod
    def of(cls, values: np.ndarray, margins: np.ndarray, noise: np.ndarray, grid: Grid) -> Calls:
        """The close calls among (n, k) values; zeros and undetermined ones are none."""
        close = (margins < KEPT_BELOW) & np.isfinite(values) & (values != 0)
        coordinates, columns = np.nonzero(close)
        widths = grid.ulp(values[close]) / noise[close]
        return cls(coordinates, columns, values[close], margins[close], widths)

    def shifted(self, first: int) -> Calls:
        """The same with columns counted from `first`."""
        return replace(self, columns=self.columns + first)

    def arrays(self, module: str) -> dict[str, np.ndarray]:
        """What `read` reads."""
        return {f"{module}.{name}": getattr(self, name) for name in FIELDS}

    @classmethod
    def read(cls, arrays: Mapping[str, np.ndarray], module: str) -> Calls:
        return cls(*(arrays[f"{module}.{name}"] for name in FIELDS))


FIELDS = tuple(Calls.__dataclass_fields__)


def joined(parts: Sequence[Calls]) -> Calls:
    """Calls of several runs of columns as one."""
    return Calls(*(np.concatenate([getattr(part, name) for part in parts]) for name in FIELDS))


def chance_wrong(margins: np.ndarray, widths: np.ndarray) -> np.ndarray:
    """The chance that the grid point next to a value is not the stored one, if errors are Gaussian
    with the noise as their deviation and grid points are all as likely beforehand.
    """
    own = np.maximum(widths / 2 - margins, 0.0)
    others = np.arange(-NEIGHBOURS, NEIGHBOURS + 1)[:, None] * widths - own
    return 1 - 1 / np.exp((own**2 - others**2) / 2).sum(axis=0)
