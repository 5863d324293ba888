"""Checkpoints of other formats as safetensors, where that loses nothing."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import torch
from safetensors.torch import save_file

from normgauge.checkpoints.configuration import open_config, reader_of
from normgauge.checkpoints.readers import Weights, gguf_reader, safetensors_reader, torch_reader
from normgauge.checkpoints.readers.gguf_container import check_header
from normgauge.errors import InputError

EXACT = ("F64", "F32", "F16", "BF16")
INDEXES = ("pytorch_model.bin.index.json",)
TOKENIZERS = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "spiece.model")


@contextmanager
def as_safetensors(folder: Path, named: str, leave_behind: bool = False) -> Iterator[Path]:
    """The folder itself where it holds safetensors; else a temporary one that holds the same
    tensors in their stored dtypes as model.safetensors, the config, and links to all other files.

    named: what errors call the folder. leave_behind: a GGUF file's tokenizer may be lost. Raises
    InputError for quantised values, which no gauge moves without rounding them again, for a GGUF
    file whose tokenizer nothing beside it holds, and as the reader of its format.
    """
    reader = reader_of(folder)
    if reader is safetensors_reader:
        yield folder
        return
    weights = reader.read(folder)
    _require_exact(named, weights.stored)
    beside = any((folder / name).is_file() for name in TOKENIZERS)
    if reader is gguf_reader and not beside and not leave_behind and _holds_tokenizer(weights):
        raise InputError(
            f"{named}: safetensors do not keep the tokenizer of {weights.files[0].name}; lay its "
            "tokenizer.json beside it, or take --leave-behind"
        )
    with tempfile.TemporaryDirectory() as scratch:
        place, taken = Path(scratch), {path.name for path in weights.files}
        for path in folder.iterdir():
            if path.name not in taken and path.name not in INDEXES:
                os.symlink(path.resolve(), place / path.name)
        save_file(
            unshared(weights.tensors), place / safetensors_reader.SINGLE, metadata={"format": "pt"}
        )
        if reader is not torch_reader:
            (place / "config.json").unlink(missing_ok=True)
            keys = open_config(folder).to_dict()
            (place / "config.json").write_text(json.dumps(keys, indent=2) + "\n", encoding="utf-8")
        try:
            yield place
        except InputError as error:
            raise InputError(str(error).replace(scratch, named)) from error


def _holds_tokenizer(weights: Weights) -> bool:
    return "tokenizer.ggml.tokens" in check_header(weights.files[0]).fields


def _require_exact(named: str, stored: Mapping[str, str]) -> None:
    for name, dtype in stored.items():
        if dtype not in EXACT:
            raise InputError(
                f"{named}: {name} is stored as {dtype}, which a gauge would have to round again; "
                "use the unquantised checkpoint"
            )


def unshared(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The tensors with memory of their own, as safetensors stores them: a tied one is there under
    each of its names.
    """
    found: dict[str, torch.Tensor] = {}
    seen: set[int] = set()
    for name, value in tensors.items():
        place = value.untyped_storage().data_ptr()
        found[name] = value.clone() if place in seen else value.contiguous()
        seen.add(place)
    return found
