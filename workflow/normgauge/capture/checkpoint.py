"""The manifest of a checkpoint that has just come into its folder, once everything that later stages need of it has been checked."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import torch

from normgauge.anatomy import describe
from normgauge.calibration.prepare import check_interface
from normgauge.capture.norms import norm_rows
from normgauge.checkpoints.architectures import empty_model
from normgauge.checkpoints.building import check_checkpoint
from normgauge.checkpoints.configuration import parse_config
from normgauge.checkpoints.manifest import build_manifest, write_manifest
from normgauge.checkpoints.opening import open_checkpoint
from normgauge.checkpoints.sources import LocalSource, parse_source
from normgauge.errors import InputError


def check_configuration(entry: Mapping[str, Any], stored: Mapping[str, Any]) -> None:
    """Check the keys of a stored config.json, with the table entry's `config` laid over them, before its weights are there.

    Raises InputError where the family, class or an option is unknown, its sizes do not make a model, or the calibration does not suit the
    model's input.
    """
    config = parse_config({**stored, **(entry.get("config") or {})})
    empty_model(config, torch.float32)  # refuses sizes that do not fit together, which `describe` takes for granted
    describe(config)
    check_interface(entry, config)


def describe_checkpoint(
    model: str, revision: str, entry: Mapping[str, Any], folder: str | os.PathLike[str], manifest: str | os.PathLike[str]
) -> None:
    """Check the checkpoint in `folder` against its table entry and write its manifest.

    Raises InputError, naming the model and the file at its source, where the family is unknown, a tensor is missing, misshapen or not
    finite, a norm's gains are all zero, or the calibration does not suit the model's input.
    """
    try:
        checkpoint = open_checkpoint(folder, entry.get("config"))
        anatomy = describe(checkpoint.config)
        check_checkpoint(checkpoint)
        norm_rows(anatomy, checkpoint.tensors)
        check_interface(entry, checkpoint.config)
    except InputError as error:  # `folder` is gone when the message is read
        source = parse_source(model, entry)
        origin = f"{source.path}/" if isinstance(source, LocalSource) else ""
        raise InputError(f"models.{model}: {str(error).replace(f'{os.fspath(folder)}/', origin)}") from error
    write_manifest(manifest, build_manifest(model, revision, entry, folder, anatomy, checkpoint))
