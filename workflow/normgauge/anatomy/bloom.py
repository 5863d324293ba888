"""BLOOM: pre-norm decoder behind a norm of the embedding, query/key/value interleaved per head, and
a fixed bias on the scores of each head (ALiBi).
"""

from __future__ import annotations

from typing import Any

from normgauge.anatomy.assembly import layer_norm
from normgauge.anatomy.build import Builder, Readout
from normgauge.anatomy.causal_decoder import STACK, causal_decoder
from normgauge.anatomy.options import even_head_size, refuse_options, select_architecture
from normgauge.anatomy.structure import Anatomy, Placement, Positions, Space

CLASSES = {
    "BloomModel": ("", None),
    "BloomForCausalLM": ("transformer", Readout("lm_head")),
    "BloomForSequenceClassification": ("transformer", Readout("score", labels=True)),
    "BloomForTokenClassification": ("transformer", Readout("classifier", labels=True, bias=True)),
}
ACTIVATION = "gelu_pytorch_tanh"  # the config has no key for it


def describe(config: Any) -> Anatomy:
    """The anatomy of a BLOOM config. Raises InputError where the stream carries on what the norms
    give, where maps are computed in slices, or on an unknown class.

    The bias of a head's scores belongs to its number, so heads keep their places.
    """
    refuse_options(config, ("apply_residual_connection_post_layernorm", "slow_but_exact"))
    prefix, readout = select_architecture(config, CLASSES)
    builder = Builder(
        config.model_type,
        config.architectures[0],
        Placement.PRE,
        Positions.RELATIVE,
        layer_norm(config.layer_norm_epsilon),
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
        embedding_norm="word_embeddings_layernorm",
    )


def _block(builder: Builder, config: Any, module: str, number: int, residual: Space) -> None:
    prefix = f"{STACK}/block.{number}/"
    modules = {
        "query": f"{module}.self_attention.query_key_value",
        "attention_output": f"{module}.self_attention.dense",
        "up": f"{module}.mlp.dense_h_to_4h",
        "down": f"{module}.mlp.dense_4h_to_h",
    }
    attention_norm = builder.norm(f"{module}.input_layernorm", residual)
    spaces = builder.attention_spaces(prefix, config.num_attention_heads, even_head_size(config))
    builder.fused_projections(prefix, spaces, modules, residual, attention_norm)
    mlp_norm = builder.norm(f"{module}.post_attention_layernorm", residual)
    builder.feed_forward(prefix, 4 * config.hidden_size, residual, mlp_norm, ACTIVATION, modules)
    builder.schur_sites(STACK, number, modules, attention_norm, mlp_norm)
    builder.block_sites(STACK, number, module, residual, {"after_attention": mlp_norm})
