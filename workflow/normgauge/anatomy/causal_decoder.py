"""What causal decoders have in common whose blocks norm what they read: tables, blocks, a last norm
and a readout.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from normgauge.anatomy.build import Builder, Readout, join
from normgauge.anatomy.structure import Anatomy, Space, SpaceKind

STACK = "decoder"
AddBlock = Callable[[Builder, Any, str, int, Space], None]
"""Describes one block: builder, config, module, number from 1, stream."""


def causal_decoder(
    builder: Builder,
    config: Any,
    prefix: str,
    readout: Readout | None,
    add_block: AddBlock,
    *,
    embedding: str,
    blocks: str,
    terminal_norm: str,
    positions: tuple[str, int] | None = None,
    embedding_norm: str | None = None,
) -> Anatomy:
    """The anatomy of such a decoder. Modules are named below `prefix`; positions: their table and
    its rows.
    """
    residual = builder.space("residual", SpaceKind.RESIDUAL, config.hidden_size)
    table = f"{join(prefix, embedding)}.weight"
    vocabulary = builder.space("vocabulary", SpaceKind.VOCABULARY, config.vocab_size)
    builder.embedding(table, vocabulary, residual)
    if positions:
        name, rows = positions
        space = builder.space("position", SpaceKind.POSITION, rows)
        builder.embedding(f"{join(prefix, name)}.weight", space, residual)
    normed = builder.norm(join(prefix, embedding_norm), residual) if embedding_norm else None
    last = builder.pre_norm_stack(
        STACK,
        residual,
        [join(prefix, f"{blocks}.{index}") for index in range(config.num_hidden_layers)],
        lambda module, number: add_block(builder, config, module, number, residual),
        join(prefix, terminal_norm),
        causal=True,
        embedding_norm=normed,
    )
    builder.readout(readout, config, residual, last, table)
    return builder.finish()
