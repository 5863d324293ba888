"""Steps of an optimizer on a causal language model, each a function of what came before and of its
number alone, so that a run can be continued from any step.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from normgauge.errors import InputError
from normgauge.training.plan import ADAMW, Plan

SECOND_AVERAGE = 0.95  # of AdamW
GRADIENT_NORM = 1.0


class Training:
    """A model in training: after `step` steps of its plan, with the optimizer's state.

    `model` is trained in place; `stream`: int64 (tokens,), the text. `loss`: of the last step, in
    nats per token. Raises InputError where the plan trains none of the model's parameters, or the
    text is shorter than a sequence.
    """

    def __init__(self, model: torch.nn.Module, plan: Plan, stream: torch.Tensor) -> None:
        if len(stream) < plan.length:
            raise InputError(
                f"{len(stream)} tokens of text, expected at least {plan.length}; use a longer "
                "corpus or shorter sequences"
            )
        self.model, self.plan, self.stream = model, plan, stream
        self.step, self.loss = 0, math.nan
        self.optimizer = _optimizer(model, plan)
        self._places = _Places(plan, len(stream))

    def advance(self) -> None:
        """Take the next step."""
        plan = self.plan
        with _drawing(plan.seed, self.step):
            self.model.train()
            sequences = repeated(
                torch.stack(
                    [
                        self.stream[start : start + plan.length]
                        for start in self._places.of(self.step)
                    ]
                ),
                plan.period,
            )
            loss = next_token_loss(self.model, sequences)
            self.optimizer.zero_grad(set_to_none=True)
            loss.backward()
        trained = [each for each in self.model.parameters() if each.requires_grad]
        torch.nn.utils.clip_grad_norm_(trained, GRADIENT_NORM)
        for group in self.optimizer.param_groups:
            group["lr"] = plan.learning_rate_at(self.step)
        self.optimizer.step()
        self.step, self.loss = self.step + 1, loss.item()

    def state(self) -> dict[str, Any]:
        """The optimizer's state_dict, a copy; it names its parameters."""
        return copy.deepcopy(self.optimizer.state_dict())

    def resume(self, step: int, state: dict[str, Any]) -> None:
        """Go on after `step` steps, with the state of then; the model's weights are the caller's
        business.
        """
        # which the optimizer would change in place
        self.optimizer.load_state_dict(copy.deepcopy(state))
        self.step = step


def repeated(sequences: torch.Tensor, period: int) -> torch.Tensor:
    """int64 (batch, length): each sequence's first `period` tokens over and over; the sequences
    themselves for 0.
    """
    if not period:
        return sequences
    return sequences[:, torch.arange(sequences.shape[1]) % period]


class _Places:
    """Where the sequences of each step begin: drawn one step after the other from one generator."""

    def __init__(self, plan: Plan, tokens: int) -> None:
        self.plan, self.tokens = plan, tokens
        self.drawn, self.generator = 0, torch.Generator().manual_seed(plan.seed)

    def of(self, step: int) -> torch.Tensor:
        if step < self.drawn:
            self.drawn, self.generator = 0, torch.Generator().manual_seed(self.plan.seed)
        while True:
            starts = torch.randint(
                self.tokens - self.plan.length + 1, (self.plan.batch,), generator=self.generator
            )
            self.drawn += 1
            if self.drawn > step:
                return starts


@contextmanager
def _drawing(seed: int, step: int) -> Iterator[None]:
    """What a step draws beside its places, dropout, has a seed of its own, so that the step is the
    same in a run that was continued.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed * 1_000_003 + step)
        yield


def _optimizer(model: torch.nn.Module, plan: Plan) -> torch.optim.Optimizer:
    chosen = [(name, each) for name, each in model.named_parameters() if plan.trains(name)]
    if not chosen:
        raise InputError(
            f"parameters {', '.join(plan.parameters)}: no parameter of the model has such a name"
        )
    groups = [
        {"params": named, "weight_decay": decay}
        for named, decay in (
            ([(name, each) for name, each in chosen if each.dim() >= 2], plan.weight_decay),
            ([(name, each) for name, each in chosen if each.dim() < 2], 0.0),
        )
        if named
    ]
    for name, each in model.named_parameters():
        each.requires_grad_(plan.trains(name))
    if plan.optimizer == ADAMW:
        averages = (plan.momentum, SECOND_AVERAGE)
        return torch.optim.AdamW(groups, lr=plan.learning_rate, betas=averages)
    return torch.optim.SGD(groups, lr=plan.learning_rate, momentum=plan.momentum)


def next_token_loss(model: Any, sequences: torch.Tensor) -> torch.Tensor:
    """Mean cross-entropy in nats of every token but the first, given those before it; `sequences`
    is int64 (batch, positions).
    """
    logits = model(input_ids=sequences, use_cache=False).logits[:, :-1]
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), sequences[:, 1:].flatten())


@torch.no_grad()
def mean_loss(model: Any, sequences: torch.Tensor, batch: int) -> float:
    """Mean loss in nats per token over sequences, without dropout."""
    model.eval()
    losses = [next_token_loss(model, chunk).item() * len(chunk) for chunk in sequences.split(batch)]
    return sum(losses) / len(sequences)
