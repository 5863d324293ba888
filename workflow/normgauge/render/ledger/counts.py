"""How many claims of each paper have each status."""

from __future__ import annotations

from matplotlib.figure import Figure

from normgauge.render.declared import Field, table, words
from normgauge.render.formats import count, percent
from normgauge.render.rows import Row, Rows, grouped
from normgauge.render.text import plain
from normgauge.schemas.ledger import Status

ANSWERED = (Status.REPRODUCED, Status.DEVIATES, Status.CONTRADICTED)
"""Statuses that say whether a number holds; of the others UNMEASURED alone could be had here."""
_HEADS = {
    Status.CONTRADICTED: "contradicted",
    Status.UNMEASURED: "not measured",
}


def counts(rows: Rows) -> Figure:
    """A line per study and one for all of them. `rows` are of the schema `ledger`."""
    studies = [
        _counted(plain(each[0]["study"]).replace("_", " "), each) for each in grouped(rows, "study")
    ]
    return table(
        "Published numbers and what became of them",
        [
            words("study", "study", flexible=True),
            Field("numbers", lambda row: count(row["numbers"])),
            Field("claims", lambda row: count(row["claims"])),
            *(_column(status) for status in Status),
            Field("answered", lambda row: percent(row["answered"])),
        ],
        {"": [*studies, _counted("all", rows)]},
        [
            "numbers: of the paper's text that a claim covers, repetitions counted; a whole table "
            "may be one claim. reproduced: within the stated tolerance, or as the claim says of "
            "another checkpoint. deviates, contradicted: refuted, by a measurement or by the paper "
            "itself, each with the reason. needs a hub: its checkpoint is not here. answered: "
            "reproduced or refuted, of all that this run could measure. Every claim is "
            "in ledger.csv."
        ],
        look=lambda row: {"weight": "bold"} if row["study"] == "all" else {},
    )


def _column(status: Status) -> Field:
    return Field(_HEADS.get(status, str(status)), lambda row: count(row[status]))


def _counted(study: str, rows: Rows) -> Row:
    found = {status: sum(row["status"] == status for row in rows) for status in Status}
    answered = sum(found[status] for status in ANSWERED)
    possible = answered + found[Status.UNMEASURED]
    return {
        "study": study,
        "numbers": sum(row["numbers"] for row in rows),
        "claims": len(rows),
        "answered": answered / possible if possible else None,
        **{str(status): number for status, number in found.items()},
    }
