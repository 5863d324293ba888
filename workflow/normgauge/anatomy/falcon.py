"""Falcon: attention and feed-forward in parallel behind one norm or two, or in sequence; queries,
keys and values fused by key/value group; rotary positions or a fixed bias on scores (ALiBi).
"""

from __future__ import annotations

from typing import Any

from normgauge.anatomy.assembly import layer_norm
from normgauge.anatomy.build import Builder, Readout
from normgauge.anatomy.causal_decoder import STACK, causal_decoder
from normgauge.anatomy.options import even_head_size, require_options, select_architecture
from normgauge.anatomy.structure import Anatomy, Placement, Positions, Space

CLASSES = {
    "FalconModel": ("", None),
    "FalconForCausalLM": ("transformer", Readout("lm_head")),
    "FalconForSequenceClassification": ("transformer", Readout("score", labels=True)),
    "FalconForTokenClassification": ("transformer", Readout("classifier", labels=True, bias=True)),
}


def describe(config: Any) -> Anatomy:
    """The anatomy of a Falcon config. Raises InputError on combinations of norms that its class
    does not run, or an unknown class.

    With ALiBi the bias of a head's scores belongs to its number, so heads keep their places.
    """
    require_options(config, _runnable(config))
    prefix, readout = select_architecture(config, CLASSES)
    builder = Builder(
        config.model_type,
        config.architectures[0],
        Placement.PARALLEL if config.parallel_attn else Placement.PRE,
        Positions.RELATIVE if config.alibi else Positions.ROTARY,
        layer_norm(config.layer_norm_epsilon),
        0 if config.alibi else even_head_size(config),
    )
    return causal_decoder(
        builder,
        config,
        prefix,
        readout,
        _block,
        embedding="word_embeddings",
        blocks="h",
        terminal_norm="ln_f",
    )


def _runnable(config: Any) -> dict[str, Any]:
    """The options that go with the block's kind."""
    if config.new_decoder_architecture:
        return {"parallel_attn": True}
    return {"num_ln_in_parallel_attn": None if config.num_ln_in_parallel_attn is None else 1}


def _groups(config: Any) -> int:
    if config.new_decoder_architecture:
        return int(config.num_kv_heads)
    return 1 if config.multi_query else int(config.num_attention_heads)


def _block(builder: Builder, config: Any, module: str, number: int, residual: Space) -> None:
    prefix = f"{STACK}/block.{number}/"
    modules = {
        "query": f"{module}.self_attention.query_key_value",
        "attention_output": f"{module}.self_attention.dense",
        "up": f"{module}.mlp.dense_h_to_4h",
        "down": f"{module}.mlp.dense_4h_to_h",
    }
    parallel = config.parallel_attn
    two = config.new_decoder_architecture and config.num_ln_in_parallel_attn in (None, 2)
    attention_norm = builder.norm(f"{module}.{'ln_attn' if two else 'input_layernorm'}", residual)
    spaces = builder.attention_spaces(
        prefix, config.num_attention_heads, even_head_size(config), _groups(config)
    )
    builder.fused_projections(prefix, spaces, modules, residual, attention_norm, bias=config.bias)
    mlp_norm = attention_norm
    if two or not parallel:
        name = "ln_mlp" if two else "post_attention_layernorm"
        mlp_norm = builder.norm(f"{module}.{name}", residual)
    builder.feed_forward(
        prefix,
        config.ffn_hidden_size,
        residual,
        mlp_norm,
        config.activation,
        modules,
        bias=config.bias,
    )
    builder.schur_sites(STACK, number, modules, attention_norm, mlp_norm)
    # in parallel, the stream after attention alone exists nowhere
    taps = {} if parallel else {"after_attention": mlp_norm}
    builder.block_sites(STACK, number, module, residual, taps)
