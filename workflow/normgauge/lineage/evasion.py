"""What someone would do to a checkpoint so that its descent is not seen, and what it costs."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from normgauge.anatomy import describe
from normgauge.anatomy.structure import Anatomy, NormKind, SpaceKind
from normgauge.calibration.direct import Inputs, drawn_inputs, probe_settings
from normgauge.calibration.settings import Settings
from normgauge.checkpoints.building import build_model
from normgauge.checkpoints.opening import Checkpoint, untied
from normgauge.errors import InputError
from normgauge.gauge.absorb import absorb_gains
from normgauge.gauge.admissible import gauge_spaces
from normgauge.gauge.equivalence import deviation_from, recorded_outputs
from normgauge.gauge.groups import Orthogonal
from normgauge.gauge.model_gauge import Gauge
from normgauge.gauge.random_gauges import random_gauge
from normgauge.gauge.transform import transformed


@dataclass(frozen=True, eq=False)
class Evaded:
    """A changed copy, and the gauge that moves its hidden states, where one does."""

    checkpoint: Checkpoint
    gauge: Gauge


Attack = Callable[[Checkpoint, Anatomy, int], Evaded]
MEAN = "mean with an unrelated model"


def _under(chosen: Callable[[Anatomy, str], bool]) -> Attack:
    """A random gauge of the spaces that are chosen by name."""

    def attack(checkpoint: Checkpoint, anatomy: Anatomy, seed: int) -> Evaded:
        names = tuple(name for name in gauge_spaces(anatomy) if chosen(anatomy, name))
        gauge = random_gauge(anatomy, seed, names)
        return Evaded(transformed(checkpoint, anatomy, gauge), gauge)

    return attack


def _is_unit(anatomy: Anatomy, name: str) -> bool:
    return not name.endswith("attention") and anatomy.space(name).kind == SpaceKind.FFN


def _is_stream(anatomy: Anatomy, name: str) -> bool:
    return name in {stack.space for stack in anatomy.stacks}


def _rotated(checkpoint: Checkpoint, anatomy: Anatomy, seed: int) -> Evaded:
    """Gains absorbed into the maps that read them, then a rotation of the stream, float32."""
    apart = untied(checkpoint)
    anatomy = describe(apart.config)  # in which nothing is tied
    plain = absorb_gains(apart, anatomy, torch.float32)
    stream = anatomy.primary_stack
    fixing = anatomy.norm_kind == NormKind.LAYER_NORM
    gauge = Gauge({stream.space: Orthogonal.random(stream.width, seed, fixing_ones=fixing)})
    return Evaded(transformed(plain, anatomy, gauge), gauge)


def _changed(change: Callable[[torch.Tensor, np.random.Generator], torch.Tensor]) -> Attack:
    """Every matrix changed by itself."""

    def attack(checkpoint: Checkpoint, anatomy: Anatomy, seed: int) -> Evaded:
        tensors = {
            name: change(value, _generator(name, seed)) if value.ndim > 1 else value
            for name, value in checkpoint.tensors.items()
        }
        return Evaded(replace(checkpoint, tensors=tensors), Gauge({}))

    return attack


def _generator(name: str, seed: int) -> np.random.Generator:
    return np.random.default_rng([seed, *hashlib.sha256(name.encode()).digest()[:8]])


def _noisy(share: float) -> Attack:
    def change(value: torch.Tensor, generator: np.random.Generator) -> torch.Tensor:
        noise = torch.from_numpy(generator.standard_normal(value.shape))
        size = value.double().square().mean().sqrt()
        return (value.double() + share * size * noise).to(value.dtype)

    return _changed(change)


def _four_bits(value: torch.Tensor, generator: np.random.Generator) -> torch.Tensor:
    """Each row rounded to 15 levels between its largest absolute value and its negative."""
    step = value.abs().amax(-1, keepdim=True).clamp_min(1e-30) / 7
    return (value / step).round() * step


def _shuffled(value: torch.Tensor, generator: np.random.Generator) -> torch.Tensor:
    """The values in another order: weights of the same sizes, of which none is where it was."""
    order = torch.from_numpy(generator.permutation(value.numel()))
    return value.reshape(-1)[order].reshape(value.shape)


def _mean_with_another(value: torch.Tensor, generator: np.random.Generator) -> torch.Tensor:
    return (value + _shuffled(value, generator)) / 2


def _half_anew(checkpoint: Checkpoint, anatomy: Anatomy, seed: int) -> Evaded:
    """Every other block with its values in another order, as if it had been drawn again."""
    blocks = [f"{name}." for stack in anatomy.stacks for name in stack.blocks[1::2]]
    tensors = {
        name: _shuffled(value, _generator(name, seed))
        if any(name.startswith(block) for block in blocks)
        else value
        for name, value in checkpoint.tensors.items()
    }
    return Evaded(replace(checkpoint, tensors=tensors), Gauge({}))


def _noise_and_gauge(checkpoint: Checkpoint, anatomy: Anatomy, seed: int) -> Evaded:
    noisy = ATTACKS["noise of 1 %"](checkpoint, anatomy, seed).checkpoint
    return ATTACKS["every gauge"](noisy, anatomy, seed)


def _half_anew_and_gauge(checkpoint: Checkpoint, anatomy: Anatomy, seed: int) -> Evaded:
    anew = ATTACKS["every other block anew"](checkpoint, anatomy, seed).checkpoint
    return ATTACKS["every gauge"](anew, anatomy, seed)


def _mean_with(third: Checkpoint) -> Attack:
    """The mean of all learned values with those of another model of the same shapes."""

    def attack(checkpoint: Checkpoint, anatomy: Anatomy, seed: int) -> Evaded:
        tensors = {
            name: (value.double().add(third.tensors[name].double()) / 2).to(value.dtype)
            for name, value in checkpoint.tensors.items()
        }
        return Evaded(replace(checkpoint, tensors=tensors), Gauge({}))

    return attack


ATTACKS: Mapping[str, Attack] = {
    "none": lambda checkpoint, anatomy, seed: Evaded(checkpoint, Gauge({})),
    "gauge of units": _under(_is_unit),
    "gauge of the stream": _under(_is_stream),
    "gauge of attention": _under(lambda anatomy, name: name.endswith("attention")),
    "every gauge": _under(lambda anatomy, name: True),
    "rotation, gains absorbed": _rotated,
    "noise of 1 %": _noisy(0.01),
    "noise of 1 %, every gauge": _noise_and_gauge,
    "noise of 10 %": _noisy(0.1),
    "rounding to 4 bits": _changed(_four_bits),
    MEAN: _changed(_mean_with_another),
    "every other block anew": _half_anew,
    "every other block anew, every gauge": _half_anew_and_gauge,
}
KEEPING = (
    "none",
    "gauge of units",
    "gauge of the stream",
    "gauge of attention",
    "every gauge",
    "rotation, gains absorbed",
)
"""Attacks under which the function is the same up to rounding."""


def evaded(
    checkpoint: Checkpoint,
    seed: int,
    attacks: Sequence[str] = tuple(ATTACKS),
    third: Checkpoint | None = None,
    inputs: Inputs | None = None,
) -> Iterator[tuple[str, Checkpoint, float]]:
    """Each attack that the model admits: its name, the copy, and how far its outputs are from the
    model's, relative to the largest, on `inputs` in float32.

    third: what the mean is taken with; without it the model's own values in another order are.
    inputs: random tokens unless given. Raises InputError for a third model of other shapes, and for
    a model that has no random inputs and is given none.
    """
    if third is not None:
        require_same_shapes(checkpoint, third)
    known = ATTACKS if third is None else {**ATTACKS, MEAN: _mean_with(third)}
    anatomy = describe(checkpoint.config)
    inputs = inputs or drawn_inputs(checkpoint.config, seen(checkpoint.config), batch_size=1)
    batches = [batch.inputs for batch in inputs.batches]
    recorded = recorded_outputs(build_model(checkpoint, "float32"), batches)
    for name in attacks:
        try:
            found = known[name](checkpoint, anatomy, seed)
        except InputError:  # a stream that admits no rotation
            continue
        model = build_model(found.checkpoint, "float32")
        change = deviation_from(recorded, model, anatomy, found.gauge).relative
        yield name, found.checkpoint, change


def seen(config: Any) -> Settings:
    """The sequences on which functions are compared."""
    return probe_settings(config, 2)


def require_same_shapes(checkpoint: Checkpoint, third: Checkpoint) -> None:
    """InputError, naming a tensor, where a mean cannot be taken."""
    for name, value in checkpoint.tensors.items():
        if name not in third.tensors or third.tensors[name].shape != value.shape:
            raise InputError(
                f"lineage.hidden: the third model has no tensor {name} of shape "
                f"{tuple(value.shape)}; name one of the same shapes"
            )
