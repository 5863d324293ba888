"""What a model is made of: `describe(config)` gives every tensor, map, norm and measuring site of a
transformers class.

The only place that knows module names. A new family is one module with `describe`, and its lines in
FAMILIES and _CLASSES; see docs/anatomy.md.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from normgauge.anatomy import (
    albert,
    bert,
    bloom,
    clip,
    deberta_v2,
    dinov2,
    dinov3,
    distilbert,
    electra,
    falcon,
    gated_decoder,
    gpt2,
    gpt_neox,
    gptj,
    modernbert,
    opt,
    phi,
    phi3,
    qwen3_5,
    roberta,
    sceptr,
    siglip,
    t5,
    vit,
    whisper,
)
from normgauge.anatomy.structure import Anatomy
from normgauge.errors import InputError

FAMILIES = {
    "gpt2": gpt2.describe,
    "gpt_neox": gpt_neox.describe,
    "bert": bert.describe,
    "roberta": roberta.describe,
    "albert": albert.describe,
    "distilbert": distilbert.describe,
    "modernbert": modernbert.describe,
    "deberta-v2": deberta_v2.describe,
    "electra": electra.describe,
    "vit": vit.describe,
    "vit_mae": vit.describe_masked,
    "dinov2": dinov2.describe,
    "dinov3_vit": dinov3.describe,
    "siglip_vision_model": siglip.describe,
    "clip_vision_model": clip.describe_vision,
    "clip_text_model": clip.describe_text,
    "whisper": whisper.describe,
    "t5": t5.describe,
    "llama": gated_decoder.describe,
    "mistral": gated_decoder.describe,
    "qwen2": gated_decoder.describe,
    "qwen3": gated_decoder.describe,
    "gemma": gated_decoder.describe,
    "gemma2": gated_decoder.describe,
    "gemma3_text": gated_decoder.describe,
    "stablelm": gated_decoder.describe,
    "phi": phi.describe,
    "phi3": phi3.describe,
    "granite": gated_decoder.describe,
    "smollm3": gated_decoder.describe,
    "cohere": gated_decoder.describe,
    "gptj": gptj.describe,
    "falcon": falcon.describe,
    "bloom": bloom.describe,
    "opt": opt.describe,
    "qwen3_5_text": qwen3_5.describe,
    "sceptr": sceptr.describe,
}


_CLASSES: dict[str, Iterable[str]] = {
    **{
        "gpt2": gpt2.CLASSES,
        "gpt_neox": gpt_neox.CLASSES,
        "bert": bert.CLASSES,
        "roberta": roberta.CLASSES,
    },
    **{
        "albert": albert.CLASSES,
        "distilbert": distilbert.CLASSES,
        "vit": vit.CLASSES,
        "dinov2": dinov2.CLASSES,
    },
    **{
        "vit_mae": vit.MASKED_CLASSES,
        "dinov3_vit": dinov3.CLASSES,
        "siglip_vision_model": siglip.CLASSES,
        "electra": electra.CLASSES,
        "phi": phi.CLASSES,
        "qwen3_5_text": qwen3_5.CLASSES,
    },
    **{
        "clip_vision_model": clip.VISION_CLASSES,
        "clip_text_model": clip.TEXT_CLASSES,
        "gptj": gptj.CLASSES,
        "modernbert": modernbert.CLASSES,
        "deberta-v2": deberta_v2.CLASSES,
        "phi3": phi3.CLASSES,
        "falcon": falcon.CLASSES,
        "bloom": bloom.CLASSES,
        "opt": opt.CLASSES,
    },
    **{"whisper": whisper.CLASSES, "t5": t5.CLASSES, "sceptr": (sceptr.ARCHITECTURE,)},
    **{family: gated_decoder.classes(family) for family in gated_decoder.FACTS},
}


def described_classes(family: str) -> tuple[str, ...]:
    """The classes of a family that `describe` knows, the bare one first. Raises KeyError for an
    unknown family.
    """
    return tuple(_CLASSES[family])


def describe(config: Any) -> Anatomy:
    """The anatomy of the class named by `config.architectures[0]`, from the config alone; no
    weights are read or made.

    `config` is a transformers PretrainedConfig, or any object with SCEPTR's attributes (see
    `anatomy.sceptr`). Raises InputError on a family, class or option that is not described, naming
    it and what is known.
    """
    family = getattr(config, "model_type", None)
    if family not in FAMILIES:
        raise InputError(
            f"config: model_type is {family!r}, expected one of {', '.join(FAMILIES)}; describing "
            "another family needs its table of "
            f"tensors, norms and sites, a module in normgauge/anatomy (docs/anatomy.md)"
        )
    if config.num_hidden_layers < 1:
        raise InputError(
            f"{family} config: num_hidden_layers is {config.num_hidden_layers}, expected at least "
            "1; correct it"
        )
    return FAMILIES[family](config)
