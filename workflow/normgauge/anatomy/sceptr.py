"""SCEPTR: torch's post-norm TransformerEncoder over one-hot (or BLOSUM, or learned) amino-acid
features.

The config needs model_type, hidden_size, num_hidden_layers, num_attention_heads, intermediate_size
and token_embedder, the embedder's class name as in the variant's config.json. Tensor names are
those of the published state dicts; the embedder concatenates token, position and compartment
features in that order.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from normgauge.anatomy.assembly import layer_norm, whole
from normgauge.anatomy.build import Builder, join
from normgauge.anatomy.options import head_size
from normgauge.anatomy.structure import (
    Anatomy,
    Axis,
    Placement,
    Positions,
    Role,
    Segment,
    Space,
    SpaceKind,
)
from normgauge.errors import InputError

STACK = "encoder"
ARCHITECTURE = "Sceptr"
AMINO_ACIDS = 20
SPECIAL_TOKENS = 3
EPS = 1e-5
EMBEDDER, ATTENTION_STACK = "_token_embedder", "_self_attention_stack"


@dataclass(frozen=True)
class Embedder:
    """How a variant embeds: number of compartments with the null one, and whether by one-hot,
    BLOSUM or learned tables.
    """

    compartments: int
    tokens: str = "one-hot"


EMBEDDERS = {
    "CdrSimpleEmbedder": Embedder(7),
    "SingleChainCdrSimpleEmbedder": Embedder(4),
    "Cdr3SimpleEmbedder": Embedder(3),
    "CdrBlosumEmbedder": Embedder(7, "blosum"),
    "CdrEmbedder": Embedder(7, "learned"),
}
POSITIONS = 101  # rows of the sinusoid table of the learned embedder, null position first


def describe(config: Any) -> Anatomy:
    """The anatomy of a SCEPTR config. Raises InputError on an unknown token embedder."""
    embedder = _embedder(config)
    builder = Builder("sceptr", ARCHITECTURE, Placement.POST, Positions.ABSOLUTE, layer_norm(EPS))
    residual = builder.space("residual", SpaceKind.RESIDUAL, config.hidden_size)
    if embedder.tokens == "learned":
        _learned_embeddings(builder, embedder, residual)
        path = ATTENTION_STACK
    else:
        _feature_embeddings(builder, embedder, residual)
        path = join(ATTENTION_STACK, "_standard_stack")
    blocks = [
        join(path, f"_self_attention_stack.layers.{index}")
        for index in range(config.num_hidden_layers)
    ]
    builder.site(STACK, 0, "embedding", blocks[0], "input", residual.size)
    norm: str | None = None
    for number, module in enumerate(blocks, start=1):
        norm = _block(builder, config, module, number, residual, norm)
    builder.stack(STACK, residual, blocks, terminal_norm=None, causal=False)
    amino_acids = builder.space("amino acid", SpaceKind.VOCABULARY, AMINO_ACIDS)
    builder.head("_mlm_token_prediction_projector.projector", residual, norm, amino_acids)
    return builder.finish()


def _embedder(config: Any) -> Embedder:
    name = getattr(config, "token_embedder", None)
    if name not in EMBEDDERS:
        raise InputError(
            f"sceptr config: token_embedder is {name!r}, expected one of {', '.join(EMBEDDERS)}; "
            "take it from config.json"
        )
    return EMBEDDERS[name]


def _rows(builder: Builder, embedder: Embedder) -> tuple[Space, Space]:
    """The index spaces of tokens and of compartments."""
    tokens = builder.space("token", SpaceKind.VOCABULARY, AMINO_ACIDS + SPECIAL_TOKENS)
    return tokens, builder.space("compartment", SpaceKind.OTHER, embedder.compartments)


def _learned_embeddings(builder: Builder, embedder: Embedder, residual: Space) -> None:
    """Tables that write the residual stream directly."""
    tokens, compartments = _rows(builder, embedder)
    positions = builder.space("position", SpaceKind.POSITION, POSITIONS)
    builder.embedding(f"{EMBEDDER}.token_embedding.weight", tokens, residual)
    builder.embedding(
        f"{EMBEDDER}.position_embedding.position_embedding_matrix", positions, residual
    )
    builder.embedding(f"{EMBEDDER}.compartment_embedding.weight", compartments, residual)


def _feature_embeddings(builder: Builder, embedder: Embedder, residual: Space) -> None:
    """Tables that write runs of a feature space, which a projection without bias carries to the
    residual stream.
    """
    tokens, compartments = _rows(builder, embedder)
    letters = AMINO_ACIDS if embedder.tokens == "blosum" else tokens.size - 1
    features = builder.space("features", SpaceKind.OTHER, letters + 1 + compartments.size - 1)
    token_run = Axis(Role.WRITE, (Segment(features.name, 0, letters),))
    compartment_run = Axis(Role.WRITE, (Segment(features.name, letters + 1, features.size),))
    if embedder.tokens == "blosum":
        special = builder.space("special token", SpaceKind.VOCABULARY, SPECIAL_TOKENS)
        builder.tensor(
            f"{EMBEDDER}._blosum_embedding._blosum_embeddings", whole(Role.INDEX, tokens), token_run
        )
        builder.tensor(
            f"{EMBEDDER}._blosum_embedding._special_token_embeddings.weight",
            whole(Role.INDEX, special),
            token_run,
        )
    else:
        builder.tensor(
            f"{EMBEDDER}._token_embedding._token_embeddings", whole(Role.INDEX, tokens), token_run
        )
    builder.tensor(
        f"{EMBEDDER}._compartment_embedding._token_embeddings",
        whole(Role.INDEX, compartments),
        compartment_run,
    )
    builder.head(f"{ATTENTION_STACK}._initial_projector", features, None, residual, bias=False)


def _block(
    builder: Builder, config: Any, module: str, number: int, residual: Space, input_norm: str | None
) -> str:
    """One block, fed by `input_norm` (none for the first); returns the norm that is its output."""
    prefix = f"{STACK}/block.{number}/"
    attention = f"{module}.self_attn"
    modules = {
        "query": attention,
        "attention_output": f"{attention}.out_proj",
        "up": f"{module}.linear1",
        "down": f"{module}.linear2",
    }
    spaces = builder.attention_spaces(prefix, config.num_attention_heads, head_size(config))
    fused = {
        f"{prefix}query": spaces.query,
        f"{prefix}key": spaces.key,
        f"{prefix}value": spaces.value,
    }
    parameters = (f"{attention}.in_proj_weight", f"{attention}.in_proj_bias")
    builder.linear(attention, fused, whole(Role.READ, residual), input_norm, parameters=parameters)
    builder.linear(
        modules["attention_output"], {f"{prefix}attention_output": residual}, spaces.mixed
    )
    attention_norm = builder.norm(f"{module}.norm1", residual)
    builder.feed_forward(
        prefix, config.intermediate_size, residual, attention_norm, "relu", modules
    )
    output_norm = builder.norm(f"{module}.norm2", residual)
    builder.schur_sites(STACK, number, modules, input_norm, attention_norm)
    builder.site(
        STACK, number, "after_attention", attention_norm, "output", residual.size, attention_norm
    )
    builder.site(STACK, number, "output", module, "output", residual.size, output_norm)
    return output_norm
