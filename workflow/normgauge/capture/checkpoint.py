"""The manifest of a checkpoint that has just come into its folder, once everything that later
stages need of it has been checked.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any

import torch

from normgauge.anatomy import describe
from normgauge.calibration.prepare import check_interface
from normgauge.capture.norms import norm_rows
from normgauge.checkpoints.agreement import require_agreement
from normgauge.checkpoints.architectures import empty_model
from normgauge.checkpoints.building import check_checkpoint
from normgauge.checkpoints.configuration import parse_config
from normgauge.checkpoints.manifest import build_manifest, write_manifest
from normgauge.checkpoints.opening import open_checkpoint
from normgauge.checkpoints.placing import bare_config, config_names_class
from normgauge.checkpoints.sources import LocalSource, parse_source
from normgauge.errors import InputError, one_line


def check_configuration(entry: Mapping[str, Any], stored: Mapping[str, Any]) -> None:
    """Check the keys of a stored config.json, with the table entry's `config` laid over them,
    before its weights are there.

    Raises InputError where the family, class or an option is unknown, its sizes do not make a
    model, or the calibration does not suit the model's input.
    """
    _check_keys("config.json", entry, {**stored, **(entry.get("config") or {})})


@one_line("the settings of a model")
def _check_keys(_: str, entry: Mapping[str, Any], keys: Mapping[str, Any]) -> None:
    config = parse_config(keys)
    if not config_names_class(config):
        config = bare_config(config)  # the stored tensors will say which class it is
    # refuses sizes that do not fit together, which `describe` takes for granted
    model = empty_model(config, torch.float32)
    require_agreement(describe(config), model)
    check_interface(entry, config)


def _folder(path: str) -> str:
    """The folder of a local source, whose path may name a GGUF file in it."""
    return (
        str(PurePosixPath(path).parent) if path.endswith(".gguf") and Path(path).is_file() else path
    )


def describe_checkpoint(
    model: str,
    revision: str,
    entry: Mapping[str, Any],
    folder: str | os.PathLike[str],
    manifest: str | os.PathLike[str],
) -> None:
    """Check the checkpoint in `folder` against its table entry and write its manifest.

    Raises InputError, naming the model and the file at its source, where the family is unknown, a
    tensor is missing, misshapen or not finite, a norm's gains are all zero, or the calibration does
    not suit the model's input.
    """
    try:
        checkpoint = open_checkpoint(folder, entry.get("config"))
        anatomy = describe(checkpoint.config)
        check_checkpoint(checkpoint)
        norm_rows(anatomy, checkpoint.tensors)
        check_interface(entry, checkpoint.config)
    except InputError as error:  # `folder` is gone when the message is read
        source = parse_source(model, entry)
        origin = f"{_folder(source.path)}/" if isinstance(source, LocalSource) else ""
        raise InputError(
            f"models.{model}: {str(error).replace(f'{os.fspath(folder)}/', origin)}"
        ) from error
    write_manifest(manifest, build_manifest(model, revision, entry, folder, anatomy, checkpoint))
