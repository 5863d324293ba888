"""BERT: post-norm encoder; every block ends in a norm, and there is an embedding norm but no
terminal one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from normgauge.anatomy.assembly import layer_norm
from normgauge.anatomy.build import Builder, join
from normgauge.anatomy.options import refuse_options, select_architecture
from normgauge.anatomy.post_norm_encoder import (
    STACK,
    BlockModules,
    Head,
    MaskedHead,
    add_block,
    add_embeddings,
    add_heads,
)
from normgauge.anatomy.structure import Anatomy, Placement, Positions, SpaceKind

MASKED = MaskedHead(
    dense="cls.predictions.transform.dense",
    norm="cls.predictions.transform.LayerNorm",
    decoder="cls.predictions.decoder",
    bias="cls.predictions.bias",
)
CLASSES = {
    "BertModel": Head("", pooler=True),
    "BertForMaskedLM": Head("bert", masked=MASKED),
    "BertForPreTraining": Head(
        "bert", pooler=True, masked=MASKED, label="cls.seq_relationship", label_size=2
    ),
    "BertForNextSentencePrediction": Head(
        "bert", pooler=True, label="cls.seq_relationship", label_size=2
    ),
    "BertForSequenceClassification": Head("bert", pooler=True, label="classifier"),
    "BertForMultipleChoice": Head("bert", pooler=True, label="classifier", label_size=1),
    "BertForTokenClassification": Head("bert", label="classifier"),
    "BertForQuestionAnswering": Head("bert", label="qa_outputs"),
}


def describe(config: Any) -> Anatomy:
    """The anatomy of a BERT config. Raises InputError on decoder use, cross-attention or an unknown
    class.
    """
    return describe_encoder(config, CLASSES)


def describe_encoder(config: Any, classes: Mapping[str, Head]) -> Anatomy:
    """The anatomy of an encoder with BERT's modules and the heads of `classes`."""
    refuse_options(config, ("is_decoder", "add_cross_attention"))
    head = select_architecture(config, classes)
    style = layer_norm(config.layer_norm_eps)
    builder = Builder(
        config.model_type, config.architectures[0], Placement.POST, Positions.ABSOLUTE, style
    )
    residual = builder.space("residual", SpaceKind.RESIDUAL, config.hidden_size)
    norm = add_embeddings(builder, config, head.prefix, residual)
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
    add_heads(builder, config, head, residual, norm, residual, join(head.prefix, "pooler.dense"))
    return builder.finish()


def block_modules(module: str) -> BlockModules:
    """The modules of one of BERT's blocks."""
    maps = {
        "query": f"{module}.attention.self.query",
        "key": f"{module}.attention.self.key",
        "value": f"{module}.attention.self.value",
        "attention_output": f"{module}.attention.output.dense",
        "up": f"{module}.intermediate.dense",
        "down": f"{module}.output.dense",
    }
    return BlockModules(
        module, maps, f"{module}.attention.output.LayerNorm", f"{module}.output.LayerNorm"
    )
