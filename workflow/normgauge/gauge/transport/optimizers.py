"""Optimizer state: averages of gradients move as the gradients, averages of their squares by |G|.

AdamW keeps one second moment per entry. A signed permutation maps entries to entries; a dense rotation would need their covariances,
which are not stored: signed permutations are all that the state can follow.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from normgauge.anatomy.structure import Anatomy
from normgauge.errors import InputError
from normgauge.gauge.admissible import require_fitting
from normgauge.gauge.groups import Monomial
from normgauge.gauge.model_gauge import Gauge
from normgauge.gauge.transform import Move, apply_moves, tensor_moves
from normgauge.gauge.transport.sidecar import Sidecar, check_origin, sidecar_path, write_sidecar
from normgauge.provenance import atomic_path

FIRST = ("exp_avg", "momentum_buffer")
SECOND = ("exp_avg_sq", "max_exp_avg_sq")
COUNTERS = ("step",)


def transport_optimizer(
    source: str | os.PathLike[str],
    destination: str | os.PathLike[str],
    anatomy: Anatomy,
    gauge: Gauge,
    sidecar: Sidecar,
    names: Sequence[str] | None = None,
) -> None:
    """Move an AdamW or SGD `state_dict()` saved by torch (opened with weights_only).

    `names`: the parameters' names in the order of the optimizer's numbers; None takes the state's own `param_names`. Raises InputError,
    before anything is written, for a file of another kind, unknown state, or a gauge other than signed permutations.
    """
    check_origin(source, sidecar)
    try:
        state = torch.load(source, weights_only=True, map_location="cpu")
    except (OSError, RuntimeError, EOFError, pickle.UnpicklingError) as error:
        raise InputError(f"{Path(source)}: cannot be read as a torch file of plain tensors ({error})") from error
    moved = moved_state(state, anatomy, gauge, names)
    with atomic_path(destination) as temporary:
        torch.save(moved, temporary)
    write_sidecar(sidecar_path(destination), sidecar)


def moved_state(state: Any, anatomy: Anatomy, gauge: Gauge, names: Sequence[str] | None = None) -> dict[str, Any]:
    """The optimizer's state_dict after the gauge; the given one is not changed."""
    if not isinstance(state, Mapping) or not {"state", "param_groups"} <= state.keys():
        raise InputError("optimizer state: expected the keys state and param_groups of a torch state_dict(); save that")
    for space, element in gauge.elements.items():
        if not isinstance(element, Monomial) or not element.is_signed_permutation:
            raise InputError(f"gauge of {space}: entrywise second moments follow signed permutations alone; restart the optimizer instead")
    require_fitting(anatomy, gauge)
    named = parameter_names(state["param_groups"], names)
    listed = {tensor.name: tensor.shape for tensor in anatomy.tensors}
    first, second = tensor_moves(anatomy, gauge), tensor_moves(anatomy, gauge.without_signs())
    moved = {}
    for number, entries in state["state"].items():
        name = named.get(number)
        if name not in listed:
            raise InputError(f"optimizer state: parameter {number} is {name!r}, which {anatomy.architecture} has not; give its own names")
        if "exp_avg" in entries and "exp_avg_sq" not in entries:
            raise InputError(f"optimizer state: {name} has exp_avg and no exp_avg_sq; save the whole state of AdamW")
        moved[number] = {key: _moved_entry(key, value, name, listed[name], first[name], second[name]) for key, value in entries.items()}
    return {**state, "state": moved}


def parameter_names(groups: Any, names: Sequence[str] | None = None) -> dict[int, str]:
    """Number -> name of the parameters in a state_dict's param_groups; `names` in their order, None for the groups' own `param_names`."""
    if not isinstance(groups, Sequence) or not all(isinstance(group, Mapping) and "params" in group for group in groups):
        raise InputError("optimizer state: expected param_groups to be a list of groups with params; save a torch state_dict()")
    numbers = [number for group in groups for number in group["params"]]
    given = names if names is not None else [name for group in groups for name in group.get("param_names", ())]
    if len(given) != len(numbers) or len(set(given)) != len(given):
        raise InputError(
            f"optimizer state: {len(numbers)} parameters and {len(set(given))} names; give one name for each in the optimizer's order"
        )
    return dict(zip(numbers, given, strict=True))


def _moved_entry(key: str, value: Any, name: str, shape: tuple[int, ...], first: Sequence[Move], second: Sequence[Move]) -> Any:
    if key in COUNTERS or value is None:
        return value
    if key not in (*FIRST, *SECOND):
        raise InputError(f"optimizer state: {key} of {name} is unknown, expected {', '.join((*FIRST, *SECOND))}; use AdamW or SGD")
    found = list(value.shape) if isinstance(value, torch.Tensor) else type(value).__name__
    if found != list(shape):
        raise InputError(f"optimizer state: {key} of {name} has shape {found}, the model's is {list(shape)}; give its own names")
    return apply_moves(value, first if key in FIRST else second)
