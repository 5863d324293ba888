"""The study's files: what is read and written around the arithmetic."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from normgauge.checkpoints.configuration import parse_config
from normgauge.checkpoints.opening import Checkpoint, open_checkpoint
from normgauge.errors import InputError
from normgauge.progress import Progress
from normgauge.provenance import execution_environment
from normgauge.redundancy.checks import check_rows
from normgauge.redundancy.counts import check_claims, count_row, symmetry_rows
from normgauge.redundancy.falsifier import falsifier_rows
from normgauge.redundancy.measure import measurement, measurement_without_gains
from normgauge.redundancy.trained import trained_rows
from normgauge.schemas.redundancy import tables
from normgauge.yaml_files import read_yaml

PathLike = str | os.PathLike[str]
WITHOUT_GAINS = ("tiny-gpt2-relu", "tiny-gpt2-untied", "tiny-llama")
"""Small models whose nullity is also measured with norms that have no gains."""
TRAINED = ("tiny-llama",)
"""Small models that are also measured at trained weights."""


def read_shape(path: PathLike) -> Any:
    """The config in a file of shapes. Raises InputError when the file is missing, no JSON object,
    or no config.
    """
    try:
        keys = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(
            f"{path}: cannot be read as the JSON of a config ({error}); mend the file"
        ) from error
    if not isinstance(keys, dict):
        raise InputError(f"{path}: expected a JSON object, the keys of a config; mend the file")
    return parse_config(keys)


def write_measurements(
    shapes: Sequence[PathLike], seed: int, output: PathLike, hessian: PathLike
) -> None:
    """redundancy_jacobian: one row per shape, named as its file, one of some without gains, and one
    of some that are trained here, with their rows of redundancy_hessian.
    """
    configs = {Path(shape).stem: read_shape(shape) for shape in shapes}
    progress = Progress(len(configs), "Jacobians")
    rows, curvatures = [], []
    for name, config in configs.items():
        rows.append(measurement(name, config, seed))
        if name in WITHOUT_GAINS:
            rows.append(measurement_without_gains(name, config, seed))
        if name in TRAINED:
            row, found = trained_rows(name, config, seed)
            rows.append(row)
            curvatures += found
        progress.step()
    metadata = {"seed": str(seed), "forward_dtype": "float64", **execution_environment()}
    tables.write(output, "redundancy_jacobian", rows, metadata)
    tables.write(hessian, "redundancy_hessian", curvatures, metadata)


def write_falsifier(seed: int, output: PathLike) -> None:
    """redundancy_falsifier."""
    metadata = {"seed": str(seed), "forward_dtype": "float64", **execution_environment()}
    tables.write(output, "redundancy_falsifier", falsifier_rows(seed), metadata)


def write_checks(
    checkpoint: Checkpoint, identity: Mapping[str, str], seed: int, output: PathLike
) -> None:
    """redundancy_checks of one checkpoint. `identity`: model, revision, weights_sha256."""
    metadata = {
        **identity,
        "seed": str(seed),
        "forward_dtype": "float64",
        **execution_environment(),
    }
    rows = [
        {"model": identity["model"], "revision": identity["revision"], **row}
        for row in check_rows(checkpoint, seed)
    ]
    tables.write(output, "redundancy_checks", rows, metadata)


def write_counts(
    shapes: Mapping[str, PathLike],
    checkpoints: Mapping[str, tuple[PathLike, Mapping[str, Any]]],
    small: Sequence[PathLike],
    jacobian: PathLike,
    checks: Sequence[PathLike],
    claims: PathLike,
    outputs: Mapping[str, PathLike],
) -> None:
    """redundancy_counts (as CSV too), redundancy_symmetries, and the redundancy_checks of all
    checkpoints in one table.

    `shapes`: files by name; `checkpoints`: by name the folder and the keys laid over its config;
        `small`: the shapes of `jacobian`.
    `outputs`: paths by counts, counts_csv, symmetries, checks. Raises InputError where two are
        called the same.
    """
    names = [*shapes, *checkpoints, *(Path(path).stem for path in small)]
    if repeated := [name for name in names if names.count(name) > 1]:
        raise InputError(
            f"redundancy: {repeated[0]} is counted twice, as a shape or model; rename a file or "
            "leave one out of the configuration"
        )
    sources = {name: ("shape", read_shape(path)) for name, path in shapes.items()}
    sources |= {
        name: ("checkpoint", open_checkpoint(folder, keys).config)
        for name, (folder, keys) in checkpoints.items()
    }
    sources |= {Path(path).stem: ("small model", read_shape(path)) for path in small}
    measured = {row["architecture"]: row for row in tables.read(jacobian, "redundancy_jacobian")}
    published = check_claims(read_yaml(claims), str(claims))
    rows = [
        count_row(name, source, config, published.get(name), measured.get(name))
        for name, (source, config) in sources.items()
    ]
    tables.write(outputs["counts"], "redundancy_counts", rows, {})
    tables.write_csv(outputs["counts_csv"], "redundancy_counts", rows)
    checked = [row for path in checks for row in tables.read(path, "redundancy_checks")]
    tables.write(outputs["checks"], "redundancy_checks", checked, {})
    families = [row for name, (_, config) in sources.items() for row in symmetry_rows(name, config)]
    tables.write(outputs["symmetries"], "redundancy_symmetries", families, {})
