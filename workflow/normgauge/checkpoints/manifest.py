"""checkpoint.json: what one checkpoint is, where it came from, and the hash of every file."""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Protocol

from normgauge.anatomy.structure import Anatomy
from normgauge.checkpoints.sources import parse_source
from normgauge.errors import InputError
from normgauge.provenance import atomic_path, sha256_file

_FULL, _HALF = {"F64", "F32"}, {"F16", "BF16"}


class StoredCheckpoint(Protocol):
    """The part of an opened checkpoint that the manifest reads: tensors by name, and the dtype each
    is stored in.
    """

    @property
    def tensors(self) -> Mapping[str, Any]: ...

    @property
    def stored(self) -> Mapping[str, str]: ...

    @property
    def files(self) -> Sequence[Path]: ...

    @property
    def unused(self) -> Mapping[str, Any]: ...


@dataclass(frozen=True)
class Manifest:
    """The content of checkpoint.json; the fields are its keys.

    `files`: {path, bytes, sha256} per raw file. `weights`: the paths of those that hold the
        weights, of which alone `weights_sha256` is
    made. `unused`: {tensor, stored, shape, reason} per stored tensor that the class does not use.
    `stacks`: {name, blocks, width} per residual stream. `terminal_norm`: the module name of the
    primary stream's terminal norm, or None. `stored_dtypes`: number of stored values per dtype.
    `parameters`: number of distinct values, tied tensors counted once.
    """

    model: str
    revision: str
    source: dict[str, Any]
    files: list[dict[str, Any]]
    weights: list[str]
    weights_sha256: str
    unused: list[dict[str, Any]]
    family: str
    architecture: str
    stacks: list[dict[str, Any]]
    norm_kind: str
    norm_placement: str
    terminal_norm: str | None
    gain_offset: float
    stored_dtypes: dict[str, int]
    precision: str
    tied: bool
    parameters: int
    licence: str | None
    provenance: str
    objective: str | None
    modality: str
    calibration: str

    @staticmethod
    def read(path: str | os.PathLike[str]) -> Manifest:
        """The manifest at `path`; InputError when it is missing, not JSON, lacks or adds keys, or
        contradicts itself.
        """
        again = "delete it and rerun"
        try:
            content = json.loads(Path(path).read_text(encoding="utf-8"))
        except OSError as error:
            raise InputError(f"{path}: cannot be read ({error.strerror})") from error
        except ValueError as error:
            raise InputError(f"{path}: not valid JSON ({error}); {again}") from error
        if not isinstance(content, dict):
            raise InputError(f"{path}: expected a JSON object; {again}")
        known = {field.name for field in fields(Manifest)}
        for key in sorted(known ^ content.keys()):
            raise InputError(
                f"{path}: the key {key} is {'missing' if key in known else 'unknown'}; {again}"
            )
        for key, types in _TYPES.items():
            if not isinstance(content[key], types) or (
                isinstance(content[key], bool) and bool not in types
            ):
                expected = " or ".join(kind.__name__ for kind in types)
                raise InputError(
                    f"{path}: the key {key} holds {content[key]!r}, expected {expected}; {again}"
                )
        for record in content["files"]:
            if not isinstance(record, dict) or record.keys() != {"path", "bytes", "sha256"}:
                raise InputError(
                    f"{path}: files holds {record!r}, expected path, bytes and sha256; {again}"
                )
        if content["weights_sha256"] != weights_sha256(content["files"], content["weights"]):
            raise InputError(
                f"{path}: weights_sha256 does not follow from files and weights, so it was edited; "
                f"{again}"
            )
        return Manifest(**content)


_NONE = type(None)
_TYPES: dict[str, tuple[type, ...]] = {
    "model": (str,),
    "revision": (str,),
    "source": (dict,),
    "files": (list,),
    "weights": (list,),
    "weights_sha256": (str,),
    "unused": (list,),
    "family": (str,),
    "architecture": (str,),
    "stacks": (list,),
    "norm_kind": (str,),
    "norm_placement": (str,),
    "terminal_norm": (str, _NONE),
    "gain_offset": (float, int),
    "stored_dtypes": (dict,),
    "precision": (str,),
    "tied": (bool,),
    "parameters": (int,),
    "licence": (str, _NONE),
    "provenance": (str,),
    "objective": (str, _NONE),
    "modality": (str,),
    "calibration": (str,),
}


def file_records(folder: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """{path, bytes, sha256} of every file below the folder, paths relative to it, sorted by path.

    What tools leave behind hidden (caches, time stamps, a file manager's notes) is no part of a
    checkpoint.
    """
    root = Path(folder)
    records = [
        {
            "path": path.relative_to(root).as_posix(),
            "bytes": path.stat().st_size,
            "sha256": sha256_file(path),
        }
        for path in root.rglob("*")
        if path.is_file() and not any(part.startswith(".") for part in path.relative_to(root).parts)
    ]
    return sorted(records, key=lambda record: str(record["path"]))


def weights_sha256(files: Sequence[Mapping[str, Any]], weights: Collection[str]) -> str:
    """One hash for a checkpoint's weights: the sha256 over the sorted `<sha256>  <path>` lines of
    the files at the paths `weights`, each ended by a newline.
    """
    lines = sorted(
        f"{record['sha256']}  {record['path']}\n" for record in files if record["path"] in weights
    )
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def stored_precision(stored: Mapping[str, str], tensors: Mapping[str, Any]) -> str:
    """`full`, `half` (any value in 16 bits) or `quantised` (any matrix in another number
    format).
    """
    matrices = {kind for name, kind in stored.items() if tensors[name].ndim >= 2}
    if matrices - _FULL - _HALF:
        return "quantised"
    return "half" if _HALF & set(stored.values()) else "full"


def build_manifest(
    model_id: str,
    revision: str,
    entry: Mapping[str, Any],
    folder: str | os.PathLike[str],
    anatomy: Anatomy,
    checkpoint: StoredCheckpoint,
) -> Manifest:
    """The manifest of the raw files in `folder`, described by `anatomy` and opened as `checkpoint`;
    reads and hashes every file.
    """
    source = parse_source(model_id, entry)
    files = file_records(folder)
    weights = sorted(Path(path).relative_to(folder).as_posix() for path in checkpoint.files)
    primary = anatomy.primary_stack
    norm = (
        anatomy.norm(primary.terminal_norm)
        if primary.terminal_norm
        else next(n for n in anatomy.norms if n.space == primary.space)
    )
    values: Counter[str] = Counter()
    for name, kind in checkpoint.stored.items():
        values[kind] += checkpoint.tensors[name].numel()
    return Manifest(
        model=model_id,
        revision=revision,
        source=source.record(revision),
        files=files,
        weights=weights,
        weights_sha256=weights_sha256(files, weights),
        unused=[
            {
                "tensor": name,
                "stored": each.stored,
                "shape": list(each.tensor.shape),
                "reason": str(each.reason),
            }
            for name, each in checkpoint.unused.items()
        ],
        family=anatomy.family,
        architecture=anatomy.architecture,
        stacks=[
            {"name": stack.name, "blocks": len(stack.blocks), "width": stack.width}
            for stack in anatomy.stacks
        ],
        norm_kind=str(anatomy.norm_kind),
        norm_placement=str(anatomy.placement),
        terminal_norm=primary.terminal_norm,
        gain_offset=norm.gain_offset,
        stored_dtypes=dict(values),
        precision=stored_precision(checkpoint.stored, checkpoint.tensors),
        tied=anatomy.tied,
        parameters=sum(
            math.prod(tensor.shape) for tensor in anatomy.tensors if tensor.alias_of is None
        ),
        licence=entry.get("licence"),
        provenance=source.provenance,
        objective=entry.get("objective"),
        modality=entry["modality"],
        calibration=entry["calibration"],
    )


def write_manifest(path: str | os.PathLike[str], manifest: Manifest) -> None:
    """Write checkpoint.json, atomically; the same manifest gives the same bytes."""
    with atomic_path(path) as temporary:
        temporary.write_text(
            json.dumps(asdict(manifest), indent=2, sort_keys=True) + "\n", encoding="utf-8"
        )
