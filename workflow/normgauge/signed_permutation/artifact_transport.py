"""What people carry, moved with a recorded gauge of a real model: acts as before, does not by the
permutation alone, nor unmoved.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from normgauge.anatomy.structure import Anatomy
from normgauge.calibration.batches import Batch
from normgauge.checkpoints.building import build_model
from normgauge.checkpoints.opening import Checkpoint
from normgauge.gauge.correlation import run_site_activations
from normgauge.gauge.equivalence import CONTROL_FACTOR, TOLERANCES, deviation_from, recorded_outputs
from normgauge.gauge.groups import Monomial
from normgauge.gauge.model_gauge import Gauge
from normgauge.gauge.random_gauges import random_gauge
from normgauge.gauge.transform import transformed
from normgauge.schemas.verdicts import control_verdict, law_verdict
from normgauge.signed_permutation.artifacts import Artifact, drawn_artifacts
from normgauge.signed_permutation.name_audit import middle_site
from normgauge.signed_permutation.resumed_training import optimizer_artifacts

PRECISION = "float64"


def transport_rows(
    checkpoint: Checkpoint, anatomy: Anatomy, batches: Sequence[Batch], seeds: Sequence[int]
) -> list[dict[str, Any]]:
    """Rows of schema `gauge_transport`: per seed a steering vector and a dictionary spliced in at
    the middle block's output, a LoRA adapter on every map of that block, and the states of
    optimizers that have trained it. The model is gauged on its primary stream; forward passes are
    in float64.
    """
    site = middle_site(anatomy)
    wide = replace(
        checkpoint, tensors={name: value.double() for name, value in checkpoint.tensors.items()}
    )
    inputs = [batch.inputs for batch in batches]
    source = build_model(wide, PRECISION)
    states = next(iter(run_site_activations(source, [site], batches[:1])))[site.id]
    scale = float(states.square().mean().sqrt())
    trained = optimizer_artifacts(source, anatomy, site, inputs[0])
    rows = []
    for seed in seeds:
        gauge = random_gauge(anatomy, seed, (anatomy.primary_stack.space,))
        target = build_model(transformed(wide, anatomy, gauge), PRECISION)
        for artifact in (*drawn_artifacts(anatomy, site, scale, seed), *trained):
            with artifact.act(source, artifact.content, Gauge({})):
                recorded = recorded_outputs(source, inputs)
            ways = {
                "transported": artifact.move(artifact.content, gauge),
                "permutation": artifact.move(artifact.content, gauge.without_signs()),
                "raw": artifact.content,
            }
            found = {}
            for way, content in ways.items():
                with artifact.act(target, content, gauge):
                    found[way] = deviation_from(recorded, target, anatomy, gauge).relative
            element = gauge.elements[anatomy.primary_stack.space]
            assert isinstance(element, Monomial)
            errors = {
                "permutation_error": relative_error(
                    artifact, ways["permutation"], ways["transported"]
                ),
                "predicted_error": sign_energy(artifact, element),
                "raw_error": relative_error(artifact, ways["raw"], ways["transported"]),
            }
            rows.append(_row(artifact.name, site.id, seed, found, errors))
    return rows


def _row(
    name: str, site: str, seed: int, found: Mapping[str, float], errors: Mapping[str, float]
) -> dict[str, Any]:
    tolerance = TOLERANCES[PRECISION]
    controls = {
        way: control_verdict(
            errors[predicted] ** 0.5, not found[way] < CONTROL_FACTOR * tolerance, tolerance
        )
        for way, predicted in (("permutation", "predicted_error"), ("raw", "raw_error"))
    }
    return {
        "artifact": name,
        "site": site,
        "seed": seed,
        "forward_dtype": PRECISION,
        "transported_deviation": found["transported"],
        "permutation_deviation": found["permutation"],
        "raw_deviation": found["raw"],
        **errors,
        "transported": str(law_verdict(found["transported"] <= tolerance, controls.values())),
        "permutation_control": str(controls["permutation"]),
        "raw_control": str(controls["raw"]),
    }


def relative_error(artifact: Artifact, content: Any, transported: Any) -> float:
    """|T_G a - b|^2 over |a|^2 of a content b in place of the transported one, of what artifacts
    add up to on the stream.
    """
    own, right, other = (artifact.dense(each) for each in (artifact.content, transported, content))
    energy = sum(float(value.square().sum()) for value, _ in own.values())
    return sum(float((right[name][0] - other[name][0]).square().sum()) for name in own) / energy


def sign_energy(artifact: Artifact, element: Monomial) -> float:
    """|T_G a - T_P a|^2 over |a|^2 as predicted from the signs: four times the share of the energy
    on coordinates of negative sign.
    """
    negative = torch.from_numpy(np.flatnonzero(element.factors < 0))
    own = artifact.dense(artifact.content).values()
    energy = sum(float(value.square().sum()) for value, _ in own)
    return (
        4
        * sum(float(value.index_select(axis, negative).square().sum()) for value, axis in own)
        / energy
    )
