"""DINOv3: DINOv2's block, rotary positions of patches in place of a table, register tokens."""

from __future__ import annotations

from typing import Any

from normgauge.anatomy.assembly import layer_norm, whole
from normgauge.anatomy.build import Builder
from normgauge.anatomy.options import even_head_size, select_architecture
from normgauge.anatomy.structure import Anatomy, Placement, Positions, Role, Space, SpaceKind
from normgauge.anatomy.vision import STACK, add_patches, attention_modules

CLASSES = {"DINOv3ViTModel": ""}
BIASES = {
    "query": "query_bias",
    "key": "key_bias",
    "value": "value_bias",
    "attention_output": "proj_bias",
}


def describe(config: Any) -> Anatomy:
    """The anatomy of a DINOv3 ViT config. Raises InputError on an unknown class.

    Class and register tokens do not turn with the position, patches turn coordinate j of a head
    with j + half of it: what leaves the scores of patches alone leaves all of them alone.
    """
    select_architecture(config, CLASSES)
    style = layer_norm(config.layer_norm_eps)
    builder = Builder(
        config.model_type,
        config.architectures[0],
        Placement.PRE,
        Positions.ROTARY,
        style,
        even_head_size(config),
    )
    residual = builder.space("residual", SpaceKind.RESIDUAL, config.hidden_size)
    _embeddings(builder, config, residual)
    blocks = [f"model.layer.{index}" for index in range(config.num_hidden_layers)]

    def add_block(module: str, number: int) -> None:
        _block(builder, config, module, number, residual)

    builder.pre_norm_stack(STACK, residual, blocks, add_block, "norm", causal=False)
    return builder.finish()


def _embeddings(builder: Builder, config: Any, residual: Space) -> None:
    singleton, write = whole(Role.INDEX, builder.singleton()), whole(Role.WRITE, residual)
    for name in ("cls_token", "mask_token"):
        builder.tensor(f"embeddings.{name}", singleton, singleton, write)
    count = config.num_register_tokens
    registers = [builder.space("register", SpaceKind.POSITION, count)] if count else []
    builder.tensor("embeddings.register_tokens", singleton, whole(Role.INDEX, *registers), write)
    add_patches(builder, config, "embeddings.patch_embeddings", residual)


def _block(builder: Builder, config: Any, module: str, number: int, residual: Space) -> None:
    prefix = f"{STACK}/block.{number}/"
    names = ("gate", "up", "down") if config.use_gated_mlp else ("up", "down")
    modules = attention_modules(module) | {name: f"{module}.mlp.{name}_proj" for name in names}
    attention_norm = builder.norm(f"{module}.norm1", residual)
    spaces = builder.attention_spaces(prefix, config.num_attention_heads, even_head_size(config))
    biased = tuple(name for name, option in BIASES.items() if getattr(config, option))
    builder.projections(prefix, spaces, modules, residual, attention_norm, biased=biased)
    builder.tensor(f"{module}.layer_scale1.lambda1", whole(Role.SCALE, residual))
    mlp_norm = builder.norm(f"{module}.norm2", residual)
    builder.feed_forward(
        prefix,
        config.intermediate_size,
        residual,
        mlp_norm,
        config.hidden_act,
        modules,
        bias=config.mlp_bias,
    )
    builder.tensor(f"{module}.layer_scale2.lambda1", whole(Role.SCALE, residual))
    builder.schur_sites(STACK, number, modules, attention_norm, mlp_norm)
    builder.block_sites(STACK, number, module, residual, {"after_attention": mlp_norm})
