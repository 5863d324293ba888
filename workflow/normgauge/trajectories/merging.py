"""Merging: how far the loss rises between two checkpoints when the second is taken into the first's
coordinates in several ways, and not at all.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from normgauge.anatomy import describe
from normgauge.anatomy.structure import Anatomy
from normgauge.calibration.batches import Batch
from normgauge.checkpoints.building import build_model
from normgauge.checkpoints.opening import Checkpoint
from normgauge.errors import InputError
from normgauge.gauge.activations import observe_sites
from normgauge.gauge.admissible import Group, admissible, gauge_spaces
from normgauge.gauge.groups import Monomial
from normgauge.gauge.model_gauge import Gauge
from normgauge.gauge.model_matching import sites_of
from normgauge.gauge.site_matching import match_sites, paired
from normgauge.gauge.transform import transform_unchecked, transformed
from normgauge.schemas.trajectories import (
    PERMUTED,
    PLACED,
    SCRAMBLED,
    SIGNED,
    TRAINED_APART,
    UNALIGNED,
)
from normgauge.trajectories.interpolation import Interpolated, Line
from normgauge.trajectories.recorded import recorded_gauge

EPSILON = float(np.finfo(np.float32).eps)


@dataclass(frozen=True, eq=False)
class Pair:
    """Two checkpoints of one shape. `spaces`: those that are scrambled or matched."""

    first: Checkpoint
    second: Checkpoint
    anatomy: Anatomy
    spaces: tuple[str, ...]


def pair_of(first: Checkpoint, second: Checkpoint, stream_alone: bool) -> Pair:
    """A pair whose residual streams, and feed-forward units unless `stream_alone`, are matched.
    InputError where their tensors differ in shape.
    """
    anatomy = describe(first.config)
    for name, value in first.tensors.items():
        if name not in second.tensors or second.tensors[name].shape != value.shape:
            raise InputError(f"tensor {name}: not of one shape in both; merge models of one shape")
    found = tuple(
        name
        for name in gauge_spaces(anatomy)
        if not name.endswith("attention")
        and sites_of(anatomy, name)
        and (not stream_alone or name == anatomy.primary_stack.space)
    )
    return Pair(first, second, anatomy, found)


def merge_rows(
    pair: Pair, probes: Sequence[Batch], sequences: torch.Tensor, seed: int | None
) -> Iterator[dict[str, Any]]:
    """Rows of schema `merge_curves` without the pair's names: every way of aligning, eleven points.

    With a seed the second checkpoint is first given its recorded gauge, which a match then has to
    undo; without one the two are as they were trained. Matched by probes; losses on `sequences`.
    """
    scramble = None
    second = pair.second
    if seed is not None:
        drawn = recorded_gauge(pair.anatomy, seed)
        scramble = Gauge({name: drawn.elements[name] for name in pair.spaces})
        second = transformed(pair.second, pair.anatomy, scramble)
    aligned = alignments(pair, second, probes)
    line_of = Interpolated(pair.first, sequences)
    lines: dict[str, Line] = {}
    for way, gauge in {UNALIGNED: Gauge({}), **aligned}.items():
        moved = dict(transform_unchecked(pair.anatomy, second.tensors, gauge))
        lines[way] = line_of.line(moved)
    ends = [line.means[-1] for line in lines.values()]
    floor = max(max(ends) - min(ends), EPSILON * max(ends))
    negative = float(np.mean(np.concatenate([_signs(each) for each in _parts(aligned[SIGNED])])))
    for way, line in lines.items():
        truth = scramble.inverse() if scramble else None
        yield {
            "kind": TRAINED_APART if seed is None else SCRAMBLED,
            "seed": seed,
            "moved": ", ".join(pair.spaces) if len(pair.spaces) < 3 else "streams and units",
            "way": way,
            "sequences": line.losses.shape[1],
            "barrier": line.barrier,
            "barrier_error": line.barrier_error,
            "floor": floor,
            "peak_at": line.peak / (len(line.losses) - 1),
            "places_right": _places_right(aligned.get(way), truth),
            "negative": negative,
            "first_loss": float(line.means[0]),
            "second_loss": float(line.means[-1]),
            "losses": line.means.tolist(),
        }


def alignments(pair: Pair, second: Checkpoint, probes: Sequence[Batch]) -> dict[str, Gauge]:
    """From the second checkpoint to the first, by way: permutations by the signed cost, the places
    of the absolute cost with all signs plus, and signed permutations, each as far as the group of a
    space has signs at all.
    """
    sites = {site.id: site for name in pair.spaces for site in sites_of(pair.anatomy, name)}
    seen = [
        observe_sites(build_model(each, "float32"), list(sites.values()), probes)
        for each in (second, pair.first)
    ]
    found: dict[str, dict[str, Monomial]] = {PERMUTED: {}, SIGNED: {}}
    for name in pair.spaces:
        own, other = ({s.id: side[s.id] for s in sites_of(pair.anatomy, name)} for side in seen)
        together = list(paired(own, other).values())
        group = admissible(pair.anatomy, name).group
        plain = Group.PERMUTATION
        found[SIGNED][name] = match_sites(together, group).gauge
        found[PERMUTED][name] = (
            found[SIGNED][name] if group == plain else match_sites(together, plain).gauge
        )
    signed = Gauge(dict(found[SIGNED]))
    return {PERMUTED: Gauge(dict(found[PERMUTED])), PLACED: signed.without_signs(), SIGNED: signed}


def _parts(gauge: Gauge) -> list[Monomial]:
    return [each for each in gauge.elements.values() if isinstance(each, Monomial)]


def _signs(element: Monomial) -> np.ndarray:
    return element.factors < 0


def _places_right(gauge: Gauge | None, truth: Gauge | None) -> float | None:
    """The share of coordinates whose recorded place a match has found; None without a record."""
    if gauge is None or truth is None:
        return None
    same = [
        element.target == truth.elements[name].target  # type: ignore[union-attr]
        for name, element in gauge.elements.items()
        if isinstance(element, Monomial)
    ]
    return float(np.concatenate(same).mean())
