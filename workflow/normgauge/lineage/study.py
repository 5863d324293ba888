"""The study: all pairs of each set of checkpoints, and pairs whose second was changed to hide
descent.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

from normgauge.calibration.direct import Inputs, prepared_inputs
from normgauge.calibration.interfaces import Interface, interface_of
from normgauge.checkpoints.opening import Checkpoint, open_checkpoint
from normgauge.lineage.decision import Lineage, lineage
from normgauge.lineage.evasion import KEEPING, evaded, seen
from normgauge.lineage.localisation import localise
from normgauge.lineage.units import side_of
from normgauge.progress import Progress
from normgauge.provenance import execution_environment
from normgauge.schemas.lineage import tables

Row = dict[str, Any]
Stored = Mapping[str, tuple[str | os.PathLike[str], Mapping[str, Any] | None]]
"""Checkpoint folders and what is laid over their config.json, by the names of the study."""


LOCALISED = ("none", "every gauge", "every other block anew, every gauge")
"""Attacks after which the study says where each layer comes from."""


@dataclass(frozen=True)
class Hiding:
    """A pair whose b is changed by every attack under each of `seeds`. third: what the mean is
    taken with, "" for b's own values in another order.
    """

    a: str
    b: str
    seeds: Sequence[int]
    third: str = ""


def write_study(
    stored: Stored,
    sets: Sequence[Sequence[str]],
    hidden: Sequence[Hiding],
    draws: int,
    outputs: Mapping[str, str | os.PathLike[str]],
    receptors: str | os.PathLike[str] | None = None,
) -> None:
    """Write `lineage_pairs`, `lineage_evasions` and `lineage_origins`, each as parquet and as CSV.

    sets: names of checkpoints that are compared with each other. draws: permutations of each exact
    test. receptors: the corpus of T-cell receptors, where a hidden model reads them. Raises
    InputError for one that has no inputs.
    """
    opened: dict[str, Checkpoint] = {}

    def checkpoint(name: str) -> Checkpoint:
        if name not in opened:
            folder, overrides = stored[name]
            opened[name] = open_checkpoint(folder, dict(overrides or {}))
        return opened[name]

    pairs = [pair for each in sets for pair in combinations(each, 2)]
    progress = Progress(len(pairs) + sum(len(each.seeds) for each in hidden), "lineage")
    rows: dict[str, list[Row]] = {"pairs": [], "evasions": [], "origins": []}
    for a, b in pairs:
        found = _row(_tests(checkpoint(a), checkpoint(b), 0, draws))
        rows["pairs"].append({"a": a, "b": b, **found})
        progress.step()
    for each in hidden:
        first, second = checkpoint(each.a), checkpoint(each.b)
        third = checkpoint(each.third) if each.third else None
        inputs = _receptors(second, stored[each.b][0], receptors) if receptors else None
        for seed in each.seeds:
            for attack, copy, change in evaded(second, seed, third=third, inputs=inputs):
                names = {"a": each.a, "b": each.b, "attack": attack, "seed": seed}
                cost = {"function_change": change, "keeps_function": attack in KEEPING}
                tests = _row(_tests(first, copy, seed, draws))
                rows["evasions"].append({**names, **cost, **tests})
                if attack in LOCALISED:
                    rows["origins"] += [{**names, **row} for row in _origins(first, copy)]
            progress.step()
    metadata = execution_environment()
    for kind, measured in rows.items():
        tables.write(outputs[kind], f"lineage_{kind}", measured, metadata)
        tables.write_csv(Path(outputs[kind]).with_suffix(".csv"), f"lineage_{kind}", measured)


def _receptors(
    checkpoint: Checkpoint, folder: str | os.PathLike[str], corpus: str | os.PathLike[str]
) -> Inputs | None:
    """Sequences of the corpus for a model that reads receptors; None for one that reads tokens."""
    if interface_of(checkpoint.config) is not Interface.RECEPTOR:
        return None
    settings = seen(checkpoint.config)
    return prepared_inputs(
        checkpoint.config, settings, Path(folder), "tcr", Path(corpus), batch_size=1
    )


def _origins(a: Checkpoint, b: Checkpoint) -> Iterator[Row]:
    found = localise(side_of(a), side_of(b))
    for kind, sources in (("units", found.units), ("heads", found.heads)):
        for each in sources:
            yield {
                "kind": kind,
                "layer": each.layer,
                "source": each.source,
                "found": len(getattr(each, kind)),
                "total": each.total,
            }


def _tests(a: Checkpoint, b: Checkpoint, seed: int, draws: int) -> Lineage:
    return lineage(side_of(a), side_of(b), None, seed, draws)


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
