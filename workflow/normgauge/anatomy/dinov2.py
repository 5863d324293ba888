"""DINOv2: ViT's block with a learned per-coordinate scale on what each sublayer writes, plain or
gated feed-forward.
"""

from __future__ import annotations

from typing import Any

from normgauge.anatomy.assembly import layer_norm, whole
from normgauge.anatomy.build import Builder, join
from normgauge.anatomy.options import select_architecture
from normgauge.anatomy.structure import Anatomy, Placement, Positions, Role, Space, SpaceKind
from normgauge.anatomy.vision import STACK, add_attention, add_embeddings, attention_modules

CLASSES = {"Dinov2Model": "", "Dinov2ForImageClassification": "dinov2"}


def describe(config: Any) -> Anatomy:
    """The anatomy of a DINOv2 config. Raises InputError on an unknown class."""
    prefix = select_architecture(config, CLASSES)
    style = layer_norm(config.layer_norm_eps)
    builder = Builder("dinov2", config.architectures[0], Placement.PRE, Positions.ABSOLUTE, style)
    residual = builder.space("residual", SpaceKind.RESIDUAL, config.hidden_size)
    add_embeddings(builder, config, prefix, residual)
    if config.use_mask_token:
        singleton = whole(Role.INDEX, builder.singleton())
        builder.tensor(
            join(prefix, "embeddings.mask_token"), singleton, whole(Role.WRITE, residual)
        )
    blocks = [join(prefix, f"encoder.layer.{index}") for index in range(config.num_hidden_layers)]

    def add_block(module: str, number: int) -> None:
        _block(builder, config, module, number, residual)

    builder.pre_norm_stack(
        STACK, residual, blocks, add_block, join(prefix, "layernorm"), causal=False
    )
    if prefix:
        # the classifier reads the class token beside the mean of the patch tokens: the same space
        # twice
        labels = builder.space("labels", SpaceKind.OTHER, config.num_labels)
        builder.linear("classifier", {"classifier": labels}, whole(Role.READ, residual, residual))
    return builder.finish()


def _block(builder: Builder, config: Any, module: str, number: int, residual: Space) -> None:
    prefix = f"{STACK}/block.{number}/"
    modules = attention_modules(module) | _feed_forward_modules(config, f"{module}.mlp")
    attention_norm = builder.norm(f"{module}.norm1", residual)
    add_attention(builder, config, prefix, modules, residual, attention_norm)
    builder.tensor(f"{module}.layer_scale1.lambda1", whole(Role.SCALE, residual))
    mlp_norm = builder.norm(f"{module}.norm2", residual)
    activation = "silu" if config.use_swiglu_ffn else config.hidden_act
    builder.feed_forward(
        prefix, _feed_forward_size(config), residual, mlp_norm, activation, modules
    )
    builder.tensor(f"{module}.layer_scale2.lambda1", whole(Role.SCALE, residual))
    builder.schur_sites(STACK, number, modules, attention_norm, mlp_norm)
    builder.block_sites(STACK, number, module, residual, {"after_attention": mlp_norm})


def _feed_forward_modules(config: Any, module: str) -> dict[str, str]:
    if config.use_swiglu_ffn:
        return {
            "gate": f"{module}.gate_proj",
            "up": f"{module}.up_proj",
            "down": f"{module}.down_proj",
        }
    return {"up": f"{module}.fc1", "down": f"{module}.fc2"}


def _feed_forward_size(config: Any) -> int:
    size = int(config.hidden_size * config.mlp_ratio)
    if config.use_swiglu_ffn:  # two thirds of it, rounded up to a multiple of 8
        size = (int(size * 2 / 3) + 7) // 8 * 8
    return size
