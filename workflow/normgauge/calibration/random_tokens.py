"""The sequences on which a model is observed: uniformly random token ids, many short sequences.

Short sequences make the inputs of the attention output maps vary most, and give heads that read one
position per sequence enough rows. One sequence as long as the model allows makes every learned
position occur.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from normgauge.calibration.interfaces import (
    Interface,
    interface_of,
    maximum_length,
    vocabulary_size,
)
from normgauge.errors import InputError

LENGTH = 8
PUBLISHED_SEED, PUBLISHED_SHAPE, PUBLISHED_VOCABULARY = 32, (8, 1024), 50257
PUBLISHED_SHA256 = "50c674a8d7a91b94"
"""The digits that the exact-recovery paper prints, of its ids as little-endian int64."""
POSITIONS_AT_ONCE = 1024
SPEECH_FRAMES, SPEECH_SEQUENCES = 3000, 2


def published_ids(seed: int = PUBLISHED_SEED) -> np.ndarray:
    """(8, 1024) int64: the ids of the exact-recovery paper's protocol, those of `seed` 32 with the
    sha256 that it prints.

    Raises InputError when this numpy draws others.
    """
    ids = np.random.default_rng(seed).integers(0, PUBLISHED_VOCABULARY, PUBLISHED_SHAPE)
    digest = hashlib.sha256(ids.astype("<i8").tobytes()).hexdigest()
    if seed == PUBLISHED_SEED and not digest.startswith(PUBLISHED_SHA256):
        raise InputError(
            f"published ids: sha256 {digest[:16]}, printed is {PUBLISHED_SHA256}; numpy "
            f"{np.__version__} draws other numbers from the seed, use another version"
        )
    return ids


def published_probes(config: Any, positions: int, seed: int) -> Iterator[dict[str, torch.Tensor]]:
    """Keyword arguments of forward passes of the published protocol, a sequence each: as many sets
    of ids as hold `positions`, from `seed` on.

    Raises InputError for a model that does not take these ids.
    """
    count, length = PUBLISHED_SHAPE
    longest = maximum_length(config) or length
    if interface_of(config) is not Interface.DECODER:
        raise InputError(f"published protocol: a {config.model_type} model is no decoder of ids")
    if vocabulary_size(config) < PUBLISHED_VOCABULARY or longest < length:
        raise InputError(
            f"published protocol: ids below {PUBLISHED_VOCABULARY} in sequences of {length}, the "
            f"model takes ids below {vocabulary_size(config)} in sequences of {longest}; take it "
            "out of exact_recovery.published_protocol"
        )
    for number in range(-(-positions // (count * length))):
        for ids in published_ids(seed + number):
            yield {"input_ids": torch.from_numpy(ids)[None]}


def probes(
    config: Any, positions: int, seed: int, cover: bool, published: bool = False
) -> Iterator[dict[str, torch.Tensor]]:
    """Keyword arguments of forward passes with at least `positions` token positions in all.

    `cover` begins with one sequence of every learned position. `published` takes the sequences of
    the published protocol. Raises InputError for a model that does not take token ids or speech.
    """
    if published:
        yield from published_probes(config, positions, seed)
        return
    interface = interface_of(config)
    if interface not in (
        Interface.DECODER,
        Interface.ENCODER,
        Interface.ENCODER_DECODER,
        Interface.SPEECH,
    ):
        raise InputError(
            f"a {config.model_type} model takes {interface}; recovery observes models of token ids "
            "and of speech"
        )
    generator = np.random.default_rng(seed)
    longest = maximum_length(config)
    if cover and longest:
        yield _inputs(interface, config, generator, 1, longest)
        positions -= longest
    length = min(longest or LENGTH, LENGTH)
    if interface is Interface.SPEECH:
        length = int(longest or LENGTH)
    at_once = SPEECH_SEQUENCES if interface is Interface.SPEECH else POSITIONS_AT_ONCE // length
    while positions > 0:
        count = min(at_once, -(-positions // length))
        yield _inputs(interface, config, generator, count, length)
        positions -= count * length


def every_token(config: Any, seed: int) -> Iterator[dict[str, torch.Tensor]]:
    """Keyword arguments of forward passes in which every token occurs, in short sequences, in order
    of the ids; nothing for models whose embedding comes after another stack.
    """
    interface = interface_of(config)
    if interface not in (Interface.DECODER, Interface.ENCODER):
        return
    generator, count = np.random.default_rng(seed), vocabulary_size(config)
    length = min(maximum_length(config) or LENGTH, LENGTH)
    ids = np.arange(-(-count // length) * length).reshape(-1, length) % count
    for start in range(0, len(ids), POSITIONS_AT_ONCE // length):
        part = torch.from_numpy(ids[start : start + POSITIONS_AT_ONCE // length])
        yield _inputs(interface, config, generator, *part.shape) | {"input_ids": part}


def _inputs(
    interface: Interface, config: Any, generator: np.random.Generator, count: int, length: int
) -> dict[str, torch.Tensor]:
    def ids(vocabulary: int = vocabulary_size(config)) -> torch.Tensor:
        return torch.from_numpy(generator.integers(0, vocabulary, (count, length)))

    match interface:
        case Interface.ENCODER:
            return {"input_ids": ids(), "token_type_ids": ids(config.type_vocab_size)}
        case Interface.ENCODER_DECODER:
            return {"input_ids": ids(), "decoder_input_ids": ids()}
        case Interface.SPEECH:
            features = torch.from_numpy(
                generator.standard_normal((count, config.num_mel_bins, SPEECH_FRAMES))
            )
            return {"input_features": features, "decoder_input_ids": ids()}
        case _:
            return {"input_ids": ids()}
