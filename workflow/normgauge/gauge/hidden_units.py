"""Gauges inside a block: feed-forward units and attention heads, recovered from activations."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment

from normgauge.errors import InputError
from normgauge.gauge.admissible import Group
from normgauge.gauge.correlation import CrossCorrelation
from normgauge.gauge.groups import AttentionGauge, Monomial
from normgauge.gauge.matching import Cost, Matching, match


def cost_of(group: Group) -> Cost:
    """|C| where the group has signs, C where it has none: there a negative correlation is no match."""
    return Cost.SIGNED if group in (Group.PERMUTATION, Group.POSITIVE_MONOMIAL) else Cost.ABSOLUTE


def match_units(correlation: CrossCorrelation, group: Group) -> Matching:
    """Match the hidden units behind the down projection's input, whose group `admissible` names.

    Where the group has scales, the gauge's factors are the signed ratio of the standard deviations.
    """
    found = match(correlation, cost_of(group))
    if group not in (Group.POSITIVE_MONOMIAL, Group.MONOMIAL):
        return found
    source, target = correlation.deviations()
    ratio = np.where(found.uncertain, 1.0, target[found.gauge.target] / np.where(source > 0, source, 1.0))
    scaled = Monomial(found.gauge.target, found.gauge.factors * np.where(ratio > 0, ratio, 1.0))
    return Matching(scaled, found.margins, found.uncertain, found.certified, found.method, found.samples, found.seconds)


class HeadCorrelation:
    """Accumulates the output projection's input of two models, (m, heads x d) each, head by head."""

    def __init__(self, heads: int, size: int) -> None:
        self.heads, self.size, self.n = heads, size, 0
        self._sums = torch.zeros(2, heads * size, dtype=torch.float64)
        self._own = torch.zeros(2, heads, size, size, dtype=torch.float64)
        self._cross = torch.zeros(heads * size, heads * size, dtype=torch.float64)

    def update(self, source: torch.Tensor, target: torch.Tensor) -> None:
        """Add one chunk of each. Raises InputError when the shapes differ or a value is not finite."""
        if source.shape != target.shape or source.shape[1] != self.heads * self.size:
            raise InputError(
                f"activations of shapes {list(source.shape)} and {list(target.shape)}, expected {self.heads} heads of {self.size} of both"
            )
        pair = [source.double(), target.double()]
        for number, value in enumerate(pair):
            if not value.isfinite().all():
                raise InputError("activations hold NaN or infinity; check the checkpoint's weights")
            heads = value.reshape(len(value), self.heads, self.size)
            self._sums[number] += value.sum(0)
            self._own[number] += torch.einsum("nhi,nhj->hij", heads, heads)
        self._cross += pair[0].T @ pair[1]
        self.n += len(source)

    def centred(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Scatter of each source head (H, d, d), of each target head, and between all of them (H, d, H, d)."""
        if self.n <= 2 * self.size:
            raise InputError(f"{self.n} samples for heads of {self.size} coordinates; give more than {2 * self.size} probes")
        heads = self._sums.reshape(2, self.heads, self.size)
        own = self._own - torch.einsum("shi,shj->shij", heads, heads) / self.n
        cross = self._cross - torch.outer(self._sums[0], self._sums[1]) / self.n
        return own[0].numpy(), own[1].numpy(), cross.reshape(self.heads, self.size, self.heads, self.size).numpy()


@dataclass(frozen=True, eq=False)
class HeadMatching:
    """`gauge`: heads and value maps; its query maps are the identity, which activations behind the scores cannot tell.

    `scores`: float64 (H, H), the mean squared canonical correlation of source and target heads: one where a linear map leads from one
    to the other. `margins`: float64 (H,), the matched score minus the best other in its row or column.
    """

    gauge: AttentionGauge
    scores: np.ndarray
    margins: np.ndarray
    samples: int
    seconds: float


def match_heads(correlation: HeadCorrelation, groups: int) -> HeadMatching:
    """Match heads within matched key/value groups, then fit each group's value map by least squares."""
    started = time.perf_counter()
    source, target, cross = correlation.centred()
    heads, size = correlation.heads, correlation.size
    repeats = heads // groups
    scores = np.empty((heads, heads))
    regression = [np.linalg.pinv(own, rcond=1e-10, hermitian=True) for own in source]
    backward = [np.linalg.pinv(own, rcond=1e-10, hermitian=True) for own in target]
    for first in range(heads):
        for second in range(heads):
            between = cross[first, :, second, :]
            scores[first, second] = np.trace(regression[first] @ between @ backward[second] @ between.T) / size
    group_order, head_order = assign_heads(scores, groups)
    order = (group_order[:, None] * repeats + head_order).ravel()
    maps = np.stack([_value_map(source, cross, order, range(group * repeats, (group + 1) * repeats)) for group in range(groups)])
    others = scores.copy()
    others[np.arange(heads), order] = -np.inf
    margins = scores[np.arange(heads), order] - np.maximum(others.max(1), others.max(0)[order])
    gauge = AttentionGauge(group_order, head_order, np.tile(np.eye(size), (groups, 1, 1)), maps)
    return HeadMatching(gauge, scores, margins, correlation.n, time.perf_counter() - started)


def head_recovery_row(site: str, seed: int, found: HeadMatching, truth: AttentionGauge) -> dict[str, Any]:
    """One row of schema `gauge_recovery`: matched heads and fitted value maps against the layer's gauge. Signs are part of the maps."""
    right = found.gauge.mixed.order == truth.mixed.order
    return {
        "site": site,
        "part": "heads",
        "width": len(right),
        "seed": seed,
        "tokens": found.samples,
        "method": "canonical correlation",
        "permutation_accuracy": float(right.mean()),
        "sign_accuracy": None,
        "uncertain": float((found.margins <= 0).mean()),
        "certain_accuracy": float(right[found.margins > 0].mean()) if (found.margins > 0).any() else None,
        "map_error": float(np.abs(found.gauge.value_maps - truth.value_maps).max() / np.abs(truth.value_maps).max()),
        "min_margin": float(found.margins.min()),
        "certified": False,
        "seconds": found.seconds,
    }


def assign_heads(scores: np.ndarray, groups: int) -> tuple[np.ndarray, np.ndarray]:
    """(group order (G,), place of each head inside its group (G, R)) with the largest sum of (H, H) scores; groups stay together."""
    repeats = len(scores) // groups
    blocks = scores.reshape(groups, repeats, groups, repeats).transpose(0, 2, 1, 3)
    within = [[linear_sum_assignment(block, maximize=True) for block in row] for row in blocks]
    totals = np.array([[blocks[g, k][within[g][k]].sum() for k in range(groups)] for g in range(groups)])
    group_order = linear_sum_assignment(totals, maximize=True)[1]
    return group_order, np.stack([within[group][group_order[group]][1] for group in range(groups)])


def _value_map(source: np.ndarray, cross: np.ndarray, order: np.ndarray, heads: range) -> np.ndarray:
    """The one matrix that leads from the values of a group's heads to those of their matches."""
    own = sum(source[head] for head in heads)
    between = sum(cross[head, :, order[head], :] for head in heads)
    return np.linalg.solve(own, between)
