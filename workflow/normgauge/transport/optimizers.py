"""Optimizer state: averages of gradients move as the gradients, averages of their squares by |G|.

AdamW keeps one second moment per entry. A signed permutation maps entries to entries; a dense
rotation would need their covariances,
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
from normgauge.checkpoints.readers.torch_reader import check_storages
from normgauge.errors import InputError, one_line
from normgauge.gauge.groups import Monomial
from normgauge.gauge.model_gauge import Gauge
from normgauge.gauge.requirements import require_fitting
from normgauge.gauge.transform import Move, apply_moves, tensor_moves
from normgauge.transport.outputs import require_new
from normgauge.transport.sidecar import Sidecar, check_origin, new_artifact

FIRST = ("exp_avg", "momentum_buffer")
SECOND = ("exp_avg_sq", "max_exp_avg_sq")
COUNTERS = ("step",)

Names = Sequence[str] | Sequence[Sequence[str]]


@one_line("the state of an optimizer")
def transport_optimizer(
    source: str | os.PathLike[str],
    destination: str | os.PathLike[str],
    anatomy: Anatomy,
    gauge: Gauge,
    sidecar: Sidecar,
    names: Names | None = None,
) -> None:
    """Move an AdamW or SGD `state_dict()` saved by torch (opened with weights_only).

    `names`: the parameters' names in their order within the optimizer's groups, a list for each
    where there are several; None takes the state's own `param_names`. Raises InputError, before
    anything is written, for a destination that exists, a file of another kind, unknown state, or a
    gauge other than signed permutations.
    """
    require_new(destination)
    check_origin(source, sidecar)
    moved = moved_state(read_state(source), anatomy, gauge, names)
    with new_artifact(destination, sidecar) as temporary:
        torch.save(moved, temporary)


@one_line("a torch file")
def read_state(path: str | os.PathLike[str]) -> Any:
    """What a torch file holds; no code of it runs. Raises InputError for a file of another kind."""
    try:
        check_storages(Path(path))
        return torch.load(path, weights_only=True, map_location="cpu")
    except (OSError, RuntimeError, EOFError, pickle.UnpicklingError) as error:
        reason = str(error).partition("\n")[0] or type(error).__name__
        raise InputError(
            f"{Path(path)}: cannot be read as a torch file of plain tensors ({reason})"
        ) from error


def moved_state(
    state: Any, anatomy: Anatomy, gauge: Gauge, names: Names | None = None
) -> dict[str, Any]:
    """The optimizer's state_dict after the gauge; the given one is not changed."""
    if not isinstance(state, Mapping) or not {"state", "param_groups"} <= state.keys():
        raise InputError(
            "optimizer state: expected the keys state and param_groups of a torch state_dict(); "
            "save that"
        )
    for space, element in gauge.elements.items():
        if not isinstance(element, Monomial) or not element.is_signed_permutation:
            raise InputError(
                f"gauge of {space}: entrywise second moments follow signed permutations alone; "
                "restart the optimizer instead"
            )
    require_fitting(anatomy, gauge)
    named = parameter_names(state["param_groups"], names)
    listed = {tensor.name: tensor.shape for tensor in anatomy.tensors}
    first, second = tensor_moves(anatomy, gauge), tensor_moves(anatomy, gauge.without_signs())
    moved = {}
    for number, entries in state["state"].items():
        name = named.get(number)
        if name not in listed:
            raise InputError(
                f"optimizer state: parameter {number} is {name!r}, which {anatomy.architecture} "
                "has not; give its own names"
            )
        if "exp_avg" in entries and "exp_avg_sq" not in entries:
            raise InputError(
                f"optimizer state: {name} has exp_avg and no exp_avg_sq; save the whole state of "
                "AdamW"
            )
        moved[number] = {
            key: _moved_entry(key, value, name, listed[name], first[name], second[name])
            for key, value in entries.items()
        }
    return {**state, "state": moved}


def parameter_names(groups: Any, names: Names | None = None) -> dict[int, str]:
    """Number -> name of the parameters in a state_dict's param_groups.

    names: in the order of the group's parameters, a list for each group where there are several,
    since a group's parameters need not stand in the model's order; None for the groups' own
    `param_names`. Raises InputError where a parameter has no name, or two have one.
    """
    if not isinstance(groups, Sequence) or not all(
        isinstance(group, Mapping) and "params" in group for group in groups
    ):
        raise InputError(
            "optimizer state: expected param_groups to be a list of groups with params; save a "
            "torch state_dict()"
        )
    given = (
        [group.get("param_names") or () for group in groups]
        if names is None
        else _by_group(groups, names)
    )
    found: dict[int, str] = {}
    for place, (group, own) in enumerate(zip(groups, given, strict=True)):
        if len(own) != len(group["params"]):
            raise InputError(
                f"optimizer state: group {place} has {len(group['params'])} parameters and "
                f"{len(own)} names; save it from an "
                "optimizer that was given model.named_parameters(), or pass names in the group's "
                "order to transport_optimizer"
            )
        found |= dict(zip(group["params"], own, strict=True))
    if len(set(found.values())) != len(found):
        raise InputError(
            f"optimizer state: {len(found)} parameters and {len(set(found.values()))} names; give "
            "each its own"
        )
    return found


def _by_group(groups: Sequence[Any], names: Names) -> Sequence[Sequence[str]]:
    """Names given for a whole optimizer, or group by group. Raises InputError where a flat list
    would have to be cut into groups.
    """
    flat = all(isinstance(name, str) for name in names)
    if flat and len(groups) == 1:
        return [names]  # type: ignore[list-item]
    if flat or len(names) != len(groups):
        raise InputError(
            f"optimizer state: {len(groups)} parameter groups, whose parameters need not stand in "
            "the model's order; give a list of names "
            "for each group"
        )
    return names


def _moved_entry(
    key: str,
    value: Any,
    name: str,
    shape: tuple[int, ...],
    first: Sequence[Move],
    second: Sequence[Move],
) -> Any:
    if key in COUNTERS or value is None:
        return value
    if key not in (*FIRST, *SECOND):
        raise InputError(
            f"optimizer state: {key} of {name} is unknown, expected "
            f"{', '.join((*FIRST, *SECOND))}; use AdamW or SGD"
        )
    found = list(value.shape) if isinstance(value, torch.Tensor) else type(value).__name__
    if found != list(shape):
        raise InputError(
            f"optimizer state: {key} of {name} has shape {found}, the model's is {list(shape)}; "
            "give its own names"
        )
    return apply_moves(value, first if key in FIRST else second)
