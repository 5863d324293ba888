"""What a model takes in, by its config's model_type: the one table of inputs."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from normgauge.errors import InputError


class Interface(StrEnum):
    """The input side of a model."""

    DECODER = "decoder-only token ids"
    ENCODER = "encoder-only token ids"
    ENCODER_DECODER = "encoder and decoder token ids"
    SPEECH = "log-mel features and decoder token ids"
    IMAGE = "pixel values"
    RECEPTOR = "T-cell receptor token grid"


INTERFACES = {
    **dict.fromkeys(
        (
            "gpt2",
            "gpt_neox",
            "llama",
            "mistral",
            "qwen2",
            "qwen3",
            "gemma",
            "gemma2",
            "gemma3_text",
            "phi",
            "phi3",
            "granite",
            "smollm3",
            "cohere",
            "gptj",
            "falcon",
            "bloom",
            "opt",
            "clip_text_model",
            "qwen3_5_text",
            "stablelm",
        ),
        Interface.DECODER,
    ),
    **dict.fromkeys(
        ("bert", "roberta", "albert", "distilbert", "electra", "modernbert", "deberta-v2"),
        Interface.ENCODER,
    ),
    "t5": Interface.ENCODER_DECODER,
    "whisper": Interface.SPEECH,
    **dict.fromkeys(
        (
            "vit",
            "vit_mae",
            "dinov2",
            "dinov3_vit",
            "siglip_vision_model",
            "clip_vision_model",
        ),
        Interface.IMAGE,
    ),
    "sceptr": Interface.RECEPTOR,
}

MODALITIES = {
    Interface.DECODER: ("text", "tokens"),
    Interface.ENCODER: ("text", "tokens"),
    Interface.ENCODER_DECODER: ("text", "tokens"),
    Interface.SPEECH: ("audio",),
    Interface.IMAGE: ("image",),
    Interface.RECEPTOR: ("tokens",),
}


def interface_of(config: Any) -> Interface:
    """The interface of a model config; InputError for an unknown model_type."""
    model_type = getattr(config, "model_type", None)
    if model_type not in INTERFACES:
        raise InputError(
            f"model_type {model_type!r}: no known calibration input; expected one of "
            f"{', '.join(INTERFACES)}"
        )
    return INTERFACES[model_type]


def vocabulary_size(config: Any) -> int:
    """Number of rows of the token embedding."""
    return int(config.get_text_config().vocab_size)


def maximum_length(config: Any) -> int | None:
    """Most token positions one sequence may have, None when positions are relative.

    RoBERTa counts positions from pad_token_id + 1, so that many of its rows are never used.
    """
    if config.model_type == "whisper":
        return int(config.max_target_positions)
    text = config.get_text_config()
    limit = getattr(text, "max_position_embeddings", None)
    if limit is not None and config.model_type == "roberta":
        limit -= text.pad_token_id + 1
    return limit


def special_ids(config: Any) -> set[int]:
    """Ids that the config names as special (beginning, end, padding, ...)."""
    text = config.get_text_config()
    names = ("pad", "bos", "eos", "sep", "cls", "mask", "unk", "decoder_start")
    found = (getattr(text, f"{name}_token_id", None) for name in names)
    return {
        int(token)
        for value in found
        if value is not None
        for token in (value if isinstance(value, list) else [value])
    }
