"""Learned artifacts as things that act: each with what it holds, how it moves, and what it does to
held-out text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from normgauge.anatomy.structure import Anatomy, Site
from normgauge.calibration.batches import Batch
from normgauge.checkpoints.building import build_model
from normgauge.checkpoints.opening import Checkpoint
from normgauge.gauge.correlation import run_site_activations
from normgauge.gauge.groups import Monomial
from normgauge.gauge.model_gauge import Gauge
from normgauge.jackknife import standard_error
from normgauge.signed_permutation.learning import (
    FIRST,
    Arrays,
    Budget,
    adapted_modules,
    codes_of,
    decoded,
    difference_of_means,
    learn_adapter,
    learn_dictionary,
)
from normgauge.signed_permutation.name_audit import middle_site
from normgauge.signed_permutation.recorded_gauges import UNITS, space_of
from normgauge.signed_permutation.text_windows import Windows
from normgauge.transport.adapters import moved_adapter
from normgauge.transport.dictionaries import moved_array
from normgauge.transport.vectors import moved_vectors

STREAM, FEED_FORWARD = "residual stream", "feed-forward units"
STRENGTHS = {STREAM: (1.0,), FEED_FORWARD: (1.0, 8.0)}
"""By what is steered, how many times the difference of means is added: a block's units do less than
its stream.
"""
CODE_LOSS, ERROR = "loss on held-out code", "squared error over variance"
KINDS = ("steering vector", "dictionary", "adapter")


@dataclass(frozen=True, eq=False)
class Measured:
    """A ratio of sums over held-out windows: a loss per token, or squared error over variance."""

    over: np.ndarray
    under: np.ndarray

    @property
    def value(self) -> float:
        return float(self.over.sum() / self.under.sum())

    def without_each(self) -> np.ndarray:
        return (self.over.sum() - self.over) / (self.under.sum() - self.under)


def effect_error(without: Measured, reference: Measured) -> float | None:
    """Standard error of the difference of two measures on the same windows (jackknife)."""
    left = without.without_each() - reference.without_each()
    return standard_error(without.value - reference.value, left.tolist(), [1] * len(without.over))


@dataclass(frozen=True, eq=False)
class Learned:
    """`acts`: what the model does with the arrays, on held-out text; the less the better. `bare`:
    the same of the model alone. `moves`: the arrays after a gauge. `dense`: what they add up to.
    `facts`: columns of the table that tell how it was learned.
    """

    name: str
    space: str
    site: str
    measure: str
    arrays: Arrays
    acts: Callable[[nn.Module, Arrays], Measured]
    bare: Callable[[nn.Module], Measured]
    moves: Callable[[Arrays, Gauge], Arrays]
    dense: Callable[[Arrays], list[torch.Tensor]]
    facts: Mapping[str, Any]


@dataclass(frozen=True, eq=False)
class Texts:
    prose: Windows
    code: Windows


def learned_artifacts(
    checkpoint: Checkpoint, anatomy: Anatomy, texts: Texts, kinds: tuple[str, ...], budget: Budget
) -> list[Learned]:
    """What is learned on a checkpoint, at the output and the feed-forward units of its middle block
    and, of adapters, in all blocks.
    """
    model = build_model(checkpoint, "float32")
    stream = middle_site(anatomy)
    units = next(
        each
        for each in anatomy.sites
        if (each.stack, each.block, each.tap) == (stream.stack, stream.block, UNITS)
    )
    seen = [states_of(model, [stream, units], each.learned) for each in (texts.prose, texts.code)]
    found: list[Learned] = []
    if "steering vector" in kinds:
        for site, kind in ((stream, STREAM), (units, FEED_FORWARD)):
            direction = difference_of_means(*(each[site.id] for each in seen))
            found += [
                _steering(anatomy, site, kind, strength, direction, texts)
                for strength in STRENGTHS[kind]
            ]
    if "dictionary" in kinds:
        rows = torch.cat([each[stream.id] for each in seen])
        found.append(_dictionary(anatomy, stream, rows, texts, budget))
    if "adapter" in kinds:
        found += [_adapter(anatomy, model, kind, texts, budget) for kind in (STREAM, FEED_FORWARD)]
    return found


def states_of(
    model: nn.Module, sites: list[Site], windows: torch.Tensor
) -> dict[str, torch.Tensor]:
    """By site id float32 (n, width): activations of windows but for their first positions."""
    batches = [Batch({"input_ids": each[None]}, {}) for each in windows]
    kept: dict[str, list[torch.Tensor]] = {site.id: [] for site in sites}
    for found in run_site_activations(model, sites, batches):
        for name, rows in found.items():
            kept[name].append(rows[FIRST:].float())
    return {name: torch.cat(rows) for name, rows in kept.items()}


@torch.no_grad()
def code_loss(model: nn.Module, windows: torch.Tensor) -> Measured:
    """Next-token cross-entropy in nats, summed over each window."""
    logits = model(input_ids=windows, use_cache=False).logits[:, :-1].double()
    lost = nn.functional.cross_entropy(
        logits.flatten(0, 1), windows[:, 1:].flatten(), reduction="none"
    )
    sums = lost.reshape(len(windows), -1)
    return Measured(sums.sum(1).numpy(), np.full(len(windows), float(sums.shape[1])))


@contextmanager
def state_changed(
    model: nn.Module, site: Site, change: Callable[[torch.Tensor], torch.Tensor]
) -> Iterator[None]:
    """While entered, the activations at a site are what `change` makes of them."""
    module = model.get_submodule(site.module)

    def outgoing(_module: nn.Module, _arguments: Any, output: Any) -> Any:
        return (change(output[0]), *output[1:]) if isinstance(output, tuple) else change(output)

    def incoming(_module: nn.Module, arguments: Any) -> Any:
        return (change(arguments[0]), *arguments[1:])

    handle = (
        module.register_forward_hook(outgoing)
        if site.hook == "output"
        else module.register_forward_pre_hook(incoming)
    )
    try:
        yield
    finally:
        handle.remove()


def _element(anatomy: Anatomy, gauge: Gauge, space: str) -> Monomial:
    element = gauge.elements.get(space, Monomial.identity(anatomy.space(space).size))
    assert isinstance(element, Monomial)
    return element


def _space_at(anatomy: Anatomy, site: Site) -> str:
    return anatomy.stack(site.stack).space if site.hook == "output" else space_of(anatomy, site)


def _steering(
    anatomy: Anatomy,
    site: Site,
    kind: str,
    strength: float,
    direction: torch.Tensor,
    texts: Texts,
) -> Learned:
    space, code = _space_at(anatomy, site), texts.code.held_out

    def acts(model: nn.Module, arrays: Arrays) -> Measured:
        with state_changed(model, site, lambda state: state + arrays["direction"]):
            return code_loss(model, code)

    return Learned(
        "steering vector",
        kind,
        site.id,
        CODE_LOSS,
        {"direction": strength * direction},
        acts,
        lambda model: code_loss(model, code),
        lambda arrays, gauge: {
            name: moved_vectors(_element(anatomy, gauge, space), name, value, "steering vector")
            for name, value in arrays.items()
        },
        lambda arrays: list(arrays.values()),
        {"strength": strength},
    )


def _dictionary(
    anatomy: Anatomy, site: Site, rows: torch.Tensor, texts: Texts, budget: Budget
) -> Learned:
    arrays = learn_dictionary(rows, budget)
    held_out = torch.cat([texts.prose.held_out, texts.code.held_out])
    space = _space_at(anatomy, site)

    last: list[tuple[nn.Module, torch.Tensor]] = []  # what a model shows is asked for once per way

    def windows(model: nn.Module) -> torch.Tensor:
        if not last or last[0][0] is not model:
            states = states_of(model, [site], held_out)[site.id].double()
            last[:] = [(model, states.reshape(len(held_out), -1, states.shape[-1]))]
        return last[0][1]

    def measured(states: torch.Tensor, left: torch.Tensor) -> Measured:
        centred = states - states.mean((0, 1))
        return Measured(*(each.square().sum((1, 2)).numpy() for each in (left, centred)))

    def acts(model: nn.Module, arrays: Arrays) -> Measured:
        states = windows(model)
        wide = {name: value.double() for name, value in arrays.items()}
        return measured(states, decoded(wide, codes_of(wide, states, budget.active)) - states)

    def bare(model: nn.Module) -> Measured:
        states = windows(model)
        return measured(states, states - states.mean((0, 1)))

    fired = codes_of(arrays, rows, budget.active) > 0
    return Learned(
        "dictionary",
        STREAM,
        site.id,
        ERROR,
        arrays,
        acts,
        bare,
        lambda arrays, gauge: {
            name: moved_array(_element(anatomy, gauge, space), name, value, "dictionary")
            for name, value in arrays.items()
        },
        lambda arrays: [arrays["W_dec"], arrays["b_dec"]],
        {
            "features": fired.shape[1],
            "active_features": float(fired.sum(1).double().mean()),
            "dead_features": float((~fired.any(0)).double().mean()),
            "steps": budget.dictionary_steps,
        },
    )


def _adapter(
    anatomy: Anatomy, model: nn.Module, kind: str, texts: Texts, budget: Budget
) -> Learned:
    """An adapter of all maps in the blocks, or of those around feed-forward units alone: the others
    would make up for what these lose.
    """
    modules = adapted_modules(model, anatomy, kind == FEED_FORWARD)
    arrays = learn_adapter(model, modules, texts.code.learned, budget)

    def updates(arrays: Arrays) -> dict[str, torch.Tensor]:
        names = {module: f"base_model.model.{module}" for module in modules}
        return {
            module: arrays[f"{name}.lora_B.weight"] @ arrays[f"{name}.lora_A.weight"]
            for module, name in names.items()
        }

    def acts(model: nn.Module, arrays: Arrays) -> Measured:
        with _added(model, updates(arrays)):
            return code_loss(model, texts.code.held_out)

    return Learned(
        "LoRA adapter",
        kind,
        "all blocks",
        CODE_LOSS,
        arrays,
        acts,
        lambda model: code_loss(model, texts.code.held_out),
        lambda arrays, gauge: moved_adapter(arrays, anatomy, gauge),
        lambda arrays: list(updates(arrays).values()),
        {"rank": budget.rank, "steps": budget.adapter_steps},
    )


@contextmanager
def _added(model: nn.Module, updates: Mapping[str, torch.Tensor]) -> Iterator[None]:
    weights = {name: model.get_parameter(f"{name}.weight") for name in updates}
    kept = {name: weight.detach().clone() for name, weight in weights.items()}
    try:
        with torch.no_grad():
            for name, update in updates.items():
                weights[name].add_(update)
        yield
    finally:
        with torch.no_grad():
            for name, weight in weights.items():
                weight.copy_(kept[name])
