"""The norms of a model as rows: what the fingerprint needs of the weights, so that it never opens a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from normgauge.anatomy.structure import Anatomy, Norm
from normgauge.errors import InputError


def effective_gain(norm: Norm, tensors: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """(size,) float64: gain_offset + stored gain; ones where the norm has no gain. Gemma stores w and applies 1 + w."""
    if norm.gain is None:
        return torch.ones(norm.size, dtype=torch.float64)
    gain = tensors[norm.gain].double() + norm.gain_offset
    if not gain.any():
        raise InputError(f"norm {norm.name}: every gain in {norm.gain} is zero, so its output is constant; nothing to measure")
    return gain


def norm_rows(anatomy: Anatomy, tensors: Mapping[str, torch.Tensor]) -> list[dict[str, Any]]:
    """One row per norm (schema `norms`): kind, eps, effective gain and bias in float64."""
    return [
        {
            "norm": norm.name,
            "kind": str(norm.kind),
            "space": norm.space,
            "eps": norm.eps,
            "gain": effective_gain(norm, tensors).tolist(),
            "bias": None if norm.bias is None else tensors[norm.bias].double().tolist(),
        }
        for norm in anatomy.norms
    ]
