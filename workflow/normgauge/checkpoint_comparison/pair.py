"""Two checkpoints of one class as one pair, read tensor by tensor in one gauge."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from normgauge.anatomy.lookup import stored_name
from normgauge.anatomy.structure import Anatomy, Tensor
from normgauge.checkpoint_comparison.precision import BITS, mantissa_bits, rounding_variance
from normgauge.checkpoint_comparison.steps import Step, variance_after

ROWS = 1 << 14  # rows of a table that are in memory at once


@dataclass(frozen=True, eq=False)
class Side:
    """One checkpoint of a pair, read in float64 after `steps`, the changes by tensor name that
    bring it into the pair's gauge.

    `tensors`, `stored` and `anatomy` are by the names of the class. `bits`: mantissa bits that each
    stored tensor uses, as they become known.
    """

    label: str
    anatomy: Anatomy
    config: Any
    tensors: Mapping[str, torch.Tensor]
    stored: Mapping[str, str]
    files: tuple[Path, ...]
    steps: Mapping[str, Sequence[Step]] = field(default_factory=dict)
    bits: dict[str, int] = field(default_factory=dict)

    def held(self, name: str) -> str:
        """The name under which the values of a tensor are stored: its own, or that of a tensor it
        is tied to.
        """
        return stored_name(self.anatomy, name, self.tensors)

    def __getitem__(self, name: str) -> torch.Tensor:
        """The whole tensor, float64, in the pair's gauge."""
        value = self.tensors[self.held(name)].double()
        for step in self.steps.get(name, ()):
            value = step.apply(value)
        return value

    def tensor(self, name: str) -> np.ndarray:
        """The same as an array."""
        return self[name].numpy()

    def rows(self, name: str) -> Iterator[np.ndarray]:
        """A table in runs of its first axis, float64, in the pair's gauge; its first axis is looked
        up, so no step acts on it.
        """
        stored = self.tensors[self.held(name)]
        for first in range(0, len(stored), ROWS):
            value = stored[first : first + ROWS].double()
            for step in self.steps.get(name, ()):
                value = step.apply(value)
            yield value.numpy()

    def selected(self, name: str, rows: Sequence[int]) -> np.ndarray:
        """Some rows of a table, float64, in the pair's gauge."""
        value = self.tensors[self.held(name)][list(rows)].double()
        for step in self.steps.get(name, ()):
            value = step.apply(value)
        return value.numpy()

    def floor(self, name: str) -> np.ndarray:
        """Variance, in the pair's gauge, of the storage rounding error of each value of a tensor,
        float64, as far as `variance_after` follows it.
        """
        return self._floor(name, slice(None))

    def floor_rows(self, name: str) -> Iterator[np.ndarray]:
        """The same in the runs of `rows`."""
        for first in range(0, len(self.tensors[self.held(name)]), ROWS):
            yield self._floor(name, slice(first, first + ROWS))

    def _floor(self, name: str, rows: slice) -> np.ndarray:
        value = self.tensors[self.held(name)]
        part = (value[rows] if value.ndim else value).double()
        variance = torch.from_numpy(
            rounding_variance(part.numpy(), self.grid_bits(name), value.dtype)
        )
        for step in self.steps.get(name, ()):
            variance = variance_after(step, part, variance)
            part = step.apply(part)
        return variance.numpy()

    def grid_bits(self, name: str) -> int:
        """Mantissa bits of the grid on which a tensor's values really lie: what they use,
        bfloat16's 7 when such values are stored as float32. A tensor that uses fewer than any dtype
        has, as ones do, says nothing: there it is what all tensors of its dtype use.
        """
        own = self._used_bits(self.held(name))
        if own >= min(BITS.values()):
            return own
        dtype = self.tensors[self.held(name)].dtype
        return max(
            self._used_bits(other) for other, value in self.tensors.items() if value.dtype == dtype
        )

    def _used_bits(self, held: str) -> int:
        if held not in self.bits:
            self.bits[held] = mantissa_bits(self.tensors[held])
        return self.bits[held]

    def with_steps(self, steps: Mapping[str, Sequence[Step]]) -> Side:
        """The same side with these steps after its own."""
        names = self.steps.keys() | steps.keys()
        return replace(
            self, steps={name: (*self.steps.get(name, ()), *steps.get(name, ())) for name in names}
        )


@dataclass(frozen=True, eq=False)
class Pair:
    """Checkpoints A and B of one class.

    `unmatched`: tensors outside the shared part that one side alone stores, with the side's label.
        `unused`: those that both store, with
    one shape, and that the class does not use: they are compared by themselves and enter no total.
    `noted`: what differs in the configs without changing the function, and what was opened
    otherwise than a config says, a sentence each.
    """

    a: Side
    b: Side
    unmatched: Mapping[str, str] = field(default_factory=dict)
    unused: tuple[str, ...] = ()
    noted: tuple[str, ...] = ()

    @property
    def anatomy(self) -> Anatomy:
        return self.a.anatomy

    def swapped(self) -> Pair:
        other = {"A": "B", "B": "A"}
        unmatched = {name: other[side] for name, side in self.unmatched.items()}
        return replace(
            self, a=replace(self.b, label="A"), b=replace(self.a, label="B"), unmatched=unmatched
        )

    def tensors(self) -> list[Tensor]:
        """The tensors that are compared: those of the class, each once."""
        return [
            tensor
            for tensor in self.anatomy.tensors
            if tensor.alias_of is None and tensor.name not in self.unused
        ]
