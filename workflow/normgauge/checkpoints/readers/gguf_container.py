"""The container of a GGUF file: its key/value pairs, its tensor entries, and their values.

Layout, little-endian: "GGUF", u32 version, u64 number of tensors, u64 number of key/value pairs;
the pairs (string key, u32 type, value); the tensor entries (string name, u32 rank, u64 dimensions
with the fastest first, u32 type, u64 offset); padding; the payload, aligned. Source: the ggml
project, docs/gguf.md. Block sizes and dequantisation come from the `gguf` package.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFValueType

from normgauge.checkpoints.readers.cursor import Cursor
from normgauge.errors import InputError, one_line

SCALARS = {
    GGUFValueType.UINT8: "B",
    GGUFValueType.INT8: "b",
    GGUFValueType.UINT16: "H",
    GGUFValueType.INT16: "h",
    GGUFValueType.UINT32: "I",
    GGUFValueType.INT32: "i",
    GGUFValueType.FLOAT32: "f",
    GGUFValueType.BOOL: "?",
    GGUFValueType.UINT64: "Q",
    GGUFValueType.INT64: "q",
    GGUFValueType.FLOAT64: "d",
}


@dataclass(frozen=True)
class TensorEntry:
    """One tensor: name, shape with the slowest dimension first, type, and its byte range in the
    file.
    """

    name: str
    shape: tuple[int, ...]
    type: GGMLQuantizationType
    start: int
    size: int


@dataclass(frozen=True)
class Texts:
    """An array of `count` texts, such as a vocabulary, whose content no reader of weights asks
    for.
    """

    count: int


@dataclass(frozen=True)
class Header:
    """The key/value pairs of a file and its tensor entries. Arrays of numbers are views of the
    file.
    """

    fields: dict[str, Any]
    tensors: tuple[TensorEntry, ...]


def _string(cursor: Cursor, what: str) -> str:
    (length,) = cursor.numbers("Q", what)
    try:
        return bytes(cursor.take(length, what)).decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(
            f"{cursor.path}: {what} is not UTF-8 text; the file is malformed"
        ) from error


def _value(cursor: Cursor, kind: int, what: str) -> Any:
    if kind in SCALARS:
        return cursor.numbers(SCALARS[GGUFValueType(kind)], what)[0]
    if kind == GGUFValueType.STRING:
        return _string(cursor, what)
    if kind != GGUFValueType.ARRAY:
        raise InputError(f"{cursor.path}: {what} has value type {kind}; the file is malformed")
    item, count = cursor.numbers("IQ", what)
    if item in SCALARS:
        dtype = np.dtype(SCALARS[GGUFValueType(item)]).newbyteorder("<")
        return np.frombuffer(cursor.take(count * dtype.itemsize, what), dtype)
    if item != GGUFValueType.STRING:
        raise InputError(
            f"{cursor.path}: {what} is an array of value type {item}; expected numbers or strings"
        )
    cursor.skip_strings(count, what)
    return Texts(count)


@one_line("a GGUF file")
def check_header(path: Path) -> Header:
    """Parse and check everything before the payload.

    Raises InputError naming the file and key or tensor for: wrong magic or version, counts and
    lengths beyond the file, duplicate names, unknown types, dimensions that do not fit the
    quantisation blocks, misaligned, overlapping or separated tensors, a truncated payload.
    """
    cursor = Cursor(path)
    if bytes(cursor.take(4, "magic")) != b"GGUF":
        raise InputError(f"{path}: does not start with 'GGUF'; not a GGUF file")
    (version,) = cursor.numbers("I", "version")
    if version not in (2, 3):
        raise InputError(
            f"{path}: GGUF version {version}, expected 2 or 3 (little-endian); convert the file "
            "again"
        )
    tensor_count, field_count = cursor.numbers("QQ", "counts")
    fields: dict[str, Any] = {}
    for _ in range(field_count):
        key = _string(cursor, "key")
        if key in fields:
            raise InputError(f"{path}: key {key!r} occurs twice; the file is malformed")
        (kind,) = cursor.numbers("I", f"type of {key}")
        fields[key] = _value(cursor, kind, f"value of {key}")
    entries = [_tensor_entry(cursor) for _ in range(tensor_count)]
    alignment = fields.get("general.alignment", 32)
    if type(alignment) is not int or alignment <= 0 or alignment % 8:
        raise InputError(
            f"{path}: general.alignment is {alignment!r}; expected a positive multiple of 8"
        )
    payload = _align(cursor.position, alignment)
    _check_layout(path, entries, payload, alignment, len(cursor.data))
    placed = (
        TensorEntry(entry.name, entry.shape, entry.type, payload + entry.start, entry.size)
        for entry in entries
    )
    return Header(fields, tuple(placed))


def _align(position: int, alignment: int) -> int:
    return -(-position // alignment) * alignment


def _tensor_entry(cursor: Cursor) -> TensorEntry:
    name = _string(cursor, "tensor name")
    (rank,) = cursor.numbers("I", f"rank of {name}")
    if not 1 <= rank <= 4:
        raise InputError(f"{cursor.path}: tensor {name} has {rank} dimensions; expected 1 to 4")
    dimensions = cursor.numbers(f"{rank}Q", f"shape of {name}")
    if not all(dimensions):
        shape = list(reversed(dimensions))
        raise InputError(
            f"{cursor.path}: tensor {name} has shape {shape}, so it holds nothing; the file is "
            "malformed"
        )
    code, offset = cursor.numbers("IQ", f"type and offset of {name}")
    try:
        kind = GGMLQuantizationType(code)
    except ValueError as error:
        raise InputError(
            f"{cursor.path}: tensor {name} has type {code}, which the gguf package does not know"
        ) from error
    block, size = GGML_QUANT_SIZES[kind]
    if dimensions[0] % block:
        raise InputError(
            f"{cursor.path}: tensor {name} has rows of {dimensions[0]} values, {kind.name} needs a "
            f"multiple of {block}"
        )
    stored = math.prod(dimensions) // block * size
    return TensorEntry(name, tuple(reversed(dimensions)), kind, offset, stored)


def _check_layout(
    path: Path, entries: list[TensorEntry], payload: int, alignment: int, file_size: int
) -> None:
    names: set[str] = set()
    position = 0
    for entry in sorted(entries, key=lambda entry: entry.start):
        if entry.name in names:
            raise InputError(f"{path}: tensor {entry.name} occurs twice; the file is malformed")
        names.add(entry.name)
        expected = _align(position, alignment)
        if entry.start != expected:
            overlaps = entry.start < expected
            fault = (
                "overlaps the tensor before it or is misaligned"
                if overlaps
                else "leaves a hole before it"
            )
            raise InputError(
                f"{path}: tensor {entry.name} at offset {entry.start} {fault}, expected "
                f"{expected}; the file is malformed"
            )
        position = entry.start + entry.size
    if not payload + position <= file_size <= payload + _align(position, alignment):
        raise InputError(
            f"{path}: payload of {file_size - payload} bytes, the entries describe {position}; "
            "truncated or padded, fetch it again"
        )


def values(path: Path, data: np.ndarray, entry: TensorEntry) -> np.ndarray:
    """The float32 values of one tensor, in its shape; `data` are the file's bytes (uint8).

    Raises InputError for a type that the gguf package cannot dequantise.
    """
    raw = data[entry.start : entry.start + entry.size]
    try:
        found = gguf.dequantize(raw.reshape(*entry.shape[:-1], -1), entry.type)
    except NotImplementedError as error:
        raise InputError(
            f"{path}: tensor {entry.name} is stored as {entry.type.name}, which the gguf package "
            "cannot dequantise"
        ) from error
    return np.array(found, dtype=np.float32).reshape(entry.shape)
