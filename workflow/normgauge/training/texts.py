"""Text to train on: a corpus, a tokenizer made from it, and consecutive sequences of ids."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from normgauge.errors import InputError
from normgauge.schemas.inputs import tables
from normgauge.tables import read_metadata

END_OF_TEXT = "<|endoftext|>"
# of the consecutive sequences of the corpus, every 50th is kept from training: a sample of the
# whole, not of its end
HELD_OUT_EVERY = 50
PIECE = 4096  # characters that are read together where a corpus is not read in full


def corpus_texts(corpus_path: str | os.PathLike[str]) -> tuple[list[str], dict[str, str]]:
    """The documents of a corpus, and its name and sha256. InputError where there is no text."""
    documents = [row["text"] for row in tables.read(corpus_path, "corpus") if row["text"]]
    if not documents:
        raise InputError(f"{Path(corpus_path).name}: expected a corpus with text to train on")
    metadata = read_metadata(corpus_path)
    return documents, {"corpus": metadata["corpus"], "corpus_sha256": metadata["corpus_sha256"]}


def spread(texts: Sequence[str], characters: int) -> list[str]:
    """About so many characters of the texts, in pieces that lie evenly over all of them; all of
    them when they have no more.
    """
    if sum(map(len, texts)) <= characters:
        return list(texts)
    pieces = [text[start : start + PIECE] for text in texts for start in range(0, len(text), PIECE)]
    wanted = max(1, characters * len(pieces) // sum(map(len, texts)))
    return [pieces[number * len(pieces) // wanted] for number in range(wanted)]


def train_tokenizer(texts: list[str], vocabulary: int) -> Tokenizer:
    """Byte-level BPE with `vocabulary` entries, END_OF_TEXT first, trained on the texts line by
    line; deterministic.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(
        (line for text in texts for line in text.splitlines(keepends=True)), trainer
    )
    return tokenizer


def consecutive(tokenizer: Tokenizer, texts: list[str], length: int) -> torch.Tensor:
    """All documents' ids, each followed by the tokenizer's END_OF_TEXT if it has one, cut into
    consecutive sequences: int64 (sequences, length).
    """
    end = tokenizer.token_to_id(END_OF_TEXT)
    close = [] if end is None else [end]
    ids = np.concatenate(
        [
            np.asarray([*encoding.ids, *close], dtype=np.int64)
            for encoding in tokenizer.encode_batch(texts, add_special_tokens=False)
        ]
    )
    return torch.from_numpy(ids[: len(ids) // length * length].reshape(-1, length))


def split(sequences: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Training and held-out sequences: every HELD_OUT_EVERY-th is held out."""
    held_out = torch.arange(1, len(sequences) + 1) % HELD_OUT_EVERY == 0
    return sequences[~held_out], sequences[held_out]


def unigram_entropy(tokens: np.ndarray) -> float:
    """Entropy of the tokens' frequencies in nats per token: the least mean loss of a model that
    ignores context.
    """
    shares = np.unique(tokens, return_counts=True)[1] / tokens.size
    return float(-(shares * np.log(shares)).sum())
