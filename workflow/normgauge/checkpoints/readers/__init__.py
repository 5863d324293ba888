"""Readers of weight files: each validates a container fully before touching its payload and yields tensors by name.

A reader is a module with
`holds(folder) -> bool`           whether the folder holds its kind of file,
`stored_config(folder) -> dict`   the config that comes with it, as the keys of a transformers config.json,
`read(folder) -> Weights`         the tensors.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from normgauge.errors import InputError


@dataclass(frozen=True)
class Weights:
    """Tensors by name, the dtype each one is stored in (`F32`, `F16`, `Q4_1`, ...), and the files they come from."""

    tensors: Mapping[str, torch.Tensor]
    stored: Mapping[str, str]
    files: tuple[Path, ...]


STORED_NAMES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in a file; InputError when the file is missing or holds anything else."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise InputError(f"{path}: missing; the checkpoint folder needs a {path.name}") from error
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise InputError(f"{path}: not valid JSON ({error}); fetch the file again") from error
    except ValueError as error:
        raise InputError(f"{path}: holds a number of thousands of digits; correct it") from error
    if not isinstance(value, dict):
        raise InputError(f"{path}: expected a JSON object, found {type(value).__name__}")
    return value


def shards(index_path: Path) -> dict[Path, set[str]]:
    """The shard files of an index and the tensor names that each must hold.

    Raises InputError for a malformed index, a shard outside the folder or a missing one.
    """
    weight_map = read_json(index_path).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map or not all(isinstance(name, str) for name in weight_map.values()):
        raise InputError(f"{index_path}: expected a 'weight_map' of tensor names to shard files")
    names_of: dict[Path, set[str]] = {}
    for tensor, shard in sorted(weight_map.items()):
        if not shard or Path(shard).name != shard:
            raise InputError(f"{index_path}: shard {shard!r} of tensor {tensor} must be a plain file name in the same folder")
        names_of.setdefault(index_path.with_name(shard), set()).add(tensor)
    for path in names_of:
        if not path.is_file():
            raise InputError(f"{path}: shard missing, though {index_path.name} names it; fetch the checkpoint again")
    return names_of


def check_shard(path: Path, expected: set[str], found: set[str], index_name: str) -> None:
    """InputError when a shard lacks a tensor that the index puts there, or holds one that the index does not."""
    if missing := sorted(expected - found):
        raise InputError(f"{path}: tensor {missing[0]} missing ({len(missing)} in all), though {index_name} puts it there")
    if extra := sorted(found - expected):
        raise InputError(f"{path}: tensor {extra[0]} is not listed for this shard in {index_name} ({len(extra)} in all)")
