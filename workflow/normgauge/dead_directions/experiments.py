"""All experiments on one checkpoint, in one process: loading the libraries costs as much as a small
model's measurement.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from normgauge.calibration.prepare import prepare
from normgauge.calibration.settings import Bos, Settings
from normgauge.dead_directions.applicability import applicability_rows
from normgauge.dead_directions.budgets import Design, budget_rows, unit_moments
from normgauge.dead_directions.calibrations import measure_calibrations
from normgauge.dead_directions.constrained import constrained_rows
from normgauge.dead_directions.estimators import estimator_rows
from normgauge.dead_directions.norm_zoo import norm_zoo_rows
from normgauge.dead_directions.placements import placement_rows
from normgauge.dead_directions.precision import precision_rows
from normgauge.dead_directions.rank_allocation import allocation_rows
from normgauge.dead_directions.subject import PathLike, Rows, Subject
from normgauge.errors import InputError
from normgauge.fingerprint.directions import read_directions
from normgauge.provenance import execution_environment
from normgauge.schemas.dead_directions import tables


@dataclass(frozen=True)
class Inputs:
    """What an experiment reads: the checkpoint's files, its entry of the model table, corpora by
    name (None for generated ones), the folder that lends a tokenizer, and the study's calibration.
    """

    folder: PathLike
    manifest: PathLike
    calibration: PathLike
    directions: PathLike
    entry: Mapping[str, Any]
    corpora: Mapping[str, PathLike | None]
    tokenizer: PathLike | None
    settings: Settings
    batch_size: int
    groups: int

    def subject(self) -> Subject:
        return Subject.read(self.folder, self.manifest, self.entry.get("config"))

    def prepared(self, settings: Settings, path: Path) -> Path:
        """A calibration of the entry's own corpus with other settings."""
        prepare(
            self.entry,
            self.folder,
            self.corpora[self.entry["calibration"]],
            path,
            config=self.subject().checkpoint.config,
            settings=settings,
            tokenizer_folder=self.tokenizer,
        )
        return path


Options = Mapping[str, Any]


def _calibrations(inputs: Inputs, options: Options, _: Path) -> Rows:
    return measure_calibrations(
        folder=inputs.folder,
        manifest=inputs.manifest,
        entry=inputs.entry,
        corpora={name: inputs.corpora[name] for name in options["corpora"]},
        tokenizer=inputs.tokenizer,
        settings=inputs.settings,
        seeds=options["seeds"],
        batch_size=inputs.batch_size,
        groups=inputs.groups,
    )


def _estimators(inputs: Inputs, _: Options, scratch: Path) -> Rows:
    begun = Settings(
        inputs.settings.sequences, inputs.settings.length, inputs.settings.seed, Bos.ALWAYS
    )
    path = inputs.prepared(begun, scratch / "begun.parquet")
    return estimator_rows(inputs.subject(), path, inputs.groups)


def _sample_budget(inputs: Inputs, options: Options, scratch: Path) -> Rows:
    """Sequences are cut so that `unit` of them are one unit, and enough are drawn for all disjoint
    subsets.
    """
    subject, length, unit = inputs.subject(), options["length"], options["unit"]
    stack = subject.anatomy.primary_stack
    largest = max(options["per_coordinate"]) * stack.width * options["subsets"]
    units = -(-round(largest) // (length * unit))
    settings = Settings(units * unit, length, inputs.settings.seed, inputs.settings.bos)
    path = inputs.prepared(settings, scratch / "budget.parquet")
    last = f"{stack.name}/block.{len(stack.blocks)}/output"
    sites = [site for site in subject.anatomy.sites if site.id in (f"{stack.name}/embedding", last)]
    design = Design(options["per_coordinate"], options["subsets"], options["seed"])
    moments = unit_moments(subject, sites, subject.batches(path, unit))
    return budget_rows(subject, moments, design)


def _precision(inputs: Inputs, _: Options, __: Path) -> Rows:
    return precision_rows(inputs.subject(), inputs.calibration, inputs.batch_size)


def _rank_allocation(inputs: Inputs, options: Options, _: Path) -> Rows:
    return allocation_rows(
        inputs.subject(),
        inputs.calibration,
        options["shares"],
        options["sequences"],
        inputs.batch_size,
    )


def _constrained(inputs: Inputs, options: Options, _: Path) -> Rows:
    directions = read_directions(inputs.directions)
    return constrained_rows(
        inputs.subject(), inputs.calibration, directions, inputs.batch_size, options["seed"]
    )


EXPERIMENTS: dict[str, tuple[str, Callable[[Inputs, Options, Path], Rows]]] = {
    "table5": ("calibrations", _calibrations),
    "estimators": ("estimators", _estimators),
    "sample_budget": ("sample_budget", _sample_budget),
    "precision": ("precision", _precision),
    "figure7": ("rank_allocation", _rank_allocation),
    "constrained_artifacts": ("constrained", _constrained),
}
"""Kind of table -> its section of the configuration, and the experiment."""


def measure_experiments(
    inputs: Inputs, options: Mapping[str, Options], outputs: Mapping[str, str | os.PathLike[str]]
) -> None:
    """Write every output, a kind of EXPERIMENTS -> path; those that `options` does not ask of this
    checkpoint, without rows.

    options: section of the configuration -> its options, only those asked. Raises InputError naming
    the experiment.
    """
    for kind, path in outputs.items():
        section, experiment = EXPERIMENTS[kind]
        rows: Rows = []
        if section in options:
            try:
                with tempfile.TemporaryDirectory() as scratch:
                    rows = experiment(inputs, options[section], Path(scratch))
            except InputError as error:
                raise InputError(f"dead_directions.{section}: {error}") from error
        tables.write(path, kind, rows, execution_environment())


def measure_synthetic(
    shapes: Sequence[PathLike],
    seeds: Sequence[int],
    seed: int,
    outputs: Mapping[str, str | os.PathLike[str]],
) -> None:
    """Write what needs no checkpoint: `norm_zoo`, `table6`, and `mechanism` of small shapes with
    their norms in different places.
    """
    made = {
        "norm_zoo": lambda: norm_zoo_rows(seed),
        "table6": lambda: applicability_rows(seed),
        "mechanism": lambda: placement_rows(shapes, seeds, 16, 128, 8),
    }
    for kind, path in outputs.items():
        tables.write(path, kind, made[kind](), execution_environment())
