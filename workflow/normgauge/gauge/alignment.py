"""Natural alignment: two trained models of one shape, matched with no gauge recorded, and how far the match depends on the probes.

There is no truth to compare with, so a match from few samples is judged by its agreement with the match from all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from normgauge.anatomy import describe
from normgauge.anatomy.structure import Anatomy
from normgauge.calibration.batches import Batch
from normgauge.checkpoints.building import build_model
from normgauge.checkpoints.opening import Checkpoint
from normgauge.errors import InputError
from normgauge.gauge.correlation import correlate, site_activations
from normgauge.gauge.matching import Matching, match


def alignment_rows(
    source: Checkpoint, others: Sequence[tuple[str, Checkpoint]], batches: Sequence[Batch], budgets: Sequence[int]
) -> list[dict[str, Any]]:
    """Rows of schema `gauge_alignment`: per other model, residual site and budget of samples.

    `others`: (name, checkpoint) of models of the source's shape. The largest budget is the reference of the smaller ones, whose samples
    it contains. Raises InputError, before any forward pass, for a model of another shape.
    """
    shape = stream_shapes(describe(source.config))
    for name, other in others:
        if (theirs := stream_shapes(describe(other.config))) != shape:
            raise InputError(f"{name}: residual streams (name, width, blocks) {theirs}, expected {shape}; align models of one shape")
    first = _activations(source, batches, max(budgets))
    rows = []
    for name, other in others:
        second = _activations(other, batches, max(budgets))
        for site in first:
            reference = match(correlate(first[site], second[site]))
            for budget in sorted(budgets):
                found = match(correlate(first[site][:budget], second[site][:budget])) if budget < max(budgets) else reference
                rows.append({"other": name, "site": site, **agreement(found, reference)})
    return rows


def stream_shapes(anatomy: Anatomy) -> list[tuple[str, int, int]]:
    """(name, width, blocks) of every residual stream: what two models must share to be matched."""
    return [(stack.name, stack.width, len(stack.blocks)) for stack in anatomy.stacks]


def _activations(checkpoint: Checkpoint, batches: Sequence[Batch], samples: int) -> dict[str, torch.Tensor]:
    """At every residual site of the primary stack; sites are named alike in classes that differ in their heads."""
    anatomy = describe(checkpoint.config)
    sites = [site for site in anatomy.sites_in(("residual",)) if site.stack == anatomy.primary_stack.name]
    return site_activations(build_model(checkpoint, "float32"), sites, batches, samples)


def agreement(found: Matching, reference: Matching) -> dict[str, Any]:
    """How much of a reference match another one repeats; of its coordinates counted certain alone as well."""
    same = found.gauge.target == reference.gauge.target
    signed = same & (found.gauge.factors == reference.gauge.factors)
    certain = ~found.uncertain
    return {
        "width": found.gauge.size,
        "tokens": found.samples,
        "reference_tokens": reference.samples,
        "agreement": float(same.mean()),
        "signed_agreement": float(signed.mean()),
        "certain": float(certain.mean()),
        "certain_agreement": float(same[certain].mean()) if certain.any() else None,
        "negative": float((found.gauge.factors < 0).mean()),
        "unmoved": float((found.gauge.target == np.arange(found.gauge.size)).mean()),
        "method": found.method,
        "certified": found.certified,
    }
