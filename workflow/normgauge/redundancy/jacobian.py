"""The derivative of a model's outputs by all of its parameters, and its rank."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch

from normgauge.anatomy.structure import Anatomy

OUTPUTS = ("logits", "last_hidden_state", "pooler_output")
AT_ONCE = 256  # rows of the Jacobian per backward pass


def head_outputs(model: torch.nn.Module, inputs: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """What the class returns, as one flat vector: logits, else the last hidden states and what is pooled from them."""
    found = model(**inputs)
    names = [name for name in OUTPUTS if found.get(name) is not None]
    chosen = names[:1] if names[0] == "logits" else names
    return torch.cat([found[name].flatten() for name in chosen])


def output_jacobian(model: torch.nn.Module, anatomy: Anatomy, inputs: Mapping[str, torch.Tensor]) -> tuple[np.ndarray, list[str]]:
    """float64 (outputs, parameters), and the stored tensors in the order of its columns, each flattened in row-major order."""
    names = [tensor.name for tensor in anatomy.tensors if tensor.alias_of is None]
    parameters = [model.get_parameter(name).requires_grad_(True) for name in names]
    flat = head_outputs(model, inputs)
    rows = []
    for start in range(0, len(flat), AT_ONCE):
        chosen = torch.zeros(min(AT_ONCE, len(flat) - start), len(flat), dtype=flat.dtype)
        chosen[torch.arange(len(chosen)), start + torch.arange(len(chosen))] = 1
        parts = torch.autograd.grad(flat, parameters, chosen, retain_graph=True, is_grads_batched=True, materialize_grads=True)
        rows.append(torch.cat([part.reshape(len(chosen), -1) for part in parts], 1).numpy())
    for parameter in parameters:
        parameter.requires_grad_(False)
    return np.concatenate(rows), names
