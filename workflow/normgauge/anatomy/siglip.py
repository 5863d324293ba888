"""The vision tower of SigLIP and SigLIP 2: a pre-norm image encoder without a class token."""

from __future__ import annotations

from typing import Any

from normgauge.anatomy.assembly import layer_norm
from normgauge.anatomy.build import Builder
from normgauge.anatomy.options import even_head_size, refuse_options, select_architecture
from normgauge.anatomy.structure import Anatomy, Placement, Positions, Space, SpaceKind
from normgauge.anatomy.vision import STACK, add_patches, grid_of

CLASSES = {"SiglipVisionModel": ""}


def describe(config: Any) -> Anatomy:
    """The anatomy of a SigLIP vision config. Raises InputError on an unknown class, and on the
    pooling head: one tensor of it reads a learned probe with some rows and the stream with others.
    """
    select_architecture(config, CLASSES)
    refuse_options(config, ("vision_use_head",))
    style = layer_norm(config.layer_norm_eps)
    builder = Builder(
        config.model_type, config.architectures[0], Placement.PRE, Positions.ABSOLUTE, style
    )
    residual = builder.space("residual", SpaceKind.RESIDUAL, config.hidden_size)
    add_patches(builder, config, "embeddings.patch_embedding", residual)
    rows, columns = grid_of(config)
    positions = builder.space("position", SpaceKind.POSITION, rows * columns)
    builder.embedding("embeddings.position_embedding.weight", positions, residual)
    blocks = [f"encoder.layers.{index}" for index in range(config.num_hidden_layers)]

    def add_block(module: str, number: int) -> None:
        siglip_block(builder, config, module, number, residual)

    builder.pre_norm_stack(STACK, residual, blocks, add_block, "post_layernorm", causal=False)
    return builder.finish()


def siglip_block(
    builder: Builder,
    config: Any,
    module: str,
    number: int,
    residual: Space,
    stack: str = STACK,
) -> None:
    """A pre-norm block with separate maps, as SigLIP and CLIP name it."""
    prefix = f"{stack}/block.{number}/"
    modules = {
        "query": f"{module}.self_attn.q_proj",
        "key": f"{module}.self_attn.k_proj",
        "value": f"{module}.self_attn.v_proj",
        "attention_output": f"{module}.self_attn.out_proj",
        "up": f"{module}.mlp.fc1",
        "down": f"{module}.mlp.fc2",
    }
    attention_norm = builder.norm(f"{module}.layer_norm1", residual)
    spaces = builder.attention_spaces(prefix, config.num_attention_heads, even_head_size(config))
    builder.projections(prefix, spaces, modules, residual, attention_norm)
    mlp_norm = builder.norm(f"{module}.layer_norm2", residual)
    builder.feed_forward(
        prefix, config.intermediate_size, residual, mlp_norm, config.hidden_act, modules
    )
    builder.schur_sites(stack, number, modules, attention_norm, mlp_norm)
    builder.block_sites(stack, number, module, residual, {"after_attention": mlp_norm})
