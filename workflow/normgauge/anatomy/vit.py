"""ViT: pre-norm image encoder; ViT-MAE's encoder is one with a fixed position table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from normgauge.anatomy.assembly import layer_norm
from normgauge.anatomy.build import Builder, Readout, join
from normgauge.anatomy.options import has_pooler, select_architecture
from normgauge.anatomy.structure import Anatomy, Placement, Positions, Space, SpaceKind
from normgauge.anatomy.vision import STACK, add_attention, add_embeddings, attention_modules

CLASSES = {
    "ViTModel": ("", None),
    "ViTForImageClassification": ("vit", Readout("classifier", labels=True, bias=True)),
}
MASKED_CLASSES = {"ViTMAEModel": ("", None)}


def describe_masked(config: Any) -> Anatomy:
    """The anatomy of a ViT-MAE config. Raises InputError on an unknown class.

    A share of the patches, `mask_ratio`, does not enter the first block.
    """
    return _describe(config, MASKED_CLASSES, pooler=False)


def describe(config: Any) -> Anatomy:
    """The anatomy of a ViT config. Raises InputError on an unknown class."""
    return _describe(config, CLASSES, pooler=has_pooler(config))


def _describe(config: Any, classes: Mapping[str, Any], pooler: bool) -> Anatomy:
    prefix, readout = select_architecture(config, classes)
    style = layer_norm(config.layer_norm_eps)
    builder = Builder(
        config.model_type, config.architectures[0], Placement.PRE, Positions.ABSOLUTE, style
    )
    residual = builder.space("residual", SpaceKind.RESIDUAL, config.hidden_size)
    add_embeddings(builder, config, prefix, residual)
    blocks = [join(prefix, f"layers.{index}") for index in range(config.num_hidden_layers)]

    def add_block(module: str, number: int) -> None:
        _block(builder, config, module, number, residual)

    terminal = builder.pre_norm_stack(
        STACK, residual, blocks, add_block, join(prefix, "layernorm"), causal=False
    )
    if readout is None and pooler:
        pooled = builder.space("pooled", SpaceKind.OTHER, config.pooler_output_size)
        builder.head("pooler.dense", residual, terminal, pooled, activation=config.pooler_act)
    else:
        builder.readout(readout, config, residual, terminal)
    return builder.finish()


def _block(builder: Builder, config: Any, module: str, number: int, residual: Space) -> None:
    prefix = f"{STACK}/block.{number}/"
    modules = attention_modules(module) | {"up": f"{module}.mlp.fc1", "down": f"{module}.mlp.fc2"}
    attention_norm = builder.norm(f"{module}.layernorm_before", residual)
    add_attention(builder, config, prefix, modules, residual, attention_norm)
    mlp_norm = builder.norm(f"{module}.layernorm_after", residual)
    builder.feed_forward(
        prefix, config.intermediate_size, residual, mlp_norm, config.hidden_act, modules
    )
    builder.schur_sites(STACK, number, modules, attention_norm, mlp_norm)
    builder.block_sites(STACK, number, module, residual, {"after_attention": mlp_norm})
