"""Losses on the straight line between two checkpoints, and the barrier on it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch

from normgauge.checkpoints.opening import Checkpoint
from normgauge.trajectories.runs import trainable

POINTS = 11


@dataclass(frozen=True, eq=False)
class Line:
    """Mean losses of sequences, in nats per token: float64 (points, sequences), from the first
    checkpoint to the second.
    """

    losses: np.ndarray

    @property
    def means(self) -> np.ndarray:
        return self.losses.mean(1)

    @property
    def rises(self) -> np.ndarray:
        """float64 (points, sequences): how far each lies above the chord between the ends."""
        shares = np.linspace(0, 1, len(self.losses))[:, None]
        return self.losses - (1 - shares) * self.losses[0] - shares * self.losses[-1]

    @property
    def peak(self) -> int:
        return int(self.rises.mean(1).argmax())

    @property
    def barrier(self) -> float:
        """The peak above the chord; never below zero, which the ends have."""
        return float(self.rises.mean(1).max())

    @property
    def barrier_error(self) -> float | None:
        """Standard error over sequences of the rise at the peak; None of a single sequence."""
        rises = self.rises[self.peak]
        return float(rises.std(ddof=1) / np.sqrt(len(rises))) if len(rises) > 1 else None


class Interpolated:
    """One model whose weights are set to points between checkpoints; `sequences`: int64 (count,
    tokens), on which its loss is taken.
    """

    def __init__(self, first: Checkpoint, sequences: torch.Tensor) -> None:
        self.model, self.sequences = trainable(first), sequences
        self.first = {name: value.float() for name, value in first.tensors.items()}
        self.parameters = dict(self.model.named_parameters())

    def line(self, second: Mapping[str, torch.Tensor], points: int = POINTS) -> Line:
        """Losses from the first checkpoint to the tensors of another."""
        return Line(np.array([self._losses(second, share) for share in np.linspace(0, 1, points)]))

    @torch.no_grad()
    def _losses(self, second: Mapping[str, torch.Tensor], share: float) -> np.ndarray:
        for name, parameter in self.parameters.items():
            torch.lerp(self.first[name], second[name].float(), share, out=parameter.data)
        return sequence_losses(self.model, self.sequences)


@torch.no_grad()
def sequence_losses(model: torch.nn.Module, sequences: torch.Tensor) -> np.ndarray:
    """float64 (count,): of each sequence the mean loss of every token but the first, in nats."""
    model.eval()
    found: list[float] = []
    for sequence in sequences:
        logits = model(input_ids=sequence[None], use_cache=False).logits[0, :-1]
        loss = torch.nn.functional.cross_entropy(logits.double(), sequence[1:])
        found.append(float(loss))
    return np.array(found)
