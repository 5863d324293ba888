"""Tensors that a checkpoint stores and its class does not use, under a gauge: they move where their
axes are known.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from normgauge.anatomy.structure import Anatomy
from normgauge.errors import InputError
from normgauge.gauge.groups import AttentionGauge
from normgauge.gauge.model_gauge import Gauge
from normgauge.gauge.requirements import require_admissible


def require_heads_follow(
    anatomy: Anatomy,
    gauge: Gauge,
    tensors: Mapping[str, torch.Tensor],
    heads: Mapping[str, tuple[int, ...]],
) -> None:
    """InputError naming the first unused tensor that cannot follow a gauge.

    anatomy: with the heads whose axes are known. tensors: of the class and of these heads. heads:
    shapes of all unused tensors by name. One whose axes are known must pass the gauge as a part of
    the model would (a
    masked-LM head writes the stream through a GELU: no sign passes it). One whose axes are not
    known may stay as it is only where each of its axes is shorter than every space that moves.
    """
    listed = {tensor.name for tensor in anatomy.tensors}
    sizes = {name: smallest_axis(element) for name, element in gauge.elements.items()}
    for name, shape in heads.items():
        reached = [space for space, size in sizes.items() if max(shape, default=0) >= size]
        if name not in listed and reached:
            raise InputError(
                f"tensor {name} {list(shape)} is not used by {anatomy.architecture}, and no "
                "described class says what it reads, so it "
                f"cannot follow the gauge of {reached[0]}; store the checkpoint without it"
            )
    if known := [name for name in heads if name in listed]:
        try:
            require_admissible(anatomy, gauge, tensors)
        except InputError as error:
            raise InputError(
                f"tensor {known[0]} is not used by {anatomy.architecture}, and cannot follow: "
                f"{error}, or store the checkpoint without it"
            ) from error


def smallest_axis(element: object) -> int:
    """The least number of coordinates that an axis in the element's space has."""
    if isinstance(element, AttentionGauge):
        return min(element.query_maps.shape[-1], element.value_maps.shape[-1])
    return int(element.size)  # type: ignore[attr-defined]
