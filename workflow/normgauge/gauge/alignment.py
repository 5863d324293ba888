"""Natural alignment: two trained models of one shape, matched with no gauge recorded, and how far the match depends on the probes.

There is no truth to compare with, so a match from few samples is judged by its agreement with the match from all of them, and the matches
among three models by what their cycle brings back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations
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
from normgauge.gauge.holonomy import holonomy, moved_share
from normgauge.gauge.matching import Matching, match

Activations = Mapping[str, Mapping[str, torch.Tensor]]
"""By model and residual site, (samples, width) on the same samples."""


def stream_shapes(anatomy: Anatomy) -> list[tuple[str, int, int]]:
    """(name, width, blocks) of every residual stream: what two models must share to be matched."""
    return [(stack.name, stack.width, len(stack.blocks)) for stack in anatomy.stacks]


def stream_activations(checkpoints: Mapping[str, Checkpoint], batches: Sequence[Batch], samples: int) -> Activations:
    """Activations of several models, by name, at every residual site of the primary stack.

    Raises InputError, before any forward pass, for a model of another shape than the first.
    """
    anatomies = {name: describe(checkpoint.config) for name, checkpoint in checkpoints.items()}
    shapes = {name: stream_shapes(anatomy) for name, anatomy in anatomies.items()}
    expected = next(iter(shapes.values()))
    for name, found in shapes.items():
        if found != expected:
            raise InputError(f"{name}: residual streams (name, width, blocks) {found}, expected {expected}; align models of one shape")
    activations = {}
    for name, checkpoint in checkpoints.items():
        stack = anatomies[name].primary_stack.name
        sites = [site for site in anatomies[name].sites_in(("residual",)) if site.stack == stack]
        activations[name] = site_activations(build_model(checkpoint, "float32"), sites, batches, samples)
    return activations


def alignment_rows(activations: Activations, budgets: Sequence[int]) -> list[dict[str, Any]]:
    """Rows of schema `gauge_alignment`: the first model with each other one, at every site and budget of samples.

    The largest budget is the reference of the smaller ones, whose samples it contains.
    """
    (_, first), *others = activations.items()
    rows = []
    for name, second in others:
        for site in first:
            matches = {budget: match(correlate(first[site][:budget], second[site][:budget])) for budget in sorted(budgets)}
            for found in matches.values():
                rows.append({"other": name, "site": site, **agreement(found, matches[max(budgets)])})
    return rows


def holonomy_rows(activations: Activations) -> list[dict[str, Any]]:
    """Rows of schema `gauge_holonomy`: per cycle of three models and site, the share of coordinates that three matches, each found on its
    own, do not bring back to themselves with their sign. Were the matches identities of coordinates, it would be zero."""
    rows = []
    for cycle in combinations(activations, 3):
        for site in activations[cycle[0]]:
            steps = list(zip(cycle, [*cycle[1:], cycle[0]], strict=True))
            found = {step: match(correlate(*(activations[name][site] for name in step))) for step in steps}
            product = holonomy({step: each.gauge for step, each in found.items()}, cycle)
            certain, here = np.ones(product.size, dtype=bool), np.arange(product.size)
            for step in steps:  # a coordinate counts when every match that it goes through is certain
                certain &= ~found[step].uncertain[here]
                here = found[step].gauge.target[here]
            back = (product.target == np.arange(product.size)) & (product.factors == 1)
            rows.append(
                {
                    "cycle": " - ".join(cycle),
                    "site": site,
                    "width": product.size,
                    "tokens": found[steps[0]].samples,
                    "moved": moved_share(product),
                    "certain": float(certain.mean()),
                    "certain_moved": float((~back)[certain].mean()) if certain.any() else None,
                }
            )
    return rows


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
