"""ModernBERT: pre-norm encoder with rotary positions, queries, keys and values in one tensor, gate
and up in another. The first block reads the norm of the embedding, which the stream carries on.
"""

from __future__ import annotations

from typing import Any

from normgauge.anatomy.assembly import NormStyle, whole
from normgauge.anatomy.build import Builder, join
from normgauge.anatomy.options import even_head_size, select_architecture
from normgauge.anatomy.structure import (
    Anatomy,
    NormKind,
    Placement,
    Positions,
    Role,
    Space,
    SpaceKind,
)

# prefix, and the map behind the head
CLASSES = {
    "ModernBertModel": ("", None),
    "ModernBertForMaskedLM": ("model", "decoder"),
    "ModernBertForSequenceClassification": ("model", "classifier"),
    "ModernBertForTokenClassification": ("model", "classifier"),
}
STACK = "encoder"


def describe(config: Any) -> Anatomy:
    """The anatomy of a ModernBERT config. Raises InputError on an unknown class."""
    prefix, last = select_architecture(config, CLASSES)
    builder = Builder(
        config.model_type,
        config.architectures[0],
        Placement.PRE,
        Positions.ROTARY,
        NormStyle(NormKind.LAYER_NORM, config.norm_eps, bias=config.norm_bias),
        even_head_size(config),
    )
    residual = builder.space("residual", SpaceKind.RESIDUAL, config.hidden_size)
    embeddings = join(prefix, "embeddings")
    words = f"{embeddings}.tok_embeddings.weight"
    vocabulary = builder.space("vocabulary", SpaceKind.VOCABULARY, config.vocab_size)
    builder.embedding(words, vocabulary, residual)
    embedding_norm = builder.norm(f"{embeddings}.norm", residual)
    blocks = [join(prefix, f"layers.{index}") for index in range(config.num_hidden_layers)]

    def add_block(module: str, number: int) -> None:
        norm = embedding_norm if number == 1 else builder.norm(f"{module}.attn_norm", residual)
        _block(builder, config, module, number, residual, norm)

    terminal = builder.pre_norm_stack(
        STACK,
        residual,
        blocks,
        add_block,
        join(prefix, "final_norm"),
        causal=False,
        embedding_norm=embedding_norm,
    )
    if last:
        _head(builder, config, last, residual, terminal, words)
    return builder.finish()


def _block(
    builder: Builder, config: Any, module: str, number: int, residual: Space, norm: str
) -> None:
    prefix = f"{STACK}/block.{number}/"
    modules = {
        "query": f"{module}.attn.Wqkv",
        "attention_output": f"{module}.attn.Wo",
        "gate": f"{module}.mlp.Wi",
        "up": f"{module}.mlp.Wi",
        "down": f"{module}.mlp.Wo",
    }
    spaces = builder.attention_spaces(prefix, config.num_attention_heads, even_head_size(config))
    builder.stacked_projections(prefix, spaces, modules, residual, norm, bias=config.attention_bias)
    mlp_norm = builder.norm(f"{module}.mlp_norm", residual)
    builder.feed_forward(
        prefix,
        config.intermediate_size,
        residual,
        mlp_norm,
        config.hidden_activation,
        modules,
        bias=config.mlp_bias,
    )
    builder.schur_sites(STACK, number, modules, norm, mlp_norm)
    builder.block_sites(STACK, number, module, residual, {"after_attention": mlp_norm})


def _head(
    builder: Builder, config: Any, last: str, residual: Space, terminal: str, words: str
) -> None:
    readout = last == "decoder"
    tied = readout and config.tie_word_embeddings
    mean = config.architectures[0].endswith("SequenceClassification") and (
        config.classifier_pooling == "mean"
    )
    # a decoder that is the word embeddings reads the very space that these write
    hidden = residual if tied else builder.space("head hidden", SpaceKind.OTHER, residual.size)
    builder.linear(
        "head.dense",
        {"head.dense": hidden},
        whole(Role.READ, residual),
        None if mean else terminal,
        bias=config.classifier_bias,
        activation=config.classifier_activation,
    )
    norm = builder.norm("head.norm", hidden)
    if readout:
        writes, aliases = builder.spaces["vocabulary"], (words if tied else None, None)
        builder.head(last, hidden, norm, writes, bias=config.decoder_bias, aliases=aliases)
    else:
        labels = builder.space("labels", SpaceKind.OTHER, config.num_labels)
        builder.head(last, hidden, norm, labels)
