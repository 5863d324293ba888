"""Token ids of the sequences that enter a model: windows of a text or generated ids, with what
stands before and after.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from normgauge.calibration.corpora import corpus_named
from normgauge.calibration.interfaces import Interface, special_ids, vocabulary_size
from normgauge.calibration.settings import Bos, Settings
from normgauge.calibration.tokenisation import (
    TextTokenizer,
    choose_windows,
    load_tokenizer,
    special_tokens,
    token_stream,
)
from normgauge.errors import InputError

Rows = list[dict[str, Any]]


@dataclass(frozen=True)
class TokenSource:
    """What ids are made from: documents and their tokenizer, or neither when they are generated."""

    interface: Interface
    documents: Rows
    folder: str | os.PathLike[str]
    tokenizer: TextTokenizer | None
    borrowed: bool

    @property
    def sha256(self) -> str:
        return self.tokenizer.sha256 if self.tokenizer else ""


def token_source(
    interface: Interface,
    documents: Rows,
    folder: str | os.PathLike[str],
    tokenizer_folder: str | os.PathLike[str] | None,
) -> TokenSource:
    place = tokenizer_folder or folder
    tokenizer = load_tokenizer(place) if documents else None
    return TokenSource(interface, documents, place, tokenizer, tokenizer_folder is not None)


def beginning(source: TokenSource, config: Any, bos: Bos) -> tuple[int, ...]:
    """Ids before every window of a decoder-only model. A borrowed tokenizer's template is its
    lender's and does not count.
    """
    if bos is Bos.NEVER:
        return ()
    own = source.tokenizer.prefix if source.tokenizer and not source.borrowed else ()
    if own or bos is Bos.TOKENIZER:
        return own
    named = getattr(config.get_text_config(), "bos_token_id", None)
    if named is None or named == []:
        raise InputError(
            "calibration.bos always: neither the tokenizer nor the config of this "
            f"{config.model_type} model names a beginning-of-text "
            "token; set bos_token_id under `config`, or calibration.bos: tokenizer"
        )
    return (int(named[0] if isinstance(named, list) else named),)


def token_ids(
    source: TokenSource,
    entry: Mapping[str, Any],
    config: Any,
    settings: Settings,
    begin: tuple[int, ...],
) -> np.ndarray:
    """Ids (sequences, length), or (sequences, length, 2) = encoder, decoder for an encoder-decoder.

    Encoders: windows between the tokenizer's own special tokens. Decoders of encoder-decoders begin
    with their start token, and the decoder of T5 continues the text that its encoder reads.
    Decoder-only models: windows behind `begin`.
    """
    interface, length = source.interface, settings.length
    vocabulary = vocabulary_size(config)
    prefix: tuple[int, ...] = begin
    suffix: tuple[int, ...] = ()
    if source.tokenizer and interface in (Interface.ENCODER, Interface.ENCODER_DECODER):
        prefix, suffix = source.tokenizer.prefix, source.tokenizer.suffix
    start = (
        (config.decoder_start_token_id,)
        if interface in (Interface.ENCODER_DECODER, Interface.SPEECH)
        else ()
    )
    if None in start:
        raise InputError(
            f"config of this {config.model_type} model: decoder_start_token_id is missing; set it "
            "under `config`"
        )
    if interface is Interface.SPEECH:
        prefix, start = start, ()
    content = length - len(prefix) - len(suffix)
    continuation = length - len(start) if interface is Interface.ENCODER_DECODER else 0
    if content < 1:
        raise InputError(
            f"calibration.length {length}: leaves no room beside the special tokens; raise it"
        )
    windows = _windows(source, entry, config, content + continuation, settings)
    rows = _framed(windows[:, :content], prefix, suffix)
    if interface is Interface.ENCODER_DECODER:
        rows = np.stack([rows, _framed(windows[:, content:], start, ())], axis=2)
    if rows.max() >= vocabulary:
        raise InputError(
            f"special token id {rows.max()} is beyond the model's vocabulary of {vocabulary}; use "
            "the model's own tokenizer"
        )
    return rows


def _windows(
    source: TokenSource, entry: Mapping[str, Any], config: Any, size: int, settings: Settings
) -> np.ndarray:
    """(sequences, size) ids of the documents, or generated ones."""
    if source.tokenizer is None:
        return _random_ids(config, source.folder, (settings.sequences, size), settings.seed)
    texts = [document["text"] for document in source.documents]
    separator = corpus_named(entry["calibration"]).separator
    stream = token_stream(texts, separator, source.tokenizer.tokenizer, vocabulary_size(config))
    return choose_windows(stream, size, settings.sequences, settings.seed)


def _framed(windows: np.ndarray, prefix: tuple[int, ...], suffix: tuple[int, ...]) -> np.ndarray:
    before = np.tile(np.asarray(prefix, dtype=np.int32), (len(windows), 1))
    after = np.tile(np.asarray(suffix, dtype=np.int32), (len(windows), 1))
    return np.concatenate([before, windows, after], axis=1)


def _random_ids(
    config: Any, folder: str | os.PathLike[str], shape: tuple[int, int], seed: int
) -> np.ndarray:
    """Uniform ids over the vocabulary without the special ids that the config or the folder's
    tokenizer names: int32.
    """
    excluded = special_ids(config) | special_tokens(folder)
    allowed = np.setdiff1d(np.arange(vocabulary_size(config), dtype=np.int32), sorted(excluded))
    if not allowed.size:
        raise InputError(
            f"vocabulary of {vocabulary_size(config)}: holds special tokens only; random ids need "
            "at least one other"
        )
    return np.random.default_rng(seed).choice(allowed, size=shape)
