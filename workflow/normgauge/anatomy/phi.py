"""Phi: attention and feed-forward in parallel behind one LayerNorm, rotary positions on a part of
each head.
"""

from __future__ import annotations

from typing import Any

from normgauge.anatomy.assembly import layer_norm
from normgauge.anatomy.build import Builder, Readout
from normgauge.anatomy.causal_decoder import STACK, causal_decoder
from normgauge.anatomy.options import head_size, refuse_options, rotary_size, select_architecture
from normgauge.anatomy.structure import Anatomy, Placement, Positions, Space

CLASSES = {
    "PhiModel": ("", None),
    "PhiForCausalLM": ("model", Readout("lm_head", bias=True)),
    "PhiForSequenceClassification": ("model", Readout("score", labels=True)),
}


def describe(config: Any) -> Anatomy:
    """The anatomy of a Phi config. Raises InputError on norms of queries and keys, or an unknown
    class.
    """
    refuse_options(config, ("qk_layernorm",))
    prefix, readout = select_architecture(config, CLASSES)
    builder = Builder(
        config.model_type,
        config.architectures[0],
        Placement.PARALLEL,
        Positions.ROTARY,
        layer_norm(config.layer_norm_eps),
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
        terminal_norm="final_layernorm",
    )


def _block(builder: Builder, config: Any, module: str, number: int, residual: Space) -> None:
    prefix = f"{STACK}/block.{number}/"
    attention, mlp = f"{module}.self_attn", f"{module}.mlp"
    modules = {
        "query": f"{attention}.q_proj",
        "key": f"{attention}.k_proj",
        "value": f"{attention}.v_proj",
        "attention_output": f"{attention}.dense",
        "up": f"{mlp}.fc1",
        "down": f"{mlp}.fc2",
    }
    norm = builder.norm(f"{module}.input_layernorm", residual)
    spaces = builder.attention_spaces(
        prefix, config.num_attention_heads, head_size(config), config.num_key_value_heads
    )
    builder.projections(prefix, spaces, modules, residual, norm)
    builder.feed_forward(
        prefix, config.intermediate_size, residual, norm, config.hidden_act, modules
    )
    builder.schur_sites(STACK, number, modules, norm, norm)
    builder.block_sites(STACK, number, module, residual, {})
