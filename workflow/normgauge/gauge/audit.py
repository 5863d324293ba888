"""The audit of coordinate names: under a recorded gauge they move, mapped back they agree, and the model behaves as before."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from normgauge.anatomy.structure import Anatomy, Site
from normgauge.errors import InputError
from normgauge.gauge.equivalence import deviation
from normgauge.gauge.groups import Monomial
from normgauge.gauge.model_gauge import Gauge

Inputs = Mapping[str, torch.Tensor]


def audit_rows(
    source: torch.nn.Module,
    target: torch.nn.Module,
    anatomy: Anatomy,
    gauge: Gauge,
    site: Site,
    inputs: Sequence[Inputs],
    top: int,
    seed: int,
) -> list[dict[str, Any]]:
    """One row (schema `gauge_audit`) per kind of coordinate-indexed claim at a residual site, between a model and its gauged copy.

    `inputs`: two batches at least; the direction is the difference of the means of the first half of them and of the second. Raises
    InputError for fewer batches, a site that is no block's output, or more than the site's coordinates asked for.
    """
    if len(inputs) < 2:
        raise InputError(f"audit: {len(inputs)} batches of inputs, expected two at least for a difference of means; give more")
    if not 0 < top <= site.width:
        raise InputError(f"audit: top {top} of {site.width} coordinates; expected between 1 and the width")
    element = gauge.on_space(anatomy, anatomy.stack(site.stack).space)
    if not isinstance(element, Monomial):
        raise InputError(f"audit: the gauge does not permute the stream of {site.id}; use a signed permutation of it")
    found = deviation(source, target, anatomy, gauge, inputs)
    claims = [_claims(model, site, inputs) for model in (source, target)]
    rows = []
    for name, scores in claims[0].items():
        raw = scores.topk(top).indices
        moved = claims[1][name].topk(top).indices
        rows.append(
            {
                "claim": name,
                "site": site.id,
                "seed": seed,
                "top": top,
                "width": site.width,
                "raw_overlap": _overlap(raw, moved),
                "mapped_overlap": _overlap(torch.from_numpy(element.target[raw.numpy()]), moved),
                "chance": top / site.width,
                "relative_deviation": found.relative,
            }
        )
    return rows


def _overlap(first: torch.Tensor, second: torch.Tensor) -> float:
    return float(torch.isin(first, second).double().mean())


def _claims(model: torch.nn.Module, site: Site, inputs: Sequence[Inputs]) -> dict[str, torch.Tensor]:
    """By kind of claim, the score (d,) by which coordinates are named: the largest are the claim."""
    states, attributions = zip(*(_state_and_attribution(model, site, batch) for batch in inputs), strict=True)
    half = len(states) // 2
    means = [torch.cat([state.reshape(-1, site.width) for state in part]).mean(0) for part in (states[:half], states[half:])]
    every = torch.cat([state.reshape(-1, site.width) for state in states])
    return {
        "attribution": torch.stack(attributions).sum(0).abs(),
        "active neurons": every.abs().mean(0),
        "difference of means": (means[1] - means[0]).abs(),
    }


def _state_and_attribution(model: torch.nn.Module, site: Site, inputs: Inputs) -> tuple[torch.Tensor, torch.Tensor]:
    """The activations at a block's output, and gradient times activation summed over positions (d,), both float64.

    The gradient is of the log-probability of the class that the model itself finds likeliest, at every position.
    """
    if site.hook != "output":
        raise InputError(f"audit: site {site.id} is a module's input; choose the output of a block")
    seen: list[torch.Tensor] = []

    def follow(_module: torch.nn.Module, _arguments: Any, output: Any) -> Any:
        state = (output[0] if isinstance(output, tuple) else output).detach().requires_grad_(True)
        seen.append(state)
        return (state, *output[1:]) if isinstance(output, tuple) else state

    handle = model.get_submodule(site.module).register_forward_hook(follow)
    try:
        with torch.enable_grad():
            logits = _with_logits(model)(**inputs).double()
            likeliest = logits.log_softmax(-1).amax(-1).sum()
            (gradient,) = torch.autograd.grad(likeliest, seen[-1])
    finally:
        handle.remove()
    state = seen[-1].detach().double()
    return state, (state * gradient.double()).reshape(-1, site.width).sum(0)


def _with_logits(model: torch.nn.Module) -> Callable[..., torch.Tensor]:
    def run(**inputs: torch.Tensor) -> torch.Tensor:
        found = model(**inputs)
        if getattr(found, "logits", None) is None:
            raise InputError(f"audit: {type(model).__name__} gives no logits to attribute; take the class with its head")
        return found.logits

    return run
