"""Changes of one stored tensor that bring a side into the pair's gauge, and what each makes of the
rounding errors of the values that it changes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch

from normgauge.gauge.groups import Orthogonal
from normgauge.gauge.transform import Move


class Step(Protocol):
    """A change of one tensor: a move of a gauge or the scaling of a norm's gain."""

    def apply(self, value: torch.Tensor) -> torch.Tensor: ...


@dataclass(frozen=True, eq=False)
class GainScale:
    """A stored gain w, which stands for offset + w, with the effective gain multiplied by
    `factors`, float64 (n,).
    """

    factors: np.ndarray
    offset: float

    def apply(self, value: torch.Tensor) -> torch.Tensor:
        return ((value.double() + self.offset) * torch.from_numpy(self.factors) - self.offset).to(
            value.dtype
        )


@dataclass(frozen=True, eq=False)
class AxisScale:
    """Coordinates along one axis multiplied by `factors`, float64 (n,), whose own rounding errors
    have the relative variances `relative`, float64 (n,).
    """

    axis: int
    factors: np.ndarray
    relative: np.ndarray

    def apply(self, value: torch.Tensor) -> torch.Tensor:
        return value.double() * self._along(self.factors, value)

    def spread(self, value: torch.Tensor, variance: torch.Tensor) -> torch.Tensor:
        """The variances of the scaled values, from those of the values."""
        squares = self._along(self.factors**2, value)
        return squares * (variance + value.double().square() * self._along(self.relative, value))

    def _along(self, numbers: np.ndarray, value: torch.Tensor) -> torch.Tensor:
        shape = [1] * value.ndim
        shape[self.axis] = -1
        return torch.from_numpy(numbers).reshape(shape)


def variance_after(step: Step, value: torch.Tensor, variance: torch.Tensor) -> torch.Tensor:
    """Variances, float64, of the errors of step.apply(value), from those of independent errors of
    the values.

    A rotation mixes errors: they keep their sum along its axis, and what binds them to each other
    is left out.
    """
    if isinstance(step, AxisScale):
        return step.spread(value, variance)
    if isinstance(step, Move) and isinstance(step.element, Orthogonal) and step.positions is None:
        mixed = variance.movedim(step.axis, -1) @ torch.from_numpy(step.element.matrix**2)
        return mixed.movedim(-1, step.axis)
    deviation = variance.sqrt()
    return (step.apply(deviation) - step.apply(torch.zeros_like(deviation))).square()
