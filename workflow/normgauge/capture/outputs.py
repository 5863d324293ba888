"""What blocks have given out: all that the next block needs of the ones before it."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from io import BufferedReader
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import torch

from normgauge.errors import InputError


class Outputs(Protocol):
    """The outputs of the latest finished block of each stack, a value for each batch.

    A value is what the block's module returned: a tensor, or tuples and lists of tensors.
    """

    @property
    def finished(self) -> int:
        """How many blocks are behind us."""

    def get(self, stack: str, batch: int) -> Any:
        """The value of a batch from the stack's latest finished block."""

    def put(self, stack: str, batch: int, value: Any) -> None:
        """Keep the value that the block at work gave for a batch; batches come in order."""

    def finish(self, stack: str) -> None:
        """The block at work is finished, and its stack's latest."""


class HeldOutputs:
    """In memory: N d numbers a stack, and as many of the block at work."""

    def __init__(self) -> None:
        self.finished = 0
        self._latest: dict[str, list[Any]] = {}
        self._fresh: list[Any] = []

    def get(self, stack: str, batch: int) -> Any:
        return self._latest[stack][batch]

    def put(self, stack: str, batch: int, value: Any) -> None:
        self._fresh.append(value)

    def finish(self, stack: str) -> None:
        self._latest[stack], self._fresh = self._fresh, []
        self.finished += 1


class FiledOutputs:
    """In files of one folder, so that they take no memory, and work that was killed goes on behind
    the last finished block.

    `progress.json` says how many blocks are finished, and of each stack the file and the form of
    each value; it is replaced at once, and older files go after it.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder, self._record = folder, folder / "progress.json"
        known = (
            json.loads(self._record.read_text(encoding="utf-8")) if self._record.is_file() else {}
        )
        self.finished: int = known.get("finished", 0)
        self._stacks: dict[str, Mapping[str, Any]] = known.get("stacks", {})
        self._forms: list[Any] = []
        self._writing: BinaryIO | None = None

    def get(self, stack: str, batch: int) -> Any:
        latest = self._stacks[stack]
        with open(self._folder / latest["file"], "rb") as file:
            return _read(file, latest["forms"][batch])

    def put(self, stack: str, batch: int, value: Any) -> None:
        if not batch:
            self._close()
            self._forms = []
            self._writing = open(self._folder / self._name(), "wb")  # noqa: SIM115 (kept open)
        assert self._writing is not None
        self._forms.append(_write(self._writing, value))

    def finish(self, stack: str) -> None:
        self._close()
        older = self._stacks.get(stack)
        self._stacks[stack] = {"file": self._name(), "forms": self._forms}
        self.finished += 1
        fresh = self._record.with_suffix(".new")
        state = {"finished": self.finished, "stacks": self._stacks}
        fresh.write_text(json.dumps(state), encoding="utf-8")
        os.replace(fresh, self._record)
        if older:
            (self._folder / older["file"]).unlink(missing_ok=True)

    def _name(self) -> str:
        return f"block-{self.finished}.values"

    def _close(self) -> None:
        if self._writing:
            self._writing.close()
            self._writing = None


def _write(file: BinaryIO, value: Any) -> Any:
    """Append a value's tensors to the file; the form from which `_read` makes the value again."""
    if value is None:
        return None
    if isinstance(value, (tuple, list)):
        return {type(value).__name__: [_write(file, part) for part in value]}
    if not isinstance(value, torch.Tensor):
        raise InputError(
            f"a block gives out a {type(value).__name__}; expected tensors, or tuples of them"
        )
    offset = file.tell()
    file.write(value.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
    return {
        "dtype": str(value.dtype).removeprefix("torch."),
        "shape": list(value.shape),
        "offset": offset,
        "device": value.device.type,
    }


def _read(file: BufferedReader, form: Any) -> Any:
    """A value, in memory of its own: what is mapped from a file would be aligned otherwise, and
    round otherwise.
    """
    if form is None:
        return None
    for kind in (tuple, list):
        if kind.__name__ in form:
            return kind(_read(file, part) for part in form[kind.__name__])
    value = torch.empty(form["shape"], dtype=getattr(torch, form["dtype"]))
    raw = value.view(-1).view(torch.uint8).numpy()
    file.seek(form["offset"])
    if file.readinto(raw.data) != raw.size:
        raise InputError(f"{file.name}: shorter than what was written; delete its folder and rerun")
    return value.to(form["device"])
