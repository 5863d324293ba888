"""The table of all pairs, from the comparisons of each."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from normgauge.render.rows import Row, Rows
from normgauge.schemas.checkpoint_comparison import tables
from normgauge.tables import read_metadata


def summary(inputs: Mapping[str, Sequence[Path]]) -> Rows:
    """One row per pair (schema `checkpoint_comparison`) from its `inventory`, `alignment`, `nulls`
    and `decision`.
    """
    kinds = ("inventory", "alignment", "nulls", "decision")
    return [_summary(*paths) for paths in zip(*(inputs[kind] for kind in kinds), strict=True)]


def _summary(inventory: Path, alignment: Path, nulls: Path, decision: Path) -> Row:
    metadata, rows = (
        read_metadata(inventory),
        tables.read(inventory, "checkpoint_comparison_inventory"),
    )
    total = {row["tensor"]: row for row in rows if row["status"] == "total"}
    blocks = total["matrices of all blocks"]
    found: dict[str, set[str]] = {}
    for row in tables.read(alignment, "checkpoint_comparison_alignment"):
        found.setdefault(row["group"], set()).add(row["found"])
    tests = [
        row for row in tables.read(nulls, "checkpoint_comparison_nulls") if row["confirmatory"]
    ]
    decided = json.loads(decision.read_text(encoding="utf-8"))
    return {
        **{key: metadata[key] for key in ("model_a", "revision_a", "model_b", "revision_b")},
        "tensors": sum(row["status"] == "tensor" for row in rows),
        "unmatched": sum(row["status"] in ("A only", "B only") for row in rows),
        "values": total["all tensors"]["values"],
        "relative": blocks["relative"],
        "relative_to_a": blocks["relative_to_a"],
        "floor": blocks["floor"],
        "aligned_relative": blocks["aligned_relative"],
        **{
            group: " and ".join(sorted(found.get(group, set()))) or None
            for group in ("residual", "heads", "units")
        },
        "tests": len(tests),
        "significant": sum(row["significant"] for row in tests),
        "smallest_p": min((row["p"] for row in tests), default=None),
        "strongest": component(tests[0]) if tests and tests[0]["significant"] else None,
        "verdict": decided["verdict"],
        "label": decided["label"],
        **{
            f"declared_{name}": (decided["declared"] or {}).get(name)
            for name in ("change", "p", "familywise_p")
        },
    }


def component(row: Mapping[str, Any]) -> str:
    """A component in words: `block 3 head 1: ov_energy`."""
    words = [f"{key} {row[key]}" for key in ("block", "head", "unit") if row[key] is not None]
    if row["token_text"] is not None:
        words.append(f"token {row['token_text']!r}")
    elif row["row"] is not None:
        words.append(f"row {row['row']} of {row['label']}")
    return f"{' '.join(words) or row['part']}: {row['statistic']}"


BUILDERS = {"checkpoint_comparison": summary}
