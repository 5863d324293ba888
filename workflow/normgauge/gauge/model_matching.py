"""One gauge that brings a whole model as near to another as its symmetries let it.

Streams, feed-forward units and heads are matched by activations, each inside the group that
`admissible` names, by all its sites together; what these leave uncertain is decided by weights
where they can; spaces without sites by the rows of what writes them; value and query maps and the
scales of units come from the weights.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
import torch

from normgauge.anatomy import describe
from normgauge.anatomy.structure import Anatomy, Role, SpaceKind
from normgauge.calibration.batches import Batch
from normgauge.checkpoints.building import build_model
from normgauge.checkpoints.opening import Checkpoint
from normgauge.errors import InputError
from normgauge.gauge.activations import Activations, observe_sites
from normgauge.gauge.admissible import Group, admissible, gauge_spaces
from normgauge.gauge.correlation import correlate
from normgauge.gauge.groups import AttentionGauge, Element, Monomial
from normgauge.gauge.head_evidence import decided_heads
from normgauge.gauge.head_matching import HeadMatching, match_heads
from normgauge.gauge.matched_sites import in_memory, sites_of
from normgauge.gauge.matching import Matching, match
from normgauge.gauge.model_gauge import Gauge
from normgauge.gauge.site_matching import match_sites, paired
from normgauge.gauge.weight_evidence import by_target, decided
from normgauge.gauge.weight_maps import AttentionMaps, Weights, attention_maps, unit_scales


class Part(StrEnum):
    """What of a model is matched, in the order in which it is reported."""

    STREAM = "residual stream"
    UNITS = "feed-forward units"
    HEADS = "attention heads"
    VALUES = "value maps"
    QUERIES = "query and key maps"
    OTHER = "other spaces"


@dataclass(frozen=True, eq=False)
class SpaceMatching:
    """What was found of one part of one space or attention layer.

    `certain`, `undetermined`: bool (size,), of coordinates, units, heads or maps, by the source's
    number; what is neither is uncertain. Undetermined is what leaves no trace: constant
    coordinates,
    silent heads, maps without weights. `element`: what moves the space. `found`: the matching
    behind it; of maps their fit.
    """

    space: str
    part: Part
    element: Element
    certain: np.ndarray
    undetermined: np.ndarray
    found: Matching | HeadMatching | AttentionMaps
    sites: tuple[str, ...] = ()

    @property
    def size(self) -> int:
        return len(self.certain)

    @property
    def uncertain(self) -> np.ndarray:
        return ~self.certain & ~self.undetermined


@dataclass(frozen=True)
class Change:
    """Distance of two models' weights over the target's norm: `before` and `after` the gauge, and
    the tensor that is furthest after it.
    """

    before: float
    after: float
    furthest: str
    distance: float


@dataclass(frozen=True, eq=False)
class ModelMatching:
    """`gauge` leads from the source to the target; `spaces` says how sure each part of it is."""

    gauge: Gauge
    spaces: tuple[SpaceMatching, ...]
    change: Change

    @property
    def certain(self) -> bool:
        return all(each.certain.all() for each in self.spaces)

    def of(self, part: Part) -> list[SpaceMatching]:
        return [each for each in self.spaces if each.part == part]


def match_models(
    source: Checkpoint,
    target: Checkpoint,
    batches: Sequence[Batch],
    spaces: Iterable[str] | None = None,
) -> ModelMatching:
    """Match two checkpoints of one class and shape on the same batches.

    `spaces`: those to match, of `gauge_spaces`; all when None. Others stay as they are, and so the
    maps of a layer are right only where its streams are matched or equal. Raises InputError for
    checkpoints of unlike shapes, fewer than four samples, and activations that are not finite.
    """
    anatomy = describe(source.config)
    _require_one_shape(anatomy, describe(target.config))
    names = [name for name in gauge_spaces(anatomy) if spaces is None or name in set(spaces)]
    found: dict[str, Matching | HeadMatching] = {}
    sites = {name: sites_of(anatomy, name) for name in names}
    for group in in_memory(sites, batches):
        wanted = [site for name in group for site in sites[name]]
        own, other = (
            observe_sites(build_model(each, "float32"), wanted, batches)
            for each in (source, target)
        )
        for name in group:
            found[name] = match_space(anatomy, name, own, other)
    gauge, matched = matched_spaces(
        anatomy, source.tensors, target.tensors, found, [name for name in names if not sites[name]]
    )
    return ModelMatching(
        gauge, matched, weight_change(anatomy, source.tensors, target.tensors, gauge)
    )


def _require_one_shape(source: Anatomy, target: Anatomy) -> None:
    shapes = [
        {tensor.name: tensor.shape for tensor in anatomy.tensors} for anatomy in (source, target)
    ]
    if source.architecture != target.architecture or shapes[0].keys() != shapes[1].keys():
        raise InputError(
            f"{target.architecture} and {source.architecture}: expected checkpoints of one class; "
            "match models of one class"
        )
    for name, shape in shapes[0].items():
        axes = [axis.role for axis in source.tensor(name).axes]
        moved = [size for size, role in zip(shape, axes, strict=True) if role != Role.INDEX]
        other = [
            size for size, role in zip(shapes[1][name], axes, strict=True) if role != Role.INDEX
        ]
        if moved != other:
            raise InputError(
                f"tensor {name}: {list(shapes[1][name])} in one model, {list(shape)} in the other; "
                "match models of one shape"
            )


def match_space(
    anatomy: Anatomy,
    name: str,
    source: Mapping[str, Activations],
    target: Mapping[str, Activations],
) -> Matching | HeadMatching:
    """Match a space or the heads of a layer by the activations at its sites, by site id."""
    rule = admissible(anatomy, name)
    own, other = (
        {site.id: side[site.id] for site in sites_of(anatomy, name)} for side in (source, target)
    )
    if rule.group != Group.ATTENTION:
        return match_sites(list(paired(own, other).values()), rule.group)
    query, key = (
        anatomy.space(f"{name.removesuffix('attention')}{kind}") for kind in ("query", "key")
    )
    return match_heads(
        [(own[site], other[site]) for site in own], query.heads, key.heads, rule.heads_move
    )


def matched_spaces(
    anatomy: Anatomy,
    source: Mapping[str, torch.Tensor],
    target: Mapping[str, torch.Tensor],
    found: Mapping[str, Matching | HeadMatching],
    others: Sequence[str] = (),
) -> tuple[Gauge, tuple[SpaceMatching, ...]]:
    """The gauge that matchings by activations begin, tensors by name: `others`, spaces without
    sites, and scales and maps are added.
    """
    goal = Weights(anatomy, target, Gauge({}))
    spatial = {name: each for name, each in found.items() if isinstance(each, Matching)}
    complete: dict[str, Matching | HeadMatching] = dict(found)
    complete |= decided(anatomy, spatial, source, target)
    complete |= _heads_decided(anatomy, complete, source, goal)
    elements = {name: _discrete(anatomy, name, each) for name, each in complete.items()}
    for name in others:
        complete[name] = _match_rows(anatomy, name, Weights(anatomy, source, Gauge(elements)), goal)
        elements[name] = _discrete(anatomy, name, complete[name])
    placed = Weights(anatomy, source, Gauge(elements))
    spaces: list[SpaceMatching] = []
    for name, matching in complete.items():
        sites = tuple(site.id for site in sites_of(anatomy, name))
        if isinstance(matching, HeadMatching):
            maps = attention_maps(anatomy, name, placed, goal)
            spaces += _attention_parts(name, matching, maps, sites)
        else:
            element, unscaled = _scaled(anatomy, name, matching, placed, goal)
            undetermined = (matching.constant & matching.uncertain) | unscaled
            certain = ~matching.uncertain & ~undetermined
            spaces.append(
                SpaceMatching(
                    name, _part(anatomy, name), element, certain, undetermined, matching, sites
                )
            )
    order = list(Part)
    spaces.sort(key=lambda each: order.index(each.part))
    moved = {each.space: each.element for each in spaces}
    return Gauge({name: moved[name] for name in gauge_spaces(anatomy) if name in moved}), tuple(
        spaces
    )


def _heads_decided(
    anatomy: Anatomy,
    found: Mapping[str, Matching | HeadMatching],
    source: Mapping[str, torch.Tensor],
    goal: Weights,
) -> dict[str, HeadMatching]:
    """The matchings of heads, by the weights around them where activations leave any uncertain."""
    spatial = {name: each for name, each in found.items() if isinstance(each, Matching)}
    placed = Weights(anatomy, source, Gauge({name: each.gauge for name, each in spatial.items()}))
    known = {name: by_target(each, ~each.uncertain) for name, each in spatial.items()}
    return {
        name: decided_heads(anatomy, name, each, placed, goal, known)
        for name, each in found.items()
        if isinstance(each, HeadMatching)
    }


def _part(anatomy: Anatomy, name: str) -> Part:
    kind = anatomy.space(name).kind
    return {SpaceKind.RESIDUAL: Part.STREAM, SpaceKind.FFN: Part.UNITS}.get(kind, Part.OTHER)


def _discrete(anatomy: Anatomy, name: str, found: Matching | HeadMatching) -> Element:
    """What a matching says of places and signs, with maps left at the identity."""
    if isinstance(found, Matching):
        return found.gauge
    prefix = name.removesuffix("attention")
    sizes = [
        space.size // space.heads
        for space in (anatomy.space(f"{prefix}query"), anatomy.space(f"{prefix}value"))
    ]
    maps = [np.tile(np.eye(size), (len(found.group_order), 1, 1)) for size in sizes]
    return AttentionGauge(found.group_order, found.head_order, *maps)


def _match_rows(anatomy: Anatomy, name: str, source: Weights, target: Weights) -> Matching:
    """Match a space by the rows of the tables and maps that write it, each entry of a row a
    sample.
    """
    sides: list[list[torch.Tensor]] = [[], []]
    for tensor in anatomy.tensors:
        for number, axis in enumerate(tensor.axes):
            if (
                axis.role == Role.WRITE
                and axis.segments[0].space == name
                and len(tensor.axes) > 1
                and not tensor.alias_of
            ):
                for side, weights in zip(sides, (source, target), strict=True):
                    side.append(weights[tensor.name].movedim(number, -1).reshape(-1, axis.size))
    correlation = correlate(*(torch.cat(side) for side in sides))
    return match(correlation, admissible(anatomy, name).group)


def _scaled(
    anatomy: Anatomy, name: str, found: Matching, source: Weights, target: Weights
) -> tuple[Monomial, np.ndarray]:
    """The matching's gauge with its scales, and which source coordinates have no weights to tell
    theirs.
    """
    if admissible(anatomy, name).group not in (Group.MONOMIAL, Group.POSITIVE_MONOMIAL):
        return found.gauge, np.zeros(found.gauge.size, dtype=bool)
    scales = unit_scales(anatomy, name, source, target)[found.gauge.target]
    unknown = np.isnan(scales)
    return Monomial(
        found.gauge.target, found.gauge.factors * np.where(unknown, 1.0, scales)
    ), unknown


def _attention(found: HeadMatching, maps: AttentionMaps) -> AttentionGauge:
    queries, values = (
        np.stack([fits[place].matrix for place in found.group_order])
        for fits in (maps.queries, maps.values)
    )
    return AttentionGauge(found.group_order, found.head_order, queries, values)


def _attention_parts(
    name: str, found: HeadMatching, maps: AttentionMaps, sites: tuple[str, ...]
) -> list[SpaceMatching]:
    element = _attention(found, maps)
    parts = [
        SpaceMatching(
            name, Part.HEADS, element, ~found.uncertain & ~found.silent, found.silent, found, sites
        )
    ]
    wrong = found.uncertain.reshape(len(found.group_order), -1).any(1)
    for part, fits in ((Part.VALUES, maps.values), (Part.QUERIES, maps.queries)):
        undetermined = np.array([not fits[place].determined for place in found.group_order])
        parts.append(SpaceMatching(name, part, element, ~wrong & ~undetermined, undetermined, maps))
    return parts


def weight_change(
    anatomy: Anatomy,
    source: Mapping[str, torch.Tensor],
    target: Mapping[str, torch.Tensor],
    gauge: Gauge,
) -> Change:
    """How far two models' tensors, by name, are apart before and after the gauge; those of unlike
    shapes are left out.
    """
    before, after = Weights(anatomy, source, Gauge({})), Weights(anatomy, source, gauge)
    goals = Weights(anatomy, target, Gauge({}))
    totals, furthest = np.zeros(3), ("", 0.0)
    for tensor in anatomy.tensors:
        if tensor.alias_of or before.stored(tensor.name).shape != goals.stored(tensor.name).shape:
            continue
        goal = goals[tensor.name]
        norm = float(goal.square().sum())
        moved = [float((weights[tensor.name] - goal).square().sum()) for weights in (before, after)]
        totals += [norm, *moved]
        relative = (moved[1] / norm) ** 0.5 if norm else float(moved[1] > 0)
        furthest = max(furthest, (tensor.name, relative), key=lambda each: each[1])
    norm, first, second = np.sqrt(totals).tolist()
    return Change(first / norm, second / norm, *furthest)
