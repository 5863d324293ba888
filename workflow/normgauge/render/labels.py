"""Words that tables and figures share: what a row is called, how it was computed, how many."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from normgauge.render.rows import Row, Rows, grouped
from normgauge.render.text import plain


class Names:
    """How a row is called: the model, then its revision, stack and forward arithmetic where the
    model has several of them.
    """

    def __init__(
        self, rows: Rows, parts: Sequence[str] = ("revision", "stack", "forward_dtype")
    ) -> None:
        self._parts = parts
        self._values: dict[tuple[str, str], set[str]] = {}
        for row in rows:
            for part in parts:
                self._values.setdefault((row["model"], part), set()).add(row[part])

    def of(self, row: Mapping[str, Any]) -> str:
        several = [row[part] for part in self._parts if len(self._values[row["model"], part]) > 1]
        return plain(", ".join((row["model"], *several)))


def arithmetic(rows: Rows) -> str:
    """In which arithmetic the rows were computed, in words."""
    forward, accumulation = (
        " and ".join(sorted({row[name] for row in rows}))
        for name in ("forward_dtype", "accumulation")
    )
    return f"forward pass in {forward}, moments by {accumulation}"


def seed_count(count: int) -> str:
    return f"{count} seed{'s' if count > 1 else ''}"


def by_checkpoint(rows: Rows) -> dict[str, Rows]:
    """Rows by the name of their model, with the revision where the model has several."""
    names = Names(rows, ("revision",))
    return {names.of(each[0]): each for each in grouped(rows, "model", "revision")}


def weight_notes(row: Row) -> list[str]:
    """What a reader must know about the weights behind a row: quantised or half precision, trained
    here.
    """
    notes = []
    if row["precision"] == "quantised":
        notes.append(f"weights stored as {row['stored_as']}, dequantised")
    elif row["precision"] == "half":
        notes.append(f"weights stored as {row['stored_as']} (half precision)")
    if row["provenance"] == "trained here":
        notes.append("trained here by this workflow, not a published checkpoint")
    return notes


def input_notes(row: Row) -> list[str]:
    """What a reader must know about the inputs behind a row: generated ones, and a token before
    each sequence.
    """
    inputs, _, token = str(row["inputs"]).partition(", behind token ")
    begun = [f"every sequence begins with the token {token}"] if token else []
    if inputs.startswith("noise as audio"):
        return ["hears seeded Gaussian noise, not speech"]
    return [
        *([f"reads generated inputs ({inputs})"] if inputs.startswith("random-") else []),
        *begun,
    ]
