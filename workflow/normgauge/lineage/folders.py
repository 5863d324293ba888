"""A checkpoint folder in canonical form, and beside it the gauge that leads there."""

from __future__ import annotations

import os
from pathlib import Path

import torch

from normgauge.gauge.model_gauge import write_gauge
from normgauge.lineage.canonical import Canonical, positive_zeros
from normgauge.transport.folders import StoredTensors, Transformed, transform_folder
from normgauge.transport.origin import Origin, identity_of


def gauge_file(destination: str | os.PathLike[str]) -> Path:
    """Where the gauge of a form lies: beside it, so that the folder holds the form alone."""
    path = Path(destination)
    return path.with_name(f"{path.name}.gauge.parquet")


def write_canonical(
    source: str | os.PathLike[str],
    destination: str | os.PathLike[str],
    form: Canonical,
    leave_behind: bool = False,
) -> Transformed:
    """Write the checkpoint in the folder `source` in its form, and the gauge beside it.

    Copies of one checkpoint under discrete gauges give the same bytes of weights. Raises InputError
    as `transform_folder`.
    """

    def accept(folder: Path, rounded: tuple[str, ...]) -> None:
        for path in sorted(folder.glob("*.safetensors")):
            _write_positive_zeros(path)

    origin = Origin(identity_of(source))
    done = transform_folder(source, destination, form.gauge, accept, leave_behind)
    write_gauge(
        gauge_file(destination),
        form.gauge,
        {**origin.metadata(), "source": "canonical form", "canonical_sha256": form.sha256},
    )
    return done


def _write_positive_zeros(path: Path) -> None:
    """Write 0.0 for -0.0 in place."""
    stored = StoredTensors(path)
    with open(path, "r+b") as handle:
        for name in stored:
            value = stored[name]
            if value.is_floating_point() and bool(((value == 0) & value.signbit()).any()):
                handle.seek(stored.start + stored.header[name]["data_offsets"][0])
                fixed = positive_zeros(value).contiguous().view(-1)
                handle.write(fixed.view(torch.uint8).numpy().data)
