"""The small language models that the pipeline trains itself, as data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from normgauge.errors import InputError


@dataclass(frozen=True)
class Recipe:
    """One small language model and how it is trained.

    `vocabulary`: entries of its own byte-level BPE; `context`: positions, also the length of a
    training sequence; `batch`: sequences per step; `warmup`: steps of linear warm-up, then a cosine
    down to a tenth of `learning_rate`.
    """

    architecture: str
    width: int
    blocks: int
    heads: int
    feed_forward: int
    vocabulary: int
    context: int
    batch: int
    steps: int
    learning_rate: float
    warmup: int

    @property
    def tokens(self) -> int:
        """Tokens seen in training."""
        return self.steps * self.batch * self.context


RECIPES = {
    "gpt2-nano": Recipe("GPT2LMHeadModel", 256, 4, 8, 1024, 20480, 256, 4, 120, 2e-3, 12),
    "llama-nano": Recipe("LlamaForCausalLM", 256, 4, 8, 688, 13312, 256, 4, 150, 2e-3, 15),
    "llama-micro": Recipe("LlamaForCausalLM", 128, 2, 4, 344, 2048, 128, 4, 200, 4e-3, 20),
    "gpt2-smoke": Recipe("GPT2LMHeadModel", 32, 2, 4, 128, 512, 256, 2, 40, 1e-2, 4),
    "gemma3-nano": Recipe("Gemma3ForCausalLM", 64, 3, 4, 172, 1024, 128, 8, 300, 4e-3, 30),
    "llama-smoke": Recipe("LlamaForCausalLM", 32, 2, 4, 88, 512, 256, 2, 40, 1e-2, 4),
}


def recipe_named(name: str) -> Recipe:
    """The recipe of that name; InputError listing the known ones."""
    if name not in RECIPES:
        raise InputError(f"unknown recipe {name!r}: expected one of {', '.join(RECIPES)}")
    return RECIPES[name]


def model_config(recipe: Recipe) -> Any:
    """The transformers config: GPT-2 (LayerNorm, tied readout, learned positions), Llama (RMSNorm,
    SwiGLU, untied, no biases) or Gemma-3 (RMSNorms around each sublayer and on queries and keys,
    two query heads per key/value head, tied readout; every other block sees half of the context).

    Dropout is off: no part of the corpus is seen often enough to overfit. Token 0 is <|endoftext|>.
    """
    from transformers import Gemma3TextConfig, GPT2Config, LlamaConfig

    if recipe.architecture == "GPT2LMHeadModel":
        return GPT2Config(
            vocab_size=recipe.vocabulary,
            n_positions=recipe.context,
            n_embd=recipe.width,
            n_layer=recipe.blocks,
            n_head=recipe.heads,
            n_inner=recipe.feed_forward,
            resid_pdrop=0.0,
            embd_pdrop=0.0,
            attn_pdrop=0.0,
            bos_token_id=0,
            eos_token_id=0,
        )
    if recipe.architecture == "Gemma3ForCausalLM":
        kinds = ("full_attention", "sliding_attention")
        return Gemma3TextConfig(
            vocab_size=recipe.vocabulary,
            max_position_embeddings=recipe.context,
            sliding_window=recipe.context // 2,
            layer_types=[kinds[number % 2] for number in range(recipe.blocks)],
            hidden_size=recipe.width,
            num_hidden_layers=recipe.blocks,
            num_attention_heads=recipe.heads,
            num_key_value_heads=recipe.heads // 2,
            head_dim=recipe.width // recipe.heads,
            query_pre_attn_scalar=recipe.width // recipe.heads,
            intermediate_size=recipe.feed_forward,
            bos_token_id=0,
            eos_token_id=0,
            pad_token_id=None,
        )
    return LlamaConfig(
        vocab_size=recipe.vocabulary,
        max_position_embeddings=recipe.context,
        hidden_size=recipe.width,
        num_hidden_layers=recipe.blocks,
        num_attention_heads=recipe.heads,
        num_key_value_heads=recipe.heads,
        intermediate_size=recipe.feed_forward,
        tie_word_embeddings=False,
        bos_token_id=0,
        eos_token_id=0,
    )
