"""The ledger of published numbers, and the words of its statuses."""

from __future__ import annotations

from enum import StrEnum

from normgauge.tables import FLOAT, INT, STRING, Tables, schema


class Status(StrEnum):
    """What became of a published number."""

    REPRODUCED = "reproduced"
    DEVIATES = "deviates"
    CONTRADICTED = "contradicted by the source itself"
    HUB = "needs a hub"
    CLOSED = "cannot be had"
    UNMEASURED = "not measured in this run"
    SETTING = "setting"


tables = Tables(
    {
        "ledger": schema(
            ("study", STRING, "!study whose paper printed it"),
            ("claim", STRING, "!name of the claim in config/published/STUDY.yaml"),
            ("place", STRING, "!where in the paper: section, table, figure"),
            ("quantity", STRING, "!what was published"),
            ("published", STRING, "!the number or words as printed"),
            ("value", FLOAT, "the published number; null for words and for whole tables"),
            (
                "kind",
                STRING,
                "!exact, statistical, hardware-bound, ours differs by construction, or setting",
            ),
            (
                "relation",
                STRING,
                "!how ours must stand to it: =, >= or <=, each within the tolerance",
            ),
            ("tolerance", FLOAT, "largest difference that counts as none; null where none is used"),
            ("ours", STRING, "our value in the digits of the published one; null without one"),
            ("ours_value", FLOAT, "our number; null without one"),
            ("source", STRING, "table or computation that ours is from; null without one"),
            ("status", STRING, "!" + ", ".join(Status)),
            ("why", STRING, "!one sentence: the reason of the status"),
            (
                "numbers",
                INT,
                "!numbers of the paper's text that this claim covers, repetitions counted",
            ),
        ),
    }
)
