"""Controls of checkpoint comparison: the nulls, and whether their draws suffice to decide
anything.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from math import log10

from normgauge.render.controls.reading import Control, Must, Reading, Rows

STUDY = "checkpoint comparison"
LEVEL = 0.05  # of both corrections


def _nulls(rows: Rows) -> Iterator[Reading]:
    """Digits of p: what a change beyond every draw reads, against what a test needs to count.

    That is all that is measured: no change is made, so a null with power passes, whatever was
    found. A confirmatory test needs the level over the number of its family, alone; an exploratory
    one, which decides nothing, the level.
    """
    families = Counter((row["pair"], row["confirmatory"]) for row in rows)
    for row in rows:
        members = families[row["pair"], True] if row["confirmatory"] else 1
        expected = -log10(row["smallest_p"]) if row["null_deviation"] > 0 else 0.0
        name = f"{row['pair']}: {row['statistic']}, {row['null']}"
        yield Reading(name, expected, log10(members / LEVEL), expected, "passed")


CONTROLS = (
    Control(
        STUDY,
        "draws under the nulls",
        "checkpoint_comparison_nulls",
        ("null", "null_mean", "null_deviation", "reached", "draws", "smallest_p"),
        "a null whose draws are too few, or all alike, so that no change could be significant "
        "alone",
        Must.SHOW,
        "-log10 p",
        _nulls,
        {},
        1.0,
    ),
)
