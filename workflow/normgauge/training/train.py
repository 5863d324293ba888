"""Train one small language model from a text corpus, seeded, and write it as a transformers
folder.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer

from normgauge.errors import InputError
from normgauge.progress import Progress
from normgauge.provenance import atomic_path, execution_environment
from normgauge.training.optimise import Training, mean_loss
from normgauge.training.plan import recipe_plan
from normgauge.training.recipes import Recipe, model_config, recipe_named
from normgauge.training.texts import (
    HELD_OUT_EVERY,
    consecutive,
    corpus_texts,
    split,
    train_tokenizer,
    unigram_entropy,
)


def train(
    recipe: str,
    seed: int,
    corpus_path: str | os.PathLike[str],
    folder: str | os.PathLike[str],
    threads: int,
) -> None:
    """Train the recipe and fill `folder` atomically: config.json, model.safetensors (fp32),
    tokenizer.json, training.json.

    The seed fixes initialisation and batches. On one machine and software version the same seed and
    threads give the same bytes; another number of threads sums gradients in another order and gives
    other weights. The tokenizer depends on the corpus alone.

    training.json holds recipe, seed, provenance, parameters, steps, tokens, corpus and its sha256,
    losses in nats per token (the last step's and the held-out one), the corpus's unigram entropy,
    and the executing arithmetic. Raises InputError for an unknown recipe, a corpus without text or
    too short, and fewer than one thread.
    """
    chosen, plan = recipe_named(recipe), recipe_plan(recipe_named(recipe), seed)
    texts, corpus = corpus_texts(corpus_path)
    tokenizer, sequences = recipe_text(recipe, texts, Path(corpus_path).name)
    training, held_out = split(sequences)
    with execution(seed, threads):
        run = Training(new_model(chosen), plan, training.flatten())
        progress = Progress(plan.steps, f"train {recipe} seed {seed}")
        for _ in range(plan.steps):
            run.advance()
            progress.step()
        require_finite(run, progress.label)
        record = {
            "recipe": recipe,
            "seed": seed,
            "provenance": "trained here",
            "parameters": sum(parameter.numel() for parameter in run.model.parameters()),
            "steps": plan.steps,
            "tokens": plan.tokens,
            **corpus,
            "final_loss": run.loss,
            "held_out_loss": mean_loss(run.model, held_out, plan.batch),
            "unigram_entropy": unigram_entropy(sequences.numpy()),
            **execution_environment(),
        }
    with atomic_path(folder) as temporary:
        save_model(run.model, tokenizer, temporary)
        write_record(temporary, record)


def recipe_text(recipe: str, texts: list[str], name: str) -> tuple[Tokenizer, torch.Tensor]:
    """A recipe's own tokenizer, and the whole corpus in its sequences. InputError where the corpus
    is too small for it.
    """
    chosen = recipe_named(recipe)
    tokenizer = train_tokenizer(texts, chosen.vocabulary)
    sequences = consecutive(tokenizer, texts, chosen.context)
    if tokenizer.get_vocab_size() != chosen.vocabulary or len(sequences) < HELD_OUT_EVERY:
        raise InputError(
            f"{name}: too small for {recipe}: a vocabulary of "
            f"{tokenizer.get_vocab_size()} and {len(sequences)} "
            f"sequences, expected {chosen.vocabulary} and {HELD_OUT_EVERY} or more; use a longer "
            "corpus"
        )
    return tokenizer, sequences


@contextmanager
def execution(seed: int, threads: int) -> Iterator[None]:
    """Seeded generators and `threads` threads inside, the caller's own restored after. InputError
    for fewer than one thread.
    """
    if threads < 1:
        raise InputError(f"threads {threads}: training needs at least 1")
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            yield
    finally:
        torch.set_num_threads(before)


def new_model(recipe: Recipe) -> Any:
    """A recipe's model at its initialisation, drawn from torch's own generator."""
    import transformers

    return getattr(transformers, recipe.architecture)(model_config(recipe)).float()


def require_finite(run: Training, label: str) -> None:
    """InputError where a run has left the numbers: its learning rate was too large."""
    if not math.isfinite(run.loss):
        raise InputError(
            f"{label}: the loss is {run.loss} at step {run.step}; lower the learning rate"
        )


def save_model(model: Any, tokenizer: Tokenizer, folder: Path) -> None:
    """A folder in transformers' layout: config.json, model.safetensors, tokenizer.json."""
    model.save_pretrained(folder)
    (folder / "generation_config.json").unlink(missing_ok=True)  # nothing here generates
    tokenizer.save(str(folder / "tokenizer.json"))


def write_record(folder: Path, record: dict[str, Any]) -> None:
    """training.json."""
    (folder / "training.json").write_text(
        json.dumps(record, indent=2, sort_keys=True) + "\n", encoding="utf-8"
    )
