"""Parquet tables with a declared schema: checked writing and reading.

The schemas themselves stand in `normgauge.schemas`, a module for each study,
so that a change in one study leaves the results of the others valid. Files hold no timestamps and
no absolute paths: the same inputs give the same bytes.
"""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from normgauge.errors import InputError, one_line
from normgauge.provenance import atomic_path

STRING, INT, FLOAT, BOOL = pa.string(), pa.int64(), pa.float64(), pa.bool_()
STRINGS, INTS = pa.list_(pa.string()), pa.list_(pa.int32())
FLOATS_BY_NAME = pa.map_(pa.string(), pa.list_(pa.float64()))


def schema(*fields: tuple[str, pa.DataType, str] | tuple[str, pa.DataType, str, str]) -> pa.Schema:
    """Fields as (name, type, description[, unit]); every field may be null unless the description
    starts with '!'.
    """
    built = []
    for name, kind, description, *unit in fields:
        required = description.startswith("!")
        metadata = {"description": description.lstrip("!"), "unit": unit[0] if unit else ""}
        built.append(pa.field(name, kind, nullable=not required, metadata=metadata))
    return pa.schema(built)


@dataclass(frozen=True)
class Tables:
    """The tables of a study: schemas by kind."""

    schemas: Mapping[str, pa.Schema]

    def write(
        self,
        path: str | os.PathLike[str],
        kind: str,
        rows: Sequence[Mapping[str, Any]],
        metadata: Mapping[str, str],
    ) -> None:
        """Write rows as parquet of the schema `kind`, atomically, with provenance in the file's
        metadata.

        Raises ValueError when a row lacks a required field or has an unknown one: that is a defect
        of the caller.
        """
        schema = self.schemas[kind]
        for row in rows:
            unknown, missing = set(row) - set(schema.names), set(schema.names) - set(row)
            if unknown or missing:
                raise ValueError(
                    f"{kind}: unknown fields {sorted(unknown)}, missing fields {sorted(missing)}"
                )
        table = pa.Table.from_pylist([dict(row) for row in rows], schema=schema)
        for field in schema:
            if not field.nullable and table.column(field.name).null_count:
                raise ValueError(f"{kind}: field {field.name} is required but null in a row")
        write_table(path, table, {"kind": kind, **metadata})

    def read(self, path: str | os.PathLike[str], kind: str) -> list[dict[str, Any]]:
        """Rows of a file written with `write(path, kind, ...)`; InputError when its schema
        differs.
        """
        table = read_table(path)
        if table.schema.names != self.schemas[kind].names:
            raise InputError(f"{Path(path)}: expected a {kind} table; delete it and rerun")
        return table.to_pylist()

    def write_csv(
        self, path: str | os.PathLike[str], kind: str, rows: Sequence[Mapping[str, Any]]
    ) -> None:
        """The same rows as CSV, lists joined with ';', for readers without parquet."""
        with (
            atomic_path(path) as temporary,
            open(temporary, "w", newline="", encoding="utf-8") as handle,
        ):
            writer = csv.DictWriter(
                handle, fieldnames=self.schemas[kind].names, lineterminator="\n"
            )
            writer.writeheader()
            for row in rows:
                writer.writerow(
                    {
                        key: ";".join(map(str, value)) if isinstance(value, list) else value
                        for key, value in row.items()
                    }
                )


def write_table(path: str | os.PathLike[str], table: pa.Table, metadata: Mapping[str, str]) -> None:
    """Write any arrow table atomically with string metadata under the key `normgauge`."""
    payload = json.dumps(dict(metadata), sort_keys=True).encode()
    table = table.replace_schema_metadata({b"normgauge": payload})
    with atomic_path(path) as temporary:
        pq.write_table(table, temporary, compression="zstd")


@one_line("parquet")
def read_table(path: str | os.PathLike[str]) -> pa.Table:
    """Read any parquet file; InputError when it is missing or not parquet."""
    try:
        # pq.read_table would load pyarrow's datasets and with them pandas
        with pq.ParquetFile(path) as file:
            return file.read()
    except FileNotFoundError as error:
        raise InputError(
            f"{Path(path)}: no such file; give one that exists, or make it first"
        ) from error
    except (pa.ArrowInvalid, OSError) as error:
        raise InputError(
            f"{Path(path)}: cannot be read as parquet ({error}); delete it and rerun"
        ) from error


@one_line("parquet")
def read_metadata(path: str | os.PathLike[str]) -> dict[str, str]:
    """The provenance metadata of a file written here."""
    metadata = pq.read_schema(path).metadata or {}
    return json.loads(metadata.get(b"normgauge", b"{}"))
