"""A checkpoint's weights in several safetensors files, written tensor by tensor."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from safetensors.torch import save_file

SHARD_BYTES = 1_000_000_000


def write_shards(
    folder: Path,
    shapes: Mapping[str, tuple[int, ...]],
    itemsize: int,
    value: Callable[[str, tuple[int, ...]], torch.Tensor],
) -> None:
    """Write `model-XXXXX-of-XXXXX.safetensors` and their index, in transformers' layout.

    shapes: of every tensor, in the order of the files. value: a tensor by name and shape, asked for
    once, with `itemsize` bytes a number. A file holds at most SHARD_BYTES, or one tensor.
    """
    shards: list[list[str]] = [[]]
    size = 0
    for name, shape in shapes.items():
        needed = itemsize * math.prod(shape)
        if shards[-1] and size + needed > SHARD_BYTES:
            shards.append([])
            size = 0
        shards[-1].append(name)
        size += needed
    places: dict[str, str] = {}
    for number, names in enumerate(shards, start=1):
        file = f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        save_file(
            {name: value(name, shapes[name]) for name in names}, folder / file, {"format": "pt"}
        )
        places |= dict.fromkeys(names, file)
    total = itemsize * sum(math.prod(shape) for shape in shapes.values())
    index = {"metadata": {"total_size": total}, "weight_map": places}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")
