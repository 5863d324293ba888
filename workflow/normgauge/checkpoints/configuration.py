"""Which reader a checkpoint folder needs and which config it holds. No class of a model is loaded
for that, which takes seconds.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from types import ModuleType
from typing import Any

from huggingface_hub.errors import StrictDataclassError
from transformers import PretrainedConfig
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_MAPPING

from normgauge.anatomy import FAMILIES
from normgauge.checkpoints.inner import INNER, inner_config
from normgauge.checkpoints.layout import refuse_pointer
from normgauge.checkpoints.readers import (
    ctranslate2_reader,
    gguf_reader,
    safetensors_reader,
    torch_reader,
)
from normgauge.checkpoints.sceptr_config import SceptrConfig
from normgauge.errors import InputError

# How the families' configs count blocks, and more blocks than any published transformer has: a
# corrupt count would fill the memory.
BLOCK_COUNTS = (
    *(
        "num_hidden_layers",
        "n_layer",
        "num_layers",
        "num_decoder_layers",
        "encoder_layers",
        "decoder_layers",
    ),
    *("num_hidden_groups", "inner_group_num", "n_layers"),  # ALBERT, DistilBERT
)
BLOCK_LIMIT = 2000
# Sizes that every family needs to be positive, and that tensors are made of.
SIZES = (
    *(
        "vocab_size",
        "hidden_size",
        "n_embd",
        "d_model",
        "d_kv",
        "d_ff",
        "head_dim",
        "intermediate_size",
        "num_attention_heads",
        "n_head",
    ),
    *("dim", "hidden_dim", "n_heads"),  # DistilBERT
    *(
        "num_heads",
        "num_key_value_heads",
        "encoder_attention_heads",
        "decoder_attention_heads",
        "embedding_size",
    ),
)
# Beyond what any published transformer has. A class makes a row or an entry of some table per unit
# before its weights are seen.
SIZE_LIMIT = 1 << 20
COUNTED_LIMIT = 1 << 24
COUNTED = (
    "vocab_size",
    "max_position_embeddings",
    "n_positions",
    "max_source_positions",
    "max_target_positions",
)
LABEL_LIMIT = 1 << 17
HEADS = (
    "num_attention_heads",
    "n_head",
    "n_heads",
    "num_heads",
    "num_key_value_heads",
    "encoder_attention_heads",
    "decoder_attention_heads",
)
HEAD_LIMIT = 1 << 13
# A picture: its side, and how many coordinates all its patches have in the residual stream.
SIDE_LIMIT, PICTURE_LIMIT = 1 << 13, 1 << 28

# What rotary positions turn by, and the groups of keys that may hold it.
ROTARY = (
    "rope_theta",
    "rotary_emb_base",
    "rope_local_base_freq",
    "factor",
    "partial_rotary_factor",
    "rotary_pct",
)
ROTARY_GROUPS = ("rope_parameters", "rope_scaling")

HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")

# in order of preference
READERS = (safetensors_reader, gguf_reader, ctranslate2_reader, torch_reader)


def open_config(
    folder: str | PathLike[str], config_overrides: Mapping[str, Any] | None = None
) -> Any:
    """The config of a checkpoint folder, without reading its weights; `config_overrides` are keys
    laid over its config.json.

    Raises InputError for a folder without weights, a malformed container or config, or an unknown
    family.
    """
    folder = Path(folder)
    return parse_config({**reader_of(folder).stored_config(folder), **(config_overrides or {})})


def stated_config(
    folder: str | PathLike[str], config_overrides: Mapping[str, Any] | None = None
) -> Any:
    """The same, with `architectures` empty where the files name no class: the stored tensors say
    then which one it is.
    """
    folder = Path(folder)
    keys = {**reader_of(folder).stored_config(folder), **(config_overrides or {})}
    config = parse_config(keys)
    if not keys.get("architectures") and not isinstance(config, SceptrConfig):
        config.architectures = None
    return config


def reader_of(folder: Path) -> ModuleType:
    """The reader of the weights in a folder; InputError for none, one without weights, or with
    git's pointers in their place.
    """
    if not folder.is_dir():
        hub = (
            "; of a hub's model give the folder that it was fetched into"
            if HUB_ID.fullmatch(str(folder))
            else ""
        )
        raise InputError(
            f"{folder}: {'a file' if folder.exists() else 'no such folder'}; expected a "
            f"checkpoint's folder{hub}"
        )
    for path in sorted(folder.glob("*")):
        refuse_pointer(path)
    reader = next((reader for reader in READERS if reader.holds(folder)), None)
    if reader is None:
        raise InputError(
            f"{folder}: no weights: expected model.safetensors, a .gguf file, CTranslate2's "
            "model.bin, pytorch_model.bin or state_dict.pt"
        )
    return reader


def parse_config(keys: Mapping[str, Any]) -> Any:
    """The config object that the keys of a config.json stand for: a transformers config, or a
    SceptrConfig.

    Without `architectures` the family's bare model class is taken. Code in a repository is never
    run. Raises InputError for an unknown family, a quantised model, or values that the family's
    config refuses.
    """
    if isinstance(keys.get("model"), dict) and "token_embedder" in keys["model"]:
        sceptr = SceptrConfig.from_stored(keys)
        check_numbers({"num_layers": sceptr.num_hidden_layers})
        return sceptr
    family = keys.get("model_type")
    known = {**FAMILIES, **INNER}
    if not isinstance(family, str) or family not in known or family not in CONFIG_MAPPING:
        raise InputError(
            f"config.json: model_type {family!r} is unknown; known families: "
            f"{', '.join(known)}; write it into config.json, or lay "
            "it over: config: {model_type: ...} in the model table, --config model_type=..."
        )
    check_numbers(keys)
    if family in INNER and isinstance(part := keys.get(INNER[family].part), dict):
        check_numbers(part)
    if keys.get("quantization_config"):
        raise InputError(
            "config.json: quantization_config: quantised weights are read from GGUF only; use the "
            "unquantised checkpoint"
        )
    try:
        config: PretrainedConfig = inner_config(CONFIG_MAPPING[family].from_dict(dict(keys)))
    except (StrictDataclassError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise InputError(
            f"config.json: transformers refuses these values for {family}: {error}"
        ) from error
    if not config.architectures:
        bare: Any = MODEL_MAPPING[type(config)]
        config.architectures = [bare.__name__]
    return config


def check_numbers(keys: Mapping[str, Any]) -> None:
    """InputError for numbers that the families' classes would take, fail on without naming the key,
    or fill the memory with.

    Numbers of rotary positions may stand in groups, one for each kind of layer.
    """
    limits = (
        dict.fromkeys(BLOCK_COUNTS, BLOCK_LIMIT)
        | dict.fromkeys(SIZES, SIZE_LIMIT)
        | dict.fromkeys(COUNTED, COUNTED_LIMIT)
    )
    limits |= dict.fromkeys(HEADS, HEAD_LIMIT) | {
        "num_labels": LABEL_LIMIT,
        "image_size": SIDE_LIMIT,
    }
    _check_picture(keys)
    for name, value in keys.items():
        if isinstance(value, dict) and name in ROTARY_GROUPS:
            for part in (value, *value.values()):
                check_numbers(part if isinstance(part, dict) else {})
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            continue
        if name in limits and not 1 <= value <= limits[name]:
            raise InputError(
                f"config.json: {name} is {str(value)[:20]}, expected 1 to {limits[name]}; correct "
                "it"
            )
        if name in ROTARY and not (0 < value < math.inf):
            raise InputError(
                f"config.json: {name} is {str(value)[:20]}, expected a positive number; correct it"
            )
        if name in ("partial_rotary_factor", "rotary_pct") and value > 1:
            raise InputError(
                f"config.json: {name} is {str(value)[:20]}, expected a part of each head, at most "
                "1; correct it"
            )
        if name.endswith(("_eps", "_epsilon")) and not 0 <= value < 1:
            raise InputError(
                f"config.json: {name} is {str(value)[:20]}, expected a small number that is not "
                "negative; correct it"
            )


def _check_picture(keys: Mapping[str, Any]) -> None:
    side, patch, width = (
        keys.get(name, default)
        for name, default in (("image_size", 224), ("patch_size", 16), ("hidden_size", 768))
    )
    if (
        all(type(size) is int and size > 0 for size in (side, patch, width))
        and (side // patch) ** 2 * width > PICTURE_LIMIT
    ):
        raise InputError(
            f"config.json: image_size {side} of patches of {patch} at hidden_size {width} is "
            f"beyond {PICTURE_LIMIT} coordinates; correct it"
        )
