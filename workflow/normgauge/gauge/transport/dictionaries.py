"""Dictionaries of sparse autoencoders: the encoder reads the residual stream, the decoder and its bias write to it.

Names as stored by SAELens and Gemma Scope (W_enc in x features, W_dec features x in) and by torch's linear layers (out x in).
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import torch

from normgauge.anatomy.structure import Anatomy, Role
from normgauge.errors import InputError
from normgauge.gauge.groups import Monomial
from normgauge.gauge.model_gauge import Gauge
from normgauge.gauge.transport.arrays import StreamElement, element_on, transport_file
from normgauge.gauge.transport.sidecar import Sidecar

# name -> (axis that lies in the residual stream, what it does there); None: an array of features alone
LAYOUT: dict[str, tuple[int, Role] | None] = {
    "W_enc": (0, Role.READ),
    "W_dec": (1, Role.WRITE),
    "b_dec": (0, Role.WRITE),
    "encoder.weight": (1, Role.READ),
    "decoder.weight": (0, Role.WRITE),
    "decoder.bias": (0, Role.WRITE),
    "bias": (0, Role.WRITE),
    **dict.fromkeys(("b_enc", "encoder.bias", "threshold", "log_threshold", "b_gate", "b_mag", "r_mag", "scaling_factor")),
}
MEAN_FREE = ("layer_norm",)  # normalisations of the input that subtract its mean over coordinates


def transport_dictionary(
    source: str | os.PathLike[str],
    destination: str | os.PathLike[str],
    anatomy: Anatomy,
    gauge: Gauge,
    space: str,
    sidecar: Sidecar,
) -> None:
    """Move a dictionary in a .safetensors, .npz or .gguf file. Features keep their numbers.

    Raises InputError for an unknown array, one of the wrong width, or a dictionary whose cfg.json, beside it, subtracts the mean over
    coordinates while the gauge does more than a permutation with a common sign.
    """
    _check_normalisation(Path(source).with_name("cfg.json"), element_on(anatomy, gauge, space))
    transport_file(source, destination, anatomy, gauge, space, moved_array, sidecar)


def moved_array(element: StreamElement, name: str, value: torch.Tensor, source: str) -> torch.Tensor:
    """One array of a dictionary after the gauge."""
    if name not in LAYOUT:
        raise InputError(f"{source}: array {name} is unknown, expected one of {', '.join(LAYOUT)}; rename it or leave it out")
    place = LAYOUT[name]
    if place is None:
        return value
    axis, role = place
    if value.ndim <= axis or value.shape[axis] != element.size:
        raise InputError(f"{source}: array {name} has shape {list(value.shape)}, expected {element.size} along axis {axis}; wrong model?")
    return (element.dual() if role == Role.READ else element).apply(value, axis)


def _check_normalisation(path: Path, element: StreamElement) -> None:
    if not path.is_file():
        return
    try:
        normalisation = json.loads(path.read_text()).get("normalize_activations")
    except (ValueError, AttributeError) as error:
        raise InputError(f"{path}: not valid JSON ({error}); mend or delete it") from error
    common = isinstance(element, Monomial) and element.is_signed_permutation and (element.factors == element.factors[0]).all()
    if normalisation in MEAN_FREE and not common:
        raise InputError(
            f"{path}: normalize_activations {normalisation!r} subtracts the mean over coordinates; permutations with a common sign pass it"
        )
