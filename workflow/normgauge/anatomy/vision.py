"""The vision encoders' common part: patch, class and position embeddings, and a pre-norm block with
separate maps.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from normgauge.anatomy.assembly import whole
from normgauge.anatomy.build import Builder, join
from normgauge.anatomy.options import head_size
from normgauge.anatomy.structure import Role, Space, SpaceKind

STACK = "encoder"


def _pair(size: int | Iterable[int]) -> tuple[int, int]:
    height, width = (size, size) if isinstance(size, int) else size
    return height, width


def add_embeddings(builder: Builder, config: Any, prefix: str, residual: Space) -> None:
    """Class token, position table and patch convolution, which all write the residual stream."""
    path = join(prefix, "embeddings")
    singleton = whole(Role.INDEX, builder.singleton())
    write = whole(Role.WRITE, residual)
    rows, columns = grid_of(config)
    positions = builder.space("position", SpaceKind.POSITION, rows * columns + 1)
    builder.tensor(f"{path}.cls_token", singleton, singleton, write)
    builder.tensor(f"{path}.position_embeddings", singleton, whole(Role.INDEX, positions), write)
    add_patches(builder, config, f"{path}.patch_embeddings.projection", residual)


def grid_of(config: Any) -> tuple[int, int]:
    """Patches of a picture: rows and columns."""
    (height, width), (rows, columns) = _pair(config.image_size), _pair(config.patch_size)
    return height // rows, width // columns


def add_patches(
    builder: Builder, config: Any, module: str, residual: Space, bias: bool = True
) -> None:
    """The convolution that writes each patch of the picture to the stream."""
    rows, columns = _pair(config.patch_size)
    builder.linear(
        module,
        {f"{STACK}/patch": residual},
        whole(Role.INDEX, builder.space("channel", SpaceKind.PATCH, config.num_channels)),
        window=(
            builder.space("patch row", SpaceKind.PATCH, rows),
            builder.space("patch column", SpaceKind.PATCH, columns),
        ),
        bias=bias,
    )


def add_attention(
    builder: Builder,
    config: Any,
    prefix: str,
    modules: Mapping[str, str],
    residual: Space,
    norm: str,
) -> None:
    """Self-attention with separate maps whose query, key and value biases are optional."""
    spaces = builder.attention_spaces(prefix, config.num_attention_heads, head_size(config))
    biased = (
        ("query", "key", "value", "attention_output") if config.qkv_bias else ("attention_output",)
    )
    builder.projections(prefix, spaces, modules, residual, norm, biased=biased)


def attention_modules(module: str) -> dict[str, str]:
    return {
        "query": f"{module}.attention.q_proj",
        "key": f"{module}.attention.k_proj",
        "value": f"{module}.attention.v_proj",
        "attention_output": f"{module}.attention.o_proj",
    }
