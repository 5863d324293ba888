"""Attention heads of two models matched by the activations behind them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment

from normgauge.gauge.jackknife import Blocks, blocks_of
from normgauge.gauge.site_matching import Pair

# smallest over largest singular value of a head's activations that float32 still tells from
# rounding
RANK = 1e-5


@dataclass(frozen=True, eq=False)
class HeadMatching:
    """Source head h stands at `order[h]` in the target.

    `group_order`: int64 (G,), and `head_order`: int64 (G, R), the place of each head inside its
        group.
    `scores`: float64 (H, H), the mean squared canonical correlation of source and target heads, one
    where an invertible map leads from one to the other. `margins`: float64 (H,), the matched score
    minus the best other in its row or column. `uncertain`: bool (H,), not ahead of these beyond
    doubt;
    none where heads may not change places. `silent`: bool (H,), without activations that vary.
    """

    group_order: np.ndarray
    head_order: np.ndarray
    scores: np.ndarray
    margins: np.ndarray
    uncertain: np.ndarray
    silent: np.ndarray
    samples: int
    seconds: float

    @property
    def order(self) -> np.ndarray:
        return (self.group_order[:, None] * self.head_order.shape[1] + self.head_order).ravel()


def match_heads(pairs: Sequence[Pair], heads: int, groups: int, free: bool = True) -> HeadMatching:
    """Match heads within matched key/value groups, by the inputs of one output projection,
    (samples, heads x size).

    `pairs` are the projection's sites, more than one where blocks share it. `free`: whether heads
    may change places.
    """
    started = time.perf_counter()
    sites = [_HeadSite(source.rows, target.rows, heads) for source, target in pairs]
    blocks = blocks_of([source.lengths for source, _ in pairs])
    scores = np.mean([site.scores for site in sites], axis=0)
    silent = np.all([site.silent for site in sites], axis=0)
    repeats = heads // groups
    if free:
        group_order, head_order = assign_heads(scores, groups)
    else:
        group_order, head_order = np.arange(groups), np.tile(np.arange(repeats), (groups, 1))
    places = np.arange(heads)
    order = (group_order[:, None] * repeats + head_order).ravel()
    margins, ahead = np.full(heads, np.inf), np.ones(heads, dtype=bool)
    if heads > 1:
        others = scores.copy()
        others[places, order] = -np.inf
        own = _influences(sites, blocks, places, order)
        for rows, columns in ((places, others.argmax(1)), (others.argmax(0)[order], order)):
            gap = scores[places, order] - scores[rows, columns]
            error = blocks.standard_error(own - _influences(sites, blocks, rows, columns))
            ahead &= gap > blocks.quantile * error
            margins = np.minimum(margins, gap)
    uncertain = (~ahead | silent) if free and heads > 1 else np.zeros(heads, dtype=bool)
    samples, seconds = len(pairs[0][0].rows), time.perf_counter() - started
    return HeadMatching(
        group_order, head_order, scores, margins, uncertain, silent, samples, seconds
    )


class _HeadSite:
    """Whitened activations of every head at one site, and their correlations."""

    def __init__(self, source: torch.Tensor, target: torch.Tensor, heads: int) -> None:
        self.samples, width = source.shape
        self.size = width // heads
        self.source, self.target = (_whitened(rows, heads) for rows in (source, target))
        self.silent = np.array(
            [
                not first.any() or not second.any()
                for first, second in zip(self.source, self.target, strict=True)
            ]
        )
        first, second = (
            each.permute(1, 0, 2).reshape(self.samples, width)
            for each in (self.source, self.target)
        )
        self.correlation = (
            (first.T @ second / self.samples)
            .reshape(heads, self.size, heads, self.size)
            .permute(0, 2, 1, 3)
        )
        self.scores = self.correlation.square().sum((2, 3)).numpy() / self.size

    def influences(self, row: int, column: int) -> torch.Tensor:
        """float64 (samples,): of each sample on the score of two heads."""
        source, target, correlation = (
            self.source[row],
            self.target[column],
            self.correlation[row, column],
        )
        forward, backward = source @ correlation, target @ correlation.T
        total = 2 * (forward * target).sum(1) - forward.square().sum(1) - backward.square().sum(1)
        return total / (self.size * self.samples)


def _whitened(rows: torch.Tensor, heads: int) -> torch.Tensor:
    """float64 (heads, samples, size): each head's activations, centred and turned so that their
    covariance is a projection.
    """
    wide = rows.double()
    wide = (wide - wide.mean(0)).reshape(len(rows), heads, -1).permute(1, 0, 2)
    left, values, right = torch.linalg.svd(wide, full_matrices=False)
    kept = values > RANK * values[:, :1]
    return (left * kept[:, None, :]) @ right * len(rows) ** 0.5


def _influences(
    sites: Sequence[_HeadSite], blocks: Blocks, rows: np.ndarray, columns: np.ndarray
) -> np.ndarray:
    """float64 (blocks, k): of each block on the scores of pairs of heads, the mean over sites."""
    total = np.zeros((len(blocks.sequences), len(rows)))
    for number, site in enumerate(sites):
        found = torch.stack(
            [
                site.influences(row, column)
                for row, column in zip(rows.tolist(), columns.tolist(), strict=True)
            ]
        )
        total += blocks.sums(number, found).T / len(sites)
    return total


def assign_heads(scores: np.ndarray, groups: int) -> tuple[np.ndarray, np.ndarray]:
    """(group order (G,), place of each head inside its group (G, R)) with the largest sum of (H, H)
    scores; groups stay together.
    """
    repeats = len(scores) // groups
    blocks = scores.reshape(groups, repeats, groups, repeats).transpose(0, 2, 1, 3)
    within = [[linear_sum_assignment(block, maximize=True) for block in row] for row in blocks]
    totals = np.array(
        [[blocks[g, k][within[g][k]].sum() for k in range(groups)] for g in range(groups)]
    )
    group_order = linear_sum_assignment(totals, maximize=True)[1]
    return group_order, np.stack([within[group][group_order[group]][1] for group in range(groups)])
