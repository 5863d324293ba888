"""PEFT's LoRA adapters, as PEFT writes them: every tensor moves by its role (`adapter_roles`), or
is refused with the reason.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import torch

from normgauge.anatomy.lookup import gate_runs
from normgauge.anatomy.structure import Anatomy, Axis, Role, SpaceKind, Tensor
from normgauge.errors import InputError
from normgauge.gauge.groups import HeadMap, Monomial
from normgauge.gauge.model_gauge import Gauge
from normgauge.gauge.requirements import require_fitting
from normgauge.gauge.transform import Move, axis_moves, moved_value, tensor_moves
from normgauge.transport.adapter_roles import Part, belonging, model_names
from normgauge.transport.arrays import keeps_lengths, read_arrays, save_arrays
from normgauge.transport.leftovers import numbers_beside, require_none_left
from normgauge.transport.outputs import copy_tree, new_output, require_new
from normgauge.transport.sidecar import Sidecar, check_origin, write_sidecar

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
KINDS = ("LORA", "TRAINABLE_TOKENS")
# `init_lora_weights` that leaves the base as it is
INITIAL = (True, False, None, "gaussian", "eva", "orthogonal", "mica")
OTHER_UPDATES = (  # keys of PEFT's config under which the update is no B A of one weight's own axes
    *(
        "layer_replication",
        "target_parameters",
        "use_qalora",
        "use_bdlora",
        "arrow_config",
        "kasa_config",
        "monteclora_config",
    ),
    "megatron_config",
)


def transport_adapter(
    source: str | os.PathLike[str],
    destination: str | os.PathLike[str],
    anatomy: Anatomy,
    gauge: Gauge,
    sidecar: Sidecar,
) -> None:
    """Write a copy of a PEFT LoRA folder (adapter_config.json, adapter_model.safetensors) whose
    update fits the gauged model.

    Raises InputError, before anything is written, for a destination that exists or lies inside the
    source, other files in old coordinates (an optimizer's state), another kind of adapter, a gauge
    that does not fit the model or that a magnitude of DoRA does not follow, or a tensor that
    belongs to no weight of the model.
    """
    folder = Path(source)
    require_new(destination, folder)
    check_origin(folder, sidecar)
    _check_config(folder / CONFIG)
    if not (folder / WEIGHTS).is_file():
        raise InputError(
            f"{folder}: no {WEIGHTS}; save the adapter as safetensors (save_pretrained), or name "
            "its own folder"
        )
    require_none_left(folder, numbers_beside(folder, (WEIGHTS,)), "move them away first")
    arrays, metadata = read_arrays(folder / WEIGHTS)
    moved = moved_adapter(arrays, anatomy, gauge)
    with new_output(destination, folder) as temporary:
        copy_tree(folder, temporary)
        save_arrays(temporary / WEIGHTS, ".safetensors", moved, metadata)
        write_sidecar(temporary / "gauge.json", sidecar)


def _check_config(path: Path) -> None:
    try:
        config: Any = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(
            f"{path}: cannot be read ({error.strerror}); expected a PEFT adapter's folder"
        ) from error
    except ValueError as error:
        raise InputError(f"{path}: not valid JSON ({error}); save the adapter again") from error
    if not isinstance(config, dict) or config.get("peft_type") not in KINDS:
        found = config.get("peft_type") if isinstance(config, dict) else type(config).__name__
        raise InputError(
            f"{path}: peft_type is {found!r}, expected {' or '.join(KINDS)}; merge any other "
            "adapter into its model first"
        )
    initial = config.get("init_lora_weights")
    if initial not in INITIAL:
        raise InputError(
            f"{path}: init_lora_weights {initial!r} changes the base's weights when it is loaded; "
            "save the adapter converted to plain LoRA "
            "(path_initial_model_for_weight_conversion)"
        )
    if other := [key for key in OTHER_UPDATES if config.get(key)]:
        raise InputError(
            f"{path}: {other[0]} makes another update than B A of a weight; merge the adapter into "
            "its model first"
        )


def moved_adapter(
    arrays: Mapping[str, torch.Tensor], anatomy: Anatomy, gauge: Gauge
) -> dict[str, torch.Tensor]:
    """The adapter's tensors after the gauge, by PEFT's names. Raises InputError naming the tensor
    that fits no weight of the model, that the gauge takes beyond its dtype, or, a magnitude of
    DoRA, that does not follow.
    """
    require_fitting(anatomy, gauge)
    names = model_names(arrays, [tensor.name for tensor in anatomy.tensors])
    weights = _Weights(anatomy, gauge)
    moved = {}
    for name, value in arrays.items():
        inner = names[name]
        if inner is None:
            raise InputError(
                f"adapter tensor {name}: {anatomy.architecture} has no tensor "
                f"{belonging(name).candidates[0]}; use the model, of the class "
                "in its config.architectures, that the adapter was made for"
            )
        moved[name] = moved_value(
            f"adapter tensor {name}", value, weights.moves(name, inner, value)
        )
    return moved


class _Weights:
    """The model's tensors as an adapter sees them, under a gauge."""

    def __init__(self, anatomy: Anatomy, gauge: Gauge) -> None:
        self.anatomy, self.gauge = anatomy, gauge
        self.listed = {tensor.name: tensor for tensor in anatomy.tensors}
        self.whole = tensor_moves(anatomy, gauge)
        self.gates = gate_runs(anatomy)
        self.inputs = {item.weight: item.input_axis for item in anatomy.maps}

    def moves(self, name: str, weight: str, value: torch.Tensor) -> tuple[Move, ...] | list[Move]:
        """What the gauge does to one tensor of the adapter. Raises InputError where its shape or
        its kind does not fit.
        """
        part, tensor = belonging(name).part, self.listed[weight]
        if part in (Part.WHOLE, Part.ROWS):
            free = [
                (part == Part.ROWS and not number) or self._counts_tokens(axis)
                for number, axis in enumerate(tensor.axes)
            ]
            _check_shape(
                name,
                tensor,
                value,
                [None if each else size for each, size in zip(free, tensor.shape, strict=True)],
            )
            return self.whole[weight]
        reads = part in (Part.INPUT, Part.EMBEDDING_INPUT)
        source = (
            0 if part in (Part.EMBEDDING_INPUT, Part.EMBEDDING_OUTPUT) else self._input_axis(tensor)
        )
        axis = source if reads else 1 - source
        vector = part in (Part.BIAS, Part.MAGNITUDE)
        number = 1 if reads else 0
        sizes: list[int | None] = [None] * (1 if vector else len(tensor.shape))
        sizes[number] = tensor.shape[axis]
        _check_shape(name, tensor, value, sizes)
        gates: Collection[int] = () if reads else self.gates.get(weight, ())
        moves = axis_moves(self.anatomy, self.gauge, number, tensor.axes[axis], gates)
        if part != Part.MAGNITUDE:
            return moves
        if not all(
            keeps_lengths(move.element)
            for move in axis_moves(self.anatomy, self.gauge, 0, tensor.axes[source])
        ):
            raise InputError(
                f"adapter tensor {name}: the gauge changes the lengths of the weight's rows, which "
                "DoRA divides by; merge the adapter into "
                "its model first, or leave the space that the weight reads as it is"
            )
        return [Move(0, _absolute(name, move.element), move.positions) for move in moves]

    def _counts_tokens(self, axis: Axis) -> bool:
        """An adapter may have added tokens."""
        return all(
            self.anatomy.space(segment.space).kind == SpaceKind.VOCABULARY
            for segment in axis.segments
        )

    def _input_axis(self, tensor: Tensor) -> int:
        """Of a tied readout, which no map names, the axis that reads; of an embedding the one that
        counts its rows.
        """
        roles = [axis.role for axis in tensor.axes]
        return self.inputs.get(tensor.name, roles.index(Role.READ) if Role.READ in roles else 0)


def _check_shape(name: str, tensor: Tensor, value: torch.Tensor, sizes: list[int | None]) -> None:
    fits = value.ndim == len(sizes) and all(
        size in (None, found) for size, found in zip(sizes, value.shape, strict=True)
    )
    if not fits:
        raise InputError(
            f"adapter tensor {name} of shape {list(value.shape)} does not fit {tensor.name} of "
            f"shape {list(tensor.shape)}; "
            "use the adapter's own base model"
        )


def _absolute(name: str, element: Any) -> Monomial:
    monomial = element.monomial if isinstance(element, HeadMap) else element
    if not isinstance(monomial, Monomial):
        raise InputError(
            f"adapter tensor {name}: the gauge mixes the weight's rows, of which DoRA scales each; "
            "merge the adapter into its model first, "
            "or leave the space that the weight writes as it is"
        )
    return monomial.absolute()
