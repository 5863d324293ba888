"""The result tables of exact recovery, from the files of its checkpoints."""

from __future__ import annotations

import os
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from scipy import stats

from normgauge.exact_recovery.stragglers import REQUIRED_MARGIN
from normgauge.schemas.exact_recovery import tables
from normgauge.tables import read_metadata

Paths = Sequence[str | os.PathLike[str]]
Row = dict[str, Any]
Rows = Sequence[Row]


def write_tables(
    inputs: Mapping[str, Paths], outputs: Mapping[str, str | os.PathLike[str]]
) -> None:
    """Concatenate the files of checkpoints, in the order given, into the result tables, each as
    parquet and CSV.

    `inputs`: paths of recovery/{kind}.parquet by kind. `outputs`: paths by result table, and by its
        name with `_csv` appended.
    """
    files = {
        kind: [(_checkpoint(path), tables.read(path, f"recovery_{kind}")) for path in paths]
        for kind, paths in inputs.items()
    }
    results = {
        "exact_recovery_map": _joined(files["map"]),
        "exact_recovery_parts": _joined(files["parts"]),
        "exact_recovery_minimum_norm": _joined(files["minimum_norm"]),
        "exact_recovery_calls": _joined(files["calls"]),
        "exact_recovery_null": _with_score(_joined(files["null"]), _joined(files["map"])),
        "exact_recovery_margins": _joined(files["margins"]),
        "exact_recovery_columns": _joined(files["hardest"]),
        "exact_recovery": [
            row
            for identity, rows in files["map"]
            for row in _summary(identity, rows, _of(identity, files))
        ],
    }
    for name, rows in results.items():
        tables.write(outputs[name], name, rows, {})
        tables.write_csv(outputs[f"{name}_csv"], name, rows)


Files = Sequence[tuple[Row, Rows]]
"""What each checkpoint is called, and its rows of one kind."""


def _checkpoint(path: str | os.PathLike[str]) -> dict[str, str]:
    metadata = read_metadata(path)
    return {key: metadata[key] for key in ("model", "revision")}


def _joined(files: Files) -> list[Row]:
    return [{**identity, **row} for identity, rows in files for row in rows]


def _of(wanted: Row, files: Mapping[str, Files]) -> dict[str, Rows]:
    """The rows of one checkpoint by kind; kinds that it has no file of are left out."""
    return {
        kind: rows
        for kind, given in files.items()
        for identity, rows in given
        if identity == wanted
    }


def _with_score(residuals: Rows, maps: Rows) -> list[Row]:
    scores: dict[tuple[str, str], float] = {}
    for row in maps:
        if row["score"] is not None:
            place = row["model"], row["revision"]
            scores[place] = max(scores.get(place, 0.0), row["score"])
    return [{**row, "score": scores.get((row["model"], row["revision"]))} for row in residuals]


_SUMS = ("values", "recovered", "flagged", "misses", "seconds")


def _summary(identity: Row, rows: Rows, evidence: Mapping[str, Rows]) -> list[Row]:
    """Rows of schema exact_recovery: one per population, and one for the checkpoint, which carries
    what was checked of it.
    """
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(row["population"], []).append(row)
    unchecked = dict.fromkeys(_checks(evidence))
    counted = [
        {**identity, "population": name, **_counts(members), **unchecked}
        for name, members in groups.items()
    ]
    return [*counted, {**identity, "population": "all", **_counts(rows), **_checks(evidence)}]


def _counts(rows: Rows) -> Row:
    margins = [row["min_margin"] for row in rows if row["min_margin"] is not None]
    return {
        "tensors": len(rows),
        **{name: sum(row[name] for row in rows) for name in _SUMS},
        "undetermined": sum(row["values"] - row["determined"] for row in rows),
        "min_margin": min(margins, default=None),
    }


def _checks(evidence: Mapping[str, Rows]) -> Row:
    hashes = [
        row["assembled_sha256"] and row["assembled_sha256"] == row["sha256"]
        for row in evidence["assembly"]
    ]
    routes = evidence.get("routes")
    reached = sum(bool(row["right"]) for row in evidence["attack"])
    fits = evidence["minimum_norm"]
    return {
        "certificates": sum(row["candidates"] > 1 for row in evidence["certificates"]),
        "most_survivors": max((row["survivors"] for row in evidence["certificates"]), default=None),
        "falsifier_values": sum(row["values"] for row in evidence["falsifier"]),
        "falsifier_matches": sum(row["matches"] + row["claimed"] for row in evidence["falsifier"]),
        "falsifier_chance": sum(row["chance_matches"] for row in evidence["falsifier"]),
        "control_matches": sum(row["true_matches"] for row in evidence["falsifier"]),
        **{
            f"null_{name}": evidence["null"][0][name]
            for name in ("residuals", "left_out", "statistic", "p")
        },
        **_stragglers(evidence["stragglers"]),
        "attacked": len(evidence["attack"]),
        "attack_inside": sum(row["inside"] for row in evidence["attack"]),
        "attack_survivors": statistics.median_low(survivors)
        if (survivors := [row["survivors"] for row in evidence["attack"]])
        else None,
        "attack_reached": reached,
        "attack_values": sum(row["rows"] for row in evidence["attack"] if row["right"]),
        **_rate(reached, len(evidence["attack"])),
        "nonpositive_gains": sum(row["nonpositive"] or 0 for row in evidence["map"]),
        **_hardest(evidence["hardest"]),
        "extended": sum(row["extended"] or 0 for row in evidence["map"]),
        "second_extended": None
        if routes is None
        else sum(row["second_extended"] or 0 for row in routes),
        "minimum_norm_values": sum(row["values"] for row in fits),
        "minimum_norm_matches": sum(row["matches"] for row in fits),
        "minimum_norm_distance": max((row["distance"] for row in fits), default=None),
        "sha256_equal": None if None in hashes else all(hashes),
        "route_differences": None if routes is None else sum(row["different"] for row in routes),
    }


def _rate(reached: int, attacked: int) -> Row:
    """The share of features that the grid alone closes, in percent, with its 95 % interval."""
    if not attacked:
        return dict.fromkeys(("attack_share", "attack_low", "attack_high"))
    interval = stats.binomtest(reached, attacked).proportion_ci(0.95, "exact")
    return {
        "attack_share": 100 * reached / attacked,
        "attack_low": 100 * float(interval.low),
        "attack_high": 100 * float(interval.high),
    }


def _hardest(rows: Rows) -> Row:
    """Where the gain before the hardest column's least certain weight stands among its inputs'."""
    decided = [row for row in rows if row["margin"] > 0 and row["gain"] and row["weight"]]
    if not decided:
        return {"hardest_rank": None, "hardest_ratio": None}
    least = min(decided, key=lambda row: row["margin"])
    sizes = [1 / abs(row["gain"]) for row in rows if row["gain"]]
    own = 1 / abs(least["gain"])
    return {
        "hardest_rank": 1 + sum(size > own for size in sizes),
        "hardest_ratio": own / statistics.median(sizes),
    }


def _stragglers(rows: Rows) -> Row:
    plain = [
        row["margin"] if row["float64_margin"] is None else row["float64_margin"] for row in rows
    ]
    return {
        "stragglers": len(rows),
        "chunks": max((row["chunks"] for row in rows), default=0),
        "fresh_outputs": next((row["outputs"] for row in rows if row["outputs"]), None),
        "closed": sum(row["margin"] >= REQUIRED_MARGIN for row in rows),
        "closed_float64": sum(margin >= REQUIRED_MARGIN for margin in plain),
    }
