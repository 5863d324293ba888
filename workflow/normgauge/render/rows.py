"""Rows of a table, and those of them that belong together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

Row = dict[str, Any]
Rows = Sequence[Row]


def grouped(rows: Rows, *keys: str) -> list[Rows]:
    """Rows with equal values under the keys together, in order of first appearance."""
    groups: dict[tuple, list[Row]] = {}
    for row in rows:
        groups.setdefault(tuple(row[key] for key in keys), []).append(row)
    return list(groups.values())


def known(rows: Rows, key: str) -> list[Any]:
    """The values under the key that are not null."""
    return [row[key] for row in rows if row[key] is not None]


def unique(values) -> list[Any]:
    """Each value once, in order of first appearance."""
    return list(dict.fromkeys(values))
