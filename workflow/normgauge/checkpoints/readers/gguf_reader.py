"""Reader of GGUF files of the architectures that transformers' own GGUF loader and our anatomy both
know.

Names come from the gguf package's tables, the arithmetic of llama.cpp's converter is undone by
transformers' own tensor processors (`transformers.modeling_gguf_pytorch_utils`), and quantised
values are dequantised to fp32.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from gguf.constants import MODEL_ARCH_NAMES, GGMLQuantizationType
from transformers.modeling_gguf_pytorch_utils import TENSOR_PROCESSORS, TensorProcessor
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from normgauge.anatomy import describe
from normgauge.checkpoints.readers import Weights
from normgauge.checkpoints.readers.gguf_container import TensorEntry, check_header, values
from normgauge.checkpoints.readers.gguf_keys import config_keys
from normgauge.errors import InputError, one_line

HALF = {GGMLQuantizationType.F16: torch.float16, GGMLQuantizationType.BF16: torch.bfloat16}
# Stored beside some T5 models and used by none; `opening` leaves it out.
UNUSED = ("decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight",)


def holds(folder: Path) -> bool:
    return any(path.is_file() for path in folder.glob("*.gguf"))


def _file(folder: Path) -> Path:
    files = sorted(path for path in folder.glob("*.gguf") if path.is_file())
    if len(files) != 1:
        raise InputError(
            f"{folder}: {len(files)} GGUF files; keep the one to be measured (source.path may name "
            "it)"
        )
    return files[0]


@one_line("a model in GGUF")
def stored_config(folder: Path) -> dict[str, Any]:
    """The keys of the transformers config that the file's metadata stand for."""
    path = _file(folder)
    return config_keys(path, check_header(path))


@one_line("a model in GGUF")
def read(folder: Path) -> Weights:
    """The weights under the names of the transformers class, dequantised to fp32 (fp16 and bf16
    stay as stored).

    Raises InputError for a tensor that the class has no place for.
    """
    path = _file(folder)
    header = check_header(path)
    keys = config_keys(path, header)
    names = class_names(header.fields["general.architecture"], keys)
    processor = TENSOR_PROCESSORS.get(header.fields["general.architecture"], TensorProcessor)(
        config=keys
    )
    data = np.memmap(path, mode="r")
    tensors, stored = {}, {}
    for entry in header.tensors:
        if entry.name not in names:
            raise InputError(
                f"{path}: tensor {entry.name} has no place in {keys['architectures'][0]}; use the "
                "model's safetensors instead"
            )
        name = names[entry.name]
        tensors[name], stored[name] = _tensor(path, data, entry, processor), entry.type.name
    return Weights(tensors, stored, (path,))


def class_names(architecture: str, keys: dict[str, Any]) -> dict[str, str]:
    """Name in the file -> name in the class, for every tensor of the class that `keys` describe."""
    code = next(code for code, name in MODEL_ARCH_NAMES.items() if name == architecture)
    anatomy = describe(CONFIG_MAPPING[keys["model_type"]].from_dict(dict(keys)))
    table = gguf.get_tensor_name_map(code, max(len(stack.blocks) for stack in anatomy.stacks))
    found: dict[str, str] = {}
    for name in (*(tensor.name for tensor in anatomy.tensors if tensor.alias_of is None), *UNUSED):
        stem, dot, suffix = name.rpartition(".")
        if known := table.get_name(stem):
            found.setdefault(f"{known}{dot}{suffix}", name)
    return found


def _tensor(
    path: Path, data: np.ndarray, entry: TensorEntry, processor: TensorProcessor
) -> torch.Tensor:
    """One tensor as the class holds it; in its stored half precision wherever that holds the same
    values.
    """
    raw = values(path, data, entry)
    try:
        # transformers' processor of GPT-2 writes the readout elsewhere; no family's is changed.
        laid = raw if entry.name == "output.weight" else processor.process(raw, entry.name).weights
    except ValueError as error:
        raise InputError(
            f"{path}: tensor {entry.name} has shape {list(entry.shape)}, which does not split into "
            "the heads"
        ) from error
    tensor = torch.from_numpy(np.ascontiguousarray(laid))
    half = tensor.to(HALF.get(entry.type, tensor.dtype))
    return half if torch.equal(half.to(tensor.dtype), tensor) else tensor
