"""A run of training whose kept steps are checkpoint folders, and which a killed job continues."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors.torch import load_model
from tokenizers import Tokenizer

from normgauge.progress import Progress
from normgauge.provenance import atomic_path
from normgauge.training.optimise import Training
from normgauge.training.train import require_finite, save_model, write_record

STATE = "optimizer.pt"  # as transformers' own trainer calls it


class Watcher(Protocol):
    """What looks at a model on the way. Its state is plain tensors, numbers and text in lists and
    dicts.
    """

    def look(self, step: int, model: torch.nn.Module) -> None:
        """See the model after so many steps; 0 is before the first."""

    def state(self) -> dict[str, Any]:
        """What it has seen."""

    def resume(self, state: dict[str, Any]) -> None:
        """Go on from there."""


@dataclass(frozen=True)
class Kept:
    """Where a run is kept: `folder`/step{k} for each step of `steps`, of which the last ends it.

    `record`: what training.json says of every one.
    """

    folder: Path
    steps: Sequence[int]
    tokenizer: Tokenizer
    record: dict[str, Any]

    def of(self, step: int) -> Path:
        return self.folder / f"step{step}"

    def seen(self, step: int) -> Path:
        """The watcher's state of a kept step, there until the run has ended."""
        return self.folder / f"seen{step}.pt"

    def latest(self) -> int | None:
        """The last step that is kept already; a folder has its name only once it is complete."""
        return max((step for step in self.steps if self.of(step).is_dir()), default=None)


def run_kept(training: Training, kept: Kept, label: str, watcher: Watcher | None = None) -> None:
    """Take the steps of a plan, from the last one that is kept, and keep those asked for.

    A run that was killed at any time and is called again with the same arguments ends with the
    bytes of an unbroken one. Raises InputError where the loss is no number.
    """
    begun = kept.latest()
    if begun is None:
        if watcher:
            watcher.look(0, training.model)
        if 0 in kept.steps:
            _keep(training, kept, watcher)
    else:
        load_model(training.model, kept.of(begun) / "model.safetensors")
        training.resume(begun, torch.load(kept.of(begun) / STATE, weights_only=True))
        if watcher:
            watcher.resume(torch.load(kept.seen(begun), weights_only=True))
    progress = Progress(max(kept.steps) - training.step, label)
    while training.step < max(kept.steps):
        training.advance()
        if watcher:
            watcher.look(training.step, training.model)
        progress.step()
        if training.step in kept.steps:
            require_finite(training, label)
            _keep(training, kept, watcher)


def _keep(training: Training, kept: Kept, watcher: Watcher | None) -> None:
    """The watcher's state first: a kept step is complete once its folder has its name."""
    if watcher:
        _save(watcher.state(), kept.seen(training.step))
    with atomic_path(kept.of(training.step)) as temporary:
        save_model(training.model, kept.tokenizer, temporary)
        _save(training.state(), temporary / STATE)
        loss = training.loss if training.step else None
        write_record(temporary, {**kept.record, "step": training.step, "loss": loss})


def _save(state: Any, path: Path) -> None:
    """A torch file. From an open file torch takes no name into it: equal states, equal bytes."""
    with open(f"{path}.part", "wb") as file:
        torch.save(state, file)
    os.replace(f"{path}.part", path)
