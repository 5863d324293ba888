"""Moments on disk: parquet, packed triangles row by row, each after its mean."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from normgauge.errors import InputError
from normgauge.moments.algebra import Moments, unpack
from normgauge.moments.packed import PackedMoments
from normgauge.tables import read_table, write_table


def write_moments(
    path: str | os.PathLike[str], moments: Moments, metadata: Mapping[str, str]
) -> None:
    """Write the moments: of each group where groups were kept, else of the whole.

    Column `row`: float64 lists, for each part its mean (length d) and then the columns of its
        packed
    triangle (lengths 1 to d). Column `distinct`: in the first row the hashes of the distinct
    samples, null elsewhere and where they were not kept. The method, d and of each part its group
    (null for the whole), method and n go into the metadata.
    """
    parts: Mapping[Any, PackedMoments] = moments.groups or {None: moments.pack()}
    values = np.concatenate(
        [part for each in parts.values() for part in (each.mean, each.triangle)]
    )
    lengths = np.tile([moments.d, *range(1, moments.d + 1)], len(parts))
    rows = pa.LargeListArray.from_arrays(np.concatenate([[0], np.cumsum(lengths)]), values)
    distinct = pa.array([moments.distinct, *[None] * (len(rows) - 1)], pa.list_(pa.uint64()))
    described = json.dumps([(number, part.method, part.n) for number, part in parts.items()])
    own = {"kind": "moments", "method": moments.method, "d": str(moments.d), "parts": described}
    write_table(path, pa.table({"row": rows, "distinct": distinct}), {**metadata, **own})


def read_moments(path: str | os.PathLike[str]) -> tuple[Moments, dict[str, str]]:
    """Moments and metadata of a file written by `write_moments`. InputError when it is not one."""
    table = read_table(path)
    metadata = json.loads((table.schema.metadata or {}).get(b"normgauge", b"{}"))
    if metadata.get("kind") != "moments" or "parts" not in metadata:
        raise InputError(f"{Path(path)}: expected a moments file; delete it and rerun")
    d, described = int(metadata["d"]), json.loads(metadata["parts"])
    values = table.column("row").combine_chunks().flatten().to_numpy(zero_copy_only=False)
    length = d + d * (d + 1) // 2
    if values.size != length * len(described):
        raise InputError(
            f"{Path(path)}: expected {length * len(described)} values, found {values.size}; delete "
            "it and rerun"
        )
    parts = {
        number: PackedMoments(method, n, part[:d].copy(), part[d:].copy())
        for (number, method, n), part in zip(
            described, values.reshape(len(described), length), strict=True
        )
    }
    hashes = table.column("distinct")[0]
    distinct = hashes.values.to_numpy() if hashes.is_valid else None
    whole = (
        replace(unpack(parts[None]), distinct=distinct)
        if None in parts
        else Moments.of_groups(parts, distinct)
    )
    return whole, metadata
