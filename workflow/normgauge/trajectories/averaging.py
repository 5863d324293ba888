"""The average of two checkpoints: as they are, without signs, and with the second as `normgauge
align` writes it.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from normgauge.anatomy.structure import Anatomy
from normgauge.calibration.batches import Batch
from normgauge.checkpoints.opening import open_checkpoint
from normgauge.gauge.model_gauge import Gauge, read_gauge
from normgauge.gauge.transform import transform_unchecked
from normgauge.schemas.trajectories import (
    ONE_BASE,
    PERMUTED,
    PLACED,
    RECORDED,
    SIGNED,
    TRAINED_APART,
    UNALIGNED,
)
from normgauge.trajectories.interpolation import Interpolated
from normgauge.trajectories.merging import alignments, pair_of
from normgauge.transport.aligning import align_folders

PathLike = str | os.PathLike[str]
Tensors = Mapping[str, torch.Tensor]


@dataclass(frozen=True)
class Recorded:
    """Gauges that two runs of one base have started with: files of schema `gauge`."""

    first: PathLike
    second: PathLike


def average_rows(
    folders: tuple[PathLike, PathLike],
    probes: Sequence[Batch],
    texts: Mapping[str, torch.Tensor],
    recorded: Recorded | None = None,
) -> Iterator[dict[str, Any]]:
    """Rows of schema `aligned_merges` without the pair's names: every way of aligning by every
    text, int64 (sequences, tokens) by its name.

    Both are matched on `probes`. With recorded gauges the two are fine-tunes of one base, and the
    average in the base's own coordinates is there as well: what it would have been without any
    gauge. Raises InputError for checkpoints of unlike shapes.
    """
    first, second = (open_checkpoint(folder) for folder in folders)
    pair = pair_of(first, second, stream_alone=False)
    permuted = alignments(pair, second, probes)[PERMUTED]
    with tempfile.TemporaryDirectory() as scratch:
        # an optimizer's state does not follow the maps of heads
        found, _ = align_folders(*folders, Path(scratch) / "aligned", probes, leave_behind=True)
        aligned = open_checkpoint(Path(scratch) / "aligned")
        ways: dict[str, Tensors] = {
            UNALIGNED: second.tensors,
            PERMUTED: _moved(pair.anatomy, second.tensors, permuted),
            PLACED: _moved(pair.anatomy, second.tensors, found.gauge.inverse().without_signs()),
            SIGNED: aligned.tensors,
        }
    if recorded is not None:
        back, forth = read_gauge(recorded.second).inverse(), read_gauge(recorded.first)
        as_trained = _moved(pair.anatomy, second.tensors, back)
        ways[RECORDED] = _moved(pair.anatomy, as_trained, forth)
    certain = float(np.concatenate([each.certain for each in found.spaces]).mean())
    for text, sequences in texts.items():
        line_of = Interpolated(first, sequences)
        for way, tensors in ways.items():
            line = line_of.line(tensors, 3)
            rises = line.rises[1]
            yield {
                "kind": TRAINED_APART if recorded is None else ONE_BASE,
                "way": way,
                "text": text,
                "sequences": len(rises),
                "first_loss": float(line.means[0]),
                "second_loss": float(line.means[2]),
                "average_loss": float(line.means[1]),
                "rise": float(rises.mean()),
                "rise_error": float(rises.std(ddof=1) / len(rises) ** 0.5),
                "apart": _apart(first.tensors, tensors),
                "certain": certain,
            }


def _moved(anatomy: Anatomy, tensors: Tensors, gauge: Gauge) -> Tensors:
    return dict(transform_unchecked(anatomy, tensors, gauge))


def _apart(first: Tensors, second: Tensors) -> float:
    """Distance of two models' tensors over the norm of the first."""
    pairs = [(value.double(), second[name].double()) for name, value in first.items()]
    gap = sum(float((one - other).square().sum()) for one, other in pairs)
    return (gap / sum(float(one.square().sum()) for one, _ in pairs)) ** 0.5
