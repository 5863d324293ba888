"""Which files of a folder or repository in transformers' layout make a checkpoint, and whether they fit on the disk."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from normgauge.errors import InputError

CONFIG = "config.json"
# Raises InputError for the keys of a config.json that the pipeline cannot use, so that nothing large is fetched, copied or made for them.
ConfigCheck = Callable[[Mapping[str, Any]], None]

# The configuration, and what turns text or pixels into the model's input. Never code.
_ALONGSIDE = (
    CONFIG,
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
    "tokenizer.model",
    "spiece.model",
    "sentencepiece.bpe.model",
    "preprocessor_config.json",
)
# Preferred container first: safetensors cannot hold code, a torch file is a pickle.
_CONTAINERS = (("model", "safetensors"), ("pytorch_model", "bin"))


def checkpoint_files(names: Iterable[str], where: str) -> tuple[str, ...]:
    """The names, sorted, that make up a checkpoint: config.json, tokenizer and preprocessor files, and one container's weights.

    `where` names the folder or repository in errors. Raises InputError without config.json, without weights, or with a shard missing.
    """
    present = set(names)
    if CONFIG not in present:
        raise InputError(f"{where}: no config.json there; expected a model in transformers' layout")
    return tuple(sorted({name for name in _ALONGSIDE if name in present} | set(_weights(present, where))))


def _weights(present: set[str], where: str) -> list[str]:
    for stem, suffix in _CONTAINERS:
        single, index = f"{stem}.{suffix}", f"{stem}.{suffix}.index.json"
        if single in present:
            return [single]
        if index in present:
            return [index, *_shards(present, stem, suffix, where)]
    wanted = ", ".join(f"{stem}.{suffix}" for stem, suffix in _CONTAINERS)
    raise InputError(f"{where}: no weights there; expected one of {wanted}, whole or sharded with an index")


def _shards(present: set[str], stem: str, suffix: str, where: str) -> list[str]:
    """All shards `stem-00001-of-00003.suffix`; their names say how many there are."""
    pattern = re.compile(rf"{stem}-(\d{{5}})-of-(\d{{5}})\.{suffix}")
    counts = {match.group(2) for name in present if (match := pattern.fullmatch(name))}
    if len(counts) != 1:
        raise InputError(f"{where}: expected one set of shards {stem}-00001-of-NNNNN.{suffix} beside the index, found {len(counts)} sets")
    total = counts.pop()
    shards = [f"{stem}-{number:05d}-of-{total}.{suffix}" for number in range(1, int(total) + 1)]
    for shard in shards:
        if shard not in present:
            raise InputError(f"{where}: the shard {shard} is missing; complete the checkpoint")
    return shards


def check_free_space(needed: int, folder: Path, what: str) -> None:
    """InputError unless `needed` bytes are free on the file system of the existing `folder`."""
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise InputError(f"{what}: needs {needed / 1e9:.2f} GB in {folder}, but only {free / 1e9:.2f} GB are free; free space and rerun")
