"""OPT: pre-norm decoder, learned positions, separate maps."""

from __future__ import annotations

from typing import Any

from normgauge.anatomy.assembly import layer_norm
from normgauge.anatomy.build import Builder, Readout, join
from normgauge.anatomy.causal_decoder import STACK, causal_decoder
from normgauge.anatomy.options import even_head_size, require_options, select_architecture
from normgauge.anatomy.structure import Anatomy, Placement, Positions, Space

CLASSES = {
    "OPTModel": ("", None),
    "OPTForCausalLM": ("model", Readout("lm_head")),
    "OPTForSequenceClassification": ("model", Readout("score", labels=True)),
}
RESERVED = 2  # rows of the position table before the first position
EPS = 1e-5  # torch's own: no key of the config sets it


def describe(config: Any) -> Anatomy:
    """The anatomy of an OPT config. Raises InputError on norms after the sublayers, without gains
    or left out, on narrower embeddings (all of these opt-350m), or an unknown class.
    """
    require_options(
        config,
        {
            "do_layer_norm_before": True,
            "_remove_final_layer_norm": False,
            "layer_norm_elementwise_affine": True,
            "word_embed_proj_dim": config.hidden_size,
        },
    )
    prefix, readout = select_architecture(config, CLASSES)
    builder = Builder(
        config.model_type,
        config.architectures[0],
        Placement.PRE,
        Positions.ABSOLUTE,
        layer_norm(EPS),
    )
    return causal_decoder(
        builder,
        config,
        join(prefix, "decoder"),
        readout,
        _block,
        embedding="embed_tokens",
        blocks="layers",
        terminal_norm="final_layer_norm",
        positions=("embed_positions", config.max_position_embeddings + RESERVED),
    )


def _block(builder: Builder, config: Any, module: str, number: int, residual: Space) -> None:
    prefix = f"{STACK}/block.{number}/"
    attention = f"{module}.self_attn"
    modules = {
        "query": f"{attention}.q_proj",
        "key": f"{attention}.k_proj",
        "value": f"{attention}.v_proj",
        "attention_output": f"{attention}.out_proj",
        "up": f"{module}.fc1",
        "down": f"{module}.fc2",
    }
    attention_norm = builder.norm(f"{attention}_layer_norm", residual)
    spaces = builder.attention_spaces(prefix, config.num_attention_heads, even_head_size(config))
    biased = tuple(modules) if config.enable_bias else ()
    builder.projections(prefix, spaces, modules, residual, attention_norm, biased=biased)
    mlp_norm = builder.norm(f"{module}.final_layer_norm", residual)
    activation = config.activation_function
    builder.feed_forward(
        prefix, config.ffn_dim, residual, mlp_norm, activation, modules, bias=config.enable_bias
    )
    builder.schur_sites(STACK, number, modules, attention_norm, mlp_norm)
    builder.block_sites(STACK, number, module, residual, {"after_attention": mlp_norm})
