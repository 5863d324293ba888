"""Published numbers that stand beside ours in the cells of tables 1, 2 and trained-vs-random, and
when one of ours is the same.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from normgauge.errors import InputError
from normgauge.published.claims import Claim, claims_of, read_document
from normgauge.schemas.fingerprint import tables

Row = dict[str, Any]

GROWS_WITH_SAMPLES = ("body_sigma_low", "body_sigma_high")
"""Columns of singular values: they grow as sqrt(n), so they are compared per sqrt(n) and need the
published n.
"""


@dataclass(frozen=True)
class Published:
    """A published number or word: our table and column, and the difference that still counts as the
    same.

    n: samples (tokens) behind it, where the publication says; needed for the columns of
        GROWS_WITH_SAMPLES.
    """

    table: str
    row: str
    model: str
    column: str
    value: float | str
    tolerance: float
    kind: str
    n: int | None = None

    def matches(self, value: float | str, n: int | None) -> bool:
        """Whether our value, of n samples, is the published one; singular values are compared per
        sqrt(n).
        """
        if isinstance(value, str) or isinstance(self.value, str):
            return value == self.value
        if self.column in GROWS_WITH_SAMPLES:
            if n is None or self.n is None:
                raise ValueError(
                    f"{self.column} of {self.model}: compared per sqrt(n), so both n must be known"
                )
            value *= math.sqrt(self.n / n)
        return abs(value - self.value) <= self.tolerance


def read_published(path: str | os.PathLike[str]) -> list[Published]:
    """The claims of a file of config/published/ that stand in a cell of a table of ours with a row
    per model, each with the n that `samples` gives its row.

    A model of `initialised` has the records of its architecture that hold without trained weights.
    Raises InputError naming the file and the claim or row that is wrong, and for a claim of a
    singular value whose row has no n.
    """
    document = read_document(path)
    return cells_of(path, document, claims_of(path, document))


def cells_of(
    path: str | os.PathLike[str], document: Mapping[str, Any], claims: Sequence[Claim]
) -> list[Published]:
    """The same of a file that has been read."""
    samples = _samples(path, document.get("samples", []))
    published = [_record(path, claim, samples) for claim in claims if claim.model is not None]
    return published + _initialised(path, document.get("initialised", {}), published)


def _record(
    path: str | os.PathLike[str], claim: Claim, samples: Mapping[tuple[str, str], int]
) -> Published:
    """A claim that names a model, as a record."""
    if claim.ours is None or claim.ours.value is None or claim.value is None or claim.row is None:
        raise InputError(
            f"{Path(path)}: claim {claim.name} names a model of ours; give it row, value, and the "
            "column as the value of ours"
        )
    table, column = claim.ours.table, claim.ours.value
    n = samples.get((table, claim.row))
    if column in GROWS_WITH_SAMPLES and n is None:
        raise InputError(
            f"{Path(path)}: {column} of {claim.row} grows with the number of samples; "
            f"state the published one under samples, table {table}"
        )
    assert claim.model is not None
    return Published(
        table, claim.row, claim.model, column, claim.value, claim.tolerance, claim.kind, n
    )


def _initialised(
    path: str | os.PathLike[str], names: Mapping[str, str], published: Sequence[Published]
) -> list[Published]:
    """The records of random initialisations and shapes, under the ids of models that exist only
    so.
    """
    known = {record.model for record in published}
    for name, model in names.items():
        if model not in known or name in known:
            raise InputError(
                f"{Path(path)}: initialised gives {name} the published numbers of {model}; "
                f"expected a new id and a published model, one of {', '.join(sorted(known))}"
            )
    return [
        replace(record, model=name)
        for name, model in names.items()
        for record in published
        if record.model == model
        and (record.column.startswith("random_") or record.column in ("blocks", "width"))
    ]


def _samples(path: str | os.PathLike[str], entries: Sequence[Any]) -> dict[tuple[str, str], int]:
    """(table, row) -> published number of samples."""
    samples = {}
    for number, entry in enumerate(entries, 1):
        keys = {"table", "row", "n", "source"}
        if (
            not isinstance(entry, dict)
            or set(entry) != keys
            or not isinstance(entry["n"], int)
            or entry["n"] < 1
        ):
            expected = "the keys table, row, n (a positive number) and source"
            raise InputError(
                f"{Path(path)}: entry {number} of samples must have exactly {expected}, got {entry}"
            )
        samples[entry["table"], entry["row"]] = entry["n"]
    return samples


def compare(
    published: Sequence[Published],
    table: str,
    model: str,
    row: Mapping[str, Any],
    columns: Sequence[str],
) -> tuple[str, list[str]]:
    """Status of a row against the published numbers of these columns, and the columns that deviate.
    Settings are not compared.
    """
    records = [
        record
        for record in published
        if (record.table, record.model) == (table, model)
        and record.column in columns
        and record.kind != "setting"
    ]
    if not records:
        return "not published", []
    deviations = [
        record.column
        for record in records
        if row[record.column] is not None and not record.matches(row[record.column], row["n"])
    ]
    if deviations:
        return "deviates", deviations
    return (
        "not measured" if any(row[record.column] is None for record in records) else "reproduced"
    ), []


def published_values(
    published: Sequence[Published], table: str, model: str | None, columns: Sequence[str]
) -> Row:
    values = {
        record.column: record.value
        for record in published
        if (record.table, record.model) == (table, model)
    }
    return {f"published_{column}": values.get(column) for column in columns}


def published_columns(table: str) -> list[str]:
    """Our columns that have a published counterpart: what is derived from those (n, per sqrt(n)) is
    not one.
    """
    names = [
        name.removeprefix("published_")
        for name in tables.schemas[table].names
        if name.startswith("published_")
    ]
    return [name for name in names if name != "n" and not name.endswith("_per_sqrt_n")]


def published_n(published: Sequence[Published], table: str, model: str | None) -> int | None:
    """The samples behind a published row, where they are stated."""
    numbers = (record.n for record in published if (record.table, record.model) == (table, model))
    return next((n for n in numbers if n is not None), None)
