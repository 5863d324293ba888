"""What a verb prints: lines for people, or one JSON document for machines."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

LINES = 20  # of a summary, at most
BLOCKS = 7  # of a table along the depth


def say(lines: Iterable[str]) -> None:
    print("\n".join(lines))


def say_json(value: Mapping[str, Any]) -> None:
    """One JSON document on stdout: numbers that are NaN or infinite, which JSON has not, become
    null.
    """
    print(json.dumps(plain(value), indent=2, allow_nan=False))


def plain(value: Any) -> Any:
    """The value in JSON's own types."""
    if isinstance(value, Mapping):
        return {str(key): plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    if hasattr(value, "item") and not isinstance(value, str | bytes):  # a scalar of numpy
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Lines of columns: the first to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]

    def line(cells: Sequence[str]) -> str:
        first, *others = zip(cells, widths, strict=True)
        return "  ".join(
            [first[0].ljust(first[1]), *(cell.rjust(width) for cell, width in others)]
        ).rstrip()

    return [line(header), *map(line, rows)]


def number(value: float | None, digits: int = 3) -> str:
    return "-" if value is None else f"{value:.{digits}g}"


def written(folder: str | None) -> list[str]:
    return (
        [f"Written to {folder}."]
        if folder
        else ["Nothing was written; --out DIR writes the tables."]
    )
