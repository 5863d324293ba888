"""The last, separate step: recovered tensors against the stored ones. Only here does the truth
appear.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors.torch import load_file

from normgauge.anatomy import describe
from normgauge.anatomy.structure import Anatomy
from normgauge.checkpoints.opening import Checkpoint
from normgauge.exact_recovery.evidence import (
    call_rows,
    falsifier_rows,
    minimum_norm_rows,
    same_bits,
)
from normgauge.exact_recovery.parts import WHOLE, part_of
from normgauge.exact_recovery.stored_places import stored_scores
from normgauge.provenance import execution_environment
from normgauge.schemas.exact_recovery import tables


def provenance(manifest: str | os.PathLike[str]) -> dict[str, str]:
    """The metadata of a checkpoint's recovery tables, from the path of its manifest."""
    content = json.loads(Path(manifest).read_text(encoding="utf-8"))
    return {
        key: content[key] for key in ("model", "revision", "weights_sha256")
    } | execution_environment()


def write_comparison(
    checkpoint: Checkpoint,
    metadata: Mapping[str, str],
    folder: Path,
    outputs: Mapping[str, str | os.PathLike[str]],
) -> None:
    """Write the tables of one checkpoint, a file for each kind of `outputs`, with that metadata.

    `folder`: the solver's output, or that of the second stage.
    """
    anatomy, recovered = describe(checkpoint.config), compare(checkpoint, folder)
    in_order = _Order(anatomy)
    rows = {
        "map": with_stored_scores(recovered, checkpoint),
        "parts": part_rows(recovered, folder),
        "certificates": in_order(certificate_rows(folder)),
        "null": null_rows(folder),
        "stragglers": in_order(straggler_rows(folder)),
        "falsifier": in_order(falsifier_rows(checkpoint, anatomy, folder)),
        "margins": in_order(margin_rows(folder)),
        "hardest": hardest_rows(folder),
        "attack": attack_rows(checkpoint, folder),
        "minimum_norm": in_order(minimum_norm_rows(checkpoint, anatomy, folder)),
        "calls": call_rows(checkpoint, anatomy, folder),
    }
    for kind, path in outputs.items():
        tables.write(path, f"recovery_{kind}", rows[kind], metadata)


def with_stored_scores(rows: list[dict[str, Any]], checkpoint: Checkpoint) -> list[dict[str, Any]]:
    """Rows of schema `recovery_map`: those of `compare`, with the scores of the stored places."""
    scores = stored_scores(checkpoint, describe(checkpoint.config))
    nothing = {"stored_score": None, "stored_log10_null": None}
    return [{**row, **scores.get(row["tensor"], nothing)} for row in rows]


class _Order:
    """Sorts rows by the place of their module in the anatomy: parts are solved in another order."""

    def __init__(self, anatomy: Anatomy) -> None:
        self.places = {item.module: place for place, item in enumerate(anatomy.maps)}

    def __call__(self, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return sorted(rows, key=lambda row: (self.places[row["module"]], row.get("column", 0)))


def part_rows(recovered: list[dict[str, Any]], folder: Path) -> list[dict[str, Any]]:
    """Rows of schema `recovery_parts`: what became of the values of each part, `recovered` being
    rows of the map, and what it took.
    """
    report = json.loads((folder / "report.json").read_text(encoding="utf-8"))
    counted = ("values", "recovered", "flagged", "misses")
    return [
        {
            "part": cost["part"],
            **{
                name: sum(row[name] for row in recovered if cost["part"] in (row["part"], WHOLE))
                for name in counted
            },
            **{name: cost[name] for name in cost if name != "part"},
        }
        for cost in report["parts"]
    ]


def compare(checkpoint: Checkpoint, folder: Path) -> list[dict[str, Any]]:
    """Rows of the identifiability map (schema `recovery_map`, but for the scores of stored places),
    one per stored tensor of the solver's output folder.

    A miss is a claimed value whose bits differ from the stored ones.
    """
    report = json.loads((folder / "report.json").read_text(encoding="utf-8"))
    recovered, claimed = (
        load_file(folder / "recovered.safetensors"),
        load_file(folder / "claimed.safetensors"),
    )
    rows, stored = [], {**checkpoint.tensors, **checkpoint.heads()}
    anatomy = describe(checkpoint.config)
    places = {tensor.name: place for place, tensor in enumerate(anatomy.tensors)}
    for entry in sorted(
        report["tensors"], key=lambda entry: places.get(entry["tensor"], len(places))
    ):
        name = entry.pop("tensor")
        same, held = same_bits(recovered[name], stored[name]), claimed[name]
        margin = entry.pop("min_margin")
        del entry["decided_margin"]
        rows.append(
            {
                "tensor": name,
                "dtype": str(recovered[name].dtype).removeprefix("torch."),
                "part": part_of(anatomy, name),
                **entry,
                "recovered": int((same & held).sum()),
                "flagged": int((~held & recovered[name].isfinite()).sum()),
                "misses": int((~same & held).sum()),
                "min_margin": margin if math.isfinite(margin) else None,
            }
        )
    return rows


def null_rows(folder: Path) -> list[dict[str, Any]]:
    """Rows of schema `recovery_null`: the histogram of residuals at wrong places, and the test of
    their uniformity.
    """
    null = json.loads((folder / "report.json").read_text(encoding="utf-8"))["null"]
    counts = null.pop("counts")
    width = 0.5 / len(counts)
    return [
        {"low": place * width, "high": (place + 1) * width, "count": count, **null}
        for place, count in enumerate(counts)
    ]


def certificate_rows(folder: Path) -> list[dict[str, Any]]:
    """Rows of schema `recovery_certificates`."""
    return json.loads((folder / "report.json").read_text(encoding="utf-8"))["certificates"]


def straggler_rows(folder: Path) -> list[dict[str, Any]]:
    """Rows of schema `recovery_stragglers`."""
    return [
        {key: value for key, value in entry.items() if key not in ("margins", "history")}
        for entry in json.loads((folder / "report.json").read_text(encoding="utf-8"))["stragglers"]
    ]


def margin_rows(folder: Path) -> list[dict[str, Any]]:
    """Rows of schema `recovery_margins`: the margin of a value against the observations behind
    it.
    """
    report = json.loads((folder / "report.json").read_text(encoding="utf-8"))
    hardest = [report["hardest"]] if report["hardest"] else []
    fits = [
        (study, "joint fit", list(zip(study["rows"], study["margins"], strict=True)))
        for study in hardest
    ]
    looks = [
        (entry, "held fit", entry["history"])
        for entry in report["stragglers"]
        if entry["chunks"] and entry["within_reach"]
    ]
    return [
        {
            "module": origin["module"],
            "column": origin["column"],
            "method": method,
            "rows": rows,
            "margin": margin,
        }
        for origin, method, history in fits + looks
        for rows, margin in history
    ]


def hardest_rows(folder: Path) -> list[dict[str, Any]]:
    """Rows of schema `recovery_hardest`: gain, weight and margin at each input of the hardest
    column.
    """
    study = json.loads((folder / "report.json").read_text(encoding="utf-8"))["hardest"]
    if study is None:
        return []
    names, columns = study["inputs"].keys(), study["inputs"].values()
    return [
        {
            "module": study["module"],
            "column": study["column"],
            "input": number,
            **dict(zip(names, values, strict=True)),
        }
        for number, values in enumerate(zip(*columns, strict=True))
        if not math.isnan(values[1])
    ]


def attack_rows(checkpoint: Checkpoint, folder: Path) -> list[dict[str, Any]]:
    """Rows of schema `recovery_attack`: what the grid alone says of the gauge between embedding
    tables, feature by feature.
    """
    attack = json.loads((folder / "report.json").read_text(encoding="utf-8"))["embedding_attack"]
    if attack is None:
        return []
    inside = [
        _holds_the_truth(checkpoint, attack["sides"], feature)
        for feature in range(len(attack["survivors"]))
    ]
    reached = load_file(folder / "attacked.safetensors")
    stored = checkpoint.tensors[attack["table"]][reached["rows"]][:, attack["single"]]
    right = dict(
        zip(attack["single"], (reached["values"] == stored).all(dim=0).tolist(), strict=True)
    )
    return [
        {
            "feature": feature,
            "rows": attack["rows"],
            "survivors": survivors,
            "inside": inside[feature],
            "right": right.get(feature),
        }
        for feature, survivors in enumerate(attack["survivors"])
    ]


def _holds_the_truth(checkpoint: Checkpoint, sides: list[dict[str, Any]], feature: int) -> bool:
    """Whether the stored tables are among what survived of a feature: the row that counts the
    survivors has one of their values.
    """
    return any(
        side["low"][feature]
        <= checkpoint.tensors[side["table"][feature]][side["row"][feature], feature].item()
        <= side["high"][feature]
        for side in sides
    )
