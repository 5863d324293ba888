"""The status of a claim, and the sentence that says why."""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pandas

from normgauge.errors import InputError
from normgauge.ledger.computed import computed
from normgauge.published.cells import GROWS_WITH_SAMPLES, Published
from normgauge.published.claims import Claim
from normgauge.schemas.ledger import Status

AT_SCALE = "_at_scale"
"""End of the names of committed tables that answer where the present study has no row."""


@dataclass(frozen=True)
class Judgement:
    """value: ours, None without one. source: the table or function that it is from."""

    status: Status
    value: Any
    source: str | None
    why: str


@dataclass(frozen=True)
class Measured:
    """What a run holds. tables: by name; cells: published values that need the samples behind them,
    by (table, model, column); initialised: models of ours at random initialisation, with the
    published model of their architecture.
    """

    tables: Mapping[str, pandas.DataFrame]
    cells: Mapping[tuple[str, str, str], Published]
    initialised: Mapping[str, str]


def judged(claim: Claim, measured: Measured) -> Judgement:
    """The status of a claim in a run. Raises InputError for a selection that does not fit its
    table.
    """
    value, source, absence = _ours(claim, measured)
    if claim.check is not None and not stands(claim, own := computed(claim.check)):
        given = f"The paper's own numbers give {own:.3g} ({claim.check})."
        return Judgement(Status.CONTRADICTED, value, source, claim.reason or given)
    if claim.kind == "setting":
        return Judgement(
            Status.SETTING, value, source, claim.reason or "A choice of the protocol, not compared."
        )
    if claim.status is not None:
        return Judgement(claim.status, value, source, claim.reason or _hub(claim))
    if value is None:
        if claim.hub is not None:
            return Judgement(Status.HUB, None, source, _hub(claim))
        return Judgement(Status.UNMEASURED, None, source, absence)
    if stands(claim, value):
        return Judgement(Status.REPRODUCED, value, source, _agreement(claim))
    return Judgement(
        Status.DEVIATES, value, source, claim.reason or "The reason has not been found."
    )


def stands(claim: Claim, value: float | str) -> bool:
    """Whether our value stands to the published one as the claim says, within its tolerance."""
    if isinstance(value, str) or isinstance(claim.value, str) or claim.value is None:
        return value == claim.value
    difference = value - claim.value
    slack = claim.tolerance + 1e-12 * abs(claim.value)  # decimals are not binary
    if claim.relation == ">=":
        return difference >= -slack
    if claim.relation == "<=":
        return difference <= slack
    return abs(difference) <= slack


def _ours(claim: Claim, measured: Measured) -> tuple[Any, str | None, str]:
    """Our value, where it is from, and why there is none."""
    if claim.computed is not None:
        return computed(claim.computed), f"computed: {claim.computed}", ""
    if claim.ours is None:
        return None, None, "Nothing of ours is compared with it."
    table = claim.ours.table
    absence = f"The table {table} is not made in this run."
    if table in measured.tables:
        try:
            value = _selected(claim, measured.tables[table], measured)
        except ValueError as error:
            raise InputError(f"claim {claim.name} of {claim.study}: {error}") from error
        if value is not None:
            return value, table, ""
        absence = f"The table {table} has no such value in this run."
    if (committed := f"{table}{AT_SCALE}") in measured.tables:
        with suppress(ValueError):  # it may lack columns that the table has since
            value = _selected(claim, measured.tables[committed], measured)
            if value is not None:
                return value, committed, ""
    return None, table, absence


def _selected(claim: Claim, rows: pandas.DataFrame, measured: Measured) -> Any:
    """The value that the claim's selection gives; None without a row."""
    assert claim.ours is not None
    if claim.model is not None:
        rows = _rows_of_model(claim, rows, measured)
    values = claim.ours.values(rows)
    if values.empty and claim.ours.of != "count":
        return None
    return _comparable(claim, claim.ours.aggregated(values), rows, measured)


def _rows_of_model(claim: Claim, rows: pandas.DataFrame, measured: Measured) -> pandas.DataFrame:
    """The rows of the claim's model, or of one at random initialisation that has its architecture,
    in columns that hold without trained weights; of several stacks and arithmetics the primary
    one, in float32 where there is one.
    """
    assert claim.ours is not None
    assert claim.ours.value is not None
    names = {claim.model} | {
        name
        for name, model in measured.initialised.items()
        if model == claim.model and (claim.ours.table, name, claim.ours.value) in measured.cells
    }
    rows = rows[rows["model"].isin(names) & rows[claim.ours.value].notna()]
    for column, wanted in (("primary", True), ("kind", "trained"), ("forward_dtype", "float32")):
        if column in rows and (rows[column] == wanted).any():
            rows = rows[rows[column] == wanted]
    return rows


def _comparable(claim: Claim, value: Any, rows: pandas.DataFrame, measured: Measured) -> Any:
    """Our singular value at the published number of samples; any other value as it is."""
    if claim.model is None or claim.ours is None or claim.ours.value not in GROWS_WITH_SAMPLES:
        return value
    cell = measured.cells[claim.ours.table, claim.model, claim.ours.value]
    assert cell.n is not None
    return value * math.sqrt(cell.n / int(rows["n"].iloc[0]))


def _hub(claim: Claim) -> str:
    if claim.reason is not None and claim.ours is None and claim.check is None:
        return claim.reason
    if claim.lacking is not None:
        return f"Needs {claim.lacking} (config/paper.yaml)."
    return f"Needs the checkpoint {claim.hub}, an entry of config/paper.yaml."


_AGREES = {"=": "Equal", ">=": "At least that", "<=": "At most that"}


def _agreement(claim: Claim) -> str:
    because = f": {claim.because}" if claim.because else ""
    if isinstance(claim.value, str):
        return f"The same{because}."
    if claim.tolerance and claim.relation == "=":
        return f"Within {claim.tolerance:g}{because}."
    return f"{_AGREES[claim.relation]}{because}."
