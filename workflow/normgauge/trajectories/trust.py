"""Whether a chain can be trusted, from its local matches alone.

A match that is ahead of its best rival by z standard errors, among matches of median lead m, is
right with log-odds a + b asinh(z) + c asinh(m): a lead counts for more where leads are large. The
three numbers are fitted on links whose truth is recorded; a coordinate arrives if every match on
its way is right.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from scipy.special import expit, log_expit

from normgauge.errors import InputError
from normgauge.trajectories.links import Chain

ROUNDS = 50  # of Newton's method; a handful is enough
LONGEST = 2.0  # of a step of it in one number
RIDGE = 1e-3  # keeps the curvature invertible where the two classes are apart


@dataclass(frozen=True)
class Trust:
    """The fitted rule: `intercept`, `slope` by a match's own lead, `level` by the median of its
    link. `matches`: of single coordinates that it was fitted on.
    """

    intercept: float
    slope: float
    level: float
    matches: int

    def probability(self, leads: np.ndarray) -> np.ndarray:
        """That matches are right, from the leads of whole links, (..., d)."""
        return expit(self._odds(leads))

    def arrives(self, chain: Chain) -> np.ndarray:
        """float64 (d,): the probability that each coordinate of a chain arrives at its own."""
        return np.exp(log_expit(self._odds(chain.leads)).sum(0))

    def predicted(self, chain: Chain) -> float:
        """The share of coordinates that a chain brings to their own, as expected."""
        return float(self.arrives(chain).mean())

    def _odds(self, leads: np.ndarray) -> np.ndarray:
        return design(leads) @ np.array([self.intercept, self.slope, self.level])


def design(leads: np.ndarray) -> np.ndarray:
    """float64 (..., d, 3): what the log-odds are linear in, from the leads of whole links."""
    own = np.arcsinh(leads)
    level = np.broadcast_to(np.median(own, axis=-1, keepdims=True), own.shape)
    return np.stack([np.ones_like(own), own, level], axis=-1)


def fit(samples: Iterable[tuple[np.ndarray, np.ndarray]]) -> Trust:
    """The rule with the largest likelihood, from (leads, whether right) of links. InputError where
    all are right or none is: nothing can be told from them.
    """
    given = list(samples)
    columns = np.concatenate([design(lead) for lead, _ in given])
    right = np.concatenate([right for _, right in given]).astype(np.float64)
    if not 0 < right.mean() < 1:
        raise InputError(
            f"trust: {right.mean():.0%} of {len(right)} local matches are right, from which no "
            "rule can be fitted; add runs with larger and smaller steps"
        )
    found = np.zeros(columns.shape[1])
    for _ in range(ROUNDS):
        share = expit(columns @ found)
        slope = columns.T @ (right - share) - RIDGE * found
        curvature = (columns.T * (share * (1 - share))) @ columns + RIDGE * np.eye(len(found))
        step = np.linalg.solve(curvature, slope)
        found = found + np.clip(step, -LONGEST, LONGEST)
        if np.abs(step).max() < 1e-10:
            break
    intercept, slope, level = found.tolist()
    return Trust(intercept, slope, level, len(right))
