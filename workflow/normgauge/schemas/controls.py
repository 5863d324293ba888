"""Controls of all studies and their power, in one table."""

from __future__ import annotations

from normgauge.tables import FLOAT, INT, STRING, STRINGS, Tables, schema

tables = Tables(
    {
        "controls": schema(
            ("study", STRING, "!study that has it"),
            ("control", STRING, "!what is tried, or what must hold"),
            ("table", STRING, "!table that it is read from"),
            ("columns", STRINGS, "!columns of that table that show it"),
            ("model", STRING, "!model with its revision, pair of models, small model or block"),
            ("fault", STRING, "!what it would detect"),
            (
                "must",
                STRING,
                "!show: the change is outside the law and must be seen; not show: the law says "
                "that there is nothing to be seen",
            ),
            ("readings", INT, "!rows of that table behind this one", "rows"),
            (
                "without_power",
                INT,
                "!of these, without power: they do not count in what follows, unless all are",
                "rows",
            ),
            ("unit", STRING, "!unit of the three numbers"),
            (
                "expected",
                FLOAT,
                "effect that the fault would have had (not show), or that was predicted of the "
                "change before it was "
                "measured (show): the smallest over the readings; null where there is none",
            ),
            (
                "tolerance",
                FLOAT,
                "!largest effect that counts as none: the largest over the readings",
            ),
            (
                "measured",
                FLOAT,
                "effect: the smallest over the readings where it must show, the largest where it "
                "must not; null without one",
            ),
            (
                "verdict",
                STRING,
                "!passed, failed, or no power: the expected effect does not stand out of the "
                "tolerance",
            ),
        ),
    }
)
