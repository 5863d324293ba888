"""Train one small language model from a text corpus, seeded, and write it as a transformers folder."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from normgauge.errors import InputError
from normgauge.progress import Progress
from normgauge.provenance import atomic_path, execution_environment
from normgauge.schemas.inputs import tables
from normgauge.tables import read_metadata
from normgauge.training.recipes import Recipe, model_config, recipe_named

END_OF_TEXT = "<|endoftext|>"
HELD_OUT_EVERY = 50  # of the consecutive sequences of the corpus, every 50th is kept from training: a sample of the whole, not of its end
WEIGHT_DECAY = 0.1
GRADIENT_NORM = 1.0


def train(recipe: str, seed: int, corpus_path: str | os.PathLike[str], folder: str | os.PathLike[str], threads: int) -> None:
    """Train the recipe and fill `folder` atomically: config.json, model.safetensors (fp32), tokenizer.json, training.json.

    The seed fixes initialisation and batches. On one machine and software version the same seed and threads give the same bytes; another
    number of threads sums gradients in another order and gives other weights. The tokenizer depends on the corpus alone.

    training.json holds recipe, seed, provenance, parameters, steps, tokens, corpus and its sha256, losses in nats per token (the last
    step's and the held-out one), the corpus's unigram entropy, and the executing arithmetic.
    Raises InputError for an unknown recipe, a corpus without text or too short, and fewer than one thread.
    """
    chosen = recipe_named(recipe)
    if threads < 1:
        raise InputError(f"threads {threads}: training needs at least 1")
    texts, corpus = _texts(corpus_path)
    tokenizer = train_tokenizer(texts, chosen.vocabulary)
    sequences = _sequences(tokenizer, texts, chosen.context)
    if tokenizer.get_vocab_size() != chosen.vocabulary or len(sequences) < HELD_OUT_EVERY:
        raise InputError(
            f"{Path(corpus_path).name}: too small for {recipe}: a vocabulary of {tokenizer.get_vocab_size()} and {len(sequences)} "
            f"sequences, expected {chosen.vocabulary} and {HELD_OUT_EVERY} or more; use a longer corpus"
        )
    training, held_out = split(sequences)
    with _execution(seed, threads):
        model = _new_model(chosen)
        loss = _optimise(model, chosen, training.flatten(), seed, f"train {recipe} seed {seed}")
        record = {
            "recipe": recipe,
            "seed": seed,
            "provenance": "trained here",
            "parameters": sum(parameter.numel() for parameter in model.parameters()),
            "steps": chosen.steps,
            "tokens": chosen.tokens,
            **corpus,
            "final_loss": loss,
            "held_out_loss": _mean_loss(model, held_out, chosen.batch),
            "unigram_entropy": unigram_entropy(sequences.numpy()),
            **execution_environment(),
        }
    with atomic_path(folder) as temporary:
        model.save_pretrained(temporary)
        (temporary / "generation_config.json").unlink(missing_ok=True)  # nothing here generates
        tokenizer.save(str(temporary / "tokenizer.json"))
        (temporary / "training.json").write_text(json.dumps(record, indent=2, sort_keys=True) + "\n")


def _texts(corpus_path: str | os.PathLike[str]) -> tuple[list[str], dict[str, str]]:
    documents = [row["text"] for row in tables.read(corpus_path, "corpus") if row["text"]]
    if not documents:
        raise InputError(f"{Path(corpus_path).name}: expected a corpus with text to train on")
    metadata = read_metadata(corpus_path)
    return documents, {"corpus": metadata["corpus"], "corpus_sha256": metadata["corpus_sha256"]}


def train_tokenizer(texts: list[str], vocabulary: int) -> Tokenizer:
    """Byte-level BPE with `vocabulary` entries, END_OF_TEXT first, trained on the texts line by line; deterministic."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator((line for text in texts for line in text.splitlines(keepends=True)), trainer)
    return tokenizer


def _sequences(tokenizer: Tokenizer, texts: list[str], context: int) -> torch.Tensor:
    """All documents' ids, each followed by END_OF_TEXT, cut into consecutive sequences: int64 (sequences, context)."""
    end = tokenizer.token_to_id(END_OF_TEXT)
    ids = np.concatenate([np.asarray([*encoding.ids, end], dtype=np.int64) for encoding in tokenizer.encode_batch(texts)])
    return torch.from_numpy(ids[: len(ids) // context * context].reshape(-1, context))


def split(sequences: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Training and held-out sequences: every HELD_OUT_EVERY-th is held out."""
    held_out = torch.arange(1, len(sequences) + 1) % HELD_OUT_EVERY == 0
    return sequences[~held_out], sequences[held_out]


@contextmanager
def _execution(seed: int, threads: int) -> Iterator[None]:
    """Seeded generators and `threads` threads inside, the caller's own restored after."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            yield
    finally:
        torch.set_num_threads(before)


def _new_model(recipe: Recipe) -> Any:
    import transformers

    return getattr(transformers, recipe.architecture)(model_config(recipe)).float()


def _optimise(model: Any, recipe: Recipe, stream: torch.Tensor, seed: int, label: str) -> float:
    """AdamW on sequences that begin at uniform random places; returns the last step's loss in nats per token."""
    matrices = [parameter for parameter in model.parameters() if parameter.dim() >= 2]
    vectors = [parameter for parameter in model.parameters() if parameter.dim() < 2]
    groups = [{"params": matrices, "weight_decay": WEIGHT_DECAY}, {"params": vectors, "weight_decay": 0.0}]
    optimiser = torch.optim.AdamW(groups, lr=recipe.learning_rate, betas=(0.9, 0.95))
    schedule = torch.optim.lr_scheduler.LambdaLR(optimiser, lambda step: learning_rate_share(step, recipe.warmup, recipe.steps))
    generator = torch.Generator().manual_seed(seed)
    progress = Progress(recipe.steps, label)
    model.train()
    for _ in range(recipe.steps):
        starts = torch.randint(len(stream) - recipe.context + 1, (recipe.batch,), generator=generator)
        sequences = torch.stack([stream[start : start + recipe.context] for start in starts])
        loss = next_token_loss(model, sequences)
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), GRADIENT_NORM)
        optimiser.step()
        schedule.step()
        progress.step()
    if not math.isfinite(loss.item()):
        raise FloatingPointError(f"{label}: the loss is {loss.item()}")
    return loss.item()


def next_token_loss(model: Any, sequences: torch.Tensor) -> torch.Tensor:
    """Mean cross-entropy in nats of every token but the first, given those before it; `sequences` is int64 (batch, positions)."""
    logits = model(input_ids=sequences, use_cache=False).logits[:, :-1]
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), sequences[:, 1:].flatten())


def learning_rate_share(step: int, warmup: int, steps: int) -> float:
    """Share of the peak learning rate at a step: linear up to 1 over `warmup`, then a cosine down to 0.1."""
    if step < warmup:
        return (step + 1) / warmup
    return 0.55 + 0.45 * math.cos(math.pi * (step - warmup) / max(1, steps - warmup))


@torch.no_grad()
def _mean_loss(model: Any, sequences: torch.Tensor, batch: int) -> float:
    """Mean loss in nats per token over sequences."""
    model.eval()
    losses = [next_token_loss(model, chunk).item() * len(chunk) for chunk in sequences.split(batch)]
    return sum(losses) / len(sequences)


def unigram_entropy(tokens: np.ndarray) -> float:
    """Entropy of the tokens' frequencies in nats per token: the least mean loss of a model that ignores context."""
    shares = np.unique(tokens, return_counts=True)[1] / tokens.size
    return float(-(shares * np.log(shares)).sum())
