"""Whether one checkpoint is another in other coordinates: the same function, the same up to the
rounding of its stored weights, or another one, and where it first differs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np
import torch

from normgauge.anatomy import describe
from normgauge.anatomy.structure import Anatomy, Site
from normgauge.calibration.batches import Batch
from normgauge.checkpoints.opening import Checkpoint
from normgauge.gauge.equivalence import Outputs, deviation_between, outputs_of
from normgauge.gauge.model_gauge import Gauge
from normgauge.gauge.null_line import shifts_states
from normgauge.gauge.rounding import change_in_ulp, isolated, moved_by_an_ulp, roundable
from normgauge.gauge.stored import stored_tensor

DRAWS = 6  # random roundings whose effects are averaged
ARITHMETIC_DRAWS = 2  # the same of float64, whose effects lie far below every limit
# largest error of the stored weights that counts as their rounding, ulp in root mean square
LIMIT = 1.0
Places = Mapping[str, torch.Tensor]
"""By tensor, the values that rounding can have moved, bool."""


class Verdict(StrEnum):
    SAME = "the same function"
    ROUNDED = "the same function up to the rounding of its stored weights"
    DIFFERENT = "not the same function"


@dataclass(frozen=True)
class Effect:
    """What a change of the weights does.

    `outputs`: largest difference of the outputs over the largest output of the same field. `sites`:
    by residual site, the largest difference of the positions' inner products over the largest.
    Inner products survive every rotation of the stream, and where LayerNorm alone reads it (see
    `null_line`) those of centred states survive shifts as well.
    """

    outputs: float
    sites: Mapping[str, float]


@dataclass(frozen=True)
class Check:
    """`found`: how far the models are apart. `arithmetic`: what rounding to float64 in the forward
    pass
    explains. `rounding`: what an error of one ulp of every value that can have been rounded does.
    `changed`: by tensor, the change in ulp of single values, more than a rounding makes; no gauge
    changes single values, so that none needs to be read by a probe.
    """

    found: Effect
    arithmetic: Effect
    rounding: Effect
    changed: Mapping[str, float]

    @property
    def verdict(self) -> Verdict:
        if (
            self.changed
            or not self.found.outputs <= self.arithmetic.outputs + LIMIT * self.rounding.outputs
        ):
            return Verdict.DIFFERENT
        return Verdict.SAME if self.found.outputs <= self.arithmetic.outputs else Verdict.ROUNDED

    @property
    def ulp(self) -> float:
        """The error of the stored weights, in ulp, that moves the outputs as far as they differ."""
        return self.found.outputs / self.rounding.outputs if self.rounding.outputs else float("inf")

    def first_difference(self) -> str | None:
        """The first residual site that differs by more than arithmetic and rounding explain."""
        for site, found in self.found.sites.items():
            if not found <= self.arithmetic.sites[site] + LIMIT * self.rounding.sites[site]:
                return site
        return None


def check(source: Checkpoint, target: Checkpoint, batches: Sequence[Batch], gauge: Gauge) -> Check:
    """Compare two checkpoints of one shape, in float64, on the same batches.

    `gauge` moves hidden states that are outputs; empty where it is not known. The limits are
    measured: stored values are moved by one ulp at random, DRAWS times, and the effects' root mean
    square is taken. Raises InputError for outputs that cannot be compared.
    """
    observer = _Observer(describe(source.config), batches)
    reference, own = observer.observe(source), observer.observe(target)
    found = observer.compare(reference, own, gauge)
    everywhere = dict.fromkeys(target.tensors, torch.ones((), dtype=torch.bool))
    terms = max(
        observer.anatomy.tensor(item.weight).shape[item.input_axis]
        for item in observer.anatomy.maps
    )
    arithmetic = _scaled(
        observer.moved_by_an_ulp(target, own, everywhere, ARITHMETIC_DRAWS, torch.float64),
        terms**0.5,
    )
    in_source, in_target, changed = rounding_places(source, target)
    rounding = _scaled(found, 0.0)
    if not found.outputs <= arithmetic.outputs:
        effects = [
            observer.moved_by_an_ulp(checkpoint, observed, places, DRAWS)
            for checkpoint, observed, places in (
                (source, reference, in_source),
                (target, own, in_target),
            )
            if places
        ]
        rounding = _norm(effects) if effects else rounding
    return Check(
        found,
        arithmetic,
        rounding,
        {name: error for name, error in changed.items() if error > LIMIT},
    )


def rounding_places(
    source: Checkpoint, target: Checkpoint
) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor], dict[str, float]]:
    """The values of the source and of the target that can have been rounded, by tensor; and by how
    many ulp single values of a tensor have changed.

    Of two tensors the one in the coarser dtype was rounded, the target's where they agree.
    """
    anatomies = [describe(each.config) for each in (source, target)]
    places: tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]] = {}, {}
    changed: dict[str, float] = {}
    for tensor in anatomies[1].tensors:
        pair = [
            stored_tensor(each, anatomy, tensor.name)
            for each, anatomy in zip((source, target), anatomies, strict=True)
        ]
        if tensor.alias_of or pair[0][1].shape != pair[1][1].shape:
            continue
        coarser = int(torch.finfo(pair[1][1].dtype).eps >= torch.finfo(pair[0][1].dtype).eps)
        (_, finer), (name, value) = pair[1 - coarser], pair[coarser]
        found = roundable(finer, value)
        if found.any():
            places[coarser][name] = found
        if isolated(found):
            changed[name] = change_in_ulp(finer[roundable(value, finer)], value[found], value.dtype)
    return *places, changed


@dataclass(frozen=True)
class _Observation:
    """Outputs, and inner products of the positions' states by residual site, batch by batch."""

    outputs: list[Outputs]
    products: list[dict[str, torch.Tensor]]


class _Products:
    """A receiver of activations that keeps the inner products of the last forward pass's."""

    def __init__(self, centred: bool) -> None:
        self.centred, self.last = centred, torch.empty(0)

    def update(self, rows: torch.Tensor) -> None:
        rows = rows.double()
        rows = rows - rows.mean(1, keepdim=True) if self.centred else rows
        self.last = rows @ rows.T


class _Observer:
    """Models of one class on the same batches. One block of one is in memory at a time."""

    def __init__(self, anatomy: Anatomy, batches: Sequence[Batch]) -> None:
        self.anatomy, self.batches = anatomy, batches
        self.sites: Sequence[Site] = anatomy.sites_in(("residual",))

    def observe(self, checkpoint: Checkpoint) -> _Observation:
        shifted = {
            stack.name for stack in self.anatomy.stacks if shifts_states(self.anatomy, stack.space)
        }
        kept = {site.id: _Products(site.stack in shifted) for site in self.sites}
        products: list[dict[str, torch.Tensor]] = [{} for _ in self.batches]

        def after(number: int, sites: Sequence[Site]) -> None:
            products[number] |= {site.id: kept[site.id].last for site in sites}

        found = outputs_of(checkpoint, "float64", self.batches, self.sites, kept, after)
        return _Observation(list(found), products)

    def compare(self, reference: _Observation, other: _Observation, gauge: Gauge) -> Effect:
        pairs = zip(reference.outputs, other.outputs, strict=True)
        found = deviation_between(pairs, self.anatomy, gauge).relative
        sites = dict.fromkeys((site.id for site in self.sites), 0.0)
        for first, second in zip(reference.products, other.products, strict=True):
            for name, products in first.items():
                difference = (second[name] - products).abs().max() / products.abs().max()
                sites[name] = max(sites[name], float(difference.nan_to_num(float("inf"))))
        return Effect(found, sites)

    def moved_by_an_ulp(
        self,
        checkpoint: Checkpoint,
        observed: _Observation,
        places: Places,
        draws: int,
        dtype: torch.dtype | None = None,
    ) -> Effect:
        """The root mean square, over draws, of what moving the values at `places` by one ulp does:
        of `dtype`, or of each tensor's own where that is None.
        """
        dtypes = {name: dtype or value.dtype for name, value in checkpoint.tensors.items()}
        effects = []
        for seed in range(draws):
            moved = replace(
                checkpoint, tensors=moved_by_an_ulp(checkpoint.tensors, places, dtypes, seed)
            )
            effects.append(self.compare(observed, self.observe(moved), Gauge({})))
        return _scaled(_norm(effects), draws**-0.5)


def _norm(effects: Sequence[Effect]) -> Effect:
    """The square root of the sum of squares, place by place."""
    sites = {
        name: float(np.hypot.reduce([effect.sites[name] for effect in effects]))
        for name in effects[0].sites
    }
    return Effect(float(np.hypot.reduce([effect.outputs for effect in effects])), sites)


def _scaled(effect: Effect, factor: float) -> Effect:
    return Effect(
        factor * effect.outputs, {name: factor * value for name, value in effect.sites.items()}
    )
