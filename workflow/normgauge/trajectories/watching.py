"""Matches made on the way, so that the checkpoints of a trajectory need not be stored."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from normgauge.anatomy.structure import Anatomy, Site
from normgauge.calibration.batches import Batch
from normgauge.gauge.activations import Activations, observe_sites
from normgauge.gauge.admissible import admissible, gauge_spaces
from normgauge.gauge.groups import Monomial
from normgauge.gauge.matched_sites import sites_of
from normgauge.gauge.matching import Matching
from normgauge.gauge.site_matching import match_sites, paired
from normgauge.schemas.signed_permutation import ALL_SITES
from normgauge.schemas.trajectories import LAST_BLOCK
from normgauge.trajectories.links import BASE, Link, Scope

Seen = Mapping[str, Activations]


class Probes:
    """What a model of one anatomy is looked at by: sites of its stream and feed-forward units, on
    the same samples every time.

    `scopes`: what is matched by them, with the ids of the sites.
    """

    def __init__(self, anatomy: Anatomy, batches: Sequence[Batch], samples: int) -> None:
        self.anatomy, self.batches, self.samples = anatomy, list(batches), samples
        named = {
            name: sites_of(anatomy, name)
            for name in gauge_spaces(anatomy)
            if not name.endswith("attention")
        }
        self.sites: list[Site] = list(
            {site.id: site for sites in named.values() for site in sites}.values()
        )
        self.scopes: dict[Scope, list[str]] = {
            Scope(name, ALL_SITES): [site.id for site in sites]
            for name, sites in named.items()
            if sites
        }
        stack = anatomy.primary_stack
        last = [
            site.id
            for site in anatomy.sites_in(("residual",))
            if site.stack == stack.name and site.block == len(stack.blocks)
        ]
        self.scopes[Scope(stack.space, LAST_BLOCK)] = last

    def of(self, model: torch.nn.Module) -> Seen:
        """What a model shows, at every site, without dropout."""
        training = model.training
        try:
            return observe_sites(model.eval(), self.sites, self.batches, self.samples)
        finally:
            model.train(training)

    def match(self, scope: Scope, source: Seen, target: Seen, tokens: int) -> Matching:
        """A space of two models inside its group, by the first samples."""
        own, other = (
            {name: side[name].first(tokens) for name in self.scopes[scope]}
            for side in (source, target)
        )
        group = admissible(self.anatomy, scope.space).group
        return match_sites(list(paired(own, other).values()), group)


class LocalMatches:
    """A watcher that matches a model with itself `stride` steps before, for every stride and budget
    of samples, and at first with its base.
    """

    def __init__(
        self, probes: Probes, base: Seen, strides: Sequence[int], budgets: Sequence[int]
    ) -> None:
        self.probes, self.base = probes, base
        self.strides, self.budgets = tuple(strides), tuple(budgets)
        self.links: list[Link] = []
        self.anchors: dict[int, Seen] = {}

    def look(self, step: int, model: torch.nn.Module) -> None:
        """Match where a stride is over; 0 with the base."""
        due = [stride for stride in self.strides if step % stride == 0]
        if not due:
            return
        seen = self.probes.of(model)
        if step == 0:
            self._match(self.base, seen, (0, BASE, 0))
        else:
            for stride in due:
                self._match(self.anchors[stride], seen, (stride, step - stride, step))
        self.anchors |= dict.fromkeys(due, seen)

    def _match(self, source: Seen, target: Seen, steps: tuple[int, int, int]) -> None:
        for scope in self.probes.scopes:
            for tokens in self.budgets:
                found = self.probes.match(scope, source, target, tokens)
                self.links.append(Link.of(scope, tokens, steps, found))

    def state(self) -> dict[str, Any]:
        """Links and anchors as tensors."""
        return {
            "links": [
                {
                    "scope": [link.scope.space, link.scope.sites],
                    "steps": [link.tokens, link.stride, link.start, link.stop],
                    "targets": torch.tensor(link.gauge.target),
                    "factors": torch.tensor(link.gauge.factors),
                    "certain": torch.tensor(link.certain),
                    "lead": torch.tensor(link.lead),
                }
                for link in self.links
            ],
            "anchors": {
                stride: {name: [each.rows, list(each.lengths)] for name, each in seen.items()}
                for stride, seen in self.anchors.items()
            },
        }

    def resume(self, state: dict[str, Any]) -> None:
        """Take up links and anchors."""
        self.links = [
            Link(
                Scope(*each["scope"]),
                *each["steps"],  # type: ignore[call-arg]
                Monomial(each["targets"].numpy(), each["factors"].numpy()),
                each["certain"].numpy(),
                np.array(each["lead"].numpy()),
            )
            for each in state["links"]
        ]
        self.anchors = {
            stride: {
                name: Activations(rows, tuple(lengths)) for name, (rows, lengths) in seen.items()
            }
            for stride, seen in state["anchors"].items()
        }
