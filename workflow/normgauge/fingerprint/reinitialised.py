"""The re-initialised twins of a checkpoint: same class and config, fresh weights by seed, same
calibration, same rows.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

from normgauge.anatomy import describe
from normgauge.calibration.batches import Batch, batches, count_sequences
from normgauge.capture.settings import CaptureSettings
from normgauge.capture.study import forward_device
from normgauge.checkpoints.drawing import twin
from normgauge.checkpoints.opening import open_checkpoint
from normgauge.checkpoints.readers.mapped import made_anew
from normgauge.checkpoints.skeleton import Skeleton, skeleton
from normgauge.fingerprint.files import read_identity
from normgauge.fingerprint.memory import Plan, Source, measure_model
from normgauge.fingerprint.study import Rows
from normgauge.provenance import execution_environment, library_hash, resumable_folder
from normgauge.schemas.fingerprint import tables
from normgauge.tables import read_metadata

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

    One process for all seeds. One block of one twin is in memory at a time: it is drawn when it is
    needed. Moments are not kept on disk, because they can be had again from the seed. Work that was
    killed goes on behind its last finished block.
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

    def one(seed: int, folder: Path) -> tuple[Rows, Rows, Rows]:
        fresh = twin(checkpoint, seed)
        of_norms = {part for norm in anatomy.norms for part in (norm.gain, norm.bias) if part}
        parts = {name: made_anew(fresh.tensors, name) for name in of_norms}

        def build(forward_dtype: str) -> tuple[Skeleton, Mapping[str, torch.Tensor]]:
            return skeleton(fresh, forward_dtype, device), parts

        label = f"{identity.model} re-initialised, seed {seed}"
        return measure_model(build, anatomy, identity, batched, plan, label, folder)

    provenance = {
        "model": identity.model,
        "revision": identity.revision,
        "seeds": str(sorted(seeds)),
        "forward_device": device.type,
        **execution_environment(),
    }
    key = json.dumps(
        [
            provenance,
            asdict(settings),
            force_cov32,
            read_metadata(calibration),
            repr(checkpoint.config),
            library_hash(),
        ],
        default=dict,
    )
    with resumable_folder(Path(outputs["fingerprint"]).with_suffix(""), key) as folder:
        results = {seed: one(seed, folder / f"seed-{seed}") for seed in seeds}
    for position, kind in enumerate(("fingerprint", "schur", "stacks")):
        rows = [{"seed": seed, **row} for seed, parts in results.items() for row in parts[position]]
        tables.write(outputs[kind], f"reinitialised_{kind}", rows, provenance)
