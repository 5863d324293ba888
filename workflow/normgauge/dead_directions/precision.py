"""What each arithmetic hides: forward passes in float64, float32 and bfloat16, each accumulated in
three ways (arXiv 2606.19491, A.5).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from normgauge.anatomy.structure import Site
from normgauge.capture.hooks import body_of, hooked, placed
from normgauge.capture.norms import norm_rows
from normgauge.dead_directions.subject import PathLike, Rows, Subject
from normgauge.fingerprint.files import norm_facts
from normgauge.fingerprint.study import Identity, Measurement, fingerprint_rows, stack_rows
from normgauge.moments import METHODS, Accumulator, Moments, Workspace

FORWARDS = ("float64", "float32", "bfloat16")
REFERENCE = ("float64", "tsqr64")
GROUPS = ("residual", "terminal")


class Several:
    """Receives one site's chunks and hands each to an accumulator of every method."""

    def __init__(self, width: int, workspace: Workspace) -> None:
        self.accumulators = {method: Accumulator(method, width, workspace) for method in METHODS}

    def update(self, rows: torch.Tensor) -> None:
        for accumulator in self.accumulators.values():
            accumulator.update(rows)

    def moments(self) -> dict[str, Moments]:
        return {name: each.moments() for name, each in self.accumulators.items()}


@dataclass(frozen=True)
class Variant:
    """One arithmetic: the rows of its sites by id, and its row of the primary stream."""

    forward: str
    accumulation: str
    sites: dict[str, dict[str, Any]]
    stack: dict[str, Any]


def precision_rows(
    subject: Subject,
    calibration: PathLike,
    batch_size: int,
    forwards: Sequence[str] = FORWARDS,
) -> Rows:
    """Rows of schema `precision`: one per forward arithmetic and accumulation, each against the
    most accurate, float64 with triangular factors.
    """
    variants = [
        variant
        for forward in forwards
        for variant in _variants(subject, calibration, batch_size, forward)
    ]
    reference = next(each for each in variants if (each.forward, each.accumulation) == REFERENCE)
    return [_row(subject, variant, reference) for variant in variants]


def _variants(
    subject: Subject, calibration: PathLike, batch_size: int, forward: str
) -> list[Variant]:
    stack = subject.anatomy.primary_stack.name
    sites = [site for site in subject.anatomy.sites_in(GROUPS) if site.stack == stack]
    model = subject.build(forward)
    norms = {row["norm"]: norm_facts(row) for row in norm_rows(subject.anatomy, model.state_dict())}
    found = observed(model, sites, subject, calibration, batch_size)
    variants = []
    for method in METHODS:
        measurement = Measurement(
            forward,
            {site.id: found[site.id][method] for site in sites},
            {site.id: site for site in sites},
            norms,
        )
        rows = fingerprint_rows(measurement, subject.identity, force_cov32=True)
        [own] = stack_rows(rows, [], [measurement], _primary_alone(subject, stack))
        variants.append(Variant(forward, method, {row["site"]: row for row in rows}, own))
    return variants


def _primary_alone(subject: Subject, stack: str) -> Identity:
    return replace(subject.identity, blocks={stack: subject.identity.blocks[stack]})


def observed(
    model: torch.nn.Module,
    sites: Sequence[Site],
    subject: Subject,
    calibration: PathLike,
    batch_size: int,
) -> dict[str, dict[str, Moments]]:
    """Site id -> accumulation -> moments, in one forward pass over the calibration."""
    workspace, parameter = Workspace(), next(model.parameters())
    receivers = {site.id: Several(site.width, workspace) for site in sites}
    with torch.inference_mode(), hooked(model, sites, receivers) as state:
        for batch in subject.batches(calibration, batch_size):
            state.begin(batch.masks)
            body_of(model)(**{key: placed(value, parameter) for key, value in batch.inputs.items()})
    return {site: receiver.moments() for site, receiver in receivers.items()}


def _row(subject: Subject, variant: Variant, reference: Variant) -> dict[str, Any]:
    rows, stack = variant.sites, variant.stack
    stream = [row for row in rows.values() if row["tap"] in ("embedding", "output")]
    embedding = next(row for row in stream if row["tap"] == "embedding")
    hidden = [
        max(reference.sites[row["site"]]["active_rank"] - row["active_rank"], 0) for row in stream
    ]
    errors = [
        abs(row["sigma_min"] / reference.sites[row["site"]]["sigma_min"] - 1)
        for row in stream
        if reference.sites[row["site"]]["null_dimension"] == 0
    ]
    return {
        **subject.labels,
        "kind": subject.kind,
        "stack": stack["stack"],
        "norm_kind": stack["norm_kind"],
        "blocks": stack["blocks"],
        "n": stack["n"],
        "d": stack["width"],
        "forward_dtype": variant.forward,
        "accumulation": variant.accumulation,
        "sigma_max_largest": max(row["raw_sigma_max"] for row in stream),
        "embedding_active_rank": embedding["active_rank"],
        "embedding_sigma": embedding["sigma_active_min"],
        "embedding_floor": max(embedding["forward_floor"], embedding["accumulator_floor"]),
        "least_active_rank": min(row["active_rank"] for row in stream),
        "directions_hidden": sum(hidden),
        "sites_hiding": int(np.count_nonzero(hidden)),
        "largest_error": max(errors, default=None),
        "min_ratio": stack["fixed_rank_min_ratio"],
        "published_min_ratio": stack["min_ratio"],
        "output_ratio": stack["fixed_rank_output_ratio"],
        "behaviour": stack["behaviour"],
        "kernel_cosine": stack["post_norm_cos_gamma_inv"],
        "kernel_null_dimension": stack["post_norm_null_dimension"],
        "norm_kind_activations": stack["norm_kind_activations"],
    }
