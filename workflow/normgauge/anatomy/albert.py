"""ALBERT: post-norm encoder whose few layers are run again and again, behind a narrower normalised
embedding.

A layer that serves several blocks is listed once, under the number of the first block that runs it.
Its sites are told apart by `call`. A map's norm is the one that feeds it at every call: the query,
key and value maps of a shared layer are fed by the embedding projection first and by a norm later,
so theirs is None, while each call's site names its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from normgauge.anatomy.assembly import layer_norm
from normgauge.anatomy.build import Builder, join
from normgauge.anatomy.options import even_head_size, select_architecture
from normgauge.anatomy.post_norm_encoder import STACK, Head, MaskedHead, add_embeddings, add_heads
from normgauge.anatomy.structure import Anatomy, Placement, Positions, Space, SpaceKind

MASKED = MaskedHead(
    "predictions.dense", "predictions.LayerNorm", "predictions.decoder", "predictions.bias"
)
CLASSES = {
    "AlbertModel": Head("", pooler=True),
    "AlbertForMaskedLM": Head("albert", masked=MASKED),
    "AlbertForPreTraining": Head(
        "albert", pooler=True, masked=MASKED, label="sop_classifier.classifier"
    ),
    "AlbertForSequenceClassification": Head("albert", pooler=True, label="classifier"),
    "AlbertForMultipleChoice": Head("albert", pooler=True, label="classifier", label_size=1),
    "AlbertForTokenClassification": Head("albert", label="classifier"),
    "AlbertForQuestionAnswering": Head("albert", label="qa_outputs"),
}


def describe(config: Any) -> Anatomy:
    """The anatomy of an ALBERT config. Raises InputError on an unknown class."""
    head = select_architecture(config, CLASSES)
    style = layer_norm(config.layer_norm_eps)
    builder = Builder("albert", config.architectures[0], Placement.POST, Positions.ABSOLUTE, style)
    embedded = builder.space("embedding", SpaceKind.OTHER, config.embedding_size)
    residual = builder.space("residual", SpaceKind.RESIDUAL, config.hidden_size)
    embedding_norm = add_embeddings(builder, config, head.prefix, embedded)
    builder.head(
        join(head.prefix, "encoder.embedding_hidden_mapping_in"), embedded, embedding_norm, residual
    )
    blocks = _blocks(config, join(head.prefix, "encoder"))
    builder.site(STACK, 0, "embedding", blocks[0], "input", residual.size)
    for layer in dict.fromkeys(blocks):
        _layer(builder, config, layer, blocks, residual)
    for number in range(1, len(blocks) + 1):
        _sites(builder, blocks, number, residual)
    builder.stack(STACK, residual, blocks, terminal_norm=None, causal=False)
    add_heads(
        builder,
        config,
        head,
        residual,
        _output_norm(blocks[-1]),
        embedded,
        join(head.prefix, "pooler"),
    )
    return builder.finish()


def _blocks(config: Any, encoder: str) -> list[str]:
    """The layer module that each block runs, in order."""
    modules = []
    for index in range(config.num_hidden_layers):
        group = int(index / (config.num_hidden_layers / config.num_hidden_groups))
        modules += [
            f"{encoder}.albert_layer_groups.{group}.albert_layers.{inner}"
            for inner in range(config.inner_group_num)
        ]
    return modules


def _output_norm(layer: str) -> str:
    return f"{layer}.full_layer_layer_norm"


def _input_norm(blocks: Sequence[str], index: int) -> str | None:
    """The norm whose output enters the block at `index`: the previous block's, none for the
    embedding projection.
    """
    return _output_norm(blocks[index - 1]) if index else None


def _modules(layer: str) -> dict[str, str]:
    return {
        "query": f"{layer}.attention.query",
        "key": f"{layer}.attention.key",
        "value": f"{layer}.attention.value",
        "attention_output": f"{layer}.attention.dense",
        "up": f"{layer}.ffn",
        "down": f"{layer}.ffn_output",
    }


def _layer(
    builder: Builder, config: Any, layer: str, blocks: Sequence[str], residual: Space
) -> None:
    prefix = f"{STACK}/block.{blocks.index(layer) + 1}/"
    feeding = {_input_norm(blocks, index) for index, block in enumerate(blocks) if block == layer}
    input_norm = feeding.pop() if len(feeding) == 1 else None
    spaces = builder.attention_spaces(prefix, config.num_attention_heads, even_head_size(config))
    builder.projections(prefix, spaces, _modules(layer), residual, input_norm)
    attention_norm = builder.norm(f"{layer}.attention.LayerNorm", residual)
    builder.feed_forward(
        prefix,
        config.intermediate_size,
        residual,
        attention_norm,
        config.hidden_act,
        _modules(layer),
    )
    builder.norm(_output_norm(layer), residual)


def _sites(builder: Builder, blocks: Sequence[str], number: int, residual: Space) -> None:
    layer = blocks[number - 1]
    call = blocks[: number - 1].count(layer)
    attention_norm = f"{layer}.attention.LayerNorm"
    builder.schur_sites(
        STACK, number, _modules(layer), _input_norm(blocks, number - 1), attention_norm, call
    )
    builder.site(
        STACK,
        number,
        "after_attention",
        attention_norm,
        "output",
        residual.size,
        attention_norm,
        call,
    )
    builder.site(STACK, number, "output", layer, "output", residual.size, _output_norm(layer), call)
