"""The norms of a model as rows: what the fingerprint needs of the weights, so that it never opens a
checkpoint.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from normgauge.anatomy.lookup import effective_gain
from normgauge.anatomy.structure import Anatomy, Norm
from normgauge.errors import InputError


def measurable_gain(norm: Norm, tensors: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """(size,) float64: the effective gain. Raises InputError where all of it is zero."""
    gain = effective_gain(norm, tensors)
    if not gain.any():
        raise InputError(
            f"norm {norm.name}: every gain in {norm.gain} is zero, so its output is constant; "
            "nothing to measure"
        )
    return gain


def norm_rows(anatomy: Anatomy, tensors: Mapping[str, torch.Tensor]) -> list[dict[str, Any]]:
    """One row per norm (schema `norms`): kind, eps, effective gain and bias in float64."""
    return [
        {
            "norm": norm.name,
            "kind": str(norm.kind),
            "space": norm.space,
            "eps": norm.eps,
            "gain": measurable_gain(norm, tensors).tolist(),
            "bias": None if norm.bias is None else tensors[norm.bias].double().tolist(),
        }
        for norm in anatomy.norms
    ]
