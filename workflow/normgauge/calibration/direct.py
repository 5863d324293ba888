"""Batches made on the spot, without a file of the workflow: drawn, cut from a text, or given by the
caller.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Any

import torch

from normgauge.anatomy import describe
from normgauge.calibration.batches import Batch, batches
from normgauge.calibration.interfaces import (
    MODALITIES,
    Interface,
    interface_of,
    maximum_length,
    vocabulary_size,
)
from normgauge.calibration.prepare import prepare
from normgauge.calibration.settings import Bos, Settings
from normgauge.calibration.token_ids import beginning, token_ids, token_source
from normgauge.errors import InputError

LENGTH = 256
POSITIONS = 2048  # at least
PROBES = 8  # sequences on which two models are matched
PER_COORDINATE = 10  # positions, at least: below that a spectrum's bottom is flagged
MASKS = {"encoder": "attention_mask", "decoder": "decoder_attention_mask"}


@dataclass(frozen=True)
class Inputs:
    """What enters a model. `words`: what it is, for a summary. `sequences`: of all batches
    together.
    """

    batches: tuple[Batch, ...]
    words: str
    sequences: int


def default_settings(config: Any, sequences: int | None, length: int | None, seed: int) -> Settings:
    """Sizes that suit a model: sequences of LENGTH or of all its positions, as many as reach
    POSITIONS and PER_COORDINATE.

    What is given is kept. Raises InputError for sizes below 1.
    """
    for name, value in (("sequences", sequences), ("length", length)):
        if value is not None and value < 1:
            raise InputError(f"{name} {value}: expected at least 1")
    limit = (
        maximum_length(config)
        if interface_of(config) not in (Interface.IMAGE, Interface.RECEPTOR)
        else None
    )
    length = length or min(LENGTH, limit or LENGTH)
    width = max(stack.width for stack in describe(config).stacks)
    return Settings(sequences or -(-max(POSITIONS, PER_COORDINATE * width) // length), length, seed)


def probe_settings(
    config: Any, sequences: int | None = None, length: int | None = None, seed: int = 0
) -> Settings:
    """Sizes for a comparison of two models on the same inputs: PROBES sequences, unless others are
    given.
    """
    return default_settings(config, sequences or PROBES, length, seed)


def drawn_inputs(
    config: Any,
    settings: Settings,
    folder: Path | None = None,
    batch_size: int = 8,
    groups: int = 0,
) -> Inputs:
    """Random token ids, or noise for pictures and sound: those of the workflow's calibration under
    the same settings.

    `folder`: the checkpoint's, whose tokenizer may name special tokens that are left out. Raises
    InputError for T-cell receptors, which have no random inputs, and as `prepare`.
    """
    interface = interface_of(config)
    if interface is Interface.RECEPTOR:
        raise InputError(
            "T-cell receptors are not drawn at random; name their corpus (--tokens tcr) or give "
            "batches"
        )
    noise = interface in (Interface.IMAGE, Interface.SPEECH)
    corpus, words = ("random-noise", "noise") if noise else ("random-tokens", "random tokens")
    with tempfile.TemporaryDirectory() as scratch:
        place = folder or Path(scratch)
        return prepared_inputs(
            config,
            settings,
            place,
            corpus,
            None,
            batch_size,
            groups,
            f"{words}, seed {settings.seed}",
        )


def prepared_inputs(
    config: Any,
    settings: Settings,
    folder: Path,
    corpus: str,
    corpus_path: Path | None,
    batch_size: int = 8,
    groups: int = 0,
    words: str = "",
) -> Inputs:
    """The batches that the workflow would make of a corpus. Raises InputError as `prepare`."""
    entry = {"modality": MODALITIES[interface_of(config)][-1], "calibration": corpus}
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "calibration.parquet"
        prepare(entry, folder, corpus_path, path, config=config, settings=settings)
        found = tuple(
            batches(path, folder=folder, config=config, batch_size=batch_size, groups=groups)
        )
    return _described(found, words or corpus)


def text_inputs(
    config: Any,
    settings: Settings,
    folder: Path,
    texts: Sequence[str],
    words: str,
    batch_size: int = 8,
    groups: int = 0,
) -> Inputs:
    """Windows of the caller's texts, cut by the folder's tokenizer as those of a corpus.

    Raises InputError for a model that takes no text, a folder without a tokenizer, and texts that
    are too short.
    """
    interface = interface_of(config)
    if interface not in (Interface.DECODER, Interface.ENCODER, Interface.ENCODER_DECODER):
        raise InputError(
            f"{words}: a {config.model_type} model takes {interface}, no text; leave --tokens out"
        )
    source = token_source(interface, [{"text": text} for text in texts], folder, None)
    joined = {"calibration": "kjv"}  # documents are joined by line breaks, as those of this corpus
    ids = torch.from_numpy(
        token_ids(source, joined, config, settings, beginning(source, config, Bos.NEVER))
    ).long()
    if interface is Interface.ENCODER_DECODER:
        named = [
            {"input_ids": part[..., 0], "decoder_input_ids": part[..., 1]}
            for part in ids.split(batch_size)
        ]
        found = given_inputs(config, named, groups=groups)
    else:
        found = given_inputs(config, [ids], batch_size, groups)
    return replace(found, words=f"{len(ids)} sequences of {ids.shape[1]} ({words})")


def given_inputs(config: Any, given: Iterable[Any], batch_size: int = 8, groups: int = 0) -> Inputs:
    """Inputs of the caller's: dicts of tensors as a tokenizer returns them, or sequences of token
    ids.

    A dict is one batch: int64 (batch, positions) ids and masks, floating-point features; `labels`
    are left out, and positions where `attention_mask` is 0 do not count. A tensor or list of ids is
    one sequence, (positions,), or several, (batch, positions); neighbours of one length enter
    together. Raises InputError for no batch, another type, and ids beyond the model's vocabulary or
    positions.
    """
    items = [given] if isinstance(given, Mapping) else list(given)
    found = list(_joined(items, config, batch_size))
    if not found:
        raise InputError(
            "batches: none given; give at least one, or leave batches out for random tokens"
        )
    for batch in found:
        _check_ids(batch, config)
    total = sum(map(_size, found))
    if groups:
        found = list(_grouped(found, total, min(groups, total)))
    return _described(tuple(found), "given batches")


def _joined(items: Sequence[Any], config: Any, batch_size: int) -> Iterator[Batch]:
    """Mappings one by one; runs of sequences of one length as batches of `batch_size`."""
    for shape, run in groupby(
        items, key=lambda item: None if isinstance(item, Mapping) else tuple(_ids(item).shape[-1:])
    ):
        if shape is None:
            yield from (_from_mapping(item, config) for item in run)
            continue
        rows = torch.cat([_ids(item).reshape(-1, shape[0]) for item in run])
        yield from (_from_mapping({"input_ids": part}, config) for part in rows.split(batch_size))


def _ids(item: Any) -> torch.Tensor:
    try:
        ids = torch.as_tensor(item)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(
            f"batches: {type(item).__name__} is no batch; give dicts of tensors or lists of token "
            "ids"
        ) from error
    if ids.is_floating_point() or ids.ndim not in (1, 2) or not ids.numel():
        raise InputError(
            f"batches: {ids.dtype} of shape {list(ids.shape)}; expected token ids (positions,) or "
            "(batch, positions)"
        )
    return ids.long()


def _from_mapping(item: Mapping[str, Any], config: Any) -> Batch:
    inputs = {}
    for name, value in item.items():
        if name == "labels" or value is None:
            continue
        if not isinstance(value, torch.Tensor):
            raise InputError(
                f"batches: {name} is {type(value).__name__}; expected tensors (return_tensors='pt')"
            )
        inputs[name] = value if value.is_floating_point() else value.long()
    if not inputs:
        raise InputError(
            "batches: an empty dict; expected at least input_ids, pixel_values or input_features"
        )
    if interface_of(config) is Interface.ENCODER_DECODER and "decoder_input_ids" not in inputs:
        raise InputError(
            "batches: decoder_input_ids is missing, which an encoder-decoder takes beside "
            "input_ids; add it"
        )
    stacks = [stack.name for stack in describe(config).stacks]
    keys = MASKS if len(stacks) > 1 else dict.fromkeys(stacks, "attention_mask")
    masks = {
        stack: inputs[keys[stack]].bool() if keys[stack] in inputs else None for stack in stacks
    }
    return Batch(inputs, masks)


def _check_ids(batch: Batch, config: Any) -> None:
    limit = maximum_length(config)
    for name in ("input_ids", "decoder_input_ids"):
        ids = batch.inputs.get(name)
        if ids is None or ids.ndim != 2:
            continue
        vocabulary = vocabulary_size(config)
        if not 0 <= int(ids.min()) <= int(ids.max()) < vocabulary:
            raise InputError(
                f"batches: {name} holds {int(ids.min())} to {int(ids.max())}, the model has "
                f"{vocabulary} tokens; use its own tokenizer"
            )
        if limit is not None and ids.shape[1] > limit:
            raise InputError(
                f"batches: {name} has {ids.shape[1]} positions, the model takes {limit}; cut the "
                "sequences"
            )


def _size(batch: Batch) -> int:
    return len(next(iter(batch.inputs.values())))


def _grouped(found: Sequence[Batch], total: int, groups: int) -> Iterator[Batch]:
    """The same batches, neighbouring sequences in one group, as `batches` forms them."""
    start = 0
    for batch in found:
        numbers = range(start, start + _size(batch))
        yield replace(batch, groups=tuple(number * groups // total for number in numbers))
        start += len(numbers)


def _described(found: tuple[Batch, ...], words: str) -> Inputs:
    sequences = sum(map(_size, found))
    lengths = sorted(
        {
            value.shape[1]
            for batch in found
            for name, value in batch.inputs.items()
            if name == "input_ids"
        }
    )
    of = (
        f" of {lengths[0]}"
        if len(lengths) == 1
        else f" of {lengths[0]} to {lengths[-1]}"
        if lengths
        else ""
    )
    return Inputs(found, f"{sequences} sequences{of} ({words})", sequences)
