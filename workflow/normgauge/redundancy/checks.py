"""A real checkpoint: every family of its symmetries at a random place in float64, and changes
outside them that must show.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from normgauge.anatomy import describe
from normgauge.anatomy.structure import Anatomy
from normgauge.calibration.random_tokens import probes
from normgauge.checkpoints.building import build_model
from normgauge.checkpoints.opening import Checkpoint
from normgauge.gauge.admissible import gauge_spaces
from normgauge.gauge.equivalence import (
    TOLERANCES,
    Deviation,
    Recorded,
    deviation_from,
    outputs,
    recorded_outputs,
)
from normgauge.gauge.model_gauge import Gauge
from normgauge.gauge.random_gauges import random_gauge
from normgauge.gauge.transform import transform
from normgauge.progress import Progress
from normgauge.redundancy.controls import Change, Control, controls
from normgauge.redundancy.family import Kind, dimensions
from normgauge.redundancy.jacobian import head_outputs
from normgauge.redundancy.readers import Mutable, Tensors, stored
from normgauge.redundancy.symmetries import symmetries
from normgauge.schemas.verdicts import Verdict, control_verdict

SPREAD = 0.1  # standard deviation of the coordinates of a random place
POSITIONS = 64  # token positions that are compared


def check_rows(checkpoint: Checkpoint, seed: int) -> list[dict[str, Any]]:
    """Rows of schema `redundancy_checks`. Raises InputError for a model whose symmetries are not
    derived.
    """
    anatomy = describe(checkpoint.config)
    symmetries(anatomy)  # refuses the model with its reason before anything else does
    inputs = list(probes(checkpoint.config, POSITIONS, seed, cover=False))[:1]
    recorded = recorded_outputs(build_model(checkpoint, "float64"), inputs)
    tensors = stored(anatomy, checkpoint.tensors)
    cases: list[tuple[str, int, Change | Control]] = [*_cases(anatomy, seed)]
    cases += [(control.name, 0, control) for control in controls(anatomy, seed)]
    progress = Progress(len(cases), f"symmetries of {anatomy.architecture}")
    rows = []
    for name, dimension, case in cases:
        predicted, change = (
            (case.predicted(tensors), case.change) if isinstance(case, Control) else (None, case)
        )
        moved, gauge = change(tensors)
        other = build_model(_with(checkpoint, moved), "float64")
        found = (
            deviation_from(recorded, other, anatomy, gauge)
            if gauge.elements
            else _difference(recorded, other)
        )
        rows.append(
            {"symmetry": name, "dimension": dimension, "seed": seed, **_judged(found, predicted)}
        )
        progress.step()
    return rows


def _judged(found: Deviation, predicted: float | None) -> dict[str, Any]:
    """The columns of what was found; `predicted` is a control's effect, None of a symmetry."""
    if predicted is None:
        verdict = Verdict.PASSED if found.unchanged("float64") else Verdict.FAILED
    else:
        verdict = control_verdict(predicted, found.changed("float64"), TOLERANCES["float64"])
    return {
        "symmetric": predicted is None,
        "max_abs_deviation": found.max_abs,
        "relative_deviation": found.relative,
        "predicted_effect": predicted,
        "verdict": str(verdict),
    }


def _with(checkpoint: Checkpoint, tensors: Mapping[str, torch.Tensor]) -> Checkpoint:
    return Checkpoint(checkpoint.config, tensors, checkpoint.stored, checkpoint.files)


def _difference(recorded: Sequence[Recorded], other: torch.nn.Module) -> Deviation:
    """Of what the head returns: states inside the model may change."""
    pairs = [
        (head_outputs(found), head_outputs(outputs(other, inputs))) for inputs, found in recorded
    ]
    largest = max(
        float((second - first).abs().max().nan_to_num(float("inf"))) for first, second in pairs
    )
    return Deviation(largest, largest / max(float(first.abs().max()) for first, _ in pairs))


def _cases(anatomy: Anatomy, seed: int) -> Iterator[tuple[str, int, Change]]:
    """(what is done, its dimension, the change) of every symmetry."""
    for kind, dimension in dimensions(symmetries(anatomy)).items():
        yield str(kind), dimension, _at_random_place(anatomy, kind, seed)
    discrete = tuple(space for space in gauge_spaces(anatomy) if not space.endswith("attention"))
    gauge = random_gauge(anatomy, seed, discrete)
    yield (
        "permutations with their signs",
        0,
        lambda each: (dict(transform(anatomy, each, gauge)), gauge),
    )


def _at_random_place(anatomy: Anatomy, kind: Kind, seed: int) -> Change:
    def change(tensors: Tensors) -> tuple[Mutable, Gauge]:
        generator = np.random.default_rng(seed)
        moved = dict(tensors)
        for symmetry in symmetries(anatomy):
            if symmetry.kind == kind:
                moved = symmetry.act(moved, SPREAD * generator.standard_normal(symmetry.dimension))
        return moved, Gauge({})

    return change
