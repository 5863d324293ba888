"""Moments files and manifest in; fingerprint.parquet, schur.parquet, stacks.parquet,
summary.parquet, mechanism.parquet and dead_directions.safetensors out.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from normgauge.anatomy.structure import Site
from normgauge.errors import InputError
from normgauge.fingerprint.directions import directions_of, write_directions
from normgauge.fingerprint.kernel import NormFacts
from normgauge.fingerprint.mechanism import mechanism_rows
from normgauge.fingerprint.study import Identity, Measurement, measure
from normgauge.moments import Moments, merge_all, read_moments
from normgauge.provenance import execution_environment
from normgauge.schemas import dead_directions, inputs
from normgauge.schemas.fingerprint import tables
from normgauge.tables import read_metadata

PathLike = str | os.PathLike[str]


class StoredMoments(Mapping[str, Moments]):
    """The moments of a site, read and merged over its shards when asked for and not kept: a large
    model's do not fit in memory together.
    """

    def __init__(self, files: Mapping[str, Sequence[Path]]) -> None:
        self._files = files

    def __getitem__(self, site: str) -> Moments:
        return merge_all(read_moments(path)[0] for path in self._files[site])

    def __iter__(self) -> Iterator[str]:
        return iter(self._files)

    def __len__(self) -> int:
        return len(self._files)


def read_measurement(folders: Sequence[PathLike]) -> Measurement:
    """The shards of one forward dtype as one measurement. InputError when a shard lacks a site that
    another has.
    """
    first = Path(folders[0])
    norms = {
        row["norm"]: norm_facts(row) for row in inputs.tables.read(first / "norms.parquet", "norms")
    }
    files, sites = {}, {}
    for name in sorted(
        path.name for path in first.glob("*.parquet") if path.name != "norms.parquet"
    ):
        parts = [Path(folder) / name for folder in folders]
        for part in parts:
            if not part.is_file():
                raise InputError(
                    f"{part}: missing, though another shard has this site; delete the shard's "
                    "folder and rerun"
                )
        site = _site(read_metadata(parts[0]))
        files[site.id], sites[site.id] = parts, site
    return Measurement(
        read_metadata(first / "norms.parquet")["forward_dtype"], StoredMoments(files), sites, norms
    )


def norm_facts(row: Mapping[str, Any]) -> NormFacts:
    bias = None if row["bias"] is None else np.array(row["bias"])
    return NormFacts(row["norm"], row["kind"], np.array(row["gain"]), bias)


def _site(metadata: Mapping[str, str]) -> Site:
    fields = {
        key.removeprefix("site_"): value
        for key, value in metadata.items()
        if key.startswith("site_")
    }
    integers = {key: int(fields.pop(key)) for key in ("block", "width", "call")}
    return Site(**{**fields, "norm": fields["norm"] or None}, **integers)  # type: ignore[arg-type]


def read_identity(manifest: PathLike) -> Identity:
    """The identity of the checkpoint described by a checkpoint.json."""
    facts = json.loads(Path(manifest).read_text(encoding="utf-8"))
    return Identity(
        model=facts["model"],
        revision=facts["revision"],
        family=facts["family"],
        provenance=facts["provenance"],
        precision=facts["precision"],
        objective=facts["objective"],
        placement=facts["norm_placement"],
        blocks={stack["name"]: stack["blocks"] for stack in facts["stacks"]},
        primary=facts["stacks"][-1]["name"],
    )


def fingerprint_checkpoint(
    folders: Sequence[PathLike],
    forward_dtypes: Sequence[str],
    manifest: PathLike,
    outputs: Mapping[str, PathLike],
    force_cov32: bool = False,
) -> None:
    """Write the rows of one checkpoint.

    folders: moments folders of all shards, each with a folder for each of forward_dtypes, the first
        of which with a stream's embedding is
    the reference of its row in `stacks`. outputs: paths for `fingerprint`, `schur`, `stacks`,
    `summary` (the primary stream's row of `stacks`), `mechanism`, and `directions`, the dead
    directions of every norm as safetensors. Raises InputError for a folder
    or a site that is missing.
    """
    identity = read_identity(manifest)
    measurements = [
        read_measurement([Path(folder) / dtype for folder in folders]) for dtype in forward_dtypes
    ]
    fingerprint, schur, stacks = measure(measurements, identity, force_cov32)
    provenance = _provenance(Path(folders[0]) / forward_dtypes[0])
    rows = {
        "fingerprint": fingerprint,
        "schur": schur,
        "stacks": stacks,
        "summary": [row for row in stacks if row["primary"]],
    }
    for kind in rows.keys() & outputs.keys():
        tables.write(outputs[kind], kind, rows[kind], provenance)
    if "mechanism" in outputs:
        mechanism = mechanism_rows(measurements, identity, fingerprint)
        dead_directions.tables.write(outputs["mechanism"], "mechanism", mechanism, provenance)
    if "directions" in outputs:
        directions = directions_of(measurements[0].norms.values(), fingerprint)
        labels = {"model": identity.model, "revision": identity.revision}
        write_directions(
            outputs["directions"],
            directions,
            {**labels, "weights_sha256": provenance.get("weights_sha256", "")},
        )


def _provenance(folder: Path) -> dict[str, Any]:
    """The capture's provenance, with the arithmetic of this stage beside it."""
    captured = read_metadata(folder / "norms.parquet")
    here = execution_environment()
    keep = {
        key: value
        for key, value in captured.items()
        if key not in {"kind", "forward_dtype", "shard"}
    }
    return {
        **{f"captured_{key}" if key in here else key: value for key, value in keep.items()},
        **here,
    }
