"""BERT: post-norm encoder; every block ends in a norm, and there is an embedding norm but no terminal one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from normgauge.anatomy.build import Builder, head_size, join, layer_norm, refuse_options, select_architecture
from normgauge.anatomy.post_norm_encoder import STACK, Head, MaskedHead, add_embeddings, add_heads
from normgauge.anatomy.structure import Anatomy, Placement, Positions, Space, SpaceKind

MASKED = MaskedHead(
    dense="cls.predictions.transform.dense",
    norm="cls.predictions.transform.LayerNorm",
    decoder="cls.predictions.decoder",
    bias="cls.predictions.bias",
)
CLASSES = {
    "BertModel": Head("", pooler=True),
    "BertForMaskedLM": Head("bert", masked=MASKED),
    "BertForPreTraining": Head("bert", pooler=True, masked=MASKED, label="cls.seq_relationship", label_size=2),
    "BertForNextSentencePrediction": Head("bert", pooler=True, label="cls.seq_relationship", label_size=2),
    "BertForSequenceClassification": Head("bert", pooler=True, label="classifier"),
    "BertForMultipleChoice": Head("bert", pooler=True, label="classifier", label_size=1),
    "BertForTokenClassification": Head("bert", label="classifier"),
    "BertForQuestionAnswering": Head("bert", label="qa_outputs"),
}


def describe(config: Any) -> Anatomy:
    """The anatomy of a BERT config. Raises InputError on decoder use, cross-attention or an unknown class."""
    return describe_encoder(config, CLASSES)


def describe_encoder(config: Any, classes: Mapping[str, Head]) -> Anatomy:
    """The anatomy of an encoder with BERT's modules and the heads of `classes`."""
    refuse_options(config, ("is_decoder", "add_cross_attention"))
    head = select_architecture(config, classes)
    style = layer_norm(config.layer_norm_eps)
    builder = Builder(config.model_type, config.architectures[0], Placement.POST, Positions.ABSOLUTE, style)
    residual = builder.space("residual", SpaceKind.RESIDUAL, config.hidden_size)
    norm = add_embeddings(builder, config, head.prefix, residual)
    blocks = [join(head.prefix, f"encoder.layer.{index}") for index in range(config.num_hidden_layers)]
    builder.site(STACK, 0, "embedding", blocks[0], "input", residual.size, norm)
    for number, module in enumerate(blocks, start=1):
        norm = _block(builder, config, module, number, residual, norm)
    builder.stack(STACK, residual, blocks, terminal_norm=None, causal=False)
    add_heads(builder, config, head, residual, norm, residual, join(head.prefix, "pooler.dense"))
    return builder.finish()


def _block(builder: Builder, config: Any, module: str, number: int, residual: Space, input_norm: str) -> str:
    """One block, fed by `input_norm`; returns the norm that is its output."""
    prefix = f"{STACK}/block.{number}/"
    modules = {
        "query": f"{module}.attention.self.query",
        "key": f"{module}.attention.self.key",
        "value": f"{module}.attention.self.value",
        "attention_output": f"{module}.attention.output.dense",
        "up": f"{module}.intermediate.dense",
        "down": f"{module}.output.dense",
    }
    spaces = builder.attention_spaces(prefix, config.num_attention_heads, head_size(config))
    builder.projections(prefix, spaces, modules, residual, input_norm)
    attention_norm = builder.norm(f"{module}.attention.output.LayerNorm", residual)
    builder.feed_forward(prefix, config.intermediate_size, residual, attention_norm, config.hidden_act, modules)
    output_norm = builder.norm(f"{module}.output.LayerNorm", residual)
    builder.schur_sites(STACK, number, modules, input_norm, attention_norm)
    builder.site(STACK, number, "after_attention", attention_norm, "output", residual.size, attention_norm)
    builder.site(STACK, number, "output", module, "output", residual.size, output_norm)
    return output_norm
