"""Tiny models of transformers and the GGUF files that llama.cpp's converter makes of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
import transformers
from gguf.constants import MODEL_ARCH_NAMES

VOCABULARY, WIDTH, HEADS, BLOCKS = 32, 16, 2, 2
GATED = {
    "vocab_size": VOCABULARY,
    "hidden_size": WIDTH,
    "intermediate_size": 24,
    "num_hidden_layers": BLOCKS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": 1,
    "max_position_embeddings": 64,
}
# Architecture in the file: class, config.
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": (
        "LlamaForCausalLM",
        {**GATED, "head_dim": 8, "rope_parameters": {"rope_type": "default", "rope_theta": 5e4}},
    ),
    "mistral": ("MistralForCausalLM", {**GATED, "head_dim": 8, "sliding_window": None}),
    "qwen2": ("Qwen2ForCausalLM", {**GATED, "tie_word_embeddings": True}),
    "qwen3": ("Qwen3ForCausalLM", {**GATED, "head_dim": 12}),
    "gemma2": (
        "Gemma2ForCausalLM",
        {**GATED, "head_dim": 12, "query_pre_attn_scalar": 12, "sliding_window": 5},
    ),
    "gemma3": (
        "Gemma3ForCausalLM",
        {
            **GATED,
            "head_dim": 12,
            "query_pre_attn_scalar": 12,
            "sliding_window": 5,
            "num_hidden_layers": 6,
        },
    ),
    "gpt2": (
        "GPT2LMHeadModel",
        {
            "vocab_size": VOCABULARY,
            "n_embd": WIDTH,
            "n_layer": BLOCKS,
            "n_head": HEADS,
            "n_positions": 64,
        },
    ),
    "t5": (
        "T5ForConditionalGeneration",
        {
            **{
                "vocab_size": VOCABULARY,
                "d_model": WIDTH,
                "d_kv": 6,
                "d_ff": 24,
                "num_layers": 2,
                "num_decoder_layers": 3,
            },
            **{
                "num_heads": HEADS,
                "feed_forward_proj": "gated-gelu",
                "tie_word_embeddings": False,
                "decoder_start_token_id": 0,
            },
            "relative_attention_num_buckets": 8,
        },
    ),
}
STORED_AS = {"mistral": "llama"}


def make_model(family: str, **changes: Any) -> Any:
    """A tiny model of the family with every parameter drawn, gains and biases as well."""
    name, keys = MODELS[family]
    model_class = getattr(transformers, name)
    config = model_class.config_class(
        **{**keys, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0, **changes}
    )
    generator = torch.Generator().manual_seed(5)
    model = model_class._from_config(config, attn_implementation="eager").eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.4)
    if family == "t5":  # the class ties what a T5 1.1 stores apart
        model.lm_head.weight = torch.nn.Parameter(
            torch.randn(VOCABULARY, WIDTH, generator=generator) * 0.4
        )
    return model


def stored_tensors(family: str, model: Any) -> dict[str, np.ndarray]:
    """The model's tensors as the converter lays them, by their names in the file."""
    architecture = STORED_AS.get(family, family)
    code = next(code for code, name in MODEL_ARCH_NAMES.items() if name == architecture)
    table = gguf.get_tensor_name_map(code, 8)
    tied = model.config.tie_word_embeddings and family != "t5"
    tensors = {}
    for name, tensor in model.state_dict().items():
        if (tied and name == "lm_head.weight") or (
            name.endswith("embed_tokens.weight") and family == "t5"
        ):
            continue
        values = tensor.numpy()
        if architecture == "llama" and ("q_proj" in name or "k_proj" in name):
            heads = HEADS if "q_proj" in name else 1
            values = (
                values.reshape(heads, 2, -1, *values.shape[1:]).swapaxes(1, 2).reshape(values.shape)
            )
        if architecture.startswith("gemma") and name.endswith("norm.weight"):
            values = values + 1
        if architecture == "gpt2" and name.endswith(
            ("c_attn.weight", "c_proj.weight", "c_fc.weight")
        ):
            values = values.T
        found = table.get_name(name, try_suffixes=(".weight", ".bias"))
        assert found, name
        tensors[found] = np.ascontiguousarray(values)
    return tensors


def stated_keys(family: str, config: Any) -> dict[str, Any]:
    """The keys that the converter writes below the architecture's name."""
    if family == "gpt2":
        return {
            **{
                "context_length": config.n_positions,
                "block_count": config.n_layer,
                "embedding_length": config.n_embd,
            },
            **{
                "feed_forward_length": config.n_inner or 4 * config.n_embd,
                "attention.head_count": config.n_head,
            },
            "attention.layer_norm_epsilon": config.layer_norm_epsilon,
        }
    if family == "t5":
        return {
            **{
                "context_length": 64,
                "block_count": config.num_layers,
                "decoder_block_count": config.num_decoder_layers,
            },
            **{
                "embedding_length": config.d_model,
                "feed_forward_length": config.d_ff,
                "attention.head_count": config.num_heads,
            },
            **{"attention.key_length": config.d_kv, "attention.value_length": config.d_kv},
            "attention.layer_norm_epsilon": config.layer_norm_epsilon,
            "attention.layer_norm_rms_epsilon": config.layer_norm_epsilon,
            "attention.relative_buckets_count": config.relative_attention_num_buckets,
            "decoder_start_token_id": config.decoder_start_token_id,
        }
    size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    keys = {
        **{
            "context_length": config.max_position_embeddings,
            "block_count": config.num_hidden_layers,
        },
        **{"embedding_length": config.hidden_size, "feed_forward_length": config.intermediate_size},
        **{
            "attention.head_count": config.num_attention_heads,
            "attention.head_count_kv": config.num_key_value_heads,
        },
        "attention.layer_norm_rms_epsilon": config.rms_norm_eps,
    }
    if family != "qwen2":
        keys |= {"attention.key_length": size, "attention.value_length": size}
    if family in ("llama", "mistral"):
        keys |= {"rope.dimension_count": size, "vocab_size": config.vocab_size}
    if family.startswith("gemma"):
        keys["attention.sliding_window"] = config.sliding_window
    if family == "gemma2":
        keys |= {
            "attn_logit_softcapping": config.attn_logit_softcapping,
            "final_logit_softcapping": config.final_logit_softcapping,
        }
    rope = config.rope_parameters.get("full_attention", config.rope_parameters)
    return {**keys, "rope.freq_base": float(rope["rope_theta"])}


def write_file(
    path: Path,
    architecture: str,
    keys: dict[str, Any],
    tensors: dict[str, np.ndarray],
    name: str = "tiny",
) -> None:
    """A GGUF file. Integers become u32, decimals f32; a numpy array becomes an array of its
    items.
    """
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_name(name)
    writer.add_token_list([f"t{number}" for number in range(VOCABULARY)])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_pad_token_id(0)
    add = {
        bool: writer.add_bool,
        int: writer.add_uint32,
        float: writer.add_float32,
        str: writer.add_string,
        list: writer.add_array,
    }
    for key, value in keys.items():
        add[type(value)](f"{architecture}.{key}", value)
    for tensor_name, values in tensors.items():
        writer.add_tensor(tensor_name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write_model(
    folder: Path,
    family: str,
    model: Any,
    name: str = "tiny",
    without: tuple[str, ...] = (),
    **changes: Any,
) -> Path:
    """The file of a model; `changes` are keys laid over those of the converter, `__` for a dot,
    `without` keys left out.
    """
    keys = stated_keys(family, model.config) | {
        key.replace("__", "."): value for key, value in changes.items()
    }
    path = folder / "tiny.gguf"
    kept = {key: value for key, value in keys.items() if key not in without}
    write_file(path, STORED_AS.get(family, family), kept, stored_tensors(family, model), name)
    return path
