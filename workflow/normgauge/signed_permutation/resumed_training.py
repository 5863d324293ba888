"""Training resumed on a gauged model: the optimizer's state, moved as its weights are, takes the
step that it would have taken before.

The state comes from a few real steps on the parameters of one block: an optimizer's rule is the
same for every entry of every tensor.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from normgauge.anatomy.structure import Anatomy, Site
from normgauge.capture.hooks import placed
from normgauge.gauge.model_gauge import Gauge
from normgauge.gauge.transform import apply_moves, tensor_moves
from normgauge.signed_permutation.artifacts import Artifact, stream_axis, weights_kept
from normgauge.signed_permutation.name_audit import objective
from normgauge.transport.optimizers import FIRST, moved_state, parameter_names

STEPS = 3  # before the state is taken
# of a step: AdamW's learning rate, and what SGD's makes of the first gradient's root mean square
SIZE = 1e-3

Named = list[tuple[str, torch.nn.Parameter]]
Inputs = Mapping[str, torch.Tensor]


def optimizer_artifacts(
    model: torch.nn.Module, anatomy: Anatomy, site: Site, inputs: Inputs
) -> list[Artifact]:
    """States of AdamW and of SGD with momentum after three steps on the block that a site is the
    output of; the model is left as it was.

    An artifact acts by one more step, from the weights that the state belongs to. What is minimised
    is minus the audit's `objective`.
    """
    path = anatomy.stack(site.stack).blocks[site.block - 1]
    names = [f"{path}.{name}" for name, _ in model.get_submodule(path).named_parameters()]
    with weights_kept(model, names) as parameters:
        gradients = torch.autograd.grad(
            _loss(model, inputs), list(parameters.values()), materialize_grads=True
        )
        scale = float(
            torch.cat([gradient.reshape(-1) for gradient in gradients]).square().mean().sqrt()
        )
    makers: dict[str, Callable[[Named], torch.optim.Optimizer]] = {
        "AdamW state": lambda named: torch.optim.AdamW(named, lr=SIZE),
        "SGD momentum": lambda named: torch.optim.SGD(named, lr=SIZE / scale, momentum=0.9),
    }
    return [
        _artifact(name, make, model, anatomy, site, names, inputs) for name, make in makers.items()
    ]


def _artifact(
    name: str,
    make: Callable[[Named], torch.optim.Optimizer],
    model: torch.nn.Module,
    anatomy: Anatomy,
    site: Site,
    names: Sequence[str],
    inputs: Inputs,
) -> Artifact:
    with weights_kept(model, names) as parameters:
        optimizer = make(list(parameters.items()))
        for _ in range(STEPS):
            _step(model, optimizer, inputs)
        state = copy.deepcopy(optimizer.state_dict())
        weights = {each: parameter.detach().clone() for each, parameter in parameters.items()}

    @contextmanager
    def stepped(target: torch.nn.Module, carried: Any, gauge: Gauge) -> Iterator[None]:
        moves = tensor_moves(anatomy, gauge)
        with weights_kept(target, names) as parameters:
            with torch.no_grad():
                for each, parameter in parameters.items():
                    parameter.copy_(apply_moves(weights[each], moves[each]))
            optimizer = make(list(parameters.items()))
            # which the optimizer would change in place
            optimizer.load_state_dict(copy.deepcopy(carried))
            _step(target, optimizer, inputs)
            yield

    def averages(carried: Any) -> dict[str, tuple[torch.Tensor, int]]:
        """The averages of gradients that have the stream as an axis, which is given beside them."""
        found = {}
        for number, each in parameter_names(carried["param_groups"]).items():
            axis = stream_axis(anatomy, each, anatomy.stack(site.stack).space)
            if axis is not None and number in carried["state"]:
                found[each] = (
                    next(value for key, value in carried["state"][number].items() if key in FIRST),
                    axis,
                )
        return found

    return Artifact(
        name, state, stepped, lambda carried, gauge: moved_state(carried, anatomy, gauge), averages
    )


def _loss(model: torch.nn.Module, inputs: Inputs) -> torch.Tensor:
    parameter = next(model.parameters())
    with torch.enable_grad():
        return -objective(
            model(**{name: placed(value, parameter) for name, value in inputs.items()})
        )


def _step(model: torch.nn.Module, optimizer: torch.optim.Optimizer, inputs: Inputs) -> None:
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    # The other blocks' weights have no part in the step: backward() would compute, and keep, their
    # gradients as well.
    for parameter, gradient in zip(
        parameters,
        torch.autograd.grad(_loss(model, inputs), parameters, materialize_grads=True),
        strict=True,
    ):
        parameter.grad = gradient
    optimizer.step()
    optimizer.zero_grad()
