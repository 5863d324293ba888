"""What the tables of signed permutations share: a section for each checkpoint."""

from __future__ import annotations

from normgauge.render.labels import Names
from normgauge.render.rows import Row, Rows, grouped
from normgauge.render.text import plain
from normgauge.schemas.signed_permutation import IN_GROUP


def of_checkpoints(rows: Rows) -> dict[str, Rows]:
    """Rows of each checkpoint under its name, norm and placement."""
    names = Names(rows, ("revision",))
    sections = {}
    for members in grouped(rows, "model", "revision"):
        first = members[0]
        heading = f"{names.of(first)}: {first['norm_kind']}, {first['placement']}"
        sections[plain(heading)] = members
    return sections


def how_matched(row: Row) -> str:
    """How a line was matched: in the group by all sites or by each, or which control it is."""
    return (
        ("all sites together" if row["pooled"] else "each site alone")
        if row["match"] == IN_GROUP
        else row["match"]
    )
