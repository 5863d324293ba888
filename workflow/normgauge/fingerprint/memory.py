"""From a model to its rows, block by block, without moments on disk."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from normgauge.anatomy.structure import Anatomy
from normgauge.calibration.batches import Batch
from normgauge.capture import norm_rows
from normgauge.capture.by_block import Run, capture_by_block
from normgauge.capture.outputs import FiledOutputs, HeldOutputs, Outputs
from normgauge.capture.study import select_sites
from normgauge.checkpoints.skeleton import Skeleton
from normgauge.fingerprint.files import norm_facts
from normgauge.fingerprint.study import (
    Identity,
    Measurement,
    Rows,
    by_depth,
    compared,
    fingerprint_row,
    schur_row,
    stack_rows,
)
from normgauge.moments import Moments

Build = Callable[[str], tuple[Skeleton, Mapping[str, torch.Tensor]]]
"""Makes the model in a forward dtype, and says with which tensors, by name, of which the norms' are
read.
"""


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
    build: Build,
    anatomy: Anatomy,
    identity: Identity,
    source: Source,
    plan: Plan,
    label: str,
    folder: Path | None = None,
) -> tuple[Rows, Rows, Rows]:
    """(fingerprint, schur, stacks) rows of one model.

    The moments of one block at a time are in memory; its rows are made of them. folder: where the
    rows of finished blocks and the hidden states lie, so that work that was killed goes on behind
    them; both are in memory where it is None. Raises InputError as `capture_measurements` and
    `measure` do.
    """
    fingerprint: Rows = []
    schur: Rows = []
    facts = []
    for forward_dtype in plan.forward_dtypes:
        place = folder / forward_dtype if folder else None
        outputs: Outputs = FiledOutputs(place / "outputs") if place else HeldOutputs()
        own, blocks = _started(build, anatomy, source, plan, label, forward_dtype, outputs)
        rows = _rows_by_block(own, blocks, identity, plan.force_cov32, place)
        fingerprint += compared(rows["fingerprint"], identity)
        schur += by_depth(rows["schur"])
        facts.append(own)
    return fingerprint, schur, stack_rows(fingerprint, schur, facts, identity)


def capture_measurements(
    build: Build, anatomy: Anatomy, source: Source, plan: Plan, label: str
) -> list[Measurement]:
    """The moments of one model, a measurement for each forward dtype of the plan.

    One model is in memory at a time, and one block of it at a time; the moments of all sites are
    kept. Raises InputError as `select_sites` and `capture_by_block` do.
    """
    measurements = []
    for forward_dtype in plan.forward_dtypes:
        facts, blocks = _started(build, anatomy, source, plan, label, forward_dtype, HeldOutputs())
        moments: dict[str, Moments] = {}
        for found in blocks:
            moments |= found
        measurements.append(replace(facts, moments=moments))
    return measurements


def _started(
    build: Build,
    anatomy: Anatomy,
    source: Source,
    plan: Plan,
    label: str,
    forward_dtype: str,
    outputs: Outputs,
) -> tuple[Measurement, Iterator[dict[str, Moments]]]:
    """A measurement that has no moments yet, and the moments of one block after the other."""
    model, tensors = build(forward_dtype)
    sites = select_sites(anatomy, plan.forward_dtypes[forward_dtype], plan.schur_sites)
    rows = norm_rows(anatomy, tensors)
    run = Run(
        source.batches, source.steps, plan.accumulation, source.first, f"{label}, {forward_dtype}"
    )
    norms = {row["norm"]: norm_facts(row) for row in rows}
    facts = Measurement(forward_dtype, {}, {site.id: site for site in sites}, norms)
    return facts, capture_by_block(model, anatomy, sites, run, rows, outputs)


def _rows_by_block(
    facts: Measurement,
    blocks: Iterable[dict[str, Moments]],
    identity: Identity,
    force_cov32: bool,
    folder: Path | None,
) -> dict[str, Rows]:
    """The rows of schemas `fingerprint` and `schur`, without what compares sites, in their order.

    A block's rows are kept in the folder before the block counts as finished; a block that was
    killed between the two gives the same rows again.
    """
    record = folder / "rows.json" if folder else None
    rows: dict[str, dict[str, Any]] = _read(record) if record and record.is_file() else {}
    for moments in blocks:
        # the embedding's row first, which the others of its stream refer to
        for name in sorted(moments, key=lambda name: facts.sites[name].tap != "embedding"):
            site, found = facts.sites[name], moments.pop(name)
            if site.group == "schur":
                rows[name] = schur_row(facts, site, found, identity, force_cov32)
            elif site.group != "deltas":
                before = [row for row in rows.values() if "active_rank" in row]
                rows[name] = fingerprint_row(facts, site, found, before, identity, force_cov32)
        if record:
            _write(record, rows)
    kept = _read(record) if record else rows
    kinds: dict[str, Rows] = {"fingerprint": [], "schur": []}
    for name, site in facts.sites.items():
        if name in kept:
            kinds["schur" if site.group == "schur" else "fingerprint"].append(kept[name])
    return kinds


def _write(path: Path, rows: Mapping[str, Any]) -> None:
    fresh = path.with_suffix(".new")
    fresh.write_text(json.dumps(rows, default=lambda value: value.tolist()), encoding="utf-8")
    os.replace(fresh, path)


def _read(path: Path) -> dict[str, Any]:
    rows = json.loads(path.read_text(encoding="utf-8"))
    for row in rows.values():
        row["replicates"] = [tuple(each) for each in row["replicates"]]
    return dict(rows)
