"""Steering vectors: directions added to the residual stream, so they move as what is written to it."""

from __future__ import annotations

import os

import torch

from normgauge.anatomy.structure import Anatomy
from normgauge.errors import InputError
from normgauge.gauge.groups import HeadMap, Monomial, Orthogonal
from normgauge.gauge.model_gauge import Gauge
from normgauge.gauge.transport.arrays import transport_file
from normgauge.gauge.transport.sidecar import Sidecar


def transport_vectors(
    source: str | os.PathLike[str],
    destination: str | os.PathLike[str],
    anatomy: Anatomy,
    gauge: Gauge,
    space: str,
    sidecar: Sidecar,
) -> None:
    """Move every array of a .safetensors or .npz file along its last axis, which must be the space's."""
    element = element_on(anatomy, gauge, space)

    def move(name: str, value: torch.Tensor) -> torch.Tensor:
        return moved_vectors(element, value, f"{os.fspath(source)}: array {name}")

    transport_file(source, destination, move, sidecar)


def element_on(anatomy: Anatomy, gauge: Gauge, space: str) -> Monomial | Orthogonal | HeadMap:
    """What the gauge does to a space; InputError when it leaves the space alone, since an artifact then needs no transport."""
    element = gauge.on_space(anatomy, space)
    if element is None:
        raise InputError(f"the gauge does not move {space}; it moves {', '.join(gauge.elements)}")
    return element


def moved_vectors(element: Monomial | Orthogonal | HeadMap, value: torch.Tensor, what: str) -> torch.Tensor:
    """Vectors (..., d) of a space after the gauge."""
    if not value.is_floating_point() or value.ndim == 0 or value.shape[-1] != element.size:
        raise InputError(f"{what} is {value.dtype} {list(value.shape)}, expected floating-point vectors of {element.size} coordinates")
    return element.apply(value)
