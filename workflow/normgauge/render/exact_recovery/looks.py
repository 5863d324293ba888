"""How the checkpoints of exact recovery look in its figures."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import cycle
from typing import Any

from normgauge.render.labels import by_checkpoint
from normgauge.render.rows import Rows

_LOOKS: tuple[tuple[str, Any], ...] = (
    ("#0072B2", "-"),
    ("#E69F00", (0, (4, 1.5))),
    ("#009E73", (0, (1, 1))),
    ("#CC79A7", (0, (4, 1, 1, 1))),
    ("#56B4E9", (0, (8, 2))),
    ("#000000", (0, (2, 1))),
    ("#D55E00", (0, (6, 1, 1, 1, 1, 1))),
    ("#8C8C8C", (0, (3, 3))),
)
"""Colours (Okabe and Ito, and a grey) and line styles of checkpoints; they begin again where there
are more.
"""


def checkpoints_with_looks(rows: Rows) -> Iterator[tuple[str, Rows, str, Any]]:
    """Name, rows, colour and line style of each checkpoint."""
    for (name, members), (color, line) in zip(
        by_checkpoint(rows).items(), cycle(_LOOKS), strict=False
    ):
        yield name, members, color, line
