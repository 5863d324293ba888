"""Phi-3 (and Phi-4): Llama's block with queries, keys and values in one tensor, and gate and up in
another.
"""

from __future__ import annotations

from typing import Any

from normgauge.anatomy.assembly import rms_norm
from normgauge.anatomy.build import Builder, Readout
from normgauge.anatomy.causal_decoder import STACK, causal_decoder
from normgauge.anatomy.options import head_size, rotary_size, select_architecture
from normgauge.anatomy.structure import Anatomy, Placement, Positions, Space

CLASSES = {
    "Phi3Model": ("", None),
    "Phi3ForCausalLM": ("model", Readout("lm_head")),
    "Phi3ForSequenceClassification": ("model", Readout("score", labels=True)),
}


def describe(config: Any) -> Anatomy:
    """The anatomy of a Phi-3 config. Raises InputError on an unknown class."""
    prefix, readout = select_architecture(config, CLASSES)
    builder = Builder(
        config.model_type,
        config.architectures[0],
        Placement.PRE,
        Positions.ROTARY,
        rms_norm(config.rms_norm_eps),
        rotary_size(config),
    )
    return causal_decoder(
        builder,
        config,
        prefix,
        readout,
        _block,
        embedding="embed_tokens",
        blocks="layers",
        terminal_norm="norm",
    )


def _block(builder: Builder, config: Any, module: str, number: int, residual: Space) -> None:
    prefix = f"{STACK}/block.{number}/"
    modules = {
        "query": f"{module}.self_attn.qkv_proj",
        "attention_output": f"{module}.self_attn.o_proj",
        "gate": f"{module}.mlp.gate_up_proj",
        "up": f"{module}.mlp.gate_up_proj",
        "down": f"{module}.mlp.down_proj",
    }
    attention_norm = builder.norm(f"{module}.input_layernorm", residual)
    spaces = builder.attention_spaces(
        prefix, config.num_attention_heads, head_size(config), config.num_key_value_heads
    )
    builder.stacked_projections(prefix, spaces, modules, residual, attention_norm, bias=False)
    mlp_norm = builder.norm(f"{module}.post_attention_layernorm", residual)
    builder.feed_forward(
        prefix,
        config.intermediate_size,
        residual,
        mlp_norm,
        config.hidden_act,
        modules,
        bias=False,
    )
    builder.schur_sites(STACK, number, modules, attention_norm, mlp_norm)
    builder.block_sites(STACK, number, module, residual, {"after_attention": mlp_norm})
