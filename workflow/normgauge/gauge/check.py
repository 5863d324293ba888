"""Whether a folded, rotated or permuted checkpoint is the same function, and where it first is not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from normgauge.anatomy.structure import Anatomy
from normgauge.calibration.batches import Batch
from normgauge.gauge.correlation import run_site_activations
from normgauge.gauge.equivalence import Deviation, deviation
from normgauge.gauge.model_gauge import Gauge
from normgauge.gauge.null_line import shifts_states


@dataclass(frozen=True)
class Check:
    """`outputs`: deviation of the outputs. `sites`: by residual site, the largest difference of the positions' inner products over the
    largest of them.

    Inner products survive every rotation of the stream, and where LayerNorm alone reads it (see `null_line`) those of centred states
    survive shifts as well, so the first site that differs says after which block the function does.
    """

    outputs: Deviation
    sites: dict[str, float]

    def first_difference(self, tolerance: float) -> str | None:
        return next((site for site, found in self.sites.items() if not found <= tolerance), None)


def check(source: torch.nn.Module, target: torch.nn.Module, anatomy: Anatomy, batches: Sequence[Batch], gauge: Gauge) -> Check:
    """Compare two models of one shape on the same batches. `gauge` moves hidden states that are outputs; empty where it is not known."""
    found: dict[str, float] = {}
    sites = anatomy.sites_in(("residual",))
    shifted = {stack.name for stack in anatomy.stacks if shifts_states(anatomy, stack.space)}
    for first, second in zip(*(run_site_activations(model, sites, batches) for model in (source, target)), strict=True):
        for site in sites:
            states = [each[site.id].double() for each in (first, second)]
            if site.stack in shifted:
                states = [each - each.mean(1, keepdim=True) for each in states]
            products = [each @ each.T for each in states]
            difference = float(((products[1] - products[0]).abs().max() / products[0].abs().max()).nan_to_num(float("inf")))
            found[site.id] = max(found.get(site.id, 0.0), difference)
    return Check(deviation(source, target, anatomy, gauge, [batch.inputs for batch in batches]), found)
