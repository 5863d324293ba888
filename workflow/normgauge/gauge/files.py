"""A gauge applied to a checkpoint folder, streamed: one tensor in memory at a time, every other byte as it was."""

from __future__ import annotations

import math
import os
import shutil
import stat
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import torch

from normgauge.anatomy import describe
from normgauge.anatomy.structure import Anatomy
from normgauge.checkpoints.configuration import READERS, open_config
from normgauge.checkpoints.opening import class_names
from normgauge.checkpoints.readers import safetensors_reader
from normgauge.checkpoints.readers.safetensors_reader import check_header
from normgauge.errors import InputError
from normgauge.gauge.admissible import require_admissible
from normgauge.gauge.model_gauge import Gauge
from normgauge.gauge.transform import Move, apply_moves, check_tensors, tensor_moves
from normgauge.provenance import atomic_path

CHUNK = 1 << 18  # bytes of a tensor that are in memory at once where its rows do not move; larger runs leave the heap in larger pieces
DTYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


class StoredTensors(Mapping[str, torch.Tensor]):
    """The tensors of one safetensors file, read from disk at every access, by the names in the file."""

    def __init__(self, path: Path) -> None:
        self.path, self.header = path, check_header(path)
        with open(path, "rb") as handle:
            self.start = 8 + struct.unpack("<Q", handle.read(8))[0]

    def __getitem__(self, name: str) -> torch.Tensor:
        return next(self.rows(name, 2**62))

    def __iter__(self) -> Iterator[str]:
        """In the order of the payload."""
        return iter(sorted(self.header, key=lambda name: self.header[name]["data_offsets"]))

    def __len__(self) -> int:
        return len(self.header)

    def rows(self, name: str, limit: int) -> Iterator[torch.Tensor]:
        """The tensor in runs of its first axis of about `limit` bytes, one after the other in the same memory."""
        entry = self.header[name]
        dtype, shape = DTYPES[entry["dtype"]], entry["shape"]
        width = math.prod(shape[1:]) * dtype.itemsize
        rows = shape[0] if shape else 1
        step = max(1, min(rows, limit // max(width, 1)))
        buffer = torch.empty([step, *shape[1:]] if shape else [], dtype=dtype)
        with open(self.path, "rb") as handle:
            handle.seek(self.start + entry["data_offsets"][0])
            for first in range(0, rows, step):
                run = buffer[: min(step, rows - first)] if shape else buffer
                handle.readinto(run.view(-1).view(torch.uint8).numpy().data)
                yield run


class _NamedTensors(Mapping[str, torch.Tensor]):
    """The tensors of several files by the names of the class, read at every access."""

    def __init__(self, places: Mapping[str, tuple[StoredTensors, str]]) -> None:
        self.places = places

    def __getitem__(self, name: str) -> torch.Tensor:
        stored, source = self.places[name]
        return stored[source]

    def __iter__(self) -> Iterator[str]:
        return iter(self.places)

    def __len__(self) -> int:
        return len(self.places)


def require_absent(destination: str | os.PathLike[str]) -> None:
    """InputError where the destination of a folder exists: writing it would first delete what lies there, the source itself perhaps."""
    if os.path.lexists(destination):
        raise InputError(f"{destination}: exists already and would be replaced as a whole; name a new folder")


def class_places(folder: Path) -> dict[str, tuple[StoredTensors, str]]:
    """Where each tensor of the class lies in a folder of safetensors: by its name in the class, the file and its name there."""
    files = _stored_files(folder)
    config, places = open_config(folder), {}
    for stored in files:
        for name, target in class_names(config, tuple(stored)).items():
            if target:
                places[target] = stored, name
    return places


def transform_folder(
    source: str | os.PathLike[str],
    destination: str | os.PathLike[str],
    gauge: Gauge,
    accept: Callable[[Path, tuple[str, ...]], None] | None = None,
) -> tuple[str, ...]:
    """Write a copy of the checkpoint folder with its tensors gauged; atomic, nothing is left when it fails.

    Tensors that stay as they are and every other file are copied byte by byte, headers included, so that a gauge which rounds nothing
    (permutations, signs, powers of two) followed by its inverse gives back identical files. Returns the names of the tensors that were
    rounded, once each. `accept` is called with the finished copy, before it takes its place, and these names; what it raises is raised.
    Raises InputError for a destination that exists, a folder without safetensors or with weights in another format as well, an
    inadmissible gauge, tensors that the class does not hold or that are missing, and values that the gauge takes beyond their dtype.
    """
    folder = Path(source)
    require_absent(destination)
    places = class_places(folder)
    anatomy = describe(open_config(folder))
    check_tensors(anatomy, {target: tuple(stored.header[name]["shape"]) for target, (stored, name) in places.items()})
    _require_complete(folder, anatomy, places)
    for target, (stored, name) in places.items():
        if stored.header[name]["dtype"] not in DTYPES:
            raise InputError(
                f"{stored.path}: tensor {name} ({target}) is {stored.header[name]['dtype']}; expected one of {', '.join(DTYPES)}"
            )
    require_admissible(anatomy, gauge, _NamedTensors(places))
    moves, back = tensor_moves(anatomy, gauge), tensor_moves(anatomy, gauge.inverse())
    rounded = []
    with atomic_path(destination) as temporary:
        shutil.copytree(folder, temporary)
        for target, (stored, name) in places.items():
            if moves[target]:
                exact = _rewrite(temporary / stored.path.name, stored, name, moves[target], back[target])
                rounded += [] if exact else [target]
        if accept:
            accept(temporary, tuple(rounded))
    return tuple(rounded)


def _stored_files(folder: Path) -> list[StoredTensors]:
    """The folder's safetensors files; InputError where there is none, or where other weights would stay behind ungauged beside them."""
    files = [StoredTensors(path) for path in sorted(folder.glob("*.safetensors"))]
    if not files:
        raise InputError(f"{folder}: no .safetensors file; save the checkpoint as safetensors first")
    for reader in READERS:
        if reader is not safetensors_reader and reader.holds(folder):
            kind = reader.__name__.rpartition(".")[2].removesuffix("_reader")
            raise InputError(
                f"{folder}: holds {kind} weights beside safetensors, which would stay ungauged in the copy; move them away first"
            )
    return files


def _require_complete(folder: Path, anatomy: Anatomy, found: Iterable[str]) -> None:
    """InputError naming the first tensor that neither the folder holds nor a tensor tied to it."""
    source = {tensor.name: tensor.alias_of or tensor.name for tensor in anatomy.tensors}
    stored = {source[name] for name in found}
    for name in source:
        if source[name] not in stored:
            raise InputError(f"{folder}: tensor {name} of {anatomy.architecture} is missing; restore its file")


def _rewrite(path: Path, stored: StoredTensors, name: str, moves: Sequence[Move], back: Sequence[Move]) -> bool:
    """Overwrite one tensor of a copy of `stored` in its place. Whether `back` gives every value of it back."""
    exact = all(move.element.exact for move in moves)
    scales = not all(move.element.is_signed_permutation for move in moves)
    path.chmod(path.stat().st_mode | stat.S_IWUSR)  # a copy of a read-only file is read-only
    with open(path, "r+b") as handle:
        handle.seek(stored.start + stored.header[name]["data_offsets"][0])
        rows_stay = all(move.axis > 0 for move in moves)
        for rows in stored.rows(name, CHUNK if rows_stay else 2**62):
            moved = apply_moves(rows, moves).contiguous()
            if scales and not moved.isfinite().all():
                raise InputError(
                    f"{stored.path}: tensor {name} leaves the range of {moved.dtype} under the gauge; store it in a wider dtype first"
                )
            if exact and scales:  # powers of two round where they leave the normal range
                exact = bool((apply_moves(moved, back) == rows).all())
            handle.write(moved.view(torch.uint8).numpy().data)
    return exact
