"""What an artifact loses when it is kept out of the dead directions: nothing, shown on the outputs
of a checkpoint's own norms.

Two artifacts read or write such an output y: the down projection of a LoRA behind the norm, rows A
(r, d), and the decoder of a dictionary that reconstructs y, rows D (k, d). Each is constrained by
the exported directions, and by a random direction as a control: what that changes is what the
constraint could have cost.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from normgauge.anatomy.structure import NormKind
from normgauge.capture.hooks import body_of, placed
from normgauge.dead_directions.subject import PathLike, Rows, Subject
from normgauge.fingerprint.directions import DeadDirections, absorbed, without_kernel

FORWARD = "float64"
RANK = 8
EPSILON = float(np.finfo(float).eps)


def constrained_rows(
    subject: Subject,
    calibration: PathLike,
    directions: Mapping[str, DeadDirections],
    batch_size: int,
    seed: int,
) -> Rows:
    """Rows of schema `constrained_artifacts`, of one LayerNorm of the primary stream that feeds
    maps: the one in its middle. Empty for a model without LayerNorms.

    directions: as `read_directions` gives them.
    """
    space = subject.anatomy.primary_stack.space
    norms = [
        norm.name
        for norm in subject.anatomy.norms
        if norm.kind == NormKind.LAYER_NORM and norm.space == space and norm.feeds
    ]
    if not norms:
        return []
    name = norms[len(norms) // 2]
    outputs = _outputs(subject, calibration, name, batch_size)
    return [
        {**subject.labels, "norm": name, "n": len(outputs), "forward_dtype": FORWARD, **row}
        for row in (
            *adapter_rows(outputs, directions[name], seed),
            *decoder_rows(outputs, directions[name], seed),
        )
    ]


def _outputs(subject: Subject, calibration: PathLike, norm: str, batch_size: int) -> np.ndarray:
    """(tokens, d) outputs of a norm on the first batch."""
    model, found = subject.build(FORWARD), []
    handle = model.get_submodule(norm).register_forward_hook(
        lambda _module, _inputs, output: found.append(output.flatten(0, -2))
    )
    batch = next(iter(subject.batches(calibration, batch_size)))
    parameter = next(model.parameters())
    with torch.inference_mode():
        body_of(model)(**{key: placed(value, parameter) for key, value in batch.inputs.items()})
    handle.remove()
    return torch.cat(found).numpy()


def adapter_rows(outputs: np.ndarray, directions: DeadDirections, seed: int) -> Rows:
    """A down projection with a tenth of its length along v, constrained in three ways.

    outputs: (n, d) of the norm.
    """
    generator = np.random.default_rng(seed)
    d = outputs.shape[1]
    rows = generator.standard_normal((RANK, d)) / d**0.5
    rows += 0.1 * generator.standard_normal((RANK, 1)) @ directions.kernel[:1]
    other = generator.standard_normal((1, d))
    other /= np.linalg.norm(other)
    known = outputs @ rows.T
    cases = {
        "dead direction, constant kept": (directions.kernel, absorbed(rows, directions)),
        "dead direction alone": (directions.kernel, 0.0),
        "random direction": (other, 0.0),
    }
    found = []
    for constraint, (kernel, constant) in cases.items():
        kept = without_kernel(rows, kernel)
        found.append(
            _row("LoRA down projection", constraint, rows, kept)
            | _change(known, outputs @ kept.T + constant)
        )
    return found


def decoder_rows(outputs: np.ndarray, directions: DeadDirections, seed: int) -> Rows:
    """A decoder of the outputs' first directions with a part along v, its codes by least squares,
    constrained by the dead direction, and by the first direction as a control.
    """
    generator = np.random.default_rng(seed + 1)
    mean = outputs.mean(0)
    centred = outputs - mean
    _, _, principal = np.linalg.svd(centred, full_matrices=False)
    rows = principal[:RANK] + 0.1 * generator.standard_normal((RANK, 1)) @ directions.kernel[:1]
    found = []
    for constraint, kernel in {
        "dead direction alone": directions.kernel,
        "first direction": principal[:1],
    }.items():
        kept = without_kernel(rows, kernel)
        before, after = (_reconstructed(centred, each) for each in (rows, kept))
        variance = float((centred**2).mean())
        found.append(
            _row("dictionary decoder", constraint, rows, kept)
            | _change(before, after)
            | {
                "error": float(((centred - before) ** 2).mean()) / variance,
                "error_constrained": float(((centred - after) ** 2).mean()) / variance,
            }
        )
    return found


def _reconstructed(centred: np.ndarray, decoder: np.ndarray) -> np.ndarray:
    codes = np.linalg.lstsq(decoder.T, centred.T, rcond=None)[0]
    return (decoder.T @ codes).T


def _row(artifact: str, constraint: str, rows: np.ndarray, kept: np.ndarray) -> dict[str, Any]:
    return {
        "artifact": artifact,
        "constraint": constraint,
        "rank": rows.shape[0],
        "d": rows.shape[1],
        "removed_share": float(((rows - kept) ** 2).sum() / (rows**2).sum()),
        "error": None,
        "error_constrained": None,
    }


def _change(before: np.ndarray, after: np.ndarray) -> dict[str, float]:
    effect = float(np.sqrt((before**2).mean()))
    return {
        "effect": effect,
        "change": float(np.sqrt(((after - before) ** 2).mean())) / effect,
        "floor": 32 * EPSILON,
    }
