"""The exact test: under training that treats units alike, from an initialisation that does, the
units of A are exchangeable given B, and so a sum over pairs of equal number has an exact p-value
(Zhu, Ahmed, Kuditipudi and Liang, ICML 2025, arXiv 2502.12292, for permutations of units).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

DRAWS = 9999
AT_ONCE = 1000  # draws that are in memory at once


@dataclass(frozen=True)
class TraceTest:
    """The trace in standard deviations of its permutation distribution, exact mean and variance;
    the p-value of `draws` random permutations, never below 1 / (draws + 1).
    """

    z: float
    p: float
    draws: int


def double_centred(similarity: np.ndarray) -> np.ndarray:
    """Rows and columns of mean zero: what a permutation does not change is gone."""
    rows = similarity - similarity.mean(0, keepdims=True)
    return rows - rows.mean(1, keepdims=True)


def trace_test(
    similarities: Sequence[np.ndarray], seed: int, draws: int = DRAWS, signs: bool = False
) -> TraceTest:
    """The sum over layers of the trace of the similarity of unit i of A with unit i of B, each
    layer in units of its standard deviation over permutations.

    similarities: float (n, n) per layer. One permutation is drawn for all layers of a size: the
    only group that is admitted where an initialisation copies one layer into all, and a subgroup of
    the admitted one elsewhere, so it is exact in both. `signs`: coordinates change signs as well.
    """
    generator = np.random.default_rng(seed)
    sums: dict[int, np.ndarray] = {}
    for similarity in similarities:
        scaled = _standardised(np.asarray(similarity, dtype=np.float64), signs)
        sums[len(scaled)] = sums.get(len(scaled), 0.0) + scaled
    observed = sum(float(np.trace(matrix)) for matrix in sums.values())
    variance = sum(_variance(matrix, signs) for matrix in sums.values())
    drawn = np.zeros(draws)
    for size, matrix in sums.items():
        places = np.arange(size)
        for start in range(0, draws, AT_ONCE):
            shape = (min(AT_ONCE, draws - start), size)
            orders = generator.permuted(np.broadcast_to(places, shape), axis=1)
            values = matrix[places, orders]
            if signs:
                values = values * generator.choice((-1.0, 1.0), shape)
            drawn[start : start + AT_ONCE] += values.sum(1)
    # a draw that equals the observed trace up to rounding counts as one that reaches it
    reach = observed - 1e-9 * max(1.0, abs(observed))
    p = (1 + int((drawn >= reach).sum())) / (1 + draws)
    z = observed / variance**0.5 if variance > 0 else 0.0
    return TraceTest(z, p, draws)


def _standardised(similarity: np.ndarray, signs: bool) -> np.ndarray:
    centred = similarity if signs else double_centred(similarity)
    variance = _variance(centred, signs)
    return centred / variance**0.5 if variance > 0 else np.zeros_like(centred)


def _variance(matrix: np.ndarray, signs: bool) -> float:
    """Of the trace over all (signed) permutations; of a double-centred matrix without signs."""
    size = len(matrix)
    total = float(np.square(matrix).sum())
    return total / size if signs else total / max(1, size - 1)


def unit_rows(parts: Sequence[np.ndarray]) -> np.ndarray:
    """What several maps say of each unit side by side, every map at the same weight."""
    return np.concatenate([each / max(float(np.linalg.norm(each)), 1e-300) for each in parts], 1)
