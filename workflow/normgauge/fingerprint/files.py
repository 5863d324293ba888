"""Moments files and manifest in; fingerprint.parquet, schur.parquet, stacks.parquet and summary.parquet out."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from normgauge import tables
from normgauge.anatomy.structure import Site
from normgauge.errors import InputError
from normgauge.fingerprint.kernel import NormFacts
from normgauge.fingerprint.study import Identity, Measurement, measure
from normgauge.moments import merge_all, read_moments
from normgauge.provenance import execution_environment

PathLike = str | os.PathLike[str]


def read_measurement(folders: Sequence[PathLike]) -> Measurement:
    """Merge the shards of one forward dtype. InputError when a shard lacks a site that another has."""
    first = Path(folders[0])
    names = sorted(path.name for path in first.glob("*.parquet") if path.name != "norms.parquet")
    norms = {row["norm"]: norm_facts(row) for row in tables.read(first / "norms.parquet", "norms")}
    moments, sites = {}, {}
    for name in names:
        parts = []
        for folder in folders:
            if not (Path(folder) / name).is_file():
                raise InputError(f"{Path(folder) / name}: missing, though another shard has this site; delete the shard's folder and rerun")
            part, metadata = read_moments(Path(folder) / name)
            parts.append(part)
        site = _site(metadata)
        moments[site.id], sites[site.id] = merge_all(parts), site
    return Measurement(tables.read_metadata(first / "norms.parquet")["forward_dtype"], moments, sites, norms)


def norm_facts(row: Mapping[str, Any]) -> NormFacts:
    bias = None if row["bias"] is None else np.array(row["bias"])
    return NormFacts(row["norm"], row["kind"], np.array(row["gain"]), bias)


def _site(metadata: Mapping[str, str]) -> Site:
    fields = {key.removeprefix("site_"): value for key, value in metadata.items() if key.startswith("site_")}
    integers = {key: int(fields.pop(key)) for key in ("block", "width", "call")}
    return Site(**{**fields, "norm": fields["norm"] or None}, **integers)  # type: ignore[arg-type]


def read_identity(manifest: PathLike) -> Identity:
    """The identity of the checkpoint described by a checkpoint.json."""
    facts = json.loads(Path(manifest).read_text())
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
    folders: Sequence[PathLike], manifest: PathLike, outputs: Mapping[str, PathLike], force_cov32: bool = False
) -> None:
    """Write the rows of one checkpoint.

    folders: moments folders of all shards and forward dtypes. outputs: paths for `fingerprint`, `schur`, `stacks` and `summary`; the
    summary is the primary stream's row of `stacks`.
    """
    identity = read_identity(manifest)
    shards: dict[str, list[PathLike]] = {}
    for folder in folders:
        captured = tables.read_metadata(Path(folder) / "norms.parquet")
        shards.setdefault(captured["forward_dtype"], []).append(folder)
    measurements = [read_measurement(members) for members in shards.values()]
    fingerprint, schur, stacks = measure(measurements, identity, force_cov32)
    provenance = _provenance(Path(folders[0]))
    rows = {"fingerprint": fingerprint, "schur": schur, "stacks": stacks, "summary": [row for row in stacks if row["primary"]]}
    for kind, path in outputs.items():
        tables.write(path, kind, rows[kind], provenance)


def _provenance(folder: Path) -> dict[str, Any]:
    """The capture's provenance, with the arithmetic of this stage beside it."""
    captured = tables.read_metadata(folder / "norms.parquet")
    here = execution_environment()
    keep = {key: value for key, value in captured.items() if key not in {"kind", "forward_dtype", "shard"}}
    return {**{f"captured_{key}" if key in here else key: value for key, value in keep.items()}, **here}
