"""The shape of a SCEPTR variant, from the JSON beside its weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from normgauge.errors import InputError

AMINO_ACIDS, SPECIAL_TOKENS = 20, 3
TOKENS = SPECIAL_TOKENS + AMINO_ACIDS

# Stored class name -> (kind of embedding, compartments besides "none", class of the attention stack
# that goes with it)
PROJECTED, DIRECT = "SelfAttentionStackWithInitialProjection", "SelfAttentionStackWithBuiltins"
EMBEDDERS = {
    "CdrSimpleEmbedder": ("one-hot", 6, PROJECTED),
    "SingleChainCdrSimpleEmbedder": ("one-hot", 3, PROJECTED),
    "Cdr3SimpleEmbedder": ("one-hot", 2, PROJECTED),
    "CdrBlosumEmbedder": ("blosum", 6, PROJECTED),
    "CdrEmbedder": ("learned", 6, DIRECT),
}


@dataclass(frozen=True)
class SceptrConfig:
    """Shape of one SCEPTR variant. `token_embedder` is the stored class name, a key of
    EMBEDDERS.
    """

    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    intermediate_size: int
    token_embedder: str
    vocab_size: int = TOKENS
    hidden_act: str = "relu"
    layer_norm_eps: float = 1e-5
    model_type: str = "sceptr"
    architectures: list[str] = field(default_factory=lambda: ["Sceptr"])

    @property
    def embedding(self) -> str:
        """ "one-hot" (token and compartment one-hot, relative position), "blosum" (the same with
         BLOSUM62 rows for the amino acids) or
        "learned" (learned tokens and compartments plus sinusoidal positions).
        """
        return EMBEDDERS[self.token_embedder][0]

    @property
    def compartments(self) -> int:
        """Compartments (CDR loops), not counting "none"."""
        return EMBEDDERS[self.token_embedder][1]

    @property
    def embedding_size(self) -> int:
        """Features per token; unless they are learned, a bias-free projection leads from them into
        the residual stream.
        """
        tokens = {"one-hot": TOKENS - 1, "blosum": AMINO_ACIDS}
        return (
            self.hidden_size
            if self.embedding == "learned"
            else tokens[self.embedding] + 1 + self.compartments
        )

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_stored(cls, stored: Mapping[str, Any]) -> SceptrConfig:
        """From the JSON beside a stored state dictionary; InputError when it names something that
        is not known here.
        """
        try:
            embedder = stored["model"]["token_embedder"]["class"]
            stack, sizes = (
                stored["model"]["self_attention_stack"][key] for key in ("class", "initargs")
            )
            width, layers, heads = (sizes[key] for key in ("d_model", "num_layers", "nhead"))
        except (KeyError, TypeError) as error:
            raise InputError(f"config.json: not a SCEPTR config: {error} is missing") from error
        if embedder not in EMBEDDERS or stack != EMBEDDERS[embedder][2]:
            known = ", ".join(f"{name} with {parts[2]}" for name, parts in EMBEDDERS.items())
            raise InputError(
                f"config.json: SCEPTR variant {embedder} with {stack}; known are {known}"
            )
        if (
            any(type(size) is not int or size <= 0 for size in (width, layers, heads))
            or width % heads
        ):
            raise InputError(
                f"config.json: SCEPTR width {width}, {layers} layers, {heads} heads; expected "
                "positive integers, heads dividing width"
            )
        return cls(width, layers, heads, sizes.get("dim_feedforward") or 4 * width, embedder)
