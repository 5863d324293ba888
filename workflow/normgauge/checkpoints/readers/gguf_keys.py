"""What the key/value pairs of a GGUF file say of the model, as the keys of a transformers config.

The names come from transformers' own table (`transformers.integrations.ggml.GGUF_CONFIG_MAPPING`).
That table passes over keys that change the function, so every key below the architecture's name
must be one that this module honours, or hold the value that changes nothing; any other is refused
by its name. Defaults are those of llama.cpp (src/llama-model.cpp, `llama_model::load_hparams`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from gguf.constants import MODEL_ARCH_NAMES
from transformers.integrations.ggml import GGUF_CONFIG_MAPPING
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES,
)

from normgauge.anatomy import FAMILIES
from normgauge.checkpoints.readers.gguf_container import Header
from normgauge.errors import InputError

TABLES: dict[str, Any] = dict(GGUF_CONFIG_MAPPING)
# Architectures whose model_type in transformers has another name.
MODEL_TYPES = {"gemma3": "gemma3_text", "t5encoder": "t5"}
# Where transformers' table names a key that the family's config does not have.
OWN_NAMES = {("gpt2", "context_length"): "n_positions", ("gpt2", "feed_forward_length"): "n_inner"}
# Read below by functions of their own, for what they default to or exclude.
OWN_READING = {
    "rope.freq_base",
    "rope.dimension_count",
    "attention.key_length",
    "attention.sliding_window",
    "vocab_size",
}
# Values of keys that change the function, at which they change nothing.
NEUTRAL: dict[str, tuple[Any, ...]] = {
    "attention.causal": (True,),
    "attention.clamp_kqv": (0.0,),
    "attention.max_alibi_bias": (0.0,),
    "attention.output_scale": (1.0,),
    "embedding_scale": (1.0,),
    "expert_count": (0,),
    "expert_used_count": (0,),
    "logit_scale": (1.0,),
    "residual_scale": (1.0,),
    "rope.scaling.attn_factor": (1.0,),
    "rope.scaling.yarn_ext_factor": (0.0,),
    "rope.scaling.yarn_attn_factor": (1.0,),
    "rope.scaling.yarn_log_multiplier": (0.0,),
    "tensor_data_layout": ("Meta AI original pth",),  # the row order that the reader restores
    "use_parallel_residual": (False,),
}
# What was done to a model, or what another use of it than its logits needs.
INFORMATION = {"pooling_type", "rope.scaling.finetuned", "rope.scaling.original_context_length"}
# Both sides know these, and how their keys and rows map was compared with no model: refused.
UNTRIED = {"stablelm", "bloom", "falcon", "phi3"}
SIZE_LIMIT = 1 << 31
# default window, and every how many blocks one sees everything
WITH_WINDOWS = {"gemma2": (4096, 2), "gemma3": (None, 6)}


def known_architectures() -> list[str]:
    """Those that transformers, the gguf package and our anatomy all know, and that were tried."""
    both = TABLES.keys() & set(MODEL_ARCH_NAMES.values()) - UNTRIED
    both |= {"t5encoder"}  # transformers reads it with the table of t5
    return sorted(name for name in both if MODEL_TYPES.get(name, name) in FAMILIES)


class Settings:
    """The keys below the architecture's name; each that is asked for counts as understood."""

    def __init__(self, path: Path, header: Header) -> None:
        self.path = path
        self.architecture = header.fields.get("general.architecture")
        if not isinstance(self.architecture, str) or self.architecture not in known_architectures():
            raise InputError(
                f"{path}: GGUF architecture {self.architecture!r}; known are "
                f"{', '.join(known_architectures())}: "
                "use the model's safetensors instead (llama.cpp stores Mistral as llama)"
            )
        prefix = f"{self.architecture}."
        self.values = {
            key.removeprefix(prefix): value
            for key, value in header.fields.items()
            if key.startswith(prefix)
        }
        self.shapes: Mapping[str, tuple[int, ...]] = {
            entry.name: entry.shape for entry in header.tensors
        }
        self.largest = max((max(shape) for shape in self.shapes.values()), default=1)
        self.understood: set[str] = set()

    def refuse(self, key: str, expected: str) -> InputError:
        found = self.values.get(key, "missing")
        return InputError(
            f"{self.path}: key {self.architecture}.{key} is {str(found)[:50]}; expected {expected}"
        )

    def value(self, key: str, default: Any = None) -> Any:
        """The value; of an array whose items are all equal, that item."""
        self.understood.add(key)
        value = self.values.get(key, default)
        if isinstance(value, np.ndarray) and value.size and (value == value[0]).all():
            return value[0].item()
        return value

    def count(self, key: str, default: int | None = None, limit: int | None = None) -> int:
        """A positive integer, by default not beyond the file's largest dimension, so that nothing
        larger than the file is made of it.
        """
        value, limit = self.value(key, default), limit or self.largest
        if type(value) is not int or not 1 <= value <= limit:
            raise self.refuse(
                key, f"one positive integer up to {limit} (the largest dimension of any tensor)"
            )
        return value

    def decimal(self, key: str, default: float | None = None) -> float:
        """The positive decimal number that was rounded to fp32 when the file was written:
        9.99999975e-06 is 1e-05.
        """
        value = self.value(key, default)
        if not isinstance(value, float) or not 0 < value < math.inf:
            raise self.refuse(key, "a positive number")
        return float(str(np.float32(value)))

    def equal(self, key: str, expected: Any) -> None:
        """Refuse a stated value that differs from the one that the file's other keys and tensors
        give.
        """
        if self.value(key, expected) != expected:
            raise self.refuse(key, f"{expected}, as the other keys and the tensors have it")

    def check_rest(self) -> None:
        """Refuse what nobody asked for: a key that is not understood may change the function."""
        for key in sorted(self.values.keys() - self.understood - INFORMATION):
            if key not in NEUTRAL:
                raise self.refuse(
                    key,
                    "no such key: it may change what the model computes; use the model's "
                    "safetensors instead",
                )
            if self.value(key) not in NEUTRAL[key]:
                raise self.refuse(
                    key,
                    f"{NEUTRAL[key][0]}, for any other value changes the function in a way that is "
                    "not read here",
                )


def config_keys(path: Path, header: Header) -> dict[str, Any]:
    """The keys of the transformers config that a file's metadata stand for.

    Raises InputError naming the key for an unknown architecture, a key that is missing, not
    understood, or contradicts another.
    """
    settings = Settings(path, header)
    _check_general(path, header.fields)
    embedding = settings.shapes.get("token_embd.weight", ())
    if len(embedding) != 2:
        raise InputError(
            f"{path}: tensor token_embd.weight missing or not a matrix; the file does not hold a "
            "whole model"
        )
    settings.equal("vocab_size", embedding[0])
    keys = {
        **_mapped(settings),
        **_classes(settings),
        **_heads(settings),
        **_options(settings),
        "vocab_size": embedding[0],
        "tie_word_embeddings": "output.weight" not in settings.shapes,
    }
    if "rope.freq_base" in TABLES[_table(settings)]:
        keys |= _positions(settings)
    settings.check_rest()
    for key, name in (
        ("bos_token_id", "bos_token_id"),
        ("eos_token_id", "eos_token_id"),
        ("pad_token_id", "padding_token_id"),
    ):
        keys[key] = header.fields.get(f"tokenizer.ggml.{name}")
    return keys


def _check_general(path: Path, fields: Mapping[str, Any]) -> None:
    kind, parts = fields.get("general.type", "model"), fields.get("split.count", 0)
    if kind != "model":
        raise InputError(
            f"{path}: key general.type is {kind!r}; expected 'model': an adapter or projector is "
            "no checkpoint"
        )
    if parts not in (0, 1):
        raise InputError(
            f"{path}: key split.count is {parts}; the model is split: merge the parts with "
            "llama.cpp's gguf-split first"
        )


def _table(settings: Settings) -> str:
    return "t5" if settings.architecture == "t5encoder" else str(settings.architecture)


def _mapped(settings: Settings) -> dict[str, Any]:
    """The keys that transformers' table translates and that need nothing more."""
    keys = {}
    for key, name in TABLES[_table(settings)].items():
        if (
            name is None
            or key in OWN_READING
            or (key == "decoder_start_token_id" and key not in settings.values)
        ):
            continue
        name = OWN_NAMES.get((_table(settings), key), name)
        if key.endswith("epsilon"):
            keys[name] = _epsilon(settings, key)
        elif key == "decoder_start_token_id":
            keys[name] = settings.value(key)
        elif key == "attention.head_count_kv":
            keys[name] = settings.count(key, settings.count("attention.head_count"))
        elif key == "attention.relative_buckets_count":
            keys[name] = settings.count(key, 32)
        else:
            keys[name] = settings.count(key, limit=SIZE_LIMIT if key == "context_length" else None)
    _check_blocks(settings)
    return keys


def _epsilon(settings: Settings, key: str) -> float:
    """llama.cpp's converter states the one of T5, an RMSNorm, under the names of both kinds."""
    if "t5" not in str(settings.architecture):
        return settings.decimal(key)
    other = "attention.layer_norm_rms_epsilon"
    settings.equal(other, settings.value(key, settings.value(other)))
    return settings.decimal(key, settings.value(other))


def _check_blocks(settings: Settings) -> None:
    """Blocks that the tensors do not show would be made, in thousands, before the first was
    missed.
    """
    decoder = settings.architecture == "t5"
    for key, prefix in (
        ("block_count", "enc.blk." if "t5" in str(settings.architecture) else "blk."),
        ("decoder_block_count", "dec.blk."),
    ):
        if key == "block_count" or decoder:
            stored = {
                name[len(prefix) :].partition(".")[0]
                for name in settings.shapes
                if name.startswith(prefix)
            }
            if settings.count(key, settings.count("block_count")) != len(stored):
                raise settings.refuse(
                    key, f"{len(stored)}, the number of blocks {prefix}N of which there are tensors"
                )


def _classes(settings: Settings) -> dict[str, Any]:
    """model_type and class. Llama with a window is Mistral, whose function llama.cpp stores under
    the name of Llama.
    """
    model_type = MODEL_TYPES.get(str(settings.architecture), str(settings.architecture))
    if settings.architecture == "t5encoder":
        return {"model_type": model_type, "architectures": ["T5EncoderModel"]}
    window = {}
    if settings.architecture == "llama" and (size := settings.value("attention.sliding_window", 0)):
        model_type, window = "mistral", {"sliding_window": size}
    names = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES | MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES
    return {"model_type": model_type, "architectures": [names[model_type]], **window}


def _heads(settings: Settings) -> dict[str, Any]:
    """Coordinates per head, equal for queries, keys, values and rotation: partial rotation is not
    part of these families.
    """
    heads, width = settings.count("attention.head_count"), settings.count("embedding_length")
    size = settings.count("attention.key_length", max(width // heads, 1))
    for key in ("attention.value_length", "attention.key_length_swa", "attention.value_length_swa"):
        settings.equal(key, size)
    if settings.architecture == "gpt2":
        settings.equal("attention.key_length", width // heads)
        settings.equal("attention.head_count_kv", heads)
        return {}
    query = settings.shapes.get(
        "enc.blk.0.attn_q.weight" if "t5" in str(settings.architecture) else "blk.0.attn_q.weight",
        (),
    )
    if query and query[0] != heads * size:
        raise InputError(
            f"{settings.path}: {heads} heads of {size} (keys "
            f"{settings.architecture}.attention.head_count and key_length) need "
            f"{heads * size} rows of queries, the first block has {query[0]}; the file is malformed"
        )
    if "t5" in str(settings.architecture):
        settings.equal("attention.head_count_kv", heads)
        return {"d_kv": size}
    for key in ("rope.dimension_count", "rope.dimension_count_swa"):
        settings.equal(key, size)
    return {"head_dim": size}


def _options(settings: Settings) -> dict[str, Any]:
    """What the tensors and the families' own keys say."""
    architecture = str(settings.architecture)
    keys: dict[str, Any] = {}
    if architecture in ("llama", "qwen3", "gemma2", "gemma3"):
        keys["attention_bias"] = "blk.0.attn_q.bias" in settings.shapes
    if architecture == "llama":
        keys["mlp_bias"] = "blk.0.ffn_up.bias" in settings.shapes
    if "t5" in architecture:
        keys["feed_forward_proj"] = (
            "gated-gelu" if "enc.blk.0.ffn_gate.weight" in settings.shapes else "relu"
        )
        keys["num_decoder_layers"] = settings.count(
            "decoder_block_count", settings.count("block_count")
        )
    if architecture in WITH_WINDOWS:
        keys |= _gemma(settings)
    elif "attention.scale" in settings.values and not _is_default_scale(settings):
        raise settings.refuse(
            "attention.scale",
            "the inverse root of a head's size, or no such key: no other scale is read here",
        )
    return keys


def _is_default_scale(settings: Settings) -> bool:
    size = settings.count(
        "attention.key_length",
        settings.count("embedding_length") // settings.count("attention.head_count"),
    )
    stated = settings.value("attention.scale")
    return isinstance(stated, float) and (
        stated == 0 or math.isclose(stated, size**-0.5, rel_tol=1e-6)
    )


def _gemma(settings: Settings) -> dict[str, Any]:
    """Soft caps, windows and the scale of queries. llama.cpp scales the largest models of both
    generations by the width per head.
    """
    architecture, blocks = str(settings.architecture), settings.count("block_count")
    heads, width = settings.count("attention.head_count"), settings.count("embedding_length")
    largest = blocks == {"gemma2": 46, "gemma3": 62}[architecture]
    keys: dict[str, Any] = {
        "query_pre_attn_scalar": width // heads
        if largest
        else settings.count("attention.key_length", width // heads)
    }
    if scale := settings.value("attention.scale", 0.0):
        keys["query_pre_attn_scalar"] = round(scale**-2)
        if not math.isclose(keys["query_pre_attn_scalar"] ** -0.5, scale, rel_tol=1e-6):
            raise settings.refuse("attention.scale", "the inverse root of a whole number")
    for name, default in (("attn_logit_softcapping", 50.0), ("final_logit_softcapping", 30.0)):
        if name in settings.values or architecture == "gemma2":
            keys[name] = (
                settings.decimal(name, default) if settings.value(name, default) != 0 else None
            )
    window, period = WITH_WINDOWS[architecture]
    keys["sliding_window"] = settings.count("attention.sliding_window", window, limit=SIZE_LIMIT)
    keys["layer_types"] = [
        ("sliding" if slides else "full") + "_attention"
        for slides in _sliding(settings, blocks, period)
    ]
    return keys


def _sliding(settings: Settings, blocks: int, period: int) -> list[bool]:
    """For each block whether it sees a window alone; the key holds the period or one truth value
    per block.
    """
    stated = settings.value("attention.sliding_window_pattern", period)
    if isinstance(stated, bool):
        return [stated] * blocks
    if isinstance(stated, np.ndarray) and stated.dtype == bool and stated.size == blocks:
        return [bool(slides) for slides in stated]
    if type(stated) is not int or stated < 0:
        raise settings.refuse(
            "attention.sliding_window_pattern", f"a period, or {blocks} truth values"
        )
    return [bool(stated) and (block + 1) % stated != 0 for block in range(blocks)]


def _positions(settings: Settings) -> dict[str, Any]:
    """The rotation. A factor without a type means linear; the blocks of gemma3 that see a window
    rotate unscaled by a base of their own.
    """
    kind = settings.value("rope.scaling.type", "linear")
    if kind not in ("none", "linear"):
        raise settings.refuse(
            "rope.scaling.type", "none or linear; use the model's safetensors instead"
        )
    legacy = settings.value("rope.scale_linear", 0.0)
    factor = settings.value("rope.scaling.factor", legacy) or 1.0
    if not isinstance(factor, float) or not 0 < factor < math.inf:
        raise settings.refuse(
            "rope.scaling.factor"
            if "rope.scaling.factor" in settings.values
            else "rope.scale_linear",
            "a positive number",
        )
    scaled = (
        {"rope_type": "linear", "factor": factor}
        if kind == "linear" and factor != 1
        else {"rope_type": "default"}
    )
    everywhere = {**scaled, "rope_theta": settings.decimal("rope.freq_base", 10000.0)}
    if settings.architecture != "gemma3":
        return {"rope_parameters": everywhere}
    local = {"rope_type": "default", "rope_theta": settings.decimal("rope.freq_base_swa", 10000.0)}
    return {"rope_parameters": {"full_attention": everywhere, "sliding_attention": local}}
