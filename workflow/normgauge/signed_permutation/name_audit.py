"""The audit of coordinate names: under a recorded gauge they move, mapped back they agree, and the
model behaves as before.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from normgauge.anatomy.structure import Anatomy, Site
from normgauge.calibration.batches import Batch
from normgauge.checkpoints.building import build_model
from normgauge.checkpoints.opening import Checkpoint
from normgauge.errors import InputError
from normgauge.gauge.equivalence import Deviation, deviation_from, recorded_outputs
from normgauge.gauge.groups import Monomial
from normgauge.gauge.model_gauge import Gauge
from normgauge.gauge.random_gauges import random_gauge
from normgauge.gauge.transform import transformed
from normgauge.signed_permutation.recorded_gauges import UNITS, space_of

Inputs = Mapping[str, torch.Tensor]
LOGITS = ("logits", "prediction_logits")


@dataclass(frozen=True, eq=False)
class Claim:
    """A way to name coordinates of a space: the `scores` (d,) whose largest are named, and the site
    at which they were taken.
    """

    name: str
    site: Site
    space: str
    scores: torch.Tensor


def audit_rows(
    checkpoint: Checkpoint,
    anatomy: Anatomy,
    batches: Sequence[Batch],
    seeds: Sequence[int],
    top: int,
) -> list[dict[str, Any]]:
    """Rows of schema `gauge_audit`: per seed and kind of claim, a float32 model against its copy
    under a recorded gauge of its primary stream and of the feed-forward units in its middle block,
    where all claims are made.
    """
    site = middle_site(anatomy)
    inputs = [batch.inputs for batch in batches]
    source = build_model(checkpoint, "float32")
    recorded, claims = recorded_outputs(source, inputs), claims_of(source, anatomy, site, inputs)
    del source
    rows = []
    for seed in seeds:
        gauge = without_scales(
            random_gauge(anatomy, seed, tuple(dict.fromkeys(claim.space for claim in claims)))
        )
        target = build_model(transformed(checkpoint, anatomy, gauge), "float32")
        found = deviation_from(recorded, target, anatomy, gauge)
        rows += compared(claims, claims_of(target, anatomy, site, inputs), gauge, found, top, seed)
    return rows


def without_scales(gauge: Gauge) -> Gauge:
    """The signed permutations inside a gauge of monomials: scales would change how active a unit
    is.
    """
    elements = {
        name: element for name, element in gauge.elements.items() if isinstance(element, Monomial)
    }
    return Gauge(
        {
            name: Monomial(element.target, np.sign(element.factors))
            for name, element in elements.items()
        }
    )


def middle_site(anatomy: Anatomy) -> Site:
    """The output of the primary stack's middle block."""
    stack = anatomy.primary_stack
    block = (len(stack.blocks) + 1) // 2
    return next(
        site
        for site in anatomy.sites
        if (site.stack, site.block, site.tap) == (stack.name, block, "output")
    )


def compared(
    claims: Sequence[Claim],
    moved: Sequence[Claim],
    gauge: Gauge,
    found: Deviation,
    top: int,
    seed: int,
) -> list[dict[str, Any]]:
    """Claims of a model against those of its gauged copy, in the same order. Raises InputError
    where more coordinates are to be named than there are, or where the gauge does not permute them.
    """
    rows = []
    for before, after in zip(claims, moved, strict=True):
        element = gauge.elements.get(before.space)
        if not isinstance(element, Monomial):
            raise InputError(
                f"audit: the gauge does not permute {before.space}; use a signed permutation of it"
            )
        if not 0 < top <= element.size:
            raise InputError(
                f"audit: top {top} of {element.size} coordinates at {before.site.id}; expected "
                "between 1 and their number"
            )
        raw, names = (claim.scores.topk(top).indices for claim in (before, after))
        rows.append(
            {
                "claim": before.name,
                "site": before.site.id,
                "seed": seed,
                "top": top,
                "width": element.size,
                "raw_overlap": _overlap(raw, names),
                "mapped_overlap": _overlap(torch.from_numpy(element.target[raw.numpy()]), names),
                "chance": top / element.size,
                "relative_deviation": found.relative,
            }
        )
    return rows


def _overlap(first: torch.Tensor, second: torch.Tensor) -> float:
    return float(torch.isin(first, second).double().mean())


def claims_of(
    model: torch.nn.Module, anatomy: Anatomy, site: Site, inputs: Sequence[Inputs]
) -> list[Claim]:
    """What a model's coordinates would be named for at a block's output, and its feed-forward units
    in that block.

    The difference of means is that between the first half of the batches and the second. Raises
    InputError for fewer than two batches, or a site that is no block's output.
    """
    if len(inputs) < 2:
        raise InputError(
            f"audit: {len(inputs)} batches of inputs, expected two at least for a difference of "
            "means; give more"
        )
    if site.hook != "output":
        raise InputError(f"audit: site {site.id} is a module's input; choose the output of a block")
    inner = next(
        each
        for each in anatomy.sites
        if (each.stack, each.block, each.tap) == (site.stack, site.block, UNITS)
    )
    passes = [_observed(model, site, inner, batch) for batch in inputs]
    states, attributions, units = ([each[part] for each in passes] for part in range(3))
    half = len(states) // 2
    means = [torch.cat(part).mean(0) for part in (states[:half], states[half:])]
    stream = anatomy.stack(site.stack).space
    return [
        Claim("attribution", site, stream, torch.stack(attributions).sum(0).abs()),
        Claim("active coordinates", site, stream, torch.cat(states).abs().mean(0)),
        Claim("difference of means", site, stream, (means[1] - means[0]).abs()),
        Claim(
            "active feed-forward units",
            inner,
            space_of(anatomy, inner),
            torch.cat(units).abs().mean(0),
        ),
    ]


def _observed(
    model: torch.nn.Module, site: Site, inner: Site, inputs: Inputs
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Of one forward pass, in float64: the activations (n, d) at a block's output, gradient times
    activation summed over positions (d,), and the feed-forward units (n, units).

    The gradient is that of `objective`.
    """
    seen: dict[str, torch.Tensor] = {}

    def follow(_module: torch.nn.Module, _arguments: Any, output: Any) -> Any:
        state = (output[0] if isinstance(output, tuple) else output).detach().requires_grad_(True)
        seen["state"] = state
        return (state, *output[1:]) if isinstance(output, tuple) else state

    def keep(_module: torch.nn.Module, arguments: Any) -> None:
        seen["units"] = arguments[0].detach()

    handles = [
        model.get_submodule(site.module).register_forward_hook(follow),
        model.get_submodule(inner.module).register_forward_pre_hook(keep),
    ]
    try:
        with torch.enable_grad():
            (gradient,) = torch.autograd.grad(objective(model(**inputs)), seen["state"])
    finally:
        for handle in handles:
            handle.remove()
    state = seen["state"].detach().double().reshape(-1, site.width)
    attribution = (state * gradient.double().reshape(-1, site.width)).sum(0)
    return state, attribution, seen["units"].double().reshape(-1, inner.width)


def objective(found: Any) -> torch.Tensor:
    """What a model's outputs are scored by: the log-probability of the class that it finds
    likeliest, summed over positions; half the squared length of the last hidden states for a class
    without a head.
    """
    for name in LOGITS:
        if getattr(found, name, None) is not None:
            return getattr(found, name).double().log_softmax(-1).amax(-1).sum()
    return found.last_hidden_state.double().square().sum() / 2
