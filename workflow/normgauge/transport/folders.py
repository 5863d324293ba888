"""A gauge applied to a checkpoint folder, streamed: one tensor in memory at a time, every other
byte as it was.
"""

from __future__ import annotations

import math
import os
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from normgauge.anatomy import describe
from normgauge.anatomy.lookup import holder
from normgauge.anatomy.structure import Anatomy
from normgauge.checkpoints.configuration import reader_of, stated_config
from normgauge.checkpoints.opening import open_checkpoint, say
from normgauge.checkpoints.placing import Reason, heads_anatomy, place
from normgauge.checkpoints.readers import safetensors_reader, shards
from normgauge.checkpoints.readers.safetensors_reader import check_header
from normgauge.errors import InputError
from normgauge.gauge.heads import require_heads_follow
from normgauge.gauge.model_gauge import Gauge
from normgauge.gauge.requirements import require_admissible
from normgauge.gauge.transform import Move, apply_moves, check_tensors, moved_value, tensor_moves
from normgauge.transport.leftovers import files_beside, require_none_left
from normgauge.transport.outputs import copy_tree, new_output, require_new

# bytes of a tensor that are in memory at once where its rows do not move; larger runs leave the
# heap in larger pieces
CHUNK = 1 << 18
DTYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


class StoredTensors(Mapping[str, torch.Tensor]):
    """The tensors of one safetensors file, read from disk at every access, by the names in the
    file.
    """

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
        """The tensor in runs of its first axis of about `limit` bytes, one after the other in the
        same memory.
        """
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


Place = tuple[StoredTensors, str]
"""The file that holds a tensor, and its name there."""


class _NamedTensors(Mapping[str, torch.Tensor]):
    """The tensors of several files by the names of the class, read at every access."""

    def __init__(self, places: Mapping[str, Place]) -> None:
        self.places = places

    def __getitem__(self, name: str) -> torch.Tensor:
        stored, source = self.places[name]
        return stored[source]

    def __iter__(self) -> Iterator[str]:
        return iter(self.places)

    def __len__(self) -> int:
        return len(self.places)


@dataclass(frozen=True)
class StoredFolder:
    """A folder of safetensors as it is opened, read tensor by tensor.

    config: of the class that is opened. places: by name in the class, the file that holds the
        tensor and
    its name there. heads: the same of the tensors that the class does not use, by the names that
    they would have.
    """

    config: Any
    places: Mapping[str, Place]
    heads: Mapping[str, Place]

    def anatomy(self) -> Anatomy:
        """The anatomy, with those unused heads whose axes another class of the family states."""
        return heads_anatomy(self.config, _shapes(self.heads))


def stored_folder(folder: str | os.PathLike[str]) -> StoredFolder:
    """Open a folder of safetensors by its headers. Raises InputError as `placing.place`."""
    config = stated_config(folder)
    files = [StoredTensors(path) for path in _model_files(Path(folder))]
    sources = {name: stored for stored in files for name in stored}

    def same(first: str, second: str) -> bool:
        return all(
            torch.equal(*pair)
            for pair in zip(
                sources[first].rows(first, CHUNK), sources[second].rows(second, CHUNK), strict=True
            )
        )

    shapes = {name: tuple(stored.header[name]["shape"]) for name, stored in sources.items()}
    placement = place(config, shapes, files[0].path.name, same)
    say(folder, placement.notes)
    places = {target: (sources[name], name) for name, target in placement.names.items()}
    unused = {
        target: (sources[name], name)
        for name, (target, reason) in placement.unused.items()
        if reason != Reason.COMPUTED
    }
    return StoredFolder(placement.config, places, unused)


def folder_anatomy(folder: str | os.PathLike[str]) -> Anatomy:
    """The anatomy of the checkpoint in a folder of any format, with the unused heads whose axes are
    known.

    Raises InputError as opening it.
    """
    if reader_of(Path(folder)) is safetensors_reader:
        return stored_folder(folder).anatomy()
    return open_checkpoint(folder).anatomy_with_heads()


def _shapes(places: Mapping[str, Place]) -> dict[str, tuple[int, ...]]:
    return {
        target: tuple(stored.header[name]["shape"]) for target, (stored, name) in places.items()
    }


@dataclass(frozen=True)
class Transformed:
    """What `transform_folder` did. rounded: names of the tensors that were rounded. moved: other
    files that followed the gauge, and
    left: that stayed behind, relative to the folder.
    """

    rounded: tuple[str, ...]
    moved: tuple[str, ...] = ()
    left: tuple[str, ...] = ()

    def words(self) -> list[str]:
        """Lines that say what became of the other files, as far as they are no plain copies."""
        named = (("moved as well", self.moved), ("left behind, not moved", self.left))
        return [f"{what}: {', '.join(names)}" for what, names in named if names]


def transform_folder(
    source: str | os.PathLike[str],
    destination: str | os.PathLike[str],
    gauge: Gauge,
    accept: Callable[[Path, tuple[str, ...]], None] | None = None,
    leave_behind: bool = False,
) -> Transformed:
    """Write a copy of the checkpoint folder with its tensors gauged; atomic, nothing is left when
    it fails.

    Tensors that stay as they are and every other file are copied byte by byte, headers included, so
    that a gauge which rounds nothing (permutations, signs, powers of two) followed by its inverse
    gives back identical files. Optimizer states and a pipeline's first `Dense` follow (see
    `leftovers`). `accept` is called with the finished copy, before it takes its place, and the
    names of the tensors that were rounded; what it raises is raised. Raises InputError for a
    destination that exists or lies inside the folder, a folder without safetensors, files that
    would stay in old coordinates unless `leave_behind` keeps them out of the copy, an inadmissible
    gauge, tensors that are missing, that the body has no place for or that are not used and cannot
    follow, and values that the gauge takes beyond their dtype.
    """
    folder = Path(source)
    require_new(destination, folder)
    opened = stored_folder(folder)
    anatomy, own = opened.anatomy(), describe(opened.config)
    heads = {
        name: opened.heads[name]
        for name in opened.heads
        if name in {tensor.name for tensor in anatomy.tensors}
    }
    places = {**opened.places, **heads}
    check_tensors(anatomy, _shapes(places))
    _require_complete(folder, own, opened.places)
    _require_known_dtypes(places)
    require_admissible(own, gauge, _NamedTensors(opened.places))
    require_heads_follow(anatomy, gauge, _NamedTensors(places), _shapes(opened.heads))
    beside = files_beside(
        folder, {file.relative_to(folder) for file in _model_files(folder)}, anatomy, gauge
    )
    if not leave_behind:
        require_none_left(folder, beside.left)
    moves, back = tensor_moves(anatomy, gauge), tensor_moves(anatomy, gauge.inverse())
    with new_output(destination, folder) as temporary:
        copy_tree(folder, temporary, frozenset(beside.left))
        rounded = [
            target
            for target, (stored, name) in places.items()
            if moves[target]
            and not _rewrite(
                temporary / stored.path.name, stored, name, moves[target], back[target]
            )
        ]
        for file, name, own_moves in beside.pipeline.tensors:
            inverse = [
                Move(move.axis, move.element.inverse(), move.positions)
                for move in reversed(own_moves)
            ]
            exact = _rewrite(
                temporary / file, StoredTensors(folder / file), name, own_moves, inverse
            )
            rounded += [] if exact else [f"{file}: {name}"]
        for file, state in beside.states.items():
            torch.save(state, temporary / file)
        if accept:
            accept(temporary, tuple(rounded))
    return Transformed(tuple(rounded), tuple(map(str, beside.moved)), tuple(map(str, beside.left)))


def _require_known_dtypes(places: Mapping[str, Place]) -> None:
    for target, (stored, name) in places.items():
        if stored.header[name]["dtype"] not in DTYPES:
            raise InputError(
                f"{stored.path}: tensor {name} ({target}) is {stored.header[name]['dtype']}; "
                f"expected one of {', '.join(DTYPES)}"
            )


def _model_files(folder: Path) -> list[Path]:
    """The safetensors of a checkpoint; InputError where there is none."""
    if not safetensors_reader.holds(folder):
        raise InputError(
            f"{folder}: no model.safetensors, whole or with an index; save the checkpoint as "
            "safetensors first"
        )
    single = folder / safetensors_reader.SINGLE
    return [single] if single.is_file() else list(shards(folder / safetensors_reader.INDEX))


def _require_complete(folder: Path, anatomy: Anatomy, found: Iterable[str]) -> None:
    """InputError naming the first tensor that neither the folder holds nor a tensor tied to it."""
    source = {tensor.name: holder(anatomy, tensor.name) for tensor in anatomy.tensors}
    stored = {source[name] for name in found}
    for name in source:
        if source[name] not in stored:
            raise InputError(
                f"{folder}: tensor {name} of {anatomy.architecture} is missing; restore its file"
            )


def _rewrite(
    path: Path, stored: StoredTensors, name: str, moves: Sequence[Move], back: Sequence[Move]
) -> bool:
    """Overwrite one tensor of a copy of `stored` in its place. Whether `back` gives every value of
    it back.
    """
    exact = all(move.element.exact for move in moves)
    scales = not all(move.element.is_signed_permutation for move in moves)
    with open(path, "r+b") as handle:
        handle.seek(stored.start + stored.header[name]["data_offsets"][0])
        rows_stay = all(move.axis > 0 for move in moves)
        for rows in stored.rows(name, CHUNK if rows_stay else 2**62):
            moved = moved_value(f"{stored.path}: tensor {name}", rows, moves).contiguous()
            if exact and scales:  # powers of two round where they leave the normal range
                exact = bool((apply_moves(moved, back) == rows).all())
            handle.write(moved.view(torch.uint8).numpy().data)
    return exact
