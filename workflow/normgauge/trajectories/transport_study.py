"""Transport, trust, cycles and probe budgets measured, files in and files out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from normgauge.anatomy import describe
from normgauge.calibration.batches import batches
from normgauge.checkpoints.building import build_model
from normgauge.checkpoints.fine_tuned import FineTunedSource
from normgauge.checkpoints.opening import open_checkpoint
from normgauge.provenance import execution_environment
from normgauge.schemas.trajectories import tables
from normgauge.signed_permutation.natural_alignment import (
    alignment_rows,
    common_group,
    stream_activations,
)
from normgauge.trajectories.atlas import Atlas, PathLike
from normgauge.trajectories.runs import Start
from normgauge.trajectories.study import Named
from normgauge.trajectories.transport import (
    cycle_rows,
    fitted_trust,
    pair_rows,
    trust_rows,
    within_rows,
)
from normgauge.trajectories.watching import Probes

Output = Mapping[str, PathLike]


@dataclass(frozen=True)
class Tuned:
    """The runs of one entry: its id and source, where its runs lie, and what they started from."""

    model: str
    source: FineTunedSource
    folder: PathLike
    start: Start


def measure_transport(
    tuned: Sequence[Tuned], budgets: Sequence[int], output: Mapping[str, Output]
) -> None:
    """Write trajectory_transport, trajectory_pairs, trajectory_cycles, transport_trust and
    endpoint_budget, parquet and csv each; `budgets`: samples behind the long-stride matches.
    """
    atlases = [Atlas(each.model, each.source, each.start, each.folder) for each in tuned]
    trust = fitted_trust(atlases)
    within = [row for atlas in atlases for row in within_rows(atlas, trust)]
    found = {
        "trajectory_transport": within,
        "trajectory_pairs": [row for atlas in atlases for row in pair_rows(atlas, trust)],
        "trajectory_cycles": [row for atlas in atlases for row in cycle_rows(atlas)],
        "transport_trust": list(trust_rows(trust, within)),
        "endpoint_budget": [
            row
            for each, atlas in zip(tuned, atlases, strict=True)
            for row in budget_rows(each, atlas, budgets)
        ],
    }
    for kind, rows in found.items():
        tables.write(output[kind]["parquet"], kind, rows, execution_environment())
        tables.write_csv(output[kind]["csv"], kind, rows)


def budget_rows(tuned: Tuned, atlas: Atlas, budgets: Sequence[int]) -> Iterator[dict[str, Any]]:
    """Rows of schema `endpoint_budget`: the base matched with the end in one match, of the first
    run of every text, by growing numbers of samples.
    """
    assert tuned.start.base is not None
    assert tuned.start.probes is not None
    base = open_checkpoint(tuned.start.base, tuned.start.overrides)
    anatomy = describe(base.config)
    given = list(
        batches(tuned.start.probes, folder=tuned.start.base, config=base.config, batch_size=1)
    )
    probes = Probes(anatomy, given, max(budgets))
    seen = probes.of(build_model(base, "float32"))
    for run in atlas.runs:
        if run.seed != atlas.source.seeds[0]:
            continue
        folder = f"{tuned.folder}/{run.name}/step{atlas.source.steps}"
        end = probes.of(build_model(open_checkpoint(folder), "float32"))
        for scope in probes.scopes:
            truth = run.truth(scope)
            for tokens in sorted(budgets):
                found = probes.match(scope, seen, end, tokens)
                signs = np.sign(found.gauge.factors) == np.sign(truth.factors)
                yield {
                    "model": tuned.model,
                    "learning_rate": tuned.source.settings["learning_rate"],
                    "steps": tuned.source.steps,
                    "run": run.name,
                    "space": scope.space,
                    "sites": scope.sites,
                    "tokens": tokens,
                    "accuracy": float((found.gauge.target == truth.target).mean()),
                    "sign_accuracy": float(signs.mean()),
                    "certain": float((~found.uncertain).mean()),
                }


def measure_alignment_budget(
    models: Sequence[Named], calibration: PathLike, budgets: Sequence[int], output: Output
) -> None:
    """Write natural_alignment, parquet and csv: the first model matched with the others, which were
    trained from other initialisations, by growing numbers of samples of one half of the
    calibration, against the other half.
    """
    checkpoints = {model.name: model.opened() for model in models}
    first = models[0]
    config = checkpoints[first.name].config
    given = batches(calibration, folder=first.folder, config=config, batch_size=1)
    streams = stream_activations(checkpoints, list(given))
    name, revision = first.name.split("@")
    norm = str(describe(config).norm_kind)
    rows = [
        {"model": name, "revision": revision, "norm_kind": norm, **row}
        for row in alignment_rows(streams, budgets, common_group(checkpoints))
    ]
    tables.write(output["parquet"], "natural_alignment", rows, execution_environment())
    tables.write_csv(output["csv"], "natural_alignment", rows)
