"""GPT-J: attention and feed-forward in parallel behind one LayerNorm; of each head the first
coordinates turn with the position, neighbours together.
"""

from __future__ import annotations

from typing import Any

from normgauge.anatomy.assembly import layer_norm
from normgauge.anatomy.build import Builder, Readout
from normgauge.anatomy.causal_decoder import STACK, causal_decoder
from normgauge.anatomy.options import even_head_size, select_architecture
from normgauge.anatomy.structure import Anatomy, Placement, Positions, Space

CLASSES = {
    "GPTJModel": ("", None),
    "GPTJForCausalLM": ("transformer", Readout("lm_head", bias=True)),
    "GPTJForSequenceClassification": ("transformer", Readout("score", labels=True)),
}


def describe(config: Any) -> Anatomy:
    """The anatomy of a GPT-J config. Raises InputError on an unknown class."""
    prefix, readout = select_architecture(config, CLASSES)
    builder = Builder(
        config.model_type,
        config.architectures[0],
        Placement.PARALLEL,
        Positions.ROTARY,
        layer_norm(config.layer_norm_epsilon),
        config.rotary_dim or even_head_size(config),
    )
    return causal_decoder(
        builder,
        config,
        prefix,
        readout,
        _block,
        embedding="wte",
        blocks="h",
        terminal_norm="ln_f",
    )


def _block(builder: Builder, config: Any, module: str, number: int, residual: Space) -> None:
    prefix = f"{STACK}/block.{number}/"
    modules = {
        "query": f"{module}.attn.q_proj",
        "key": f"{module}.attn.k_proj",
        "value": f"{module}.attn.v_proj",
        "attention_output": f"{module}.attn.out_proj",
        "up": f"{module}.mlp.fc_in",
        "down": f"{module}.mlp.fc_out",
    }
    norm = builder.norm(f"{module}.ln_1", residual)
    spaces = builder.attention_spaces(prefix, config.num_attention_heads, even_head_size(config))
    builder.projections(
        prefix, spaces, modules, residual, norm, biased=(), neighbouring=builder.rotary_size
    )
    size = config.n_inner or 4 * config.hidden_size
    builder.feed_forward(prefix, size, residual, norm, config.activation_function, modules)
    builder.schur_sites(STACK, number, modules, norm, norm)
    builder.block_sites(STACK, number, module, residual, {})
