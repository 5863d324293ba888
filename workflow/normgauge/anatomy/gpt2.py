"""GPT-2: pre-norm decoder, learned positions, weights stored in x out, query/key/value fused in
that order.
"""

from __future__ import annotations

from typing import Any

from normgauge.anatomy.assembly import layer_norm
from normgauge.anatomy.build import Builder, Readout
from normgauge.anatomy.causal_decoder import STACK, causal_decoder
from normgauge.anatomy.options import even_head_size, refuse_options, select_architecture
from normgauge.anatomy.structure import Anatomy, Placement, Positions, Space

CLASSES = {
    "GPT2Model": ("", None),
    "GPT2LMHeadModel": ("transformer", Readout("lm_head")),
    "GPT2ForSequenceClassification": ("transformer", Readout("score", labels=True)),
    "GPT2ForTokenClassification": ("transformer", Readout("classifier", labels=True, bias=True)),
}


def describe(config: Any) -> Anatomy:
    """The anatomy of a GPT-2 config. Raises InputError on cross-attention or an unknown class."""
    refuse_options(config, ("add_cross_attention",))
    prefix, readout = select_architecture(config, CLASSES)
    style = layer_norm(config.layer_norm_epsilon)
    builder = Builder("gpt2", config.architectures[0], Placement.PRE, Positions.ABSOLUTE, style)
    return causal_decoder(
        builder,
        config,
        prefix,
        readout,
        _block,
        embedding="wte",
        blocks="h",
        terminal_norm="ln_f",
        positions=("wpe", config.max_position_embeddings),
    )


def _block(builder: Builder, config: Any, module: str, number: int, residual: Space) -> None:
    prefix = f"{STACK}/block.{number}/"
    modules = {
        "query": f"{module}.attn.c_attn",
        "attention_output": f"{module}.attn.c_proj",
        "up": f"{module}.mlp.c_fc",
        "down": f"{module}.mlp.c_proj",
    }
    attention_norm = builder.norm(f"{module}.ln_1", residual)
    spaces = builder.attention_spaces(prefix, config.num_attention_heads, even_head_size(config))
    builder.stacked_projections(prefix, spaces, modules, residual, attention_norm, input_first=True)
    mlp_norm = builder.norm(f"{module}.ln_2", residual)
    size = config.n_inner or 4 * config.hidden_size
    builder.feed_forward(
        prefix, size, residual, mlp_norm, config.activation_function, modules, input_first=True
    )
    builder.schur_sites(STACK, number, modules, attention_norm, mlp_norm)
    builder.block_sites(STACK, number, module, residual, {"after_attention": mlp_norm})
