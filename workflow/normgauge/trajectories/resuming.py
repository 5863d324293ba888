"""Training resumed after a change of coordinates, with the optimizer's state moved along with the
weights, without its signs, or not at all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from normgauge.anatomy import describe
from normgauge.checkpoints.opening import Checkpoint
from normgauge.gauge.model_gauge import Gauge
from normgauge.gauge.transform import transform
from normgauge.schemas.trajectories import MOVED, NOT_MOVED, PLACED_STATE
from normgauge.training.optimise import Training
from normgauge.training.plan import Plan
from normgauge.training.train import execution
from normgauge.trajectories.recorded import recorded_gauge
from normgauge.trajectories.runs import trainable
from normgauge.transport.optimizers import moved_state

Logits = Mapping[int, torch.Tensor]


def resumed_rows(
    checkpoint: Checkpoint,
    plan: Plan,
    stream: torch.Tensor,
    held_out: torch.Tensor,
    seeds: Sequence[int],
) -> Iterator[dict[str, Any]]:
    """Rows of schema `resumed_training` without the model's names: half of the plan's steps, then a
    gauge, then the other half; the squared error of the logits on `held_out` (int64, sequences by
    tokens) over their squared length, against the run that was not moved.

    The checkpoint has the same function before and after the gauge, so what differs later is the
    state's doing.
    """
    anatomy, half = describe(checkpoint.config), plan.steps // 2
    with execution(plan.seed, torch.get_num_threads()):
        training = Training(trainable(checkpoint), plan, stream)
        while training.step < half:
            training.advance()
        weights = {name: value.clone() for name, value in training.model.state_dict().items()}
        warm = replace(checkpoint, tensors=weights)
        state = training.state()
        watched = sorted({half, half + 1, half + (plan.steps - half) // 2, plan.steps})
        reference = _resumed(warm, state, plan, stream, half, held_out, watched)
        for seed in seeds:
            gauge = recorded_gauge(anatomy, seed)
            moved = replace(warm, tensors=dict(transform(anatomy, weights, gauge)))
            for way, carried in _states(state, anatomy, gauge).items():
                found = _resumed(moved, carried, plan, stream, half, held_out, watched)
                for step in watched:
                    yield {
                        "optimizer": plan.optimizer,
                        "seed": seed,
                        "state": way,
                        "warm_up": half,
                        "resumed": step - half,
                        "relative_error": _error(found[step], reference[step]),
                        "loss": _loss(found[step], held_out),
                        "reference_loss": _loss(reference[step], held_out),
                    }


def _states(state: Any, anatomy: Any, gauge: Gauge) -> dict[str, Any]:
    """The state by the gauge, by its permutation alone, and as it is."""
    ways: dict[str, Callable[[], Any]] = {
        MOVED: lambda: moved_state(state, anatomy, gauge),
        PLACED_STATE: lambda: moved_state(state, anatomy, gauge.without_signs()),
        NOT_MOVED: lambda: state,
    }
    return {way: made() for way, made in ways.items()}


def _resumed(
    begun: Checkpoint,
    state: Any,
    plan: Plan,
    stream: torch.Tensor,
    step: int,
    held_out: torch.Tensor,
    watched: Sequence[int],
) -> Logits:
    training = Training(trainable(begun), plan, stream)
    training.resume(step, state)
    found = {}
    while True:
        if training.step in watched:
            found[training.step] = _logits(training.model, held_out)
        if training.step == plan.steps:
            return found
        training.advance()


@torch.no_grad()
def _logits(model: torch.nn.Module, sequences: torch.Tensor) -> torch.Tensor:
    model.eval()
    return model(input_ids=sequences, use_cache=False).logits.double()


def _error(found: torch.Tensor, reference: torch.Tensor) -> float:
    return float((found - reference).square().sum() / reference.square().sum())


def _loss(logits: torch.Tensor, sequences: torch.Tensor) -> float:
    flat = logits[:, :-1].flatten(0, 1)
    return float(torch.nn.functional.cross_entropy(flat, sequences[:, 1:].flatten()))
