"""ELECTRA: BERT's encoder, its embeddings in a space of their own where they are narrower, with a
generator's or a discriminator's head.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from normgauge.anatomy.assembly import layer_norm
from normgauge.anatomy.bert import block_modules
from normgauge.anatomy.build import Builder, join
from normgauge.anatomy.options import refuse_options, select_architecture
from normgauge.anatomy.post_norm_encoder import STACK, add_block, add_embeddings
from normgauge.anatomy.structure import Anatomy, Placement, Positions, Space, SpaceKind


@dataclass(frozen=True)
class Head:
    """What a class adds to the encoder at `prefix`: the generator's head, or a label map of
    `label_size` outputs (None: config.num_labels), behind a `dense` map where there is one.
    `activation` is that map's, None for the config's.
    """

    prefix: str
    generator: bool = False
    label: str | None = None
    label_size: int | None = None
    dense: str | None = None
    activation: str | None = "gelu"


CLASSES = {
    "ElectraModel": Head(""),
    "ElectraForMaskedLM": Head("electra", generator=True),
    "ElectraForPreTraining": Head(
        "electra",
        label="discriminator_predictions.dense_prediction",
        label_size=1,
        dense="discriminator_predictions.dense",
        activation=None,
    ),
    "ElectraForSequenceClassification": Head(
        "electra", label="classifier.out_proj", dense="classifier.dense"
    ),
    "ElectraForTokenClassification": Head("electra", label="classifier"),
    "ElectraForQuestionAnswering": Head("electra", label="qa_outputs"),
}


def describe(config: Any) -> Anatomy:
    """The anatomy of an ELECTRA config. Raises InputError on decoder use, cross-attention or an
    unknown class.
    """
    refuse_options(config, ("is_decoder", "add_cross_attention"))
    head = select_architecture(config, CLASSES)
    builder = Builder(
        config.model_type,
        config.architectures[0],
        Placement.POST,
        Positions.ABSOLUTE,
        layer_norm(config.layer_norm_eps),
    )
    residual = builder.space("residual", SpaceKind.RESIDUAL, config.hidden_size)
    projected = config.embedding_size != config.hidden_size
    embedded = (
        builder.space("embedding", SpaceKind.OTHER, config.embedding_size)
        if projected
        else residual
    )
    embedding_norm = add_embeddings(builder, config, head.prefix, embedded)
    if projected:
        builder.head(join(head.prefix, "embeddings_project"), embedded, embedding_norm, residual)
    norm = None if projected else embedding_norm
    blocks = [
        join(head.prefix, f"encoder.layer.{index}") for index in range(config.num_hidden_layers)
    ]
    builder.site(STACK, 0, "embedding", blocks[0], "input", residual.size, norm)
    for number, module in enumerate(blocks, start=1):
        norm = add_block(
            builder,
            config,
            number,
            block_modules(module),
            residual,
            norm,
            config.intermediate_size,
            config.hidden_act,
        )
    builder.stack(STACK, residual, blocks, terminal_norm=None, causal=False)
    _add_head(builder, config, head, residual, norm, embedded)
    return builder.finish()


def _add_head(
    builder: Builder,
    config: Any,
    head: Head,
    residual: Space,
    final_norm: str | None,
    embedded: Space,
) -> None:
    if head.generator:
        _add_generator(builder, config, head, residual, final_norm, embedded)
    source, norm = residual, final_norm
    if head.dense:
        source = builder.space("label hidden", SpaceKind.OTHER, residual.size)
        activation = head.activation or config.hidden_act
        builder.head(head.dense, residual, norm, source, activation=activation)
        norm = None
    if head.label:
        labels = builder.space("labels", SpaceKind.OTHER, head.label_size or config.num_labels)
        builder.head(head.label, source, norm, labels)


def _add_generator(
    builder: Builder,
    config: Any,
    head: Head,
    residual: Space,
    final_norm: str | None,
    embedded: Space,
) -> None:
    tied = config.tie_word_embeddings
    # a readout that is the word embeddings reads the very space that these write
    hidden = embedded if tied else builder.space("masked-LM hidden", SpaceKind.OTHER, embedded.size)
    builder.head("generator_predictions.dense", residual, final_norm, hidden, activation="gelu")
    norm = builder.norm("generator_predictions.LayerNorm", hidden)
    words = f"{join(head.prefix, 'embeddings')}.word_embeddings.weight"
    builder.head(
        "generator_lm_head",
        hidden,
        norm,
        builder.spaces["vocabulary"],
        aliases=(words if tied else None, None),
    )
