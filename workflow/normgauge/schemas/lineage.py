"""Lineage: pairs of checkpoints, pairs whose second was changed to hide descent, and where the
layers of these come from.
"""

from __future__ import annotations

from normgauge.tables import BOOL, FLOAT, INT, STRING, Tables, schema

_TESTS = (
    (
        "units_z",
        FLOAT,
        "!trace of what unit i of A and unit i of B read and write, all layers, in standard "
        "deviations over permutations of units",
    ),
    ("units_p", FLOAT, "!its exact p-value, from the draws", "probability"),
    (
        "stream_z",
        FLOAT,
        "!the same of the stream's coordinates, as tokens and positions write them (signed "
        "permutations under RMSNorm)",
    ),
    ("stream_p", FLOAT, "!its exact p-value, from the draws", "probability"),
    ("draws", INT, "!permutations drawn for each", "permutations"),
    ("exact_p", FLOAT, "!the least exact p-value times their number", "probability"),
    (
        "agreements",
        INT,
        "!units that are matched alike by what they read and by what they write, in the frame of "
        "the token tables",
        "units",
    ),
    ("units", INT, "!units of the layers that were matched", "units"),
    ("layers", INT, "!layers that were matched: the agreements expected by chance", "layers"),
    ("count_p", FLOAT, "!Poisson probability of so many agreements", "probability"),
    (
        "verdict",
        STRING,
        "!related where exact_p or count_p is at most 0.001, else unrelated by this evidence",
    ),
)

tables = Tables(
    {
        "lineage_pairs": schema(
            ("a", STRING, "!model id, or id@revision"),
            ("b", STRING, "!the other one"),
            *_TESTS,
        ),
        "lineage_evasions": schema(
            ("a", STRING, "!model id, or id@revision"),
            ("b", STRING, "!the one that was changed to hide descent"),
            ("attack", STRING, "!what was done to b (docs/lineage.md)"),
            ("seed", INT, "!of what was drawn for it"),
            (
                "function_change",
                FLOAT,
                "!largest change of b's outputs over the largest output, random tokens, float32",
                "share",
            ),
            ("keeps_function", BOOL, "!whether the attack changes nothing but by rounding"),
            *_TESTS,
        ),
        "lineage_origins": schema(
            ("a", STRING, "!model id, or id@revision"),
            ("b", STRING, "!the one that was changed to hide descent"),
            ("attack", STRING, "!what was done to b (docs/lineage.md)"),
            ("seed", INT, "!of what was drawn for it"),
            ("kind", STRING, "!what is placed: units or heads"),
            ("layer", STRING, "!layer of b: the space of its units, or the block of its heads"),
            (
                "source",
                STRING,
                "!layer of a from which most of them come, empty where no more than chance do (all "
                "pairs of layers together at 0.001)",
            ),
            ("found", INT, "!units or heads of that layer that were found", "units or heads"),
            ("total", INT, "!units or heads of the layer of b", "units or heads"),
        ),
    }
)
