"""Whether two models are the same function: outputs on the same inputs, compared field by field."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch

from normgauge.anatomy import describe
from normgauge.anatomy.structure import Anatomy, Site
from normgauge.calibration.batches import Batch
from normgauge.capture.by_block import outputs_by_block
from normgauge.capture.hooks import Receiver, placed
from normgauge.checkpoints.opening import Checkpoint
from normgauge.checkpoints.skeleton import skeleton
from normgauge.errors import InputError
from normgauge.gauge.model_gauge import Gauge
from normgauge.schemas.verdicts import Verdict, control_verdict

TOLERANCES = {"float64": 1e-10, "float32": 1e-3}
"""Largest relative deviation that rounding alone explains, by forward dtype; float32 is only
reported against the published figures.
"""
CONTROL_FACTOR = 1e3  # a gauge outside the group must deviate by this many tolerances
INTERNAL = ("past_key_values", "hidden_states", "attentions", "loss")

Inputs = Iterable[Mapping[str, torch.Tensor]]
Outputs = Mapping[str, torch.Tensor]
Recorded = tuple[Mapping[str, torch.Tensor], dict[str, torch.Tensor]]
"""Inputs and the outputs that a model gave on them."""


@dataclass(frozen=True)
class Deviation:
    """The largest difference of two models' outputs: absolute, and relative to the largest absolute
    output of the same field.
    """

    max_abs: float
    relative: float

    def unchanged(self, forward_dtype: str) -> bool:
        return self.relative <= TOLERANCES[forward_dtype]

    def changed(self, forward_dtype: str) -> bool:
        """Beyond every doubt: by CONTROL_FACTOR tolerances. NaN counts as changed."""
        return not self.relative < CONTROL_FACTOR * TOLERANCES[forward_dtype]


def outputs(model: torch.nn.Module, inputs: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The tensors that a forward pass returns, by field, float64; floating inputs are cast to the
    model's dtype.
    """
    parameter = next(model.parameters())
    with torch.inference_mode():
        found = model(**{name: placed(value, parameter) for name, value in inputs.items()})
    return _fields(found)


def outputs_of(
    checkpoint: Checkpoint,
    forward_dtype: str,
    batches: Sequence[Batch],
    sites: Sequence[Site] = (),
    receivers: Mapping[str, Receiver] = MappingProxyType({}),
    after: Callable[[int, Sequence[Site]], None] = lambda _batch, _sites: None,
) -> Iterator[dict[str, torch.Tensor]]:
    """`outputs` of a checkpoint for each batch, with one block of it in memory at a time.

    sites, receivers, after: as of `outputs_by_block`, for who reads activations on the way.
    """
    model = skeleton(checkpoint, forward_dtype, torch.device("cpu"))
    anatomy = describe(checkpoint.config)
    for found in outputs_by_block(model, anatomy, lambda: batches, sites, receivers, after):
        yield _fields(found)


def _fields(found: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    return {
        name: value.double()
        for name, value in found.items()
        if isinstance(value, torch.Tensor) and not name.endswith(INTERNAL)
    }


def moved_outputs(
    found: Mapping[str, torch.Tensor], anatomy: Anatomy, gauge: Gauge
) -> dict[str, torch.Tensor]:
    """Outputs as they are after the gauge: hidden states move with their stream, all else stays."""
    spaces = {
        "last_hidden_state": anatomy.primary_stack.space,
        "encoder_last_hidden_state": anatomy.stacks[0].space,
    }
    # DINOv2 pools by taking a token's state
    if all(space.name != "pooled" for space in anatomy.spaces):
        spaces["pooler_output"] = anatomy.primary_stack.space
    moved = dict(found)
    for name in spaces.keys() & found.keys():
        element = gauge.on_space(anatomy, spaces[name])
        moved[name] = found[name] if element is None else element.apply(found[name])
    return moved


def recorded_outputs(model: torch.nn.Module, batches: Inputs) -> list[Recorded]:
    """A model's outputs on every batch beside the batch, so that it need not be in memory when
    another one is compared with it.
    """
    return [(inputs, outputs(model, inputs)) for inputs in batches]


def deviation(
    reference: torch.nn.Module,
    other: torch.nn.Module,
    anatomy: Anatomy,
    gauge: Gauge,
    batches: Inputs,
) -> Deviation:
    """How far `other`, the gauged model, is from `reference` over all batches.

    Raises InputError when a field of the reference holds only zeros or is not finite, or is of
    another shape in `other`: nothing can be compared then.
    """
    return deviation_from(recorded_outputs(reference, batches), other, anatomy, gauge)


def deviation_from(
    recorded: Iterable[Recorded], other: torch.nn.Module, anatomy: Anatomy, gauge: Gauge
) -> Deviation:
    """The same from the reference's recorded outputs."""
    return deviation_between(
        ((reference, outputs(other, inputs)) for inputs, reference in recorded), anatomy, gauge
    )


def deviation_between(
    pairs: Iterable[tuple[Outputs, Outputs]], anatomy: Anatomy, gauge: Gauge
) -> Deviation:
    """The same from the outputs of both models, batch by batch."""
    largest: dict[str, float] = {}
    scale: dict[str, float] = {}
    for reference, found in pairs:
        for name, value in moved_outputs(reference, anatomy, gauge).items():
            if not value.isfinite().all() or not value.any():
                raise InputError(
                    f"output {name} of the reference model is zero or not finite; check its "
                    "weights and inputs"
                )
            if name not in found or found[name].shape != value.shape:
                shape = list(found[name].shape) if name in found else "none"
                raise InputError(
                    f"output {name}: {shape} of one model, {list(value.shape)} of the other; "
                    "compare models of one shape"
                )
            difference = (found[name] - value).abs().max().nan_to_num(float("inf"))
            largest[name] = max(largest.get(name, 0.0), float(difference))
            scale[name] = max(scale.get(name, 0.0), float(value.abs().max()))
    if not largest:
        raise InputError("the models gave no output to compare; pass at least one batch of inputs")
    return Deviation(max(largest.values()), max(largest[name] / scale[name] for name in largest))


def equivalence_row(
    group: str,
    seed: int,
    forward_dtype: str,
    parameters: str,
    found: Deviation,
    predicted: float | None = None,
) -> dict[str, Any]:
    """One row of schema `equivalence`: of an admissible gauge, or of a control, which has a
    predicted effect.
    """
    if predicted is None:
        verdict = Verdict.PASSED if found.unchanged(forward_dtype) else Verdict.FAILED
    else:
        verdict = control_verdict(
            predicted, found.changed(forward_dtype), TOLERANCES[forward_dtype]
        )
    return {
        "group": group,
        "admissible": predicted is None,
        "seed": seed,
        "forward_dtype": forward_dtype,
        "parameters": parameters,
        "max_abs_deviation": found.max_abs,
        "relative_deviation": found.relative,
        "tolerance": TOLERANCES[forward_dtype],
        "predicted_effect": predicted,
        "verdict": str(verdict),
    }
