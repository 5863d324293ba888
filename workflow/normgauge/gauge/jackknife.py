"""How sure a statistic of activations is, when samples of one sequence depend on each other.

The infinitesimal jackknife over blocks (Efron and Stein 1981; Kuensch 1989): a statistic moves by
the sum of its samples' influences, and the variance of that sum is estimated from the blocks' sums.
Nothing is assumed of the autocorrelation, of tails, or of what a whole sequence has in common.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from scipy.special import ndtr, stdtrit

LEAST = 16  # blocks; fewer sequences are cut into pieces
DEVIATIONS = 3.0  # standard errors of a normal variable whose tail is the nominal rate
NOMINAL_RATE = float(ndtr(-DEVIATIONS))
"""Largest probability with which a statistic is certain of the wrong sign: 0.00135."""


@dataclass(frozen=True, eq=False)
class Blocks:
    """Consecutive samples in blocks, the same ones at every site.

    `starts`: by site, int64 (blocks,), the first sample of each block. `sequences`: int64
    (blocks,), the sequence that a block is a piece of.
    """

    starts: tuple[np.ndarray, ...]
    sequences: np.ndarray

    def sums(self, site: int, values: torch.Tensor) -> np.ndarray:
        """float64 (k, blocks): each block's sum of the values (k, samples) at a site."""
        return np.add.reduceat(values.numpy(), self.starts[site], axis=1, dtype=np.float64)

    def standard_error(self, sums: np.ndarray) -> np.ndarray:
        """float64 (k,): of statistics whose influences the blocks sum to, (blocks, k).

        Pieces of one sequence are not independent: the covariance of neighbours is added where it
        is positive.
        """
        own = np.square(sums).sum(0)
        neighbours = self.sequences[1:] == self.sequences[:-1]
        shared = (sums[1:] * sums[:-1])[neighbours].sum(0)
        count = len(sums)
        return np.sqrt((own + 2 * np.maximum(shared, 0)) * count / max(count - 1, 1))

    @property
    def quantile(self) -> float:
        """Standard errors that a certain difference exceeds: Student's t with one degree less than
        blocks.
        """
        return -float(stdtrit(max(len(self.sequences) - 1, 1), NOMINAL_RATE))


def blocks_of(sites: Sequence[Sequence[int]]) -> Blocks:
    """The blocks of sites that saw the same sequences; `sites` are the samples of each sequence.

    Sequences, each cut into equal pieces where there are fewer than LEAST of them.
    """
    sequences = len(sites[0])
    if any(len(lengths) != sequences for lengths in sites):
        raise ValueError(
            f"sites saw {sorted({len(lengths) for lengths in sites})} sequences; pool sites of one "
            "set"
        )
    pieces = -(-LEAST // max(sequences, 1))
    counts = [min(pieces, *(lengths[number] for lengths in sites)) for number in range(sequences)]
    starts = []
    for lengths in sites:
        first = np.concatenate([[0], np.cumsum(lengths)[:-1]])
        cuts = [
            first[number] + lengths[number] * np.arange(count) // count
            for number, count in enumerate(counts)
        ]
        starts.append(np.concatenate(cuts).astype(np.int64))
    return Blocks(tuple(starts), np.repeat(np.arange(sequences), counts))
