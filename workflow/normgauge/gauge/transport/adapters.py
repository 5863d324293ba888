"""PEFT's LoRA adapters: of an update B A, A reads what the weight reads and B writes what it writes."""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

import torch

from normgauge.anatomy.structure import Anatomy, Tensor
from normgauge.errors import InputError
from normgauge.gauge.admissible import require_fitting
from normgauge.gauge.files import require_absent
from normgauge.gauge.model_gauge import Gauge
from normgauge.gauge.transform import apply_moves, axis_moves, gate_tensors, tensor_moves
from normgauge.gauge.transport.arrays import read_arrays, write_arrays
from normgauge.gauge.transport.sidecar import Sidecar, check_origin, write_sidecar
from normgauge.provenance import atomic_path

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
PREFIX = "base_model.model."
FACTOR = re.compile(r"(?P<module>.+)\.lora_(?P<part>A|B|embedding_A|embedding_B)(\.weight)?")


def transport_adapter(
    source: str | os.PathLike[str], destination: str | os.PathLike[str], anatomy: Anatomy, gauge: Gauge, sidecar: Sidecar
) -> None:
    """Write a copy of a PEFT LoRA folder (adapter_config.json, adapter_model.safetensors) whose update fits the gauged model.

    Raises InputError, before anything is written, for a destination that exists, another kind of adapter, DoRA (its magnitudes are no
    linear update), a gauge that does not fit the model, or a tensor that fits no weight of it.
    """
    folder = Path(source)
    require_absent(destination)
    check_origin(folder, sidecar)
    _check_config(folder / CONFIG)
    arrays, metadata = read_arrays(folder / WEIGHTS)
    moved = moved_adapter(arrays, anatomy, gauge)
    with atomic_path(destination) as temporary:
        shutil.copytree(folder, temporary)
        write_arrays(temporary / WEIGHTS, moved, metadata)
        write_sidecar(temporary / "gauge.json", sidecar)


def _check_config(path: Path) -> None:
    try:
        config: Any = json.loads(path.read_text())
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}); expected a PEFT adapter's folder") from error
    except ValueError as error:
        raise InputError(f"{path}: not valid JSON ({error}); save the adapter again") from error
    if not isinstance(config, dict) or config.get("peft_type") != "LORA" or config.get("use_dora"):
        raise InputError(f"{path}: expected a plain LoRA adapter (peft_type LORA, no use_dora); merge any other into its model first")


def moved_adapter(arrays: dict[str, torch.Tensor], anatomy: Anatomy, gauge: Gauge) -> dict[str, torch.Tensor]:
    """The adapter's tensors after the gauge, by PEFT's names. Whole tensors (modules_to_save, biases) move as the model's own."""
    require_fitting(anatomy, gauge)
    listed = {tensor.name: tensor for tensor in anatomy.tensors}
    whole = tensor_moves(anatomy, gauge)
    gates = gate_tensors(anatomy)
    inputs = {item.weight: item.input_axis for item in anatomy.maps}
    moved = {}
    for name, value in arrays.items():
        inner = name.removeprefix(PREFIX)
        factor = FACTOR.fullmatch(inner)
        if factor is None:
            _check_shape(name, inner, value, listed.get(inner), None)
            moved[name] = apply_moves(value, whole[inner])
            continue
        weight = f"{factor['module']}.weight"
        tensor = listed.get(weight)
        reads = factor["part"].endswith("A")
        # an embedding (rows looked up, then written) is a map whose input is the row's number
        axis = inputs.get(weight, 0) if not factor["part"].startswith("embedding") else 0
        axis = axis if reads else 1 - axis
        number = 1 if reads else 0
        _check_shape(name, weight, value, tensor, (axis, number))
        assert tensor is not None
        moved[name] = apply_moves(value, axis_moves(anatomy, gauge, number, tensor.axes[axis], weight in gates and not reads))
    return moved


def _check_shape(name: str, weight: str, value: torch.Tensor, tensor: Tensor | None, place: tuple[int, int] | None) -> None:
    """`place`: the weight's axis that the factor's axis of the second number must fit; None: the whole shape."""
    if tensor is None:
        raise InputError(f"adapter tensor {name}: the model has no weight {weight}; use the adapter's own base model")
    fits = tuple(value.shape) == tensor.shape if place is None else value.ndim == 2 and value.shape[place[1]] == tensor.shape[place[0]]
    if not fits:
        raise InputError(f"adapter tensor {name} of shape {list(value.shape)} does not fit {weight} of shape {list(tensor.shape)}")
