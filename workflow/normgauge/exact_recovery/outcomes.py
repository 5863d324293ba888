"""What accumulates over a model while it is solved."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from normgauge.exact_recovery.attack import Attack
from normgauge.exact_recovery.hardest import Hardest


@dataclass
class Outcome:
    """One tensor: values in its stored shape (float64, NaN where undetermined), the margins, and
    its row of the map.
    """

    values: np.ndarray
    margins: np.ndarray
    row: dict[str, Any]

    @classmethod
    def undetermined(cls, shape: tuple[int, ...], row: dict[str, Any]) -> Outcome:
        """A tensor of which nothing is known; the row says why."""
        return cls(np.full(shape, np.nan), np.zeros(shape), row)


@dataclass
class Results:
    """What accumulates over a model.

    `outcomes`: by stored tensor. `falsified`, `falsifications`: what rows in another order give, by
    module, as arrays and as rows. `sieved`: the parts of the model with a column that was tried in
    full. `calls`: what the joint fits left with small margins, as arrays. `minimum_norms`: what the
    minimum-norm fits do, by module. `pending`, `evidence`: the stragglers, for the second stage.
    """

    outcomes: dict[str, Outcome] = field(default_factory=dict)
    falsified: dict[str, np.ndarray] = field(default_factory=dict)
    falsifications: dict[str, dict[str, Any]] = field(default_factory=dict)
    certificates: list[dict[str, Any]] = field(default_factory=list)
    sieved: set[str] = field(default_factory=set)
    null_residuals: list[np.ndarray] = field(default_factory=list)
    null_left_out: int = 0
    pending: list[dict[str, Any]] = field(default_factory=list)
    evidence: dict[str, np.ndarray] = field(default_factory=dict)
    calls: dict[str, np.ndarray] = field(default_factory=dict)
    minimum_norms: dict[str, dict[str, Any]] = field(default_factory=dict)
    attack: Attack | None = None
    hardest: Hardest | None = None
    hardest_study: dict[str, Any] | None = None


def row(population: str, argument: str, **known: Any) -> dict[str, Any]:
    """A row of the identifiability map; what does not apply is None."""
    fields = (
        "norm",
        "null_rank",
        "null_cosine",
        "relative_residual",
        "draws",
        "score",
        "least_score",
        "log10_null",
        "extended",
        "nonpositive",
        "reason",
    )
    return {
        "population": population,
        "argument": argument,
        "gauge_dimension": 0,
        "seconds": 0.0,
        **dict.fromkeys(fields),
        **known,
    }
