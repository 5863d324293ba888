"""What passes from one observed part of a model to the next: the outputs of each stack's last block
that ran, so that the block after it runs on the tensors of the whole forward pass.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import nn

SUFFIX = ".safetensors"
Normalised = tuple[torch.Tensor, torch.Tensor]
"""Input and output of a norm."""


class Outgoing:
    """Keeps one block's outputs, and the inputs of those of its norms that feed later parts.

    norms: the names of these; their outputs are among the block's.
    """

    def __init__(self, stack: str, norms: tuple[str, ...]) -> None:
        self.stack, self.norms = stack, norms
        self.tensors: dict[str, torch.Tensor] = {}
        self.form: dict[str, Any] = {}

    def add(self, batch: int, outputs: Any, normalised: Mapping[str, Normalised]) -> None:
        """The block's outputs in one forward pass. RuntimeError for what cannot be relayed."""
        is_tuple = isinstance(outputs, tuple)
        parts = outputs if is_tuple else (outputs,)
        if any(part is not None and not isinstance(part, torch.Tensor) for part in parts):
            raise RuntimeError(f"{self.stack}: a block returns more than tensors: {type(outputs)}")
        self.form = {
            "tuple": is_tuple,
            "given": [part is not None for part in parts],
            "norms": {name: _place(name, normalised[name][1], parts) for name in self.norms},
        }
        for place, part in enumerate(parts):
            if part is not None:
                self.tensors[f"{batch}.{place}"] = part.contiguous()
        for name in self.norms:
            self.tensors[f"{batch}.{name}"] = normalised[name][0].contiguous()

    def write(self, folder: Path, before: Path | None) -> None:
        """The relay after this block: its own file, and those of the other stacks in `before`."""
        folder.mkdir()
        for other in sorted(before.glob(f"*{SUFFIX}")) if before else ():
            if other.stem != self.stack:
                _link(other, folder / other.name)
        save_file(self.tensors, folder / f"{self.stack}{SUFFIX}", {"form": json.dumps(self.form)})


def _place(norm: str, output: torch.Tensor, parts: tuple) -> int:
    for place, part in enumerate(parts):
        if part is output:
            return place
    raise RuntimeError(f"{norm} feeds maps of a later part and is no output of its block")


def _link(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError:  # another file system, or one without links
        shutil.copyfile(source, target)


class Incoming:
    """The outputs of one stack's last block that ran before, batch by batch."""

    def __init__(self, path: Path) -> None:
        self._file = safe_open(path, framework="pt")
        self.stack = path.stem
        self.form = json.loads(self._file.metadata()["form"])
        self._kept: tuple[int, Any] = (-1, None)

    def replace(
        self,
        model: nn.Module,
        blocks: Sequence[str],
        batch: Callable[[], int],
        seen: Callable[[str, Normalised], None],
    ) -> Callable[[], None]:
        """Let these blocks, the first ones of the stack, return the relayed outputs instead of
        running; `seen` is told of the relayed norms after the last. Returns what undoes it.
        """
        modules = [model.get_submodule(path) for path in blocks]

        def early(*_: Any, **__: Any) -> Any:
            return self._outputs(batch())

        def last(*_: Any, **__: Any) -> Any:
            outputs = self._outputs(batch())
            parts = outputs if isinstance(outputs, tuple) else (outputs,)
            for name, place in self.form["norms"].items():
                seen(name, (self._file.get_tensor(f"{batch()}.{name}"), parts[place]))
            return outputs

        for module in modules:
            module.forward = last if module is modules[-1] else early

        def undo() -> None:
            for module in modules:
                del module.forward

        return undo

    def _outputs(self, batch: int) -> Any:
        if self._kept[0] != batch:
            parts = tuple(
                self._file.get_tensor(f"{batch}.{place}") if given else None
                for place, given in enumerate(self.form["given"])
            )
            self._kept = batch, parts if self.form["tuple"] else parts[0]
        return self._kept[1]


def incoming(folder: Path | None) -> list[Incoming]:
    """What a relay folder holds, by stack."""
    return [Incoming(path) for path in sorted(folder.glob(f"*{SUFFIX}"))] if folder else []
