"""The sequences on which a model is observed: uniformly random token ids, many short sequences.

Short sequences make the inputs of the attention output maps vary most, and give heads that read one
position per sequence enough rows. One sequence as long as the model allows makes every learned
position occur.
"""

from __future__ import annotations

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
POSITIONS_AT_ONCE = 1024
SPEECH_FRAMES, SPEECH_SEQUENCES = 3000, 2


def probes(
    config: Any, positions: int, seed: int, cover: bool
) -> Iterator[dict[str, torch.Tensor]]:
    """Keyword arguments of forward passes with at least `positions` token positions in all.

    `cover` begins with one sequence of every learned position. Raises InputError for a model that
    does not take token ids or speech.
    """
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
