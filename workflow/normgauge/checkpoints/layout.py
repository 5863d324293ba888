"""Which files of a folder or repository in transformers' layout make a checkpoint, and whether they
fit on the disk.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from normgauge.errors import InputError

CONFIG = "config.json"
# Raises InputError for the keys of a config.json that the pipeline cannot use, so that nothing
# large is fetched, copied or made for them.
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
# The weights of every reader, their shards, and the indices that name these.
_WEIGHTS = re.compile(
    r"[^/]+\.(safetensors|gguf)(\.index\.json)?|pytorch_model[-.\w]*\.bin(\.index\.json)?|model\.bin|state_dict\.pt"
)
# Preferred container first: safetensors cannot hold code, a torch file is a pickle.
_CONTAINERS = (("model", "safetensors"), ("pytorch_model", "bin"))


# Reads the JSON object in a file of the folder or repository, by the file's name.
ReadIndex = Callable[[str], Mapping[str, Any]]


def checkpoint_files(names: Iterable[str], where: str, read_index: ReadIndex) -> tuple[str, ...]:
    """The names, sorted, that make up a checkpoint: config.json, tokenizer and preprocessor files,
    and one container's weights.

    `where` names the folder or repository in errors. `read_index` is asked for the index of sharded
    weights, which alone says what the shards are called; other sets beside it are not the
    checkpoint's. Raises InputError without config.json, without weights, for an index that names no
    shards, or with a shard missing.
    """
    present = set(names)
    if quantised := gguf_files(present, where):
        return tuple(sorted({name for name in _ALONGSIDE if name in present} | {quantised}))
    if CONFIG not in present:
        raise InputError(f"{where}: no config.json there; expected a model in transformers' layout")
    return tuple(
        sorted(
            {name for name in _ALONGSIDE if name in present}
            | set(_weights(present, where, read_index))
        )
    )


def gguf_files(present: set[str], where: str) -> str | None:
    """The one GGUF file, which holds its own configuration, of a folder without weights of another
    kind; None where they are.

    Raises InputError for several, of which `where` cannot say the one that is meant.
    """
    others = {
        f"{stem}.{suffix}{index}" for stem, suffix in _CONTAINERS for index in ("", ".index.json")
    }
    found = sorted(name for name in present if name.endswith(".gguf"))
    if not found or present & others:
        return None
    if len(found) > 1:
        raise InputError(
            f"{where}: {len(found)} GGUF files ({', '.join(found[:3])}, ...); name the one to be "
            "measured: source.path may end in it"
        )
    return found[0]


def local_origin(path: Path) -> tuple[Path, list[str]]:
    """The folder that a local source names, and the names in it: those of all its files, or of the
    one GGUF file that `path` is.

    Raises InputError when there is neither.
    """
    if path.suffix == ".gguf" and path.is_file():
        return path.parent, [path.name]
    if not path.is_dir():
        raise InputError(
            f"{path}: no such folder; expected a model in transformers' layout, or a .gguf file"
        )
    return path, [file.name for file in path.iterdir()]


def _weights(present: set[str], where: str, read_index: ReadIndex) -> list[str]:
    for stem, suffix in _CONTAINERS:
        single, index = f"{stem}.{suffix}", f"{stem}.{suffix}.index.json"
        if single in present:
            return [single]
        if index in present:
            return [index, *_shards(present, index, where, read_index)]
    wanted = ", ".join(f"{stem}.{suffix}" for stem, suffix in _CONTAINERS)
    raise InputError(
        f"{where}: no weights there; expected one of {wanted}, whole or sharded with an index"
    )


def _shards(present: set[str], index: str, where: str, read_index: ReadIndex) -> list[str]:
    shards = list(shard_names(read_index(index), f"{where}: {index}"))
    for shard in shards:
        if shard not in present:
            raise InputError(
                f"{where}: the shard {shard} is missing, though {index} names it; complete the "
                "checkpoint"
            )
    return shards


def shard_names(index: Mapping[str, Any], where: str) -> dict[str, set[str]]:
    """The shards that an index names, and the tensors in each, in the order of the tensors' names.

    Raises InputError for an index without a map of tensor names to plain file names.
    """
    weight_map = index.get("weight_map")
    if (
        not isinstance(weight_map, dict)
        or not weight_map
        or not all(isinstance(name, str) for name in weight_map.values())
    ):
        raise InputError(f"{where}: expected a 'weight_map' of tensor names to shard files")
    shards: dict[str, set[str]] = {}
    for tensor, shard in sorted(weight_map.items()):
        if not shard or Path(shard).name != shard or shard in (CONFIG, *_ALONGSIDE):
            raise InputError(
                f"{where}: shard {shard!r} of tensor {tensor} must be a plain file name in the "
                "same folder"
            )
        shards.setdefault(shard, set()).add(tensor)
    return shards


def refuse_pointer(path: Path) -> None:
    """InputError where a file is what git keeps in place of a large file (https://git-lfs.com:
    version, oid and size, below 1024 bytes).
    """
    if (
        path.is_file()
        and path.stat().st_size < 1024
        and path.read_bytes().startswith(b"version https://git-lfs.github.com/spec/")
    ):
        raise InputError(
            f"{path}: a git-lfs pointer, not the file itself; run `git lfs pull` in its repository"
        )


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in a file; InputError when the file is missing or holds anything else."""
    refuse_pointer(path)
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


def check_free_space(needed: int, folder: Path, what: str) -> None:
    """InputError unless `needed` bytes are free on the file system of the existing `folder`."""
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise InputError(
            f"{what}: needs {needed / 1e9:.2f} GB in {folder}, but only {free / 1e9:.2f} GB are "
            "free; free space and rerun"
        )


def is_read(name: str) -> bool:
    """Whether some reader takes a file of this name at the top of a checkpoint folder: no code, and
    no pickles of anything but weights.
    """
    return name in _ALONGSIDE or (
        len(name.encode()) <= 255 and _WEIGHTS.fullmatch(name) is not None
    )
