"""Recorded gauges found again: one gauge of the whole model per seed, recovered part by part."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from normgauge.anatomy.structure import Anatomy, Site
from normgauge.calibration.batches import Batch
from normgauge.checkpoints.building import build_model
from normgauge.checkpoints.opening import Checkpoint
from normgauge.errors import InputError
from normgauge.gauge.activations import observe_sites
from normgauge.gauge.admissible import admissible
from normgauge.gauge.groups import AttentionGauge, Element, Monomial
from normgauge.gauge.head_matching import HeadMatching
from normgauge.gauge.matched_sites import sites_of
from normgauge.gauge.matching import Matching, assign_greedily
from normgauge.gauge.model_gauge import attention_of
from normgauge.gauge.model_matching import Part, SpaceMatching, match_space, matched_spaces
from normgauge.gauge.random_gauges import random_gauge
from normgauge.gauge.site_matching import Pair, PairedSite, match_sites
from normgauge.gauge.transform import transformed
from normgauge.gauge.weight_maps import AttentionMaps
from normgauge.schemas.signed_permutation import ALL_SITES, GREEDY, IN_GROUP
from normgauge.signed_permutation.natural_alignment import controls_of

UNITS, HEADS = "mlp_down_input", "attention_output_input"
PER_HEAD_COORDINATE = 3  # samples


def recovery_rows(
    checkpoint: Checkpoint,
    anatomy: Anatomy,
    batches: Sequence[Batch],
    seeds: Sequence[int],
    budgets: Sequence[int],
) -> list[dict[str, Any]]:
    """Rows of schema `gauge_recovery`, from float32 activations of the primary stack.

    The stream by all sites together and by each, at every budget of samples, and at the largest by
    all sites outside its group and greedily, as controls. In the first, middle and last block
    feed-forward units and heads, from as many samples, or three per coordinate of a head where that
    is more; scales and maps from the weights. Raises InputError when the probes hold fewer.
    """
    stack = anatomy.primary_stack
    streams = [
        site for site in anatomy.sites_in(("residual", "terminal")) if site.stack == stack.name
    ]
    inside = inner_spaces(anatomy)
    sites = list(
        {
            site.id: site
            for site in (*streams, *(each for name in inside for each in sites_of(anatomy, name)))
        }.values()
    )
    samples = max(
        [
            *budgets,
            *(
                PER_HEAD_COORDINATE * head_size(anatomy, name)
                for name in inside
                if name.endswith("attention")
            ),
        ]
    )
    source = observe_sites(build_model(checkpoint, "float32"), sites, batches, samples)
    rows = []
    for seed in seeds:
        gauge = random_gauge(anatomy, seed)
        moved = transformed(checkpoint, anatomy, gauge)
        target = observe_sites(build_model(moved, "float32"), sites, batches, samples)
        pairs = {site.id: (source[site.id], target[site.id]) for site in streams}
        stream, found = _stream_rows(anatomy, seed, gauge.elements[stack.space], pairs, budgets)
        rows += stream
        matchings: dict[str, Matching | HeadMatching] = {stack.space: found}
        matchings |= {name: match_space(anatomy, name, source, target) for name in inside}
        _, spaces = matched_spaces(anatomy, checkpoint.tensors, moved.tensors, matchings)
        rows += [
            _inner_row(seed, [each for each in spaces if each.space == name], gauge.elements[name])
            for name in inside
        ]
    return rows


def inner_spaces(anatomy: Anatomy) -> list[str]:
    """Feed-forward spaces and attention layers of the first, middle and last block of the primary
    stack.
    """
    stack = anatomy.primary_stack
    blocks = {1, (len(stack.blocks) + 1) // 2, len(stack.blocks)}
    sites = [
        site
        for site in anatomy.sites
        if site.stack == stack.name and site.block in blocks and site.tap in (UNITS, HEADS)
    ]
    spaces = [space_of(anatomy, site) for site in sites]
    return list(
        dict.fromkeys(
            attention_of(name) if site.tap == HEADS else name
            for site, name in zip(sites, spaces, strict=True)
        )
    )


def head_size(anatomy: Anatomy, name: str) -> int:
    """Coordinates per head of the values of an attention layer."""
    value = anatomy.space(f"{name.removesuffix('attention')}value")
    return value.size // value.heads


def space_of(anatomy: Anatomy, site: Site) -> str:
    """The space whose coordinates the input of a site's module has."""
    return next(item.reads for item in anatomy.maps if item.module == site.module)


def _stream_rows(
    anatomy: Anatomy, seed: int, truth: Element, pairs: Mapping[str, Pair], budgets: Sequence[int]
) -> tuple[list[dict[str, Any]], Matching]:
    """The rows of one stream, and the matching by all its sites at the largest budget."""
    assert isinstance(truth, Monomial)
    group = admissible(anatomy, anatomy.primary_stack.space).group
    rows = []
    for budget in sorted(budgets):
        cut = {
            site: PairedSite(source.first(budget), target.first(budget))
            for site, (source, target) in pairs.items()
        }
        together = list(cut.values())
        found = match_sites(together, group)
        rows.append(recovery_row(ALL_SITES, seed, found, truth, sites=len(cut)))
        rows += [
            recovery_row(site, seed, match_sites([each], group), truth)
            for site, each in cut.items()
        ]
    for label, wrong in controls_of(group).items():
        rows.append(
            recovery_row(
                ALL_SITES, seed, match_sites(together, wrong), truth, sites=len(cut), match=label
            )
        )
    greedy = match_sites(together, group, assign_greedily)
    rows.append(recovery_row(ALL_SITES, seed, greedy, truth, sites=len(cut), match=GREEDY))
    return rows, found


def recovery_row(
    site: str,
    seed: int,
    found: Matching,
    truth: Monomial,
    part: str = "residual",
    sites: int = 1,
    match: str = IN_GROUP,
) -> dict[str, Any]:
    """One row of schema `gauge_recovery`: a matching against the gauge that was applied to this
    part of the model.
    """
    if truth.size != found.gauge.size:
        raise InputError(
            f"site {site}: matched {found.gauge.size} coordinates, the recorded gauge has "
            f"{truth.size}; use its own model"
        )
    right = found.gauge.target == truth.target
    same_sign = np.sign(found.gauge.factors) == np.sign(truth.factors)
    certain = ~found.uncertain
    return {
        "site": site,
        "part": part,
        "match": match,
        "sites": sites,
        "width": truth.size,
        "seed": seed,
        "tokens": found.samples,
        "effective_tokens": float(np.median(found.effective)),
        "method": found.method,
        "permutation_accuracy": float(right.mean()),
        "sign_accuracy": float(same_sign.mean()),
        "negative": float((truth.factors < 0).mean()),
        "uncertain": float(found.uncertain.mean()),
        "certain_accuracy": float((right & same_sign)[certain].mean()) if certain.any() else None,
        "map_error": None,
        "query_error": None,
        "condition": None,
        "min_margin": float(found.margins.min()),
        "certified": found.certified,
        "seconds": found.seconds,
    }


def _inner_row(seed: int, parts: Sequence[SpaceMatching], truth: Element) -> dict[str, Any]:
    """The row of one space inside a block: units with their scales, or heads with their maps, as
    `matched_spaces` found them.
    """
    first = parts[0]
    site = first.sites[0]
    if isinstance(first.found, Matching):
        assert isinstance(truth, Monomial)
        assert isinstance(first.element, Monomial)
        row = recovery_row(site, seed, first.found, truth, "feed-forward", len(first.sites))
        right = (first.element.target == truth.target) & first.certain
        errors = np.abs(first.element.factors / truth.factors - 1)[right]
        return row | {
            "uncertain": float((~first.certain).mean()),
            "map_error": float(errors.max(initial=0)),
        }
    assert isinstance(first.found, HeadMatching)
    assert isinstance(truth, AttentionGauge)
    assert isinstance(first.element, AttentionGauge)
    right = first.found.order == truth.mixed.order
    maps = {each.part: each for each in parts[1:]}
    fits = maps[Part.VALUES].found
    assert isinstance(fits, AttentionMaps)
    conditions = [fit.condition for fit in (*fits.values, *fits.queries) if fit.determined]
    return {
        "site": site,
        "part": "heads",
        "match": IN_GROUP,
        "sites": len(first.sites),
        "width": len(right),
        "seed": seed,
        "tokens": first.found.samples,
        "effective_tokens": None,
        "method": "canonical correlation",
        "permutation_accuracy": float(right.mean()),
        "sign_accuracy": None,
        "negative": None,
        "uncertain": float((~first.certain).mean()),
        "certain_accuracy": float(right[first.certain].mean()) if first.certain.any() else None,
        "map_error": _map_error(
            first.element.value_maps, truth.value_maps, maps[Part.VALUES].certain
        ),
        "query_error": _map_error(
            first.element.query_maps, truth.query_maps, maps[Part.QUERIES].certain
        ),
        "condition": max(conditions, default=None),
        "min_margin": float(first.found.margins.min()),
        "certified": False,
        "seconds": first.found.seconds,
    }


def _map_error(found: np.ndarray, truth: np.ndarray, certain: np.ndarray) -> float | None:
    """The largest error of the maps that are certain, relative to the largest entry; None where
    none is.
    """
    return (
        float(np.abs(found - truth)[certain].max() / np.abs(truth[certain]).max())
        if certain.any()
        else None
    )
