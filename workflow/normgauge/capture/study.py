"""Capture of one checkpoint: files in, one moments file per site out."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from normgauge.anatomy import describe
from normgauge.anatomy.structure import Anatomy, Site
from normgauge.calibration.batches import Batch, batches, count_sequences
from normgauge.capture.hooks import capture
from normgauge.capture.norms import norm_rows
from normgauge.capture.second_pass import NormRow, factor_shows_more
from normgauge.capture.settings import CaptureSettings
from normgauge.checkpoints.building import build_model
from normgauge.checkpoints.opening import open_checkpoint
from normgauge.errors import InputError
from normgauge.moments import Moments, write_moments
from normgauge.progress import Progress
from normgauge.provenance import atomic_path, execution_environment
from normgauge.schemas.inputs import tables
from normgauge.tables import read_metadata

BatchSource = Callable[[], Iterable[Batch]]


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
    `norms.parquet` and one `{site id with / as __}.parquet` per site, all or nothing.
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
    steps = -(-own // batch_size)
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

    def capture_in(forward_dtype: str, folder: Path) -> None:
        """A function, so that the model and its moments are gone before the next dtype's are
        made.
        """
        label, sites = (
            f"capture {model_id} {forward_dtype} {shard + 1}/{shards}",
            sites_by_dtype[forward_dtype],
        )
        model = build_model(checkpoint, forward_dtype).to(device)
        moments = capture_model(
            model,
            sites,
            source,
            steps,
            settings.accumulation,
            label,
            sequences / min(batch_size, own),
            norms,
        )
        _write_folder(folder, sites, moments, norms, {**provenance, "forward_dtype": forward_dtype})

    with atomic_path(destination) as temporary:
        for forward_dtype in sites_by_dtype:
            capture_in(forward_dtype, temporary / forward_dtype)


def _write_folder(
    folder: Path,
    sites: Sequence[Site],
    moments: Mapping[str, Moments],
    norms: list[dict[str, Any]],
    provenance: Mapping[str, str],
) -> None:
    folder.mkdir(parents=True)
    tables.write(folder / "norms.parquet", "norms", norms, provenance)
    for site in sites:
        described = {
            f"site_{key}": "" if value is None else str(value)
            for key, value in asdict(site).items()
        }
        write_moments(folder / moments_file(site.id), moments[site.id], {**provenance, **described})


def moments_file(site_id: str) -> Path:
    return Path(f"{site_id.replace('/', '__')}.parquet")
