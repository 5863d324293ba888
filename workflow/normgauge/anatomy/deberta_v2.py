"""DeBERTa-v2 and v3: BERT's block, whose queries and keys also meet those of learned relative
positions. Each layer makes these by the maps that serve its tokens.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from normgauge.anatomy.assembly import layer_norm, whole
from normgauge.anatomy.bert import block_modules
from normgauge.anatomy.build import Builder, join
from normgauge.anatomy.options import (
    even_head_size,
    refuse_options,
    require_options,
    select_architecture,
)
from normgauge.anatomy.post_norm_encoder import STACK, Head, MaskedHead, add_heads
from normgauge.anatomy.structure import Anatomy, Placement, Positions, Role, Space, SpaceKind

MASKED = MaskedHead(
    "cls.predictions.transform.dense",
    "cls.predictions.transform.LayerNorm",
    "cls.predictions.decoder",
    "cls.predictions.bias",
)
CLASSES = {
    "DebertaV2Model": Head(""),
    "DebertaV2ForMaskedLM": Head("deberta", masked=MASKED),
    "DebertaV2ForSequenceClassification": Head("deberta", label="classifier", dense="pooler.dense"),
    "DebertaV2ForTokenClassification": Head("deberta", label="classifier"),
}


def describe(config: Any) -> Anatomy:
    """The anatomy of a DeBERTa-v2 config. Raises InputError on a convolution (deberta-v2-xlarge),
    maps of their own for positions, positions that pass no norm, narrower embeddings, a masked-LM
    head that multiplies by the embeddings themselves, or an unknown class.
    """
    refuse_options(config, ("conv_kernel_size",))
    narrow = getattr(config, "embedding_size", config.hidden_size)
    require_options(
        config,
        {"relative_attention": True, "share_att_key": True, "norm_rel_ebd": "layer_norm"}
        | ({"embedding_size": config.hidden_size} if narrow != config.hidden_size else {}),
    )
    head = select_architecture(config, CLASSES)
    if head.masked:
        require_options(config, {"legacy": True})
    builder = Builder(
        config.model_type,
        config.architectures[0],
        Placement.POST,
        Positions.VECTORS,
        layer_norm(config.layer_norm_eps),
    )
    residual = builder.space("residual", SpaceKind.RESIDUAL, config.hidden_size)
    norm = _embeddings(builder, config, head.prefix, residual)
    blocks = [
        join(head.prefix, f"encoder.layer.{index}") for index in range(config.num_hidden_layers)
    ]
    builder.site(STACK, 0, "embedding", blocks[0], "input", residual.size, norm)
    for number, module in enumerate(blocks, start=1):
        norm = _block(builder, config, module, number, residual, norm)
    builder.stack(STACK, residual, blocks, terminal_norm=None, causal=False)
    head = replace(head, activation=config.pooler_hidden_act)
    add_heads(builder, config, head, residual, norm, residual, "pooler.dense")
    return builder.finish()


def _embeddings(builder: Builder, config: Any, prefix: str, residual: Space) -> str:
    """Words, types and absolute positions where there are any, and the relative positions, which
    lie in the stream's space; returns the norm of the former.
    """
    path = join(prefix, "embeddings")
    vocabulary = builder.space("vocabulary", SpaceKind.VOCABULARY, config.vocab_size)
    builder.embedding(f"{path}.word_embeddings.weight", vocabulary, residual)
    if config.position_biased_input:
        rows = builder.space("position", SpaceKind.POSITION, config.max_position_embeddings)
        builder.embedding(f"{path}.position_embeddings.weight", rows, residual)
    if config.type_vocab_size:
        types = builder.space("token type", SpaceKind.OTHER, config.type_vocab_size)
        builder.embedding(f"{path}.token_type_embeddings.weight", types, residual)
    norm = builder.norm(f"{path}.LayerNorm", residual)
    encoder = join(prefix, "encoder")
    distances = builder.space("distance", SpaceKind.POSITION, 2 * _reach(config))
    builder.embedding(f"{encoder}.rel_embeddings.weight", distances, residual)
    builder.norm(f"{encoder}.LayerNorm", residual)
    return norm


def _reach(config: Any) -> int:
    """Buckets of distances on either side."""
    buckets = getattr(config, "position_buckets", -1)
    if buckets > 0:
        return int(buckets)
    farthest = config.max_relative_positions
    return int(farthest if farthest >= 1 else config.max_position_embeddings)


def _block(
    builder: Builder, config: Any, module: str, number: int, residual: Space, input_norm: str
) -> str:
    prefix = f"{STACK}/block.{number}/"
    parts = block_modules(module)
    modules = dict(parts.maps) | {
        name: f"{module}.attention.self.{name}_proj" for name in ("query", "key", "value")
    }
    spaces = builder.attention_spaces(prefix, config.num_attention_heads, even_head_size(config))
    # queries and keys are made of the stream at one call and of positions at another
    inputs = {
        "query": (whole(Role.READ, residual), spaces.query, None),
        "key": (whole(Role.READ, residual), spaces.key, None),
        "value": (whole(Role.READ, residual), spaces.value, input_norm),
        "attention_output": (spaces.mixed, residual, None),
    }
    for name, (reads, writes, norm) in inputs.items():
        builder.linear(modules[name], {f"{prefix}{name}": writes}, reads, norm)
    attention_norm = builder.norm(parts.attention_norm, residual)
    builder.feed_forward(
        prefix, config.intermediate_size, residual, attention_norm, config.hidden_act, modules
    )
    output_norm = builder.norm(parts.output_norm, residual)
    sited = modules | {"query": modules["value"]}  # called once
    builder.schur_sites(STACK, number, sited, input_norm, attention_norm)
    width = residual.size
    builder.site(STACK, number, "after_attention", attention_norm, "output", width, attention_norm)
    builder.site(STACK, number, "output", module, "output", width, output_norm)
    return output_norm
