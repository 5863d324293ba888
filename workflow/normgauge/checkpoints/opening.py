"""Opening a checkpoint folder: the tensors under the names of the transformers class."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import WeightConverter, WeightRenaming, rename_source_key

from normgauge.checkpoints.architectures import empty_model, free_ties
from normgauge.checkpoints.configuration import open_config, reader_of
from normgauge.checkpoints.readers import Weights
from normgauge.errors import InputError

# Stored tensors that the class does not hold because it computes them, or that older versions stored without using them.
SUPERFLUOUS = (
    r"(.*\.)?position_ids",  # 0, 1, 2, ...: BERT, RoBERTa, ALBERT before they became non-persistent
    r"(.*\.)?rotary_emb\.inv_freq",  # rotary frequencies, recomputed: Llama, GPT-NeoX
    r"(.*\.)?h\.\d+\.attn\.(bias|masked_bias)",  # causal masks: GPT-2
    r"(.*\.)?layers\.\d+\.attention\.(bias|masked_bias)",  # causal masks: GPT-NeoX
    r"decoder\.block\.0\.layer\.1\.EncDecAttention\.relative_attention_bias\.weight",  # never used: T5
)


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint as stored.

    `config`: a transformers config or SceptrConfig. `tensors`: by the names of the class `config.architectures[0]`, in the stored dtype
    (quantised values dequantised to fp32); a tied tensor may be there once. `stored`: the dtype in the file by the same names, e.g. F16 or
    Q4_1. `files`: the weight files.
    """

    config: Any
    tensors: Mapping[str, torch.Tensor]
    stored: Mapping[str, str]
    files: tuple[Path, ...]


def open_checkpoint(folder: str | PathLike[str], config_overrides: Mapping[str, Any] | None = None) -> Checkpoint:
    """Open the weights in a folder; `config_overrides` are keys laid over its config.json.

    Readers in order of preference: safetensors, GGUF, CTranslate2, torch files. Containers are checked before their payload is touched.
    Raises InputError for a folder without weights, a malformed container or config, or an unknown family.
    """
    config = open_config(folder, config_overrides)
    return _named(config, reader_of(Path(folder)).read(Path(folder)))


def class_names(config: Any, sources: tuple[str, ...]) -> dict[str, str | None]:
    """Stored tensor name -> its name in the class, None for one that the class computes itself. Raises InputError as `open_checkpoint`."""
    renamed = _renamed(empty_model(config, torch.float32), sources)
    return {source: None if any(re.fullmatch(pattern, target) for pattern in SUPERFLUOUS) else target for source, target in renamed.items()}


def _named(config: Any, weights: Weights) -> Checkpoint:
    """Rename stored tensors to the names of the class, leaving out the superfluous ones."""
    model = empty_model(config, torch.float32)
    names = set(model.state_dict())
    tensors: dict[str, torch.Tensor] = {}
    stored: dict[str, str] = {}
    for source, target in _renamed(model, tuple(weights.tensors)).items():
        if target not in names and any(re.fullmatch(pattern, target) for pattern in SUPERFLUOUS):
            continue
        tensor = weights.tensors[source]
        if target in tensors:
            raise InputError(f"{weights.files[0].name}: tensor {source} and another one both stand for {target}; keep one of them")
        if not tensor.is_floating_point():
            raise InputError(
                f"{weights.files[0].name}: tensor {source} is stored as {weights.stored[source]}; expected floating-point weights"
            )
        tensors[target], stored[target] = tensor, weights.stored[source]
    for pair in free_ties(config).items():
        for name, other in (pair, pair[::-1]):
            if name not in tensors and other in tensors:
                tensors[name], stored[name] = tensors[other], stored[other]
    return Checkpoint(config, tensors, stored, weights.files)


def _renamed(model: torch.nn.Module, sources: tuple[str, ...]) -> dict[str, str]:
    """Stored name -> name in the class: transformers' own renamings of older layouts, and the base model's prefix added or removed."""
    if not isinstance(model, PreTrainedModel):
        return {source: source for source in sources}
    conversions = get_model_conversion_mapping(model)
    renamings = [conversion for conversion in conversions if isinstance(conversion, WeightRenaming)]
    converters = [conversion for conversion in conversions if isinstance(conversion, WeightConverter)]
    expected = model.state_dict()
    targets = {}
    for source in sources:
        target, converter = rename_source_key(source, renamings, converters, model.base_model_prefix or None, expected)
        if converter is not None:
            raise InputError(
                f"tensor {source} is in an older fused layout ({converter}); save the checkpoint again with a current transformers"
            )
        targets[source] = target
    return targets
