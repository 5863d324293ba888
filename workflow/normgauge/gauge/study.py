"""One checkpoint's equivalence and recovery tables: recorded gauges of its spaces, and controls that must fail."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from normgauge.anatomy.structure import Anatomy, NormKind, SpaceKind
from normgauge.calibration.batches import Batch
from normgauge.checkpoints.building import build_model
from normgauge.checkpoints.opening import Checkpoint
from normgauge.errors import InputError
from normgauge.gauge.admissible import Group, admissible, gauge_spaces, random_gauge
from normgauge.gauge.correlation import correlate_sites
from normgauge.gauge.equivalence import deviation, equivalence_row
from normgauge.gauge.groups import Monomial, Orthogonal
from normgauge.gauge.matching import Cost, match, recovery_row
from normgauge.gauge.model_gauge import Gauge
from normgauge.gauge.transform import transform, transform_unchecked


def equivalence_rows(
    checkpoint: Checkpoint, anatomy: Anatomy, batches: Sequence[Batch], seeds: Sequence[int], forward_dtypes: Sequence[str]
) -> list[dict[str, Any]]:
    """Rows of schema `equivalence`: per seed and dtype the residual streams, the feed-forward units, the attention layers, and controls.

    Models are built in turn, two at a time.
    """
    inputs = [batch.inputs for batch in batches]
    rows = []
    for forward_dtype in forward_dtypes:
        wide = _in_dtype(checkpoint, forward_dtype)
        reference = build_model(wide, forward_dtype)
        for seed in seeds:
            for name, gauge, allowed in _cases(anatomy, seed):
                move = transform if allowed else transform_unchecked
                moved = Checkpoint(wide.config, dict(move(anatomy, wide.tensors, gauge)), wide.stored, wide.files)
                found = deviation(reference, build_model(moved, forward_dtype), anatomy, gauge, inputs)
                rows.append(equivalence_row(name, allowed, seed, forward_dtype, found))
    return rows


def _in_dtype(checkpoint: Checkpoint, forward_dtype: str) -> Checkpoint:
    """The checkpoint with its tensors in the forward pass's dtype, so that scales are not rounded to a narrower stored one."""
    dtype = getattr(torch, forward_dtype)
    tensors = {name: value.to(dtype) for name, value in checkpoint.tensors.items()}
    return Checkpoint(checkpoint.config, tensors, checkpoint.stored, checkpoint.files)


def _cases(anatomy: Anatomy, seed: int) -> Iterator[tuple[str, Gauge, bool]]:
    """(group, gauge, whether it is admissible)."""
    spaces = gauge_spaces(anatomy)
    streams = tuple(dict.fromkeys(stack.space for stack in anatomy.stacks))
    units = tuple(space for space in spaces if not space.endswith("attention") and anatomy.space(space).kind == SpaceKind.FFN)
    layers = tuple(space for space in spaces if space.endswith("attention"))
    primary = anatomy.primary_stack
    rule = admissible(anatomy, primary.space).group
    yield f"residual: {rule}", random_gauge(anatomy, seed, streams), True
    yield f"feed-forward: {admissible(anatomy, units[0]).group}", random_gauge(anatomy, seed, units), True
    yield f"attention: {admissible(anatomy, layers[0]).query_maps}", random_gauge(anatomy, seed, layers), True
    if rule != Group.SIGNED_PERMUTATION:
        yield "residual: independent signs", Gauge({primary.space: Monomial.random(primary.width, seed)}), False
    fixing = anatomy.norm_kind == NormKind.LAYER_NORM
    yield "residual: rotation, gains not absorbed", Gauge({primary.space: Orthogonal.random(primary.width, seed, fixing)}), False
    if admissible(anatomy, units[0]).group in (Group.PERMUTATION, Group.POSITIVE_MONOMIAL):
        signs = {space: Monomial.random(anatomy.space(space).size, seed) for space in units}
        yield "feed-forward: signs through the activation", Gauge(signs), False


def recovery_rows(
    checkpoint: Checkpoint, anatomy: Anatomy, batches: Sequence[Batch], seeds: Sequence[int], budgets: Sequence[int]
) -> list[dict[str, Any]]:
    """Rows of schema `gauge_recovery`: recorded gauges of the primary stream against the matching at every one of its sites, by |C| and,
    as a control, by C, for every seed and budget of samples, in float32."""
    stream = anatomy.primary_stack
    if admissible(anatomy, stream.space).group not in (Group.COMMON_SIGN, Group.SIGNED_PERMUTATION, Group.PERMUTATION):
        raise InputError(f"{anatomy.architecture}: {stream.space} has no recorded gauge to recover")
    sites = [site for site in anatomy.sites_in(("residual", "terminal")) if site.stack == stream.name]
    source = build_model(checkpoint, "float32")
    rows = []
    for seed in seeds:
        gauge = random_gauge(anatomy, seed, (stream.space,))
        truth = gauge.elements[stream.space]
        assert isinstance(truth, Monomial)
        moved: Mapping[str, torch.Tensor] = dict(transform(anatomy, checkpoint.tensors, gauge))
        target = build_model(Checkpoint(checkpoint.config, moved, checkpoint.stored, checkpoint.files), "float32")
        for budget in budgets:
            for name, correlation in correlate_sites(source, target, sites, batches, budget).items():
                rows += [recovery_row(name, seed, match(correlation, cost), truth) for cost in Cost]
    return rows
