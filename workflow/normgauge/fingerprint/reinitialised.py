"""The re-initialised twins of a checkpoint: same class and config, fresh weights by seed, same
calibration, same rows.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from normgauge.anatomy import describe
from normgauge.calibration.batches import Batch, batches, count_sequences
from normgauge.capture.settings import CaptureSettings
from normgauge.capture.study import forward_device
from normgauge.checkpoints.building import reinitialise
from normgauge.checkpoints.opening import open_checkpoint
from normgauge.checkpoints.skeleton import Skeleton, held_skeleton
from normgauge.fingerprint.files import read_identity
from normgauge.fingerprint.memory import Plan, Source, measure_model
from normgauge.fingerprint.study import Rows
from normgauge.provenance import execution_environment
from normgauge.schemas.fingerprint import tables

PathLike = str | os.PathLike[str]


def fingerprint_reinitialised(
    folder: PathLike,
    manifest: PathLike,
    calibration: PathLike,
    outputs: Mapping[str, PathLike],
    settings: CaptureSettings,
    seeds: Sequence[int],
    *,
    config_overrides: Mapping[str, Any] | None = None,
    force_cov32: bool = False,
) -> None:
    """Write reinitialised/{fingerprint,schur,stacks}.parquet: the rows of every seed, with a column
    `seed`.

    One process for all seeds: a model is built, captured and dropped before the next; moments are
    not kept on disk, because they can be had again from the seed.
    """
    batch_size = settings.batch_size
    checkpoint = open_checkpoint(Path(folder), config_overrides)
    anatomy, device = describe(checkpoint.config), forward_device(settings.gpus)
    identity = replace(
        read_identity(manifest), provenance="random initialisation", precision="full"
    )
    sequences = count_sequences(calibration)

    def source() -> Iterable[Batch]:
        return batches(
            calibration,
            folder=folder,
            config=checkpoint.config,
            batch_size=batch_size,
            groups=settings.jackknife_groups,
        )

    batched = Source(source, -(-sequences // batch_size), sequences / min(batch_size, sequences))
    plan = Plan(settings.forward_dtypes, settings.schur_sites, settings.accumulation, force_cov32)

    def one(seed: int) -> tuple[Rows, Rows, Rows]:
        def build(forward_dtype: str) -> tuple[Skeleton, Mapping[str, torch.Tensor]]:
            model = reinitialise(checkpoint, seed, forward_dtype).to(device)
            return held_skeleton(model), model.state_dict()

        return measure_model(
            build, anatomy, identity, batched, plan, f"{identity.model} re-initialised, seed {seed}"
        )

    results = {seed: one(seed) for seed in seeds}
    provenance = {
        "model": identity.model,
        "revision": identity.revision,
        "seeds": str(sorted(results)),
        "forward_device": device.type,
    }
    for position, kind in enumerate(("fingerprint", "schur", "stacks")):
        rows = [{"seed": seed, **row} for seed, parts in results.items() for row in parts[position]]
        tables.write(
            outputs[kind], f"reinitialised_{kind}", rows, {**provenance, **execution_environment()}
        )
