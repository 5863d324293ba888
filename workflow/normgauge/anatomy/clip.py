"""The two towers of CLIP, of one block: a causal text model, and an image encoder whose embedding
passes a norm before the first block.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from normgauge.anatomy.assembly import layer_norm, whole
from normgauge.anatomy.build import Builder, join
from normgauge.anatomy.options import select_architecture
from normgauge.anatomy.siglip import siglip_block
from normgauge.anatomy.structure import Anatomy, Placement, Positions, Role, Space, SpaceKind
from normgauge.anatomy.vision import STACK, add_patches, grid_of

# prefix, and the map that reads what is pooled
TEXT_CLASSES = {
    "CLIPTextModel": ("", None),
    "CLIPTextModelWithProjection": ("text_model", "text_projection"),
}
VISION_CLASSES = {
    "CLIPVisionModel": ("", None),
    "CLIPVisionModelWithProjection": ("vision_model", "visual_projection"),
}
TEXT_STACK = "decoder"


def describe_text(config: Any) -> Anatomy:
    """The anatomy of CLIP's text model. Raises InputError on an unknown class.

    What it pools is its last hidden state at the end token.
    """
    prefix, projection = select_architecture(config, TEXT_CLASSES)
    builder, residual = _begun(config)
    path = join(prefix, "embeddings")
    vocabulary = builder.space("vocabulary", SpaceKind.VOCABULARY, config.vocab_size)
    builder.embedding(f"{path}.token_embedding.weight", vocabulary, residual)
    positions = builder.space("position", SpaceKind.POSITION, config.max_position_embeddings)
    builder.embedding(f"{path}.position_embedding.weight", positions, residual)
    blocks = [join(prefix, f"encoder.layers.{index}") for index in range(config.num_hidden_layers)]
    terminal = builder.pre_norm_stack(
        TEXT_STACK,
        residual,
        blocks,
        _adding(builder, config, TEXT_STACK, residual),
        join(prefix, "final_layer_norm"),
        causal=True,
    )
    _project(builder, config, projection, residual, terminal)
    return builder.finish()


def describe_vision(config: Any) -> Anatomy:
    """The anatomy of CLIP's image encoder. Raises InputError on an unknown class.

    What it pools is its class token behind one more norm, which no other position passes: the
    stream itself ends without a norm.
    """
    prefix, projection = select_architecture(config, VISION_CLASSES)
    builder, residual = _begun(config)
    path = join(prefix, "embeddings")
    builder.tensor(f"{path}.class_embedding", whole(Role.WRITE, residual))
    add_patches(builder, config, f"{path}.patch_embedding", residual, bias=False)
    rows, columns = grid_of(config)
    positions = builder.space("position", SpaceKind.POSITION, rows * columns + 1)
    builder.embedding(f"{path}.position_embedding.weight", positions, residual)
    norm = builder.norm(join(prefix, "pre_layrnorm"), residual)
    blocks = [join(prefix, f"encoder.layers.{index}") for index in range(config.num_hidden_layers)]
    builder.blocks(STACK, residual, blocks, _adding(builder, config, STACK, residual), norm)
    builder.stack(STACK, residual, blocks, terminal_norm=None, causal=False)
    pooled_norm = builder.norm(join(prefix, "post_layernorm"), residual)
    _project(builder, config, projection, residual, pooled_norm)
    return builder.finish()


def _begun(config: Any) -> tuple[Builder, Space]:
    builder = Builder(
        config.model_type,
        config.architectures[0],
        Placement.PRE,
        Positions.ABSOLUTE,
        layer_norm(config.layer_norm_eps),
    )
    return builder, builder.space("residual", SpaceKind.RESIDUAL, config.hidden_size)


def _adding(
    builder: Builder, config: Any, stack: str, residual: Space
) -> Callable[[str, int], None]:
    return lambda module, number: siglip_block(builder, config, module, number, residual, stack)


def _project(
    builder: Builder, config: Any, projection: str | None, residual: Space, norm: str
) -> None:
    if projection:
        shared = builder.space("projection", SpaceKind.OTHER, config.projection_dim)
        builder.head(projection, residual, norm, shared, bias=False)
