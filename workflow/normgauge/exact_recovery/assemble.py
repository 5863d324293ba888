"""Recovered tensors written into the container that they came from: the same header, hence the same
file if every bit is right.
"""

from __future__ import annotations

import json
import os
import re
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from normgauge.errors import InputError
from normgauge.provenance import atomic_path, sha256_file

DTYPES = {
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}


def assemble_all(files: Sequence[Path], recovered: Path, folder: Path) -> list[dict[str, Any]]:
    """Assemble each of a checkpoint's files in `folder`; rows of schema `recovery_assembly`, with
    the reason where one cannot be.

    recovered: the safetensors file of recovered tensors. `folder` is written as a whole.
    """
    tensors, rows = load_file(recovered), []
    with atomic_path(folder) as temporary:
        temporary.mkdir()
        for file in files:
            path = temporary / file.name
            row: dict[str, Any] = {
                "file": file.name,
                "sha256": sha256_file(file),
                "assembled_sha256": None,
                "reason": None,
            }
            try:
                assemble(tensors, file, path)
                row["assembled_sha256"] = sha256_file(path)
            except InputError as error:
                row["reason"] = str(error)
            rows.append(row)
    return rows


def assemble(
    tensors: Mapping[str, torch.Tensor],
    container: str | os.PathLike[str],
    path: str | os.PathLike[str],
) -> None:
    """Write `tensors` (class names) in the order and under the header of a safetensors file; only
    that file's header is read.

    A name in the header may lack or add the base model's prefix. Buffers that are no parameters
    (causal masks, position ids) are computed. Raises InputError for a file of another format, and
    for a tensor that is not given, not finite, or of another shape.
    """
    container = Path(container)
    if container.suffix != ".safetensors":
        raise InputError(
            f"{container.name}: not a safetensors file, whose header alone says where each byte of "
            "it comes from"
        )
    with open(container, "rb") as handle:
        (length,) = struct.unpack("<Q", handle.read(8))
        header = handle.read(length)
    entries = {name: entry for name, entry in json.loads(header).items() if name != "__metadata__"}
    ordered = sorted(entries.items(), key=lambda item: item[1]["data_offsets"][0])
    payload = [(name, _payload(name, entry, tensors, container.name)) for name, entry in ordered]
    with atomic_path(path) as temporary, open(temporary, "wb") as handle:
        handle.write(struct.pack("<Q", length) + header)
        for _, tensor in payload:
            handle.write(tensor.reshape(-1).view(torch.uint8).numpy().tobytes())


def _payload(
    name: str, entry: Mapping, tensors: Mapping[str, torch.Tensor], file: str
) -> torch.Tensor:
    shape, dtype = tuple(entry["shape"]), DTYPES.get(entry["dtype"])
    found = _named(name, tensors)
    if found is None:
        found = _buffer(name, shape)
    if found is None or dtype is None:
        raise InputError(
            f"{file}: tensor {name} ({entry['dtype']}) is not recovered; assemble only models "
            "whose every tensor is"
        )
    if tuple(found.shape) != shape:
        raise InputError(
            f"{file}: tensor {name} has shape {shape}, recovered is {tuple(found.shape)}"
        )
    if not found.isfinite().all():
        raise InputError(
            f"{file}: tensor {name} has {int((~found.isfinite()).sum())} undetermined values; it "
            "cannot be assembled"
        )
    return found.to(dtype).contiguous()


def _named(name: str, tensors: Mapping[str, torch.Tensor]) -> torch.Tensor | None:
    if name in tensors:
        return tensors[name]
    matches = [key for key in tensors if key.endswith(f".{name}") or name.endswith(f".{key}")]
    return tensors[matches[0]] if len(matches) == 1 else None


def _buffer(name: str, shape: tuple[int, ...]) -> torch.Tensor | None:
    """What older versions of transformers stored beside the parameters."""
    if re.fullmatch(r"(.*\.)?h\.\d+\.attn\.bias", name):  # GPT-2's causal mask
        return torch.ones(shape).tril()
    if re.fullmatch(r"(.*\.)?position_ids", name):
        return torch.arange(shape[-1]).expand(shape)
    return None
