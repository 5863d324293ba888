"""GPT-NeoX (Pythia): rotary decoder, attention and feed-forward in parallel or in sequence,
query/key/value interleaved per head.
"""

from __future__ import annotations

from typing import Any

from normgauge.anatomy.assembly import layer_norm
from normgauge.anatomy.build import Builder, Readout
from normgauge.anatomy.causal_decoder import STACK, causal_decoder
from normgauge.anatomy.options import head_size, refuse_options, rotary_size, select_architecture
from normgauge.anatomy.structure import Anatomy, Placement, Positions, Space

CLASSES = {
    "GPTNeoXModel": ("", None),
    "GPTNeoXForCausalLM": ("gpt_neox", Readout("lm_head")),
    "GPTNeoXForSequenceClassification": ("gpt_neox", Readout("score", labels=True)),
    "GPTNeoXForTokenClassification": ("gpt_neox", Readout("classifier", labels=True, bias=True)),
}


def describe(config: Any) -> Anatomy:
    """The anatomy of a GPT-NeoX config. Raises InputError on an unknown class."""
    refuse_options(config, ("add_cross_attention",))
    prefix, readout = select_architecture(config, CLASSES)
    placement = Placement.PARALLEL if config.use_parallel_residual else Placement.PRE
    style = layer_norm(config.layer_norm_eps)
    builder = Builder(
        "gpt_neox", config.architectures[0], placement, Positions.ROTARY, style, rotary_size(config)
    )
    return causal_decoder(
        builder,
        config,
        prefix,
        readout,
        _block,
        embedding="embed_in",
        blocks="layers",
        terminal_norm="final_layer_norm",
    )


def _block(builder: Builder, config: Any, module: str, number: int, residual: Space) -> None:
    prefix = f"{STACK}/block.{number}/"
    modules = {
        "query": f"{module}.attention.query_key_value",
        "attention_output": f"{module}.attention.dense",
        "up": f"{module}.mlp.dense_h_to_4h",
        "down": f"{module}.mlp.dense_4h_to_h",
    }
    attention_norm = builder.norm(f"{module}.input_layernorm", residual)
    spaces = builder.attention_spaces(prefix, config.num_attention_heads, head_size(config))
    builder.fused_projections(
        prefix, spaces, modules, residual, attention_norm, bias=config.attention_bias
    )
    mlp_norm = builder.norm(f"{module}.post_attention_layernorm", residual)
    builder.feed_forward(
        prefix, config.intermediate_size, residual, mlp_norm, config.hidden_act, modules
    )
    builder.schur_sites(STACK, number, modules, attention_norm, mlp_norm)
    # in parallel, the stream after attention alone exists nowhere
    builder.block_sites(
        STACK,
        number,
        module,
        residual,
        {} if config.use_parallel_residual else {"after_attention": mlp_norm},
    )
