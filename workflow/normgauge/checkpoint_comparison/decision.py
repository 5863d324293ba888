"""The decision on a pair, as JSON: which side has more of a declared property, which components
carry the change, and on what evidence.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from typing import Any

from jsonschema import Draft202012Validator

from normgauge.checkpoint_comparison.nulls import LEVEL
from normgauge.provenance import atomic_path

QUESTION = (
    "which side writes the tokens of the probe set {probe} more where it reads them, "
    "summed "
    "over all heads"
)
ROLES = {
    "ov_energy": "what the head moves changed more than a random change of the same energy would",
    "qk_energy": "what the head attends to changed more than a random change of the same energy "
    "would",
    "mlp_unit_terms": "the unit changed more than a random change of the same energy would",
    "table_row_energy": "the row of {label} changed more than a random change of the same energy "
    "would",
    "ov_copy": "the head copies the probes {more} in B",
}
LISTED = 20  # parts that differ
P_VALUES = ("p", "q", "familywise_p")

SCHEMA: dict[str, Any] = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "type": "object",
    "additionalProperties": False,
    "required": [
        "question",
        "verdict",
        "differing",
        "label",
        "declared",
        "components",
        "evidence",
        "level",
        "tests",
        "note",
        "dropped_tokens",
    ],
    "properties": {
        "question": {"type": ["string", "null"]},
        "verdict": {"enum": ["equal", "changed"]},
        "differing": {
            "type": "array",
            "items": {
                "type": "object",
                "additionalProperties": False,
                "required": ["part", "relative", "rounding"],
                "properties": {
                    "part": {"type": "string"},
                    "relative": {"type": "number", "minimum": 0},
                    "rounding": {"type": "number", "minimum": 0},
                },
            },
        },
        "label": {"enum": ["A", "B", "abstain"]},
        "declared": {
            "type": ["object", "null"],
            "additionalProperties": False,
            "required": ["row", "change", *P_VALUES],
            "properties": {
                "row": {"type": "integer", "minimum": 0},
                "change": {"type": "number"},
                **{
                    name: {"type": "number", "exclusiveMinimum": 0, "maximum": 1}
                    for name in P_VALUES
                },
            },
        },
        "components": {
            "type": "array",
            "items": {
                "type": "object",
                "additionalProperties": False,
                "required": ["layer", "part", "head", "units", "tokens", "role"],
                "properties": {
                    "layer": {"type": ["integer", "null"], "minimum": 1},
                    "part": {"enum": ["attention", "mlp", "embedding"]},
                    "head": {"type": ["integer", "null"], "minimum": 0},
                    "units": {
                        "type": ["array", "null"],
                        "items": {"type": "integer", "minimum": 0},
                    },
                    "tokens": {
                        "type": ["array", "null"],
                        "items": {"type": "integer", "minimum": 0},
                    },
                    "role": {"type": "string"},
                },
            },
        },
        "evidence": {"type": "array", "items": {"type": "integer", "minimum": 0}},
        "level": {"type": "number"},
        "tests": {"type": "integer", "minimum": 0},
        "note": {"type": "string"},
        "dropped_tokens": {
            "type": "object",
            "additionalProperties": {"type": "array", "items": {"type": "string"}},
        },
    },
}


def decide(
    rows: Sequence[Mapping[str, Any]],
    apart: Sequence[Mapping[str, Any]],
    probe: str | None,
    dropped: Mapping[str, Sequence[str]],
) -> dict[str, Any]:
    """The decision from rows of schema `checkpoint_comparison_nulls` in the order of the file;
    `evidence` are their numbers, from 0. `apart`: the parts that differ by more than rounding; the
    first LISTED of them are kept. Without any the verdict is "equal", and nothing else is said.

    `label` names the side with the larger copy statistic where the declared test of it is
    significant, else it abstains.
    `declared` is that test: its row, the signed change and its three p-values, null where there was
        none. A probability
    that the label is right is not given: no p-value is one without a prior over pairs. `components`
    are those of all significant tests.
    """
    evidence = [number for number, row in enumerate(rows) if row["significant"] and apart]
    tested = (
        number
        for number, row in enumerate(rows)
        if row["statistic"] == "ov_copy_all_heads" and row["confirmatory"]
    )
    number = next(tested, None)
    row = None if number is None else rows[number]
    if row is None:
        label, note = (
            "abstain",
            "abstains: no declared property, since no probe set is in the vocabulary",
        )
    else:
        values = f"(q = {row['q']:.3g}, family-wise p = {row['familywise_p']:.3g})"
        if not apart:
            label, note = "abstain", "abstains: A and B are equal up to storage rounding"
        elif row["significant"]:
            label, note = (
                ("B" if row["change"] > 0 else "A"),
                f"the declared test survives {values}",
            )
        else:
            label, note = "abstain", f"abstains: the declared test does not survive {values}"
    return {
        "question": QUESTION.format(probe=probe) if probe else None,
        "verdict": "changed" if apart else "equal",
        "differing": list(apart[:LISTED]),
        "label": label,
        "declared": None
        if row is None
        else {"row": number, **{name: row[name] for name in ("change", *P_VALUES)}},
        "components": [
            _component(rows[number]) for number in evidence if rows[number]["statistic"] in ROLES
        ],
        "evidence": evidence,
        "level": LEVEL,
        "tests": sum(row["confirmatory"] for row in rows),
        "note": note,
        "dropped_tokens": {name: list(tokens) for name, tokens in dropped.items() if tokens},
    }


def _component(row: Mapping[str, Any]) -> dict[str, Any]:
    more = "more" if (row["change"] or 0) > 0 else "less"
    return {
        "layer": row["block"],
        "part": row["part"],
        "head": row["head"],
        "units": None if row["unit"] is None else [row["unit"]],
        "tokens": None if row["token"] is None else [row["token"]],
        "role": ROLES[row["statistic"]].format(label=row["label"], more=more),
    }


def write_decision(path: str | os.PathLike[str], decision: Mapping[str, Any]) -> None:
    """Write decision.json, atomically, after checking it against SCHEMA. A decision that breaks it
    is a defect.
    """
    Draft202012Validator(SCHEMA).validate(decision)
    with atomic_path(path) as temporary:
        temporary.write_text(
            json.dumps(decision, indent=2, ensure_ascii=False) + "\n", encoding="utf-8"
        )
