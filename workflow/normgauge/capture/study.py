"""Capture of one checkpoint: files in, one moments file per site out."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from normgauge.anatomy import describe
from normgauge.anatomy.structure import Anatomy, Site
from normgauge.calibration.batches import Batch, batches, count_sequences
from normgauge.capture.by_block import BatchSource, Run, capture_by_block
from normgauge.capture.hooks import capture
from normgauge.capture.norms import norm_rows
from normgauge.capture.outputs import FiledOutputs
from normgauge.capture.second_pass import NormRow, factor_shows_more
from normgauge.capture.settings import CaptureSettings
from normgauge.checkpoints.opening import open_checkpoint
from normgauge.checkpoints.skeleton import skeleton
from normgauge.errors import InputError
from normgauge.moments import Moments, write_moments
from normgauge.progress import Progress
from normgauge.provenance import execution_environment, library_hash, resumable_path
from normgauge.schemas.inputs import tables
from normgauge.tables import read_metadata


def select_sites(
    anatomy: Anatomy, groups: Sequence[str], schur_sites: Sequence[str] | None = None
) -> tuple[Site, ...]:
    """Sites of the named groups; `schur_sites` narrows the Schur sites to the named ones (all when
    None).

    Raises InputError for a group or tap that no site has.
    """
    known = {site.group for site in anatomy.sites} | {
        "residual",
        "terminal",
        "taps",
        "schur",
        "deltas",
    }
    for group in groups:
        if group not in known:
            raise InputError(
                f"capture: group {group!r} is unknown: expected one of {', '.join(sorted(known))}"
            )
    taps = {site.tap for site in anatomy.sites if site.group == "schur"}
    for tap in schur_sites or ():
        if tap not in taps:
            raise InputError(
                f"capture: Schur site {tap!r} is unknown: expected one of {', '.join(sorted(taps))}"
            )
    return tuple(
        site
        for site in anatomy.sites_in(tuple(groups))
        if site.group != "schur" or not schur_sites or site.tap in schur_sites
    )


def capture_model(
    model: torch.nn.Module,
    sites: Sequence[Site],
    source: BatchSource,
    steps: int,
    accumulation: str,
    label: str,
    first_batches: float,
    norms: Iterable[NormRow],
) -> dict[str, Moments]:
    """Moments by site id.

    first_batches: the whole calibration (all shards) in units of the first batch. norms: rows of
    schema `norms`. `auto` means cov64 first, then a second pass with tsqr64 over the sites of which
    it can show more (`factor_shows_more`).
    """
    first = "cov64" if accumulation == "auto" else accumulation
    moments = capture(model, sites, source(), first, Progress(steps, label), first_batches)
    if accumulation == "auto":
        named = {norm["norm"]: norm for norm in norms}
        roundoff = torch.finfo(next(model.parameters()).dtype).eps
        again = [
            site
            for site in sites
            if factor_shows_more(moments[site.id], roundoff, named.get(site.norm or ""))
        ]
        if again:
            progress = Progress(steps, f"{label}, {len(again)} sites with a wide spectrum again")
            moments |= capture(model, again, source(), "tsqr64", progress)
    return moments


def forward_device(gpus: int) -> torch.device:
    """Where forward passes run: the CPU, or the GPU of a job that was given one. Moments are
    accumulated on the CPU in any case.

    Raises InputError when a GPU was given that torch does not see.
    """
    if not gpus:
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise InputError(
            "resource gpu: 1, but this torch sees no GPU; install its CUDA build on that machine, "
            "or ask for none"
        )
    torch.backends.cudnn.allow_tf32 = False  # convolutions would round their inputs to 10 bits
    return torch.device("cuda")


def capture_checkpoint(
    folder: str | os.PathLike[str],
    manifest: Mapping[str, Any],
    calibration: str | os.PathLike[str],
    destination: str | os.PathLike[str],
    settings: CaptureSettings,
    *,
    named: tuple[str, str],
    part: tuple[int, int] = (0, 1),
    config_overrides: Mapping[str, Any] | None = None,
) -> None:
    """Run the checkpoint in `folder` over its calibration and write moments/{shard}-of-{shards}/.

    named: model and revision. part: shard and shards. Writes a folder for each forward dtype, with
    `norms.parquet` and one `{site id with / as __}.parquet` per site, all or nothing. One block of
    the model is in memory at a time, and a capture that was killed goes on at the block where it
    stopped.
    """
    model_id, revision = named
    shard, shards = part
    batch_size = settings.batch_size
    sequences = count_sequences(calibration)
    if shards > sequences:
        raise InputError(
            f"capture.shards {shards}: more than the {sequences} sequences of the calibration, so "
            "a shard is empty; lower it"
        )
    checkpoint = open_checkpoint(Path(folder), config_overrides)
    anatomy = describe(checkpoint.config)
    sites_by_dtype = {
        forward_dtype: select_sites(anatomy, groups, settings.schur_sites)
        for forward_dtype, groups in settings.forward_dtypes.items()
    }

    def source() -> Iterable[Batch]:
        return batches(
            calibration,
            folder=folder,
            config=checkpoint.config,
            shard=part,
            batch_size=batch_size,
            groups=settings.jackknife_groups,
        )

    device = forward_device(settings.gpus)
    own = sequences * (shard + 1) // shards - sequences * shard // shards
    provenance = {
        "model": model_id,
        "revision": revision,
        "weights_sha256": str(manifest["weights_sha256"]),
        "precision": str(manifest["precision"]),
        "accumulation_requested": settings.accumulation,
        "batch_size": str(batch_size),
        "shard": f"{shard}/{shards}",
        "forward_device": device.type,
        **{f"calibration_{key}": value for key, value in read_metadata(calibration).items()},
        **execution_environment(),
    }
    norms = norm_rows(anatomy, checkpoint.tensors)
    key = json.dumps(
        [provenance, asdict(settings), repr(checkpoint.config), library_hash()], default=dict
    )
    with resumable_path(destination, key) as work:
        for forward_dtype, sites in sites_by_dtype.items():
            run = Run(
                source,
                -(-own // batch_size),
                settings.accumulation,
                sequences / min(batch_size, own),
                f"capture {model_id} {forward_dtype} {shard + 1}/{shards}",
            )
            _capture_into(
                work,
                forward_dtype,
                capture_by_block(
                    skeleton(checkpoint, forward_dtype, device),
                    anatomy,
                    sites,
                    run,
                    norms,
                    FiledOutputs(work / "outputs" / forward_dtype),
                ),
                sites,
                norms,
                {**provenance, "forward_dtype": forward_dtype},
            )


def _capture_into(
    work: Path,
    forward_dtype: str,
    blocks: Iterator[dict[str, Moments]],
    sites: Sequence[Site],
    norms: list[dict[str, Any]],
    provenance: Mapping[str, str],
) -> None:
    """Write the norms, and the moments block by block as they come."""
    folder = work / "result" / forward_dtype
    folder.mkdir(parents=True, exist_ok=True)
    tables.write(folder / "norms.parquet", "norms", norms, provenance)
    described = {
        site.id: {
            f"site_{key}": "" if value is None else str(value)
            for key, value in asdict(site).items()
        }
        for site in sites
    }
    for moments in blocks:
        for name, found in moments.items():
            write_moments(folder / moments_file(name), found, {**provenance, **described[name]})


def moments_file(site_id: str) -> Path:
    return Path(f"{site_id.replace('/', '__')}.parquet")
