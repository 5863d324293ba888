"""Recorded gauges found again from activations: one gauge of the whole model per seed, recovered part by part."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from normgauge.anatomy.structure import Anatomy, Site
from normgauge.calibration.batches import Batch
from normgauge.checkpoints.building import build_model
from normgauge.checkpoints.opening import Checkpoint
from normgauge.gauge.admissible import admissible, random_gauge
from normgauge.gauge.correlation import correlate, site_activations
from normgauge.gauge.groups import AttentionGauge, Monomial
from normgauge.gauge.hidden_units import HeadCorrelation, head_recovery_row, match_heads, match_units
from normgauge.gauge.matching import Cost, assign_greedily, match, recovery_row
from normgauge.gauge.model_gauge import Gauge, attention_of
from normgauge.gauge.transform import transformed

Activations = Mapping[str, torch.Tensor]
UNITS, HEADS = "mlp_down_input", "attention_output_input"
PER_HEAD_COORDINATE = 3  # samples


def recovery_rows(
    checkpoint: Checkpoint, anatomy: Anatomy, batches: Sequence[Batch], seeds: Sequence[int], budgets: Sequence[int]
) -> list[dict[str, Any]]:
    """Rows of schema `gauge_recovery`, from float32 activations of the primary stack.

    At every residual site: the matching by |C| at every budget of samples and, at the largest, by C as a control and greedily among each
    row's best. In the first, middle and last block, feed-forward units, and heads with their value maps: from as many samples, or three per
    coordinate of a head where that is more. Raises InputError when the probes hold fewer.
    """
    stack = anatomy.primary_stack
    streams = [site for site in anatomy.sites_in(("residual", "terminal")) if site.stack == stack.name]
    inside = inner_sites(anatomy)
    sites = [*streams, *inside]
    samples = max([*budgets, *(PER_HEAD_COORDINATE * head_size(anatomy, site) for site in inside if site.tap == HEADS)])
    source = site_activations(build_model(checkpoint, "float32"), sites, batches, samples)
    rows = []
    for seed in seeds:
        gauge = random_gauge(anatomy, seed)
        target = site_activations(build_model(transformed(checkpoint, anatomy, gauge), "float32"), sites, batches, samples)
        for site in streams:
            rows += _stream_rows(site.id, seed, gauge.elements[stack.space], source, target, budgets)
        rows += [_inner_row(anatomy, site, seed, gauge, source[site.id], target[site.id]) for site in inside]
    return rows


def inner_sites(anatomy: Anatomy) -> list[Site]:
    """Inputs of the down projection and of the output projection in the first, middle and last block of the primary stack."""
    stack = anatomy.primary_stack
    blocks = {1, (len(stack.blocks) + 1) // 2, len(stack.blocks)}
    return [site for site in anatomy.sites if site.stack == stack.name and site.block in blocks and site.tap in (UNITS, HEADS)]


def head_size(anatomy: Anatomy, site: Site) -> int:
    """Coordinates per head at the input of an output projection."""
    value = anatomy.space(space_of(anatomy, site))
    return value.size // value.heads


def space_of(anatomy: Anatomy, site: Site) -> str:
    """The space whose coordinates the input of a site's module has."""
    return next(item.reads for item in anatomy.maps if item.module == site.module)


def _stream_rows(
    site: str, seed: int, truth: Any, source: Activations, target: Activations, budgets: Sequence[int]
) -> list[dict[str, Any]]:
    assert isinstance(truth, Monomial)
    correlations = {budget: correlate(source[site][:budget], target[site][:budget]) for budget in budgets}
    rows = [recovery_row(site, seed, match(correlation), truth) for correlation in correlations.values()]
    largest = correlations[max(budgets)]
    controls = (match(largest, Cost.SIGNED), match(largest, solver=assign_greedily))
    return [*rows, *(recovery_row(site, seed, found, truth) for found in controls)]


def _inner_row(anatomy: Anatomy, site: Site, seed: int, gauge: Gauge, source: torch.Tensor, target: torch.Tensor) -> dict[str, Any]:
    space = space_of(anatomy, site)
    if site.tap == UNITS:
        truth = gauge.elements[space]
        assert isinstance(truth, Monomial)
        return recovery_row(site.id, seed, match_units(correlate(source, target), admissible(anatomy, space).group), truth, "feed-forward")
    layer = gauge.elements[attention_of(space)]
    assert isinstance(layer, AttentionGauge)
    correlation = HeadCorrelation(layer.groups * layer.repeats, head_size(anatomy, site))
    correlation.update(source, target)
    return head_recovery_row(site.id, seed, match_heads(correlation, layer.groups), layer)
