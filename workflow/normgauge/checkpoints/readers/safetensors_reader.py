"""Reader of safetensors files, single and sharded.

Layout: u64 little-endian length of the header, the header (a JSON object: tensor name -> dtype,
    shape, data_offsets), the payload.
Source: the safetensors format description (https://huggingface.co/docs/safetensors/index#format).
"""

from __future__ import annotations

import json
import math
import struct
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from normgauge.checkpoints.readers import Weights, check_shard, read_json, shards
from normgauge.checkpoints.readers.mapped import MappedTensors
from normgauge.errors import InputError, one_line

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
HEADER_LIMIT = 100_000_000  # bytes, as in the safetensors library

ITEM_SIZES = {
    **{"F64": 8, "I64": 8, "U64": 8},
    **{"F32": 4, "I32": 4, "U32": 4},
    **{"F16": 2, "BF16": 2, "I16": 2, "U16": 2},
    **{"I8": 1, "U8": 1, "BOOL": 1},
}


def holds(folder: Path) -> bool:
    return (folder / SINGLE).is_file() or (folder / INDEX).is_file()


def stored_config(folder: Path) -> dict[str, Any]:
    return read_json(folder / "config.json")


@one_line("safetensors")
def read(folder: Path) -> Weights:
    """All tensors of `model.safetensors`, or of the shards that `model.safetensors.index.json`
    lists.
    """
    single = folder / SINGLE
    if single.is_file():
        headers = {single: check_header(single)}
    else:
        expected = shards(folder / INDEX)
        headers = {path: check_header(path) for path in expected}
        for path, header in headers.items():
            check_shard(path, expected[path], set(header), INDEX)
    tensors = MappedTensors(
        {name: tensor for path in headers for name, tensor in _load(path).items()},
        {name: (path, name) for path, header in headers.items() for name in header},
    )
    stored = {name: entry["dtype"] for header in headers.values() for name, entry in header.items()}
    return Weights(tensors, stored, tuple(headers))


def _load(path: Path) -> dict[str, torch.Tensor]:
    try:
        return load_file(path)
    # what the library wants of a header beyond our checks, such as text alone in __metadata__
    except SafetensorError as error:
        raise InputError(
            f"{path}: the safetensors library refuses the file ({error}); the file is malformed"
        ) from error


@one_line("safetensors")
def check_header(path: Path) -> dict[str, dict[str, Any]]:
    """Header of one file, tensor name -> {dtype, shape, data_offsets}, after every check that needs
    no payload.

    Raises InputError naming the file and tensor for: a header length beyond the file, a header that
    is not a JSON object of unique names, an unknown or 8-bit float dtype, negative or unordered
    offsets, a size that is not shape x dtype, overlaps, holes, and a payload whose length differs
    from the file's.
    """
    size = path.stat().st_size
    with open(path, "rb") as handle:
        prefix = handle.read(8)
        length = struct.unpack("<Q", prefix)[0] if len(prefix) == 8 else 0
        if not 2 <= length <= min(size - 8, HEADER_LIMIT):
            raise InputError(
                f"{path}: header length {length} does not fit a file of {size} bytes; the file is "
                "truncated or not safetensors"
            )
        text = handle.read(length)
    entries = _parse(path, text)
    entries.pop("__metadata__", None)
    for name, entry in entries.items():
        _check_entry(path, name, entry)
    position = 0
    for name, entry in sorted(entries.items(), key=lambda item: item[1]["data_offsets"]):
        start, end = entry["data_offsets"]
        if start != position:
            fault = (
                "overlaps the tensor before it"
                if start < position
                else f"leaves a hole of {start - position} bytes before it"
            )
            raise InputError(
                f"{path}: tensor {name} at offset {start} {fault}; the file is malformed"
            )
        position = end
    if position != size - 8 - length:
        raise InputError(
            f"{path}: payload of {size - 8 - length} bytes, the header describes {position}; the "
            "file is truncated or padded"
        )
    return entries


def _parse(path: Path, text: bytes) -> dict[str, Any]:
    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        seen: set[str] = set()
        for name, _ in pairs:
            if name in seen:
                raise InputError(
                    f"{path}: {name!r} occurs twice in the header; the file is malformed"
                )
            seen.add(name)
        return dict(pairs)

    try:
        header = json.loads(text.decode("utf-8"), object_pairs_hook=unique)
    # ValueError: not UTF-8, not JSON, or a number of thousands of digits
    except (ValueError, RecursionError) as error:
        raise InputError(
            f"{path}: header is not valid JSON ({error}); the file is malformed"
        ) from error
    if not isinstance(header, dict):
        raise InputError(f"{path}: header must be a JSON object, found {type(header).__name__}")
    return header


def _check_entry(path: Path, name: str, entry: Any) -> None:
    if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
        raise InputError(f"{path}: tensor {name} must have exactly dtype, shape and data_offsets")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in ITEM_SIZES:
        raise InputError(
            f"{path}: tensor {name} has dtype {dtype}; expected one of {', '.join(ITEM_SIZES)}; "
            "store the weights unquantised"
        )
    if not _counts(shape):
        raise InputError(
            f"{path}: tensor {name} has shape {_shown(shape)}; expected at most 64 non-negative "
            "integers below 2^63"
        )
    if not _counts(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise InputError(
            f"{path}: tensor {name} has data_offsets {_shown(offsets)}; expected 0 <= start <= end"
        )
    expected = math.prod(shape) * ITEM_SIZES[dtype]
    if offsets[1] - offsets[0] != expected:
        raise InputError(
            f"{path}: tensor {name} spans {offsets[1] - offsets[0]} bytes, {dtype} {shape} needs "
            f"{expected}"
        )


def _counts(values: Any) -> bool:
    """Whether these are few non-negative integers of 63 bits; beyond that no product of them could
    be printed.
    """
    return (
        isinstance(values, list)
        and len(values) <= 64
        and all(type(value) is int and 0 <= value < 1 << 63 for value in values)
    )


def _shown(value: Any) -> str:
    """A value of the header for an error, not at any length."""
    text = json.dumps(value)
    return text if len(text) <= 100 else f"{text[:100]}..."
