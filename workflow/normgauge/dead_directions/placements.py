"""The same small body with its norms in different places, at random initialisation: does the
placement alone lower the smallest singular value? (arXiv 2606.19491, table 4.)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from normgauge.anatomy import describe
from normgauge.calibration.batches import Batch
from normgauge.checkpoints.building import reinitialise
from normgauge.checkpoints.configuration import parse_config
from normgauge.checkpoints.layout import read_json
from normgauge.checkpoints.skeleton import Skeleton, held_skeleton
from normgauge.dead_directions.subject import PathLike, Rows
from normgauge.fingerprint.mechanism import mechanism_rows
from normgauge.fingerprint.memory import Plan, Source, capture_measurements
from normgauge.fingerprint.study import Identity, fingerprint_rows

FORWARD = "float32"
GROUPS = ("residual", "taps", "deltas")


def placement_rows(
    shapes: Sequence[PathLike], seeds: Sequence[int], sequences: int, length: int, groups: int
) -> Rows:
    """Rows of schema `mechanism` of decoder-only configurations (JSON files) with fresh weights of
    each seed, on `sequences` x `length` uniformly random tokens.

    Raises InputError as `parse_config` and `describe` do, and for fewer tokens than coordinates.
    """
    return [
        row
        for shape in map(Path, shapes)
        for seed in seeds
        for row in _rows(shape, seed, sequences, length, groups)
    ]


def _rows(shape: Path, seed: int, sequences: int, length: int, groups: int) -> Rows:
    config = parse_config(read_json(shape))
    anatomy = describe(config)
    identity = Identity(
        model=shape.stem,
        revision=f"seed{seed}",
        family=anatomy.family,
        provenance="random initialisation",
        precision="full",
        objective=None,
        placement=str(anatomy.placement),
        blocks={stack.name: len(stack.blocks) for stack in anatomy.stacks},
        primary=anatomy.primary_stack.name,
    )

    def build(dtype: str) -> tuple[Skeleton, Mapping[str, torch.Tensor]]:
        model = reinitialise(config, seed, dtype)
        return held_skeleton(model), model.state_dict()

    batches = list(random_batches(config, sequences, length, groups))
    source = Source(lambda: batches, len(batches), float(len(batches)))
    measurements = capture_measurements(
        build, anatomy, source, Plan({FORWARD: GROUPS}), f"{identity.model}, seed {seed}"
    )
    rows = [row for each in measurements for row in fingerprint_rows(each, identity)]
    return mechanism_rows(measurements, identity, rows)


def random_batches(config: Any, sequences: int, length: int, groups: int) -> Iterable[Batch]:
    """One batch of equal size for each group of sequences: the same ids for every configuration of
    one vocabulary.
    """
    ids = np.random.default_rng(0).integers(config.vocab_size, size=(sequences, length))
    for group, part in enumerate(np.array_split(ids, groups)):
        yield Batch({"input_ids": torch.from_numpy(part)}, {"decoder": None}, (group,) * len(part))
