"""Moments on disk: parquet, one row per matrix row in a fixed-size list column, the mean first."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pyarrow as pa

from normgauge.errors import InputError
from normgauge.moments.algebra import Moments
from normgauge.tables import read_table, write_table


def write_moments(path: str | os.PathLike[str], moments: Moments, metadata: Mapping[str, str]) -> None:
    """Write mean (row 0) and matrix (rows 1..d) as float64 lists of length d; method, n and d go into the metadata."""
    rows = np.vstack([moments.mean[None], moments.matrix])
    column = pa.FixedSizeListArray.from_arrays(pa.array(rows.ravel()), moments.d)
    own = {"kind": "moments", "method": moments.method, "n": str(moments.n), "d": str(moments.d)}
    write_table(path, pa.table({"row": column}), {**metadata, **own})


def read_moments(path: str | os.PathLike[str]) -> tuple[Moments, dict[str, str]]:
    """Moments and metadata of a file written by `write_moments`. InputError when it is not one."""
    table = read_table(path)
    metadata = json.loads((table.schema.metadata or {}).get(b"normgauge", b"{}"))
    if metadata.get("kind") != "moments":
        raise InputError(f"{Path(path)}: expected a moments file; delete it and rerun")
    d, n = int(metadata["d"]), int(metadata["n"])
    values = table.column("row").combine_chunks().flatten().to_numpy(zero_copy_only=False)
    if values.size != (d + 1) * d:
        raise InputError(f"{Path(path)}: expected {(d + 1) * d} values, found {values.size}; delete it and rerun")
    rows = values.reshape(d + 1, d)
    return Moments(metadata["method"], n, rows[0].copy(), rows[1:].copy()), metadata
