"""Readers of weight files: each validates a container fully before touching its payload and yields
tensors by name.

A reader is a module with `holds(folder) -> bool`           whether the folder holds its kind of
file, `stored_config(folder) -> dict`   the config that comes with it, as the keys of a transformers
config.json, `read(folder) -> Weights`         the tensors.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from normgauge.checkpoints.layout import read_json as read_json
from normgauge.checkpoints.layout import shard_names
from normgauge.errors import InputError


@dataclass(frozen=True)
class Weights:
    """Tensors by name, the dtype each one is stored in (`F32`, `F16`, `Q4_1`, ...), and the files
    they come from.
    """

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


def shards(index_path: Path) -> dict[Path, set[str]]:
    """The shard files of an index and the tensor names that each must hold.

    Raises InputError for a malformed index, a shard outside the folder or a missing one.
    """
    named = shard_names(read_json(index_path), str(index_path))
    names_of = {index_path.with_name(shard): tensors for shard, tensors in named.items()}
    for path in names_of:
        if not path.is_file():
            raise InputError(
                f"{path}: shard missing, though {index_path.name} names it; fetch the checkpoint "
                "again"
            )
    return names_of


def check_shard(path: Path, expected: set[str], found: set[str], index_name: str) -> None:
    """InputError when a shard lacks a tensor that the index puts there, or holds one that the index
    does not.
    """
    if missing := sorted(expected - found):
        raise InputError(
            f"{path}: tensor {missing[0]} missing ({len(missing)} in all), though {index_name} "
            "puts it there"
        )
    if extra := sorted(found - expected):
        raise InputError(
            f"{path}: tensor {extra[0]} is not listed for this shard in {index_name} ({len(extra)} "
            "in all)"
        )
