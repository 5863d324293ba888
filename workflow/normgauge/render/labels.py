"""Words that tables and figures share: what a row is called, how it was computed, how many."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from normgauge.render.style import plain

Row = dict[str, Any]
Rows = Sequence[Row]


class Names:
    """How a row is called: the model, then its revision, stack and forward arithmetic where the model has several of them."""

    def __init__(self, rows: Rows, parts: Sequence[str] = ("revision", "stack", "forward_dtype")) -> None:
        self._parts = parts
        self._values: dict[tuple[str, str], set[str]] = {}
        for row in rows:
            for part in parts:
                self._values.setdefault((row["model"], part), set()).add(row[part])

    def of(self, row: Mapping[str, Any]) -> str:
        several = [row[part] for part in self._parts if len(self._values[row["model"], part]) > 1]
        return plain(", ".join((row["model"], *several)))


def arithmetic(rows: Rows) -> str:
    forward, accumulation = (" and ".join(sorted({row[name] for row in rows})) for name in ("forward_dtype", "accumulation"))
    return f"forward pass in {forward}, moments by {accumulation}"


def token_count(value: int) -> str:
    return f"{value:,}"


def seed_count(count: int) -> str:
    return f"{count} seed{'s' if count > 1 else ''}"
