"""Qwen3.5: three blocks of gated linear attention to one of gated softmax attention, each before a
gated feed-forward.

What lies inside its attention layers is kept where it is: the gate of the softmax layers multiplies
single coordinates of the mixed values, and the linear layers convolve, gate and normalise theirs.
So their inner spaces only index, and no gauge moves them; the stream and the feed-forwards move as
in any gated decoder.
"""

from __future__ import annotations

from typing import Any

from normgauge.anatomy.assembly import rms_norm, whole
from normgauge.anatomy.build import Builder, Readout
from normgauge.anatomy.causal_decoder import STACK, causal_decoder
from normgauge.anatomy.options import refuse_options, rotary_size, select_architecture
from normgauge.anatomy.structure import (
    Anatomy,
    Axis,
    Placement,
    Positions,
    Role,
    Space,
    SpaceKind,
)

CLASSES = {
    "Qwen3_5TextModel": ("", None),
    "Qwen3_5ForCausalLM": ("model", Readout("lm_head")),
}
LINEAR = "linear_attention"


def describe(config: Any) -> Anatomy:
    """The anatomy of a Qwen3.5 text config. Raises InputError on experts or an unknown class."""
    refuse_options(config, ("num_experts", "attention_bias"))
    prefix, readout = select_architecture(config, CLASSES)
    builder = Builder(
        config.model_type,
        config.architectures[0],
        Placement.PRE,
        Positions.ROTARY,
        rms_norm(config.rms_norm_eps, gain_offset=1.0),
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
    mlp = f"{module}.mlp"
    modules = {"gate": f"{mlp}.gate_proj", "up": f"{mlp}.up_proj", "down": f"{mlp}.down_proj"}
    attention_norm = builder.norm(f"{module}.input_layernorm", residual)
    add = _linear if config.layer_types[number - 1] == LINEAR else _softmax
    modules |= add(builder, config, module, prefix, residual, attention_norm)
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


def _softmax(
    builder: Builder, config: Any, module: str, prefix: str, residual: Space, norm: str
) -> dict[str, str]:
    path = f"{module}.self_attn"
    width = config.num_attention_heads * config.head_dim
    narrow = config.num_key_value_heads * config.head_dim
    sizes = {"query": 2 * width, "key": narrow, "value": narrow}  # a query and its gate, by head
    for name, size in sizes.items():
        _map(builder, f"{path}.{name[0]}_proj", prefix, name, size, residual, norm)
    head = whole(Role.INDEX, builder.space("head", SpaceKind.OTHER, config.head_dim))
    for name in ("q_norm", "k_norm"):
        builder.tensor(f"{path}.{name}.weight", head)
    _output(builder, f"{path}.o_proj", prefix, width, residual)
    return {"query": f"{path}.q_proj", "attention_output": f"{path}.o_proj"}


def _linear(
    builder: Builder, config: Any, module: str, prefix: str, residual: Space, norm: str
) -> dict[str, str]:
    path = f"{module}.linear_attn"
    keys = config.linear_num_key_heads * config.linear_key_head_dim
    heads = config.linear_num_value_heads
    values = heads * config.linear_value_head_dim
    sizes = {"qkv": 2 * keys + values, "z": values, "b": heads, "a": heads}
    for name, size in sizes.items():
        _map(builder, f"{path}.in_proj_{name}", prefix, name, size, residual, norm)
    fixed = {
        "conv1d.weight": (
            whole(Role.INDEX, builder.spaces[f"{prefix}qkv"]),
            whole(Role.INDEX, builder.singleton()),
            _fixed(builder, "window", config.linear_conv_kernel_dim),
        ),
        "dt_bias": (whole(Role.INDEX, builder.spaces[f"{prefix}a"]),),
        "A_log": (whole(Role.INDEX, builder.spaces[f"{prefix}a"]),),
        "norm.weight": (_fixed(builder, "linear head", config.linear_value_head_dim),),
    }
    for name, axes in fixed.items():
        builder.tensor(f"{path}.{name}", *axes)
    _output(builder, f"{path}.out_proj", prefix, values, residual)
    return {"query": f"{path}.in_proj_qkv", "attention_output": f"{path}.out_proj"}


def _fixed(builder: Builder, name: str, size: int) -> Axis:
    return whole(Role.INDEX, builder.space(name, SpaceKind.OTHER, size))


def _map(
    builder: Builder, module: str, prefix: str, name: str, size: int, residual: Space, norm: str
) -> None:
    space = builder.space(f"{prefix}{name}", SpaceKind.OTHER, size)
    builder.linear(
        module,
        {f"{prefix}{name}": space},
        whole(Role.READ, residual),
        norm,
        writes=whole(Role.INDEX, space),
        bias=False,
    )


def _output(builder: Builder, module: str, prefix: str, size: int, residual: Space) -> None:
    builder.linear(
        module,
        {f"{prefix}attention_output": residual},
        _fixed(builder, f"{prefix}mixed", size),
        bias=False,
    )
