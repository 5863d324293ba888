"""The manifest of a checkpoint that has just come into its folder, once everything that later stages need of it has been checked."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from normgauge.anatomy import describe
from normgauge.calibration.prepare import check_interface
from normgauge.capture.norms import norm_rows
from normgauge.checkpoints.building import check_checkpoint
from normgauge.checkpoints.manifest import build_manifest, write_manifest
from normgauge.checkpoints.opening import open_checkpoint


def describe_checkpoint(
    model: str, revision: str, entry: Mapping[str, Any], folder: str | os.PathLike[str], manifest: str | os.PathLike[str]
) -> None:
    """Check the checkpoint in `folder` against its table entry and write its manifest.

    Raises InputError where the family is unknown, a tensor is missing, misshapen or not finite, a norm's gains are all zero, or the
    calibration does not suit the model's input.
    """
    checkpoint = open_checkpoint(folder, entry.get("config"))
    anatomy = describe(checkpoint.config)
    check_checkpoint(checkpoint)
    norm_rows(anatomy, checkpoint.tensors)
    check_interface(entry, checkpoint.config)
    write_manifest(manifest, build_manifest(model, revision, entry, folder, anatomy, checkpoint))
