"""The study: all pairs of each set of checkpoints, and pairs whose second was changed to hide
descent.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

from normgauge.checkpoints.opening import Checkpoint, open_checkpoint
from normgauge.lineage.decision import Lineage, lineage
from normgauge.lineage.evasion import KEEPING, evaded
from normgauge.lineage.units import side_of
from normgauge.progress import Progress
from normgauge.provenance import execution_environment
from normgauge.schemas.lineage import tables

Row = dict[str, Any]
Stored = Mapping[str, tuple[str | os.PathLike[str], Mapping[str, Any] | None]]
"""Checkpoint folders and what is laid over their config.json, by the names of the study."""


def write_study(
    stored: Stored,
    sets: Sequence[Sequence[str]],
    hidden: Sequence[Sequence[str]],
    seeds: Sequence[int],
    draws: int,
    outputs: Mapping[str, str | os.PathLike[str]],
) -> None:
    """Write `lineage_pairs` and `lineage_evasions`, each as parquet and as CSV.

    sets: names of checkpoints that are compared with each other. hidden: pairs (a, b); b is changed
    by every attack under each of `seeds`. draws: permutations of each exact test.
    """
    opened: dict[str, Checkpoint] = {}

    def checkpoint(name: str) -> Checkpoint:
        if name not in opened:
            folder, overrides = stored[name]
            opened[name] = open_checkpoint(folder, dict(overrides or {}))
        return opened[name]

    pairs = [pair for each in sets for pair in combinations(each, 2)]
    progress = Progress(len(pairs) + len(hidden) * len(seeds), "lineage")
    found = []
    for a, b in pairs:
        found.append({"a": a, "b": b, **_row(_tests(checkpoint(a), checkpoint(b), 0, draws))})
        progress.step()
    hidings: list[Row] = []
    for a, b in hidden:
        for seed in seeds:
            hidings += _evasion_rows(a, b, checkpoint(a), checkpoint(b), seed, draws)
            progress.step()
    metadata = execution_environment()
    for kind, rows in (("pairs", found), ("evasions", hidings)):
        tables.write(outputs[kind], f"lineage_{kind}", rows, metadata)
        tables.write_csv(Path(outputs[kind]).with_suffix(".csv"), f"lineage_{kind}", rows)


def _tests(a: Checkpoint, b: Checkpoint, seed: int, draws: int) -> Lineage:
    return lineage(side_of(a), side_of(b), None, seed, draws)


def _evasion_rows(
    a: str, b: str, first: Checkpoint, second: Checkpoint, seed: int, draws: int
) -> Iterator[Row]:
    for attack, copy, change in evaded(second, seed):
        yield {
            "a": a,
            "b": b,
            "attack": attack,
            "seed": seed,
            "function_change": change,
            "keeps_function": attack in KEEPING,
            **_row(_tests(first, copy, seed, draws)),
        }


def _row(found: Lineage) -> Row:
    return {
        "units_z": found.units.z,
        "units_p": found.units.p,
        "stream_z": found.stream.z,
        "stream_p": found.stream.p,
        "draws": found.units.draws,
        "exact_p": found.exact_p,
        "agreements": found.match.agreements,
        "units": found.match.units,
        "layers": len(found.match.layers),
        "count_p": found.match.p,
        "verdict": str(found.verdict),
    }
