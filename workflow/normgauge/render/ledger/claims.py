"""The claims themselves: published, ours, and why."""

from __future__ import annotations

from matplotlib.figure import Figure

from normgauge.render.declared import Field, table, words
from normgauge.render.formats import NOTHING
from normgauge.render.ledger.counts import ANSWERED
from normgauge.render.rows import Row, Rows, grouped
from normgauge.render.style import GREY
from normgauge.render.text import plain
from normgauge.schemas.ledger import Status

ORDER = (*ANSWERED, *(status for status in Status if status not in ANSWERED))


def claims(rows: Rows) -> Figure:
    """Every claim by study and status, those of one status with the same reason in one line. `rows`
    are of the schema `ledger`.
    """
    sections = {
        f"{plain(each[0]['study']).replace('_', ' ')}: {status}": [
            _line(group) for group in grouped(found, "why", *_one_by_one(status))
        ]
        for each in grouped(rows, "study")
        for status in ORDER
        if (found := [row for row in each if row["status"] == status])
    }
    return table(
        "Published numbers beside ours",
        [
            words("claim", "quantity", flexible=True),
            words("place", "place", flexible=True),
            Field("published", lambda row: row["published"]),
            Field("ours", lambda row: row["ours"]),
            words("why", "why", flexible=True),
        ],
        sections,
        [
            "What is not measured here stands in one line for each reason: how many claims, and "
            "the first of them. ≥ and ≤: ours must be at least or at most the published value. All "
            "claims, one by one, are in ledger.csv."
        ],
        look=lambda row: {"color": GREY} if row["status"] not in ANSWERED else {},
    )


_RELATIONS = {"=": "", ">=": "≥ ", "<=": "≤ "}


def _one_by_one(status: Status) -> tuple[str, ...]:
    """What else tells lines apart: measured claims stand alone, others with their like."""
    return ("claim",) if status in (Status.REPRODUCED, Status.DEVIATES) else ()


def _line(rows: Rows) -> Row:
    """One line for claims of one status and reason."""
    first = rows[0]
    alone = len(rows) == 1
    return {
        "quantity": plain(first["quantity"] if alone else _several(rows)),
        "place": plain(first["place"]),
        "published": _RELATIONS[first["relation"]] + _short(first["published"])
        if alone
        else NOTHING,
        "ours": _short(first["ours"]) if alone and first["ours"] else NOTHING,
        "status": first["status"],
        "why": plain(first["why"]),
    }


def _several(rows: Rows) -> str:
    numbers = sum(row["numbers"] for row in rows)
    return f"{len(rows)} claims ({numbers:,} numbers), the first: {rows[0]['quantity']}"


def _short(text: str) -> str:
    """A published or measured value; of a hash the first digits."""
    return plain(text if len(text) <= 20 else f"{text[:10]}…")
