"""Learned artifacts on a gauged copy of their model, moved by the gauge that activations recover:
by all of it, by its permutation alone, and not at all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from torch import nn

from normgauge.anatomy.structure import Anatomy, SpaceKind
from normgauge.calibration.batches import Batch
from normgauge.checkpoints.building import build_model
from normgauge.checkpoints.opening import Checkpoint
from normgauge.gauge.activations import Activations, observe_sites
from normgauge.gauge.groups import Monomial
from normgauge.gauge.model_gauge import Gauge
from normgauge.gauge.model_matching import match_space, matched_spaces, sites_of
from normgauge.gauge.random_gauges import random_gauge
from normgauge.gauge.transform import transformed
from normgauge.schemas.verdicts import control_verdict, law_verdict
from normgauge.signed_permutation.learned_artifacts import (
    FEED_FORWARD,
    STREAM,
    Arrays,
    Learned,
    effect_error,
)
from normgauge.signed_permutation.name_audit import without_scales

DETECTABLE = 0.1  # nats, or share of the variance: a smaller effect is not called
FACTS = ("strength", "features", "active_features", "dead_features", "rank", "steps")
TOLERANCE = 1e-3  # share of an effect that the recovered gauge may lose


def learned_rows(
    checkpoint: Checkpoint,
    anatomy: Anatomy,
    artifacts: Sequence[Learned],
    probes: Sequence[Batch],
    seeds: Sequence[int],
) -> list[dict[str, Any]]:
    """Rows of schema `learned_artifact`: per seed of a recorded signed permutation of the streams,
    or of all feed-forward units, and per artifact that lives there.
    """
    source = build_model(checkpoint, "float32")
    rows: list[dict[str, Any]] = []
    for kind in (STREAM, FEED_FORWARD):
        living = [each for each in artifacts if each.space == kind]
        if not living:
            continue
        here = [(each.bare(source), each.acts(source, each.arrays)) for each in living]
        names = spaces_of(anatomy, kind)
        seen = observed(source, anatomy, names, probes)
        for seed in seeds:
            truth = without_scales(random_gauge(anatomy, seed, names))
            moved = transformed(checkpoint, anatomy, truth)
            target = build_model(moved, "float32")
            found = recovered(checkpoint, moved, anatomy, seen, target, probes)
            shared = {"seed": seed, **agreement(truth, found)}
            for artifact, (bare, reference) in zip(living, here, strict=True):
                measured = {
                    "without": bare.value,
                    "reference": reference.value,
                    "effect_error": effect_error(bare, reference),
                }
                rows.append(shared | measured | _carried(artifact, target, found, measured))
    return rows


def spaces_of(anatomy: Anatomy, kind: str) -> tuple[str, ...]:
    """Names of all residual streams, or of all feed-forward spaces."""
    wanted = SpaceKind.RESIDUAL if kind == STREAM else SpaceKind.FFN
    return tuple(space.name for space in anatomy.spaces if space.kind == wanted)


def observed(
    model: nn.Module, anatomy: Anatomy, names: Sequence[str], probes: Sequence[Batch]
) -> dict[str, Activations]:
    """What a model shows of some spaces on the probes, by site."""
    return observe_sites(
        model, [site for name in names for site in sites_of(anatomy, name)], probes
    )


def recovered(
    checkpoint: Checkpoint,
    moved: Checkpoint,
    anatomy: Anatomy,
    seen: Mapping[str, Activations],
    target: nn.Module,
    probes: Sequence[Batch],
) -> Gauge:
    """The gauge of the spaces whose sites were `seen` of the checkpoint, found from what the moved
    one, built as `target`, shows on the same probes, and from weights.
    """
    names = [
        name
        for kind in (STREAM, FEED_FORWARD)
        for name in spaces_of(anatomy, kind)
        if all(site.id in seen for site in sites_of(anatomy, name))
    ]
    other = observed(target, anatomy, names, probes)
    matchings = {name: match_space(anatomy, name, seen, other) for name in names}
    gauge, _ = matched_spaces(anatomy, checkpoint.tensors, moved.tensors, matchings)
    return gauge


def agreement(truth: Gauge, found: Gauge) -> dict[str, float]:
    """Shares of the coordinates whose place, and whose place and sign, are those recorded, and of
    negative signs.
    """
    places, signs, negative = [], [], []
    for name, element in truth.elements.items():
        other = found.elements[name]
        assert isinstance(element, Monomial)
        assert isinstance(other, Monomial)
        same = element.target == other.target
        places.append(same)
        signs.append(same & (np.sign(element.factors) == np.sign(other.factors)))
        negative.append(element.factors < 0)
    shares = (float(np.concatenate(each).mean()) for each in (places, signs, negative))
    return dict(zip(("places_recovered", "signs_recovered", "negative"), shares, strict=True))


def _carried(
    artifact: Learned, target: nn.Module, gauge: Gauge, measured: Mapping[str, Any]
) -> dict[str, Any]:
    ways: dict[str, Arrays] = {
        "signed": artifact.moves(artifact.arrays, gauge),
        "permutation": artifact.moves(artifact.arrays, gauge.without_signs()),
        "raw": artifact.arrays,
    }
    values = {way: artifact.acts(target, arrays).value for way, arrays in ways.items()}
    effect = measured["without"] - measured["reference"]
    detectable = effect > DETECTABLE
    kept = {
        way: (measured["without"] - value) / effect if detectable else None
        for way, value in values.items()
    }
    errors = {
        way: relative_error(artifact, ways[way], ways["signed"]) for way in ("permutation", "raw")
    }
    controls = {
        way: control_verdict(
            errors[way] ** 0.5 if detectable else 0.0,
            abs(values[way] - measured["reference"]) > DETECTABLE,
            TOLERANCE,
        )
        for way in errors
    }
    lost = abs(values["signed"] - measured["reference"])
    holds = not detectable or lost <= TOLERANCE * effect
    return {
        "artifact": artifact.name,
        "space": artifact.space,
        "site": artifact.site,
        "measure": artifact.measure,
        **{f"{way}_value": value for way, value in values.items()},
        "effect": effect,
        "detectable": detectable,
        **{f"{way}_kept": share for way, share in kept.items()},
        **{f"{way}_error": error for way, error in errors.items()},
        "tolerance": TOLERANCE,
        "transported": str(law_verdict(holds, controls.values())),
        **{f"{way}_control": str(verdict) for way, verdict in controls.items()},
        **dict.fromkeys(FACTS),
        **artifact.facts,
    }


def relative_error(artifact: Learned, content: Arrays, right: Arrays) -> float:
    """|T_G a - b|^2 over |a|^2 of a content b in place of the transported one."""
    pairs = list(zip(artifact.dense(right), artifact.dense(content), strict=True))
    energy = sum(float(first.double().square().sum()) for first, _ in pairs)
    apart = sum(float((first.double() - other.double()).square().sum()) for first, other in pairs)
    return apart / energy
