"""Capture and rows of a model in memory: no moments, manifest or calibration on disk."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch

from normgauge.anatomy.structure import Anatomy
from normgauge.calibration.batches import Batch
from normgauge.capture import norm_rows
from normgauge.capture.by_block import Run, capture_by_block
from normgauge.capture.outputs import HeldOutputs
from normgauge.capture.study import select_sites
from normgauge.checkpoints.skeleton import Skeleton
from normgauge.fingerprint.files import norm_facts
from normgauge.fingerprint.study import Identity, Measurement, Rows, measure
from normgauge.moments import Moments


@dataclass(frozen=True)
class Plan:
    """What is captured, and how. The fields are those of the configuration's section `capture`
    (config/README.md).
    """

    forward_dtypes: Mapping[str, Sequence[str]]
    schur_sites: Sequence[str] | None = None
    accumulation: str = "cov64"
    force_cov32: bool = False


@dataclass(frozen=True)
class Source:
    """Where batches come from: `batches` gives them anew at each call; `steps` of them; `first` is
    how many times the first batch goes into all of them.
    """

    batches: Callable[[], Iterable[Batch]]
    steps: int
    first: float


def measure_model(
    build: Callable[[str], tuple[Skeleton, Mapping[str, torch.Tensor]]],
    anatomy: Anatomy,
    identity: Identity,
    source: Source,
    plan: Plan,
    label: str,
) -> tuple[Rows, Rows, Rows]:
    """(fingerprint, schur, stacks) rows of one model.

    Raises InputError as `capture_measurements` and `measure` do.
    """
    measurements = capture_measurements(build, anatomy, source, plan, label)
    return measure(measurements, identity, plan.force_cov32)


def capture_measurements(
    build: Callable[[str], tuple[Skeleton, Mapping[str, torch.Tensor]]],
    anatomy: Anatomy,
    source: Source,
    plan: Plan,
    label: str,
) -> list[Measurement]:
    """The moments of one model, a measurement for each forward dtype of the plan.

    `build` makes the model in a forward dtype, and says with which tensors, by name, of which the
    norms' are read; one model is in memory at a time, and one block of it at a time. Raises
    InputError as `select_sites` and `capture_by_block` do.
    """
    measurements = []
    for forward_dtype, groups in plan.forward_dtypes.items():
        model, tensors = build(forward_dtype)
        sites = select_sites(anatomy, groups, plan.schur_sites)
        rows = norm_rows(anatomy, tensors)
        run = Run(
            source.batches,
            source.steps,
            plan.accumulation,
            source.first,
            f"{label}, {forward_dtype}",
        )
        moments: dict[str, Moments] = {}
        for found in capture_by_block(model, anatomy, sites, run, rows, HeldOutputs()):
            moments |= found
        del model, tensors
        norms = {row["norm"]: norm_facts(row) for row in rows}
        measurements.append(
            Measurement(forward_dtype, moments, {site.id: site for site in sites}, norms)
        )
    return measurements
