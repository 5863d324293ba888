"""What BERT, RoBERTa, ALBERT, ELECTRA and DistilBERT share: embeddings and heads, and a block of
those whose blocks have modules of their own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from normgauge.anatomy.assembly import whole
from normgauge.anatomy.build import Builder, join
from normgauge.anatomy.options import even_head_size, has_pooler
from normgauge.anatomy.structure import Role, Space, SpaceKind

STACK = "encoder"


@dataclass(frozen=True)
class MaskedHead:
    """A masked-LM head: dense map, activation, norm, then a decoder tied to the word embeddings;
    module paths.

    `bias` is the head's own bias tensor, to which the decoder's is tied; `activation` None means
    config.hidden_act.
    """

    dense: str
    norm: str
    decoder: str
    bias: str
    activation: str | None = None


@dataclass(frozen=True)
class Head:
    """What a class adds to the bare encoder.

    `prefix` is the encoder's path. `label` is the final map of a classifier, of `label_size`
    outputs (None: config.num_labels), fed by the pooler where there is one, and through the `dense`
    map and `activation` where there is one.
    """

    prefix: str
    pooler: bool = False
    masked: MaskedHead | None = None
    label: str | None = None
    label_size: int | None = None
    dense: str | None = None
    activation: str = "tanh"


@dataclass(frozen=True)
class BlockModules:
    """Module paths of one block: `block` itself, `maps` by role (query to down), and its two
    norms.
    """

    block: str
    maps: Mapping[str, str]
    attention_norm: str
    output_norm: str


def add_block(
    builder: Builder,
    config: Any,
    number: int,
    modules: BlockModules,
    residual: Space,
    input_norm: str | None,
    width: int,
    activation: str,
) -> str:
    """One block, fed by `input_norm`, with a feed-forward layer of `width` units; returns the norm
    that is its output.
    """
    prefix = f"{STACK}/block.{number}/"
    spaces = builder.attention_spaces(prefix, config.num_attention_heads, even_head_size(config))
    builder.projections(prefix, spaces, modules.maps, residual, input_norm)
    attention_norm = builder.norm(modules.attention_norm, residual)
    builder.feed_forward(prefix, width, residual, attention_norm, activation, modules.maps)
    output_norm = builder.norm(modules.output_norm, residual)
    builder.schur_sites(STACK, number, modules.maps, input_norm, attention_norm)
    builder.site(
        STACK, number, "after_attention", attention_norm, "output", residual.size, attention_norm
    )
    builder.site(STACK, number, "output", modules.block, "output", residual.size, output_norm)
    return output_norm


def add_embeddings(builder: Builder, config: Any, prefix: str, space: Space) -> str:
    """Word, position and type embeddings, summed in `space` and normalised there. Returns the
    norm's name.
    """
    path = join(prefix, "embeddings")
    vocabulary = builder.space("vocabulary", SpaceKind.VOCABULARY, config.vocab_size)
    builder.embedding(f"{path}.word_embeddings.weight", vocabulary, space)
    positions = builder.space("position", SpaceKind.POSITION, config.max_position_embeddings)
    builder.embedding(f"{path}.position_embeddings.weight", positions, space)
    types = builder.space("token type", SpaceKind.OTHER, config.type_vocab_size)
    builder.embedding(f"{path}.token_type_embeddings.weight", types, space)
    return builder.norm(f"{path}.LayerNorm", space)


def add_heads(
    builder: Builder,
    config: Any,
    head: Head,
    residual: Space,
    final_norm: str,
    embedded: Space,
    pooler: str,
) -> None:
    """Pooler, masked-LM head and label map of one class.

    `final_norm` is the last block's norm, `embedded` the space of the word embeddings, `pooler` the
    pooler's module path.
    """
    source: Space = residual
    norm: str | None = final_norm
    if head.pooler and has_pooler(config):
        pooled = builder.space("pooled", SpaceKind.OTHER, residual.size)
        builder.head(pooler, source, norm, pooled, activation="tanh")
        source, norm = pooled, None
    if head.masked:
        word_embeddings = f"{join(head.prefix, 'embeddings')}.word_embeddings.weight"
        _add_masked_head(
            builder, config, head.masked, residual, final_norm, embedded, word_embeddings
        )
    if head.dense:
        hidden = builder.space("label hidden", SpaceKind.OTHER, residual.size)
        builder.head(head.dense, source, norm, hidden, activation=head.activation)
        source, norm = hidden, None
    if head.label:
        labels = builder.space("labels", SpaceKind.OTHER, head.label_size or config.num_labels)
        builder.head(head.label, source, norm, labels)


def _add_masked_head(
    builder: Builder,
    config: Any,
    masked: MaskedHead,
    residual: Space,
    final_norm: str,
    embedded: Space,
    word_embeddings: str,
) -> None:
    tied = config.tie_word_embeddings
    vocabulary = builder.spaces["vocabulary"]
    # a decoder that is the word embeddings reads the very space that these write
    hidden = embedded if tied else builder.space("masked-LM hidden", SpaceKind.OTHER, embedded.size)
    builder.tensor(masked.bias, whole(Role.WRITE, vocabulary))
    builder.head(
        masked.dense,
        residual,
        final_norm,
        hidden,
        activation=masked.activation or config.hidden_act,
    )
    norm = builder.norm(masked.norm, hidden)
    builder.head(
        masked.decoder,
        hidden,
        norm,
        vocabulary,
        aliases=(word_embeddings, masked.bias) if tied else (None, None),
    )
