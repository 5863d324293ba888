"""Small independent models, trained here on one source of data, for the null of the tests."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

VOCABULARY, WIDTH, UNITS, BLOCKS, LENGTH = 64, 16, 48, 2, 16


def tiny_config() -> Any:
    """A Llama of two blocks, width 16, 48 units."""
    from transformers import LlamaConfig

    return LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=WIDTH,
        intermediate_size=UNITS,
        num_hidden_layers=BLOCKS,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=LENGTH,
        tie_word_embeddings=False,
        bos_token_id=0,
        eos_token_id=0,
        architectures=["LlamaForCausalLM"],
    )


def tiny_tensors(
    seed: int,
    steps: int = 10,
    start: dict[str, torch.Tensor] | None = None,
    rate: float = 1e-2,
) -> dict[str, torch.Tensor]:
    """The weights after `steps` steps of AdamW from a fresh initialisation, or from `start`.

    All models see sequences of one Markov chain, which relates their data and nothing else; the
    seed draws initialisation and sequences.
    """
    from transformers import LlamaForCausalLM

    chain = np.random.default_rng(0).dirichlet(np.full(VOCABULARY, 0.1), VOCABULARY).cumsum(1)
    generator = np.random.default_rng([seed, 1])
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = LlamaForCausalLM(tiny_config())
    if start is not None:
        model.load_state_dict(start)
    optimiser = torch.optim.AdamW(model.parameters(), lr=rate)
    for _ in range(steps):
        ids = _sequences(chain, generator, 8)
        loss = model(input_ids=ids, labels=ids, use_cache=False).loss
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return {name: value.detach().clone() for name, value in model.state_dict().items()}


def _sequences(chain: np.ndarray, generator: np.random.Generator, count: int) -> torch.Tensor:
    ids = np.empty((count, LENGTH), dtype=np.int64)
    ids[:, 0] = generator.integers(VOCABULARY, size=count)
    drawn = generator.random((count, LENGTH))
    for place in range(1, LENGTH):
        rows = chain[ids[:, place - 1]]
        ids[:, place] = np.minimum((rows < drawn[:, place, None]).sum(1), VOCABULARY - 1)
    return torch.from_numpy(ids)
