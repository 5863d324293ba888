"""From calibration.parquet to the keyword arguments of a forward pass."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from normgauge.calibration.corpora import digest_lines
from normgauge.calibration.inputs import (
    SAMPLING_RATE,
    content_sha256,
    image_processor,
    noise_pixels,
    noise_waveform,
    picture,
    pixel_values,
)
from normgauge.calibration.interfaces import Interface, interface_of
from normgauge.errors import InputError
from normgauge.schemas.inputs import tables
from normgauge.tables import read_metadata

Rows = list[dict[str, Any]]


@dataclass(frozen=True)
class Batch:
    """`inputs`: keyword arguments of the model's forward (ids int64, features float32).

    `masks[stack]`: bool (batch, positions), true where a position counts, or None when all do.
    `groups`: of each sequence, the number of its group in the whole calibration; empty where
        sequences are not grouped.
    """

    inputs: Mapping[str, Tensor]
    masks: Mapping[str, Tensor | None]
    groups: tuple[int, ...] = ()


def count_sequences(path: str | os.PathLike[str]) -> int:
    """Number of rows of calibration.parquet."""
    return len(tables.read(path, "calibration"))


def batches(
    path: str | os.PathLike[str],
    *,
    folder: str | os.PathLike[str],
    config: Any,
    shard: tuple[int, int] = (0, 1),
    batch_size: int = 8,
    groups: int = 0,
) -> Iterator[Batch]:
    """Batches of the rows [n i / c, n (i + 1) / c) of shard (i, c), in order.

    groups: into how many groups the sequences of the whole calibration are sorted; 0 for none.

    `folder` is the checkpoint's, read for its preprocessor_config.json alone. Everything is
    verified before the first batch: raises InputError when the file, or a row's content, does not
    have the sha256 written when it was prepared, when its kind does not suit the model, or when the
    shard is impossible or empty.
    """
    rows = tables.read(path, "calibration")
    if digest_lines(row["sha256"] for row in rows) != read_metadata(path).get("ids_sha256"):
        raise InputError(
            f"{Path(path).name}: rows differ from the ids_sha256 in its metadata; delete it and "
            "rerun"
        )
    index, count = shard
    if not 0 <= index < count or count > len(rows):
        raise InputError(
            f"shard {index} of {count}: expected 0 <= shard < shards <= {len(rows)} sequences; "
            "lower capture.shards"
        )
    part = slice(len(rows) * index // count, len(rows) * (index + 1) // count)
    chosen = rows[part]
    numbers = sequence_groups(rows, groups)[part] if groups else ()
    channels = getattr(config, "num_channels", 3)
    for row in chosen:
        if content_sha256(row, channels) != row["sha256"]:
            raise InputError(
                f"{Path(path).name}: sequence {row['sequence']} does not match its sha256; delete "
                "the file and rerun"
            )
    assemble = _assembler(chosen[0]["kind"], Path(path).name, folder, config)
    spans = (slice(start, start + batch_size) for start in range(0, len(chosen), batch_size))
    return (replace(assemble(chosen[span]), groups=tuple(numbers[span])) for span in spans)


def sequence_groups(rows: Rows, count: int) -> list[int]:
    """Of each row of a calibration the number of its group, from 0 to at most count - 1.

    A jackknife over sequences leaves a group out at once. Neighbours stand together, since passages
    of one text resemble each other, and so do all crops of one picture, which lie apart.
    """
    units = [
        row["source"].rpartition(", ")[0] if row["kind"] == "image" else number
        for number, row in enumerate(rows)
    ]
    order = {unit: place for place, unit in enumerate(dict.fromkeys(units))}
    found = min(count, len(order))
    return [order[unit] * found // len(order) for unit in units]


def _assembler(
    kind: str, name: str, folder: str | os.PathLike[str], config: Any
) -> Callable[[Rows], Batch]:
    interface = interface_of(config)
    expected = {
        Interface.SPEECH: ("audio-noise",),
        Interface.IMAGE: ("image", "image-noise"),
        Interface.RECEPTOR: ("token-grid",),
    }.get(interface, ("ids",))
    if kind not in expected:
        raise InputError(
            f"{name}: holds {kind}, but a {config.model_type} model takes {interface}; delete it "
            "and rerun"
        )
    match interface:
        case Interface.DECODER:
            return lambda rows: Batch({"input_ids": _ids(rows)[..., 0]}, {"decoder": None})
        case Interface.ENCODER:
            return lambda rows: Batch({"input_ids": _ids(rows)[..., 0]}, {"encoder": None})
        case Interface.ENCODER_DECODER:
            return _encoder_decoder
        case Interface.SPEECH:
            return _speech(config)
        case Interface.IMAGE:
            return _images(folder, config)
        case Interface.RECEPTOR:
            return _receptors


def _ids(rows: Rows) -> Tensor:
    """int64 (batch, positions, columns)."""
    return torch.tensor(
        [np.reshape(row["ids"], (-1, row["columns"])).tolist() for row in rows], dtype=torch.int64
    )


def _encoder_decoder(rows: Rows) -> Batch:
    ids = _ids(rows)
    return Batch(
        {"input_ids": ids[..., 0], "decoder_input_ids": ids[..., 1]},
        {"encoder": None, "decoder": None},
    )


def _speech(config: Any) -> Callable[[Rows], Batch]:
    from transformers import WhisperFeatureExtractor

    extractor = WhisperFeatureExtractor(feature_size=config.num_mel_bins)

    def assemble(rows: Rows) -> Batch:
        waveforms = [noise_waveform(row["seed"]) for row in rows]
        features = extractor(waveforms, sampling_rate=SAMPLING_RATE, return_tensors="np")[
            "input_features"
        ]
        inputs = {
            "input_features": torch.from_numpy(np.asarray(features, dtype=np.float32)),
            "decoder_input_ids": _ids(rows)[..., 0],
        }
        return Batch(inputs, {"encoder": None, "decoder": None})

    return assemble


def _images(folder: str | os.PathLike[str], config: Any) -> Callable[[Rows], Batch]:
    processor = image_processor(config, folder)

    def pixels(row: dict[str, Any]) -> np.ndarray:
        if row["kind"] == "image-noise":
            return noise_pixels(row["seed"], row["columns"], config.num_channels)
        return pixel_values(processor, picture(row["payload"], row["seed"]), config)

    return lambda rows: Batch(
        {"pixel_values": torch.from_numpy(np.stack([pixels(row) for row in rows]))},
        {"encoder": None},
    )


def _receptors(rows: Rows) -> Batch:
    """Grids padded with zeros to the longest of the batch: int64 (batch, positions, 4); padded
    positions do not count.
    """
    grids = [
        torch.tensor(row["ids"], dtype=torch.int64).reshape(-1, row["columns"]) for row in rows
    ]
    tokens = torch.nn.utils.rnn.pad_sequence(grids, batch_first=True)
    return Batch({"input_ids": tokens}, {"encoder": tokens[..., 0] != 0})
