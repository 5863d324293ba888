"""The re-initialised twins of a checkpoint: same class and config, fresh weights by seed, same calibration, same rows."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from normgauge.anatomy import describe
from normgauge.calibration.batches import Batch, batches, count_sequences
from normgauge.capture import capture_model, norm_rows
from normgauge.capture.study import forward_device, select_sites
from normgauge.checkpoints.building import reinitialise
from normgauge.checkpoints.opening import open_checkpoint
from normgauge.fingerprint.files import norm_facts, read_identity
from normgauge.fingerprint.study import Measurement, Rows, measure
from normgauge.provenance import execution_environment
from normgauge.schemas.fingerprint import tables

PathLike = str | os.PathLike[str]


def fingerprint_reinitialised(
    *,
    folder: PathLike,
    manifest: PathLike,
    calibration: PathLike,
    outputs: Mapping[str, PathLike],
    config_overrides: Mapping[str, Any] | None,
    seeds: Sequence[int],
    forward_dtypes: Mapping[str, Sequence[str]],
    schur_taps: Sequence[str] | None,
    accumulation: str,
    batch_size: int,
    jackknife_groups: int = 0,
    force_cov32: bool = False,
    gpus: int = 0,
) -> None:
    """Write reinitialised/{fingerprint,schur,stacks}.parquet: the rows of every seed, with a column `seed`.

    forward_dtypes: forward dtype -> site groups. One process for all seeds: a model is built, captured and dropped before the next;
    moments are not kept on disk, because they can be had again from the seed. gpus: 1 to run the forward passes on a GPU.
    """
    checkpoint = open_checkpoint(Path(folder), config_overrides)
    anatomy, device = describe(checkpoint.config), forward_device(gpus)
    identity = replace(read_identity(manifest), provenance="random initialisation", precision="full")
    sequences = count_sequences(calibration)
    steps = -(-sequences // batch_size)

    def source() -> Iterable[Batch]:
        return batches(calibration, folder=folder, config=checkpoint.config, batch_size=batch_size, groups=jackknife_groups)

    def one(seed: int) -> tuple[Rows, Rows, Rows]:
        measurements = []
        for forward_dtype, groups in forward_dtypes.items():
            model = reinitialise(checkpoint, seed, forward_dtype).to(device)
            sites = select_sites(anatomy, groups, schur_taps)
            label = f"{identity.model} re-initialised, seed {seed}, {forward_dtype}"
            rows = norm_rows(anatomy, model.state_dict())
            moments = capture_model(model, sites, source, steps, accumulation, label, sequences / min(batch_size, sequences), rows)
            norms = {row["norm"]: norm_facts(row) for row in rows}
            measurements.append(Measurement(forward_dtype, moments, {site.id: site for site in sites}, norms))
        return measure(measurements, identity, force_cov32)

    results = {seed: one(seed) for seed in seeds}
    provenance = {"model": identity.model, "revision": identity.revision, "seeds": str(sorted(results)), "forward_device": device.type}
    for position, kind in enumerate(("fingerprint", "schur", "stacks")):
        rows = [{"seed": seed, **row} for seed, parts in results.items() for row in parts[position]]
        tables.write(outputs[kind], f"reinitialised_{kind}", rows, {**provenance, **execution_environment()})
