"""Steering vectors: directions added to the residual stream, so they move as what is written to
it.
"""

from __future__ import annotations

import os

import torch

from normgauge.anatomy.structure import Anatomy
from normgauge.errors import InputError
from normgauge.gauge.model_gauge import Gauge
from normgauge.gauge.transform import require_range
from normgauge.transport.arrays import StreamElement, element_on, transport_file
from normgauge.transport.sidecar import Sidecar


def transport_vectors(
    source: str | os.PathLike[str],
    destination: str | os.PathLike[str],
    anatomy: Anatomy,
    gauge: Gauge,
    space: str,
    sidecar: Sidecar,
) -> None:
    """Move every array of a .safetensors, .npz or .gguf file (as of control vectors) along its last
    axis, which must be the space's.
    """
    element = element_on(anatomy, gauge, space)
    transport_file(
        source,
        destination,
        lambda arrays, where: {
            name: moved_vectors(element, name, value, where) for name, value in arrays.items()
        },
        sidecar,
    )


def moved_vectors(
    element: StreamElement, name: str, value: torch.Tensor, source: str
) -> torch.Tensor:
    """Vectors (..., d) of a space after the gauge."""
    if not value.is_floating_point() or value.ndim == 0 or value.shape[-1] != element.size:
        found = f"{value.dtype} {list(value.shape)}"
        raise InputError(
            f"{source}: array {name} is {found}, expected floating-point vectors of {element.size} "
            "coordinates"
        )
    moved = element.apply(value)
    if not element.is_signed_permutation:
        require_range(f"{source}: array {name}", value, moved)
    return moved
