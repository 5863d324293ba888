"""Names of coordinates and of an autoencoder's features after a gauge: raw, and mapped by the gauge
that activations recover.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

from normgauge.anatomy.structure import Anatomy, Site
from normgauge.calibration.batches import Batch
from normgauge.checkpoints.building import build_model
from normgauge.checkpoints.opening import Checkpoint
from normgauge.gauge.admissible import Group
from normgauge.gauge.correlation import correlate
from normgauge.gauge.equivalence import deviation_from, recorded_outputs
from normgauge.gauge.groups import Monomial
from normgauge.gauge.matching import match
from normgauge.gauge.model_gauge import Gauge
from normgauge.gauge.random_gauges import random_gauge
from normgauge.gauge.transform import transformed
from normgauge.signed_permutation.learned_artifacts import Learned, states_of
from normgauge.signed_permutation.learned_transport import agreement, observed, recovered
from normgauge.signed_permutation.learning import Arrays, codes_of
from normgauge.signed_permutation.name_audit import (
    Claim,
    claims_of,
    compared,
    middle_site,
    without_scales,
)

FEATURES = "dictionary"  # the space of an autoencoder's features
CONTRAST = {"difference of means": "contrast direction"}


def audit_rows(
    checkpoint: Checkpoint,
    anatomy: Anatomy,
    windows: torch.Tensor,
    dictionary: Learned | None,
    seeds: Sequence[int],
    top: int,
) -> list[dict[str, Any]]:
    """Rows of schema `learned_audit`: per seed and claim. `windows`: int64, the second half another
    kind of text than the first, so that their difference of means is a contrast. Probes are the
    same windows.

    A dictionary is carried by what was recovered, and its features are renumbered at random, as
    another training would have it; they are matched again by their activations.
    """
    site = middle_site(anatomy)
    inputs = [{"input_ids": each[None]} for each in windows]
    probes = [Batch(each, {}) for each in inputs]
    source = build_model(checkpoint, "float32")
    outputs, claims = recorded_outputs(source, inputs), claims_of(source, anatomy, site, inputs)
    spaces = tuple(dict.fromkeys(claim.space for claim in claims))
    seen = observed(source, anatomy, spaces, probes)
    codes = _codes(source, site, windows, dictionary, dictionary.arrays) if dictionary else None
    rows = []
    for seed in seeds:
        truth = without_scales(random_gauge(anatomy, seed, spaces))
        moved = transformed(checkpoint, anatomy, truth)
        target = build_model(moved, "float32")
        found = recovered(checkpoint, moved, anatomy, seen, target, probes)
        before, after = list(claims), claims_of(target, anatomy, site, inputs)
        mapped = without_scales(found)
        if dictionary and codes is not None:
            arrays, order = renumbered(dictionary.moves(dictionary.arrays, found), seed)
            other = _codes(target, site, windows, dictionary, arrays)
            matched = match(correlate(codes, other), Group.PERMUTATION)
            mapped = Gauge({**mapped.elements, FEATURES: matched.gauge})
            truth = Gauge({**truth.elements, FEATURES: Monomial(order, np.ones(len(order)))})
            before.append(_feature_claim(site, codes))
            after.append(_feature_claim(site, other))
        deviation = deviation_from(outputs, target, anatomy, moved_outputs(truth))
        for row in compared(before, after, mapped, deviation, top, seed):
            space = next(claim.space for claim in before if claim.name == row["claim"])
            right = agreement(*(Gauge({space: each.elements[space]}) for each in (truth, mapped)))
            row["claim"] = CONTRAST.get(row["claim"], row["claim"])
            rows.append({**row, "recovered": right["signs_recovered"]})
    return rows


def moved_outputs(gauge: Gauge) -> Gauge:
    """What of a gauge moves a model's outputs: not the features of a dictionary beside it."""
    return Gauge({name: each for name, each in gauge.elements.items() if name != FEATURES})


def renumbered(arrays: Arrays, seed: int) -> tuple[Arrays, np.ndarray]:
    """A dictionary with its features in a random order: feature i becomes `order[i]`."""
    size = len(arrays["b_enc"])
    order = np.random.default_rng([seed, size]).permutation(size)
    back = torch.from_numpy(np.argsort(order))
    return {
        "W_enc": arrays["W_enc"][:, back],
        "b_enc": arrays["b_enc"][back],
        "W_dec": arrays["W_dec"][back],
        "b_dec": arrays["b_dec"],
    }, order


def _codes(
    model: nn.Module, site: Site, windows: torch.Tensor, dictionary: Learned, arrays: Arrays
) -> torch.Tensor:
    states = states_of(model, [site], windows)[site.id]
    return codes_of(arrays, states, round(dictionary.facts["active_features"]))


def _feature_claim(site: Site, codes: torch.Tensor) -> Claim:
    return Claim("active dictionary features", site, FEATURES, codes.double().mean(0))
