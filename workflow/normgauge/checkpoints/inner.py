"""The model inside a checkpoint of several: the text model of a multimodal class, the vision tower
of a two-tower one. It is opened by itself; what belongs to the others is not used.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Inner:
    """Which part of a config stands for the model inside, the class that it opens as, keys of that
    part that leave out what is not described, and keys in which the whole's value counts.
    """

    part: str
    architecture: str
    keys: Mapping[str, Any] = field(default_factory=dict)
    shared: tuple[str, ...] = ()


INNER = {
    "gemma3": Inner("text_config", "Gemma3ForCausalLM"),
    "qwen3_5": Inner("text_config", "Qwen3_5ForCausalLM"),
    "siglip": Inner("vision_config", "SiglipVisionModel", {"vision_use_head": False}),
    "clip": Inner("vision_config", "CLIPVisionModelWithProjection", shared=("projection_dim",)),
}
"""By the model_type of the whole."""

PREFIXES = {
    "gemma3_text": (
        ("model.language_model.", "model."),
        ("language_model.model.", "model."),
        ("language_model.lm_head.", "lm_head."),
    ),
    "qwen3_5_text": (("model.language_model.", "model."),),
    "siglip_vision_model": (("vision_model.", ""),),
}
"""What its names begin with in the whole, and by themselves, by the model_type of the inner one."""


def inner_config(config: Any) -> Any:
    """The config of the model inside; the config itself where there is none.

    Ties are those of the whole, which holds the readout.
    """
    inner = INNER.get(config.model_type)
    if inner is None:
        return config
    part = getattr(config, inner.part)
    part.architectures = [inner.architecture]
    if hasattr(part, "tie_word_embeddings"):
        part.tie_word_embeddings = config.tie_word_embeddings
    for key, value in inner.keys.items():
        setattr(part, key, value)
    for key in inner.shared:
        setattr(part, key, getattr(config, key))
    return part


def inner_names(config: Any, names: Mapping[str, str]) -> dict[str, str]:
    """Stored name -> its name in the model inside, where it begins as those of a whole do."""
    found = dict(names)
    for stored, name in names.items():
        for whole, own in PREFIXES.get(config.model_type, ()):
            if name.startswith(whole):
                found[stored] = own + name.removeprefix(whole)
                break
    return found
