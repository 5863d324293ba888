"""Exact assignment beside a greedy one among each row's best, on activations of a gauged copy with
noise.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from scipy.optimize import linear_sum_assignment

from normgauge.gauge.admissible import Group
from normgauge.gauge.groups import Monomial
from normgauge.gauge.matching import CANDIDATES, Assigned, assign, assign_greedily, assign_in
from normgauge.schemas.discrete_laws import CORRELATION, COVARIANCE


def greedy_rows(
    activations: np.ndarray, name: str, noise: float, seed: int, scores: Sequence[str]
) -> Iterator[dict[str, Any]]:
    """Rows of schema `greedy_assignment`: float (samples, width) against the same under the
    recorded gauge of the seed, with noise in units of each coordinate's standard deviation.
    """
    source = activations - activations.mean(0)
    truth = Monomial.random(source.shape[1], seed)
    generator = np.random.default_rng([seed, 1])
    added = noise * source.std(0) * generator.standard_normal(source.shape)
    target = np.empty_like(source)
    target[:, truth.target] = (source + added) * truth.factors
    product = source.T @ (target - target.mean(0)) / len(source)
    for score in scores:
        values = product
        if score == CORRELATION:
            lengths = [np.maximum(each.std(0), 1e-30) for each in (source, target)]
            values = product / lengths[0][:, None] / lengths[1]
        elif score != COVARIANCE:
            raise ValueError(f"score {score!r}: expected {CORRELATION} or {COVARIANCE}")
        solvers = (assign if score == CORRELATION else assign_widely, assign_greedily)
        exact, greedy = (assign_in(Group.SIGNED_PERMUTATION, values, each) for each in solvers)
        sums = [float(each.score[each.matched].sum()) for each in (exact, greedy)]
        yield {
            "activations": name,
            "score": score,
            "width": source.shape[1],
            "samples": len(source),
            "noise": noise,
            "seed": seed,
            **_right("exact", exact, truth),
            **_right("greedy", greedy, truth),
            "candidates": _among_the_best(exact.score, truth.target),
            "greedy_loses": 1 - sums[1] / sums[0],
            "method": exact.method,
        }


def assign_widely(score: np.ndarray) -> tuple[np.ndarray, str, bool]:
    """The exact assignment in float64, for scores whose sizes differ by more than float32 has
    digits, as those of covariances do.
    """
    return linear_sum_assignment(score, maximize=True)[1], "scipy, float64", True


def normal_samples(samples: int, width: int, seed: int) -> np.ndarray:
    """float64 (samples, width), independent."""
    return np.random.default_rng([seed, 2]).standard_normal((samples, width))


def _right(name: str, found: Assigned, truth: Monomial) -> dict[str, float]:
    gauge = found.gauge
    return {
        f"{name}_permutation": float((gauge.target == truth.target).mean()),
        f"{name}_sign": float((gauge.factors == truth.factors).mean()),
    }


def _among_the_best(score: np.ndarray, target: np.ndarray) -> float:
    """The share of rows in which fewer than CANDIDATES entries exceed the true one."""
    own = score[np.arange(len(score)), target]
    return float(((score > own[:, None]).sum(1) < CANDIDATES).mean())
