"""Norms whose gain the maps behind them can do instead: which they are, and the move itself.

A gain folds where linear maps alone read the norm's output: W diag(g) does what the gain did.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from normgauge.anatomy.lookup import effective_gain, fed_maps, is_tied
from normgauge.anatomy.structure import Anatomy, Norm, Placement, SpaceKind

SUBLAYER = (SpaceKind.QUERY, SpaceKind.KEY, SpaceKind.VALUE, SpaceKind.FFN)


def folds_gain(anatomy: Anatomy, norm: Norm) -> bool:
    """Whether what the gain does can be done by maps instead: they alone read the norm's output,
    and serve nothing else.
    """
    fed = fed_maps(anatomy, norm)
    inside = bool(fed) and not bypasses(anatomy, norm) and not leaves_model(anatomy, norm)
    return inside and bool(norm.gain) and not any(is_tied(anatomy, item.weight) for item in fed)


def bypasses(anatomy: Anatomy, norm: Norm) -> bool:
    """Whether the norm's output is also what the stream carries on (post-norm, before a sublayer,
    and the norm of an embedding).
    """
    if any(site.tap == "embedding" and site.norm == norm.name for site in anatomy.sites):
        return True
    return anatomy.placement == Placement.POST and any(
        anatomy.space(item.writes).kind in SUBLAYER for item in fed_maps(anatomy, norm)
    )


def leaves_model(anatomy: Anatomy, norm: Norm) -> bool:
    """Whether the norm's output is an output of the class."""
    if not returns_hidden_states(anatomy):
        return False
    if anatomy.placement == Placement.POST:
        return not bypasses(anatomy, norm)
    return norm.name == anatomy.primary_stack.terminal_norm


def returns_hidden_states(anatomy: Anatomy) -> bool:
    """Whether the last norm's output leaves the model: the class has no head, or returns it beside
    a projection (CLIP).
    """
    name = anatomy.architecture
    return name.endswith(("Model", "ModelWithProjection")) and not name.endswith("LMHeadModel")


def scale_readers(
    anatomy: Anatomy,
    norm: Norm,
    tensors: dict[str, torch.Tensor],
    factors: torch.Tensor,
    dtype: torch.dtype | None = None,
) -> None:
    """Multiply what the norm's maps read of each coordinate by its factor, float64 (size,), in
    place of their weights; rounded once, to `dtype`, or to each weight's own where that is None.
    """
    axes = {item.weight: item.input_axis for item in fed_maps(anatomy, norm)}
    for name, axis in axes.items():
        weight = tensors[name]
        shape = [1] * weight.ndim
        shape[axis] = len(factors)
        tensors[name] = (weight.double() * factors.reshape(shape)).to(dtype or weight.dtype)


def move_gain(
    anatomy: Anatomy, norm: Norm, tensors: Mapping[str, torch.Tensor], factors: torch.Tensor
) -> dict[str, torch.Tensor]:
    """Gain and bias times the factors, float64 (size,), none of them zero, what the norm's maps
    read divided by them. `tensors`: float64.
    """
    moved = dict(tensors)
    assert norm.gain is not None
    moved[norm.gain] = effective_gain(norm, tensors) * factors - norm.gain_offset
    if norm.bias:
        moved[norm.bias] = tensors[norm.bias] * factors
    scale_readers(anatomy, norm, moved, 1 / factors)
    return moved
