"""The decided value nearest to a rounding boundary: its margin against the number of observations,
and what its column's gains do.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from normgauge.exact_recovery.arithmetic import Arithmetic
from normgauge.exact_recovery.description import ObservedMap
from normgauge.exact_recovery.grids import Grid
from normgauge.exact_recovery.maps import Design, Recovered, recover
from normgauge.exact_recovery.stragglers import REQUIRED_MARGIN

HALVINGS = 3
"""The fit is repeated on so many successive halves of the observations, as long as they are twice
the inputs.
"""


@dataclass(frozen=True)
class Hardest:
    """Where a map behind a norm has the value of least margin that the joint fit decides;
    `coordinate` is fan_in for a bias.
    """

    margin: float
    item: ObservedMap
    column: int
    coordinate: int


def harder(than: Hardest | None, item: ObservedMap, part: Recovered, first: int) -> Hardest | None:
    """The harder of `than` and the hardest value of `part`, whose columns are counted from `first`;
    maps behind no norm are left out.
    """
    if item.norm is None:
        return than
    margins = np.where(part.margins >= REQUIRED_MARGIN, part.margins, np.inf)
    coordinate, column = np.unravel_index(margins.argmin(), margins.shape)
    margin = float(margins[coordinate, column])
    return (
        Hardest(margin, item, int(column) + first, int(coordinate))
        if margin < (np.inf if than is None else than.margin)
        else than
    )


def study(
    hardest: Hardest,
    design_of: Callable[[np.ndarray], Design],
    inputs: np.ndarray,
    outputs: np.ndarray,
    gains: np.ndarray,
    grid: Grid,
    arithmetic: Arithmetic,
    seed: int,
) -> dict[str, Any]:
    """Joint fits of the hardest value's column on the first rows of (N, fan_in) inputs and (N, 1)
    outputs, doubled until all are in.

    Returns module, column and margin, `rows` and `margins` of the fits, and gain, weight and margin
    of each input in the last one.
    """
    intercept = hardest.item.bias is not None
    halves = [len(inputs) >> halving for halving in range(HALVINGS, 0, -1)]
    counts = [rows for rows in halves if rows > 2 * inputs.shape[1]] + [len(inputs)]
    fits = [
        recover(design_of(inputs[:rows]), [outputs[:rows]], [intercept], grid, arithmetic, seed)[0]
        for rows in counts
    ]
    return {
        "module": hardest.item.module,
        "column": hardest.column,
        "margin": hardest.margin,
        "rows": counts,
        "margins": [float(fit.margins[hardest.coordinate, 0]) for fit in fits],
        "inputs": {
            "gain": gains.tolist(),
            "weight": fits[-1].values[: len(gains), 0].tolist(),
            "margin": fits[-1].margins[: len(gains), 0].tolist(),
        },
    }
