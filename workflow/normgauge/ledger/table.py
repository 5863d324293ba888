"""The rows of the ledger."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas

from normgauge.errors import InputError
from normgauge.ledger.judgement import Judgement, Measured, judged
from normgauge.published.cells import cells_of
from normgauge.published.claims import Claim, claims_of, read_document
from normgauge.published.numbers import covered, read_list, uncovered
from normgauge.schemas.ledger import tables
from normgauge.tables import read_table

Row = dict[str, Any]
LISTS = "numbers"
"""Folder beside the claims that holds the lists of numbers, a CSV of the same name for each."""
AT_SCALE: Mapping[str, str] = {
    "table1_at_scale": "benchmarks/results/table1_scale.csv",
    "exact_recovery_at_scale": "benchmarks/results/exact_recovery.csv",
    "group_boundary_at_scale": "benchmarks/results/gauge_scale.csv",
    "checkpoint_comparison_at_scale": "benchmarks/results/checkpoint_comparison_scale.csv",
    "checkpoint_comparison_nulls_at_scale": "benchmarks/results/checkpoint_comparison_nulls.csv",
}
"""Committed tables of the scale targets by name: they answer where the present study has no row."""


def write_ledger(
    claims: Sequence[str | os.PathLike[str]],
    found: Mapping[str, Sequence[str | os.PathLike[str]]],
    parquet: str | os.PathLike[str],
    csv: str | os.PathLike[str],
) -> None:
    """Write the ledger of files of claims (config/published/STUDY.yaml) against tables.

    found: the files of each table by its name; those of several files are read one after another.
    Raises InputError naming the file for claims and lists that do not fit each other, and for
    selections that do not fit their tables.
    """
    frames = {name: pandas.concat(map(_frame, paths)) for name, paths in found.items() if paths}
    rows = [row for path in claims for row in ledger_rows(Path(path), frames)]
    tables.write(parquet, "ledger", rows, {"claims": str(len(rows))})
    tables.write_csv(csv, "ledger", rows)


def ledger_rows(path: Path, frames: Mapping[str, pandas.DataFrame]) -> Iterator[Row]:
    """The rows of one paper, in the order of its file."""
    document = read_document(path)
    claims = claims_of(path, document)
    passages = read_list(path.parent / LISTS / f"{path.stem}.csv")
    if faults := uncovered(passages, claims):
        raise InputError(
            f"{path}: {len(faults)} faults between claims and numbers, the first: {faults[0]}"
        )
    counts = covered(passages)
    cells = cells_of(path, document, claims)
    measured = Measured(
        frames,
        {(cell.table, cell.model, cell.column): cell for cell in cells},
        document.get("initialised", {}),
    )
    for claim in claims:
        yield _row(claim, judged(claim, measured), counts[claim.name])


def _row(claim: Claim, judgement: Judgement, numbers: int) -> Row:
    value = _number(claim.value)
    return {
        "study": claim.study,
        "claim": claim.name,
        "place": claim.place,
        "quantity": claim.quantity,
        "published": claim.written,
        "value": value,
        "kind": claim.kind,
        "relation": claim.relation,
        "tolerance": None if value is None else claim.tolerance,
        "ours": None if judgement.value is None else _text(judgement.value, claim.value),
        "ours_value": _number(judgement.value),
        "source": judgement.source,
        "status": str(judgement.status),
        "why": judgement.why,
        "numbers": numbers,
    }


def _number(value: Any) -> float | None:
    """A number as such; None for words, truth values and nothing."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value)


def _text(value: Any, published: float | str | None) -> str:
    """Our value to the digits of the published one, four at least; whole numbers whole."""
    if isinstance(value, bool | str):
        return str(value)
    if float(value).is_integer() and abs(value) < 1e15:
        return f"{int(value):,}"
    digits = len(re.sub(r"e.*|[^0-9]|^[-0.]+", "", repr(published))) if published else 0
    return f"{value:.{max(4, digits)}g}"


def _frame(path: str | os.PathLike[str]) -> pandas.DataFrame:
    if Path(path).suffix == ".csv":
        return pandas.read_csv(path, comment="#")
    return read_table(path).to_pandas()
