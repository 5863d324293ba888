"""DistilBERT: BERT's encoder with half the blocks, without token types and pooler, under names of
its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from normgauge.anatomy.assembly import layer_norm, whole
from normgauge.anatomy.build import Builder, join
from normgauge.anatomy.options import select_architecture
from normgauge.anatomy.post_norm_encoder import STACK, BlockModules, add_block
from normgauge.anatomy.structure import Anatomy, Placement, Positions, Role, Space, SpaceKind


@dataclass(frozen=True)
class Head:
    """What a class adds to the encoder at `prefix`: a masked-LM head, or a label map, behind a
    `dense` map and ReLU where there is one.
    """

    prefix: str
    masked: bool = False
    label: str | None = None
    label_size: int | None = None
    dense: str | None = None


CLASSES = {
    "DistilBertModel": Head(""),
    "DistilBertForMaskedLM": Head("distilbert", masked=True),
    "DistilBertForSequenceClassification": Head(
        "distilbert", label="classifier", dense="pre_classifier"
    ),
    "DistilBertForMultipleChoice": Head(
        "distilbert", label="classifier", label_size=1, dense="pre_classifier"
    ),
    "DistilBertForTokenClassification": Head("distilbert", label="classifier"),
    "DistilBertForQuestionAnswering": Head("distilbert", label="qa_outputs"),
}
EPS = 1e-12  # the config has no key for it


def describe(config: Any) -> Anatomy:
    """The anatomy of a DistilBERT config. Raises InputError on an unknown class."""
    head = select_architecture(config, CLASSES)
    builder = Builder(
        "distilbert", config.architectures[0], Placement.POST, Positions.ABSOLUTE, layer_norm(EPS)
    )
    residual = builder.space("residual", SpaceKind.RESIDUAL, config.hidden_size)
    path = join(head.prefix, "embeddings")
    vocabulary = builder.space("vocabulary", SpaceKind.VOCABULARY, config.vocab_size)
    builder.embedding(f"{path}.word_embeddings.weight", vocabulary, residual)
    positions = builder.space("position", SpaceKind.POSITION, config.max_position_embeddings)
    builder.embedding(f"{path}.position_embeddings.weight", positions, residual)
    norm = builder.norm(f"{path}.LayerNorm", residual)
    blocks = [
        join(head.prefix, f"transformer.layer.{index}") for index in range(config.num_hidden_layers)
    ]
    builder.site(STACK, 0, "embedding", blocks[0], "input", residual.size, norm)
    for number, module in enumerate(blocks, start=1):
        norm = add_block(
            builder,
            config,
            number,
            _modules(module),
            residual,
            norm,
            config.hidden_dim,
            config.activation,
        )
    builder.stack(STACK, residual, blocks, terminal_norm=None, causal=False)
    _add_head(builder, config, head, residual, norm)
    return builder.finish()


def _modules(module: str) -> BlockModules:
    maps = {
        "query": f"{module}.attention.q_lin",
        "key": f"{module}.attention.k_lin",
        "value": f"{module}.attention.v_lin",
        "attention_output": f"{module}.attention.out_lin",
        "up": f"{module}.ffn.lin1",
        "down": f"{module}.ffn.lin2",
    }
    return BlockModules(module, maps, f"{module}.sa_layer_norm", f"{module}.output_layer_norm")


def _add_head(builder: Builder, config: Any, head: Head, residual: Space, final_norm: str) -> None:
    source: Space = residual
    norm: str | None = final_norm
    if head.masked:
        tied = config.tie_word_embeddings
        embeddings = f"{join(head.prefix, 'embeddings')}.word_embeddings.weight"
        hidden = (
            residual if tied else builder.space("masked-LM hidden", SpaceKind.OTHER, residual.size)
        )
        builder.head("vocab_transform", residual, final_norm, hidden, activation=config.activation)
        hidden_norm = builder.norm("vocab_layer_norm", hidden)
        aliases = (embeddings, None) if tied else (None, None)
        builder.head(
            "vocab_projector", hidden, hidden_norm, builder.spaces["vocabulary"], aliases=aliases
        )
    if head.dense:
        wide = builder.space("label hidden", SpaceKind.OTHER, residual.size)
        builder.linear(
            head.dense, {head.dense: wide}, whole(Role.READ, residual), norm, activation="relu"
        )
        source, norm = wide, None
    if head.label:
        builder.head(
            head.label,
            source,
            norm,
            builder.space("labels", SpaceKind.OTHER, head.label_size or config.num_labels),
        )
