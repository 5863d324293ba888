"""What the units of each feed-forward layer read and write, and the tensors in which a stream can
be recognised.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from normgauge.anatomy import describe
from normgauge.anatomy.lookup import rows_of, stored_name
from normgauge.anatomy.structure import Anatomy, LinearMap, Role, SpaceKind
from normgauge.calibration.batches import Batch
from normgauge.checkpoints.building import build_model
from normgauge.checkpoints.opening import Checkpoint
from normgauge.errors import InputError
from normgauge.gauge.model_gauge import Gauge
from normgauge.gauge.weight_maps import Weights
from normgauge.lineage.layout import layout_of


@dataclass(frozen=True, eq=False)
class Layer:
    """One feed-forward layer. reads: float64 (units, width) each, norm gains folded in, the
    activated map first. write: float64 (units, width). stream: the space that both lie in.
    """

    name: str
    stream: str
    reads: tuple[np.ndarray, ...]
    write: np.ndarray

    @property
    def units(self) -> int:
        return len(self.write)

    @property
    def gated(self) -> bool:
        return len(self.reads) > 1


def layers_of(anatomy: Anatomy, tensors: Mapping[str, torch.Tensor]) -> tuple[Layer, ...]:
    """The feed-forward layers between one stream and itself, in forward order."""
    weights = Weights(anatomy, tensors, Gauge({}))
    kinds = {space.name: space.kind for space in anatomy.spaces}
    found = []
    for space in anatomy.spaces:
        if space.kind != SpaceKind.FFN:
            continue
        reads = _activated_first([item for item in anatomy.maps if item.writes == space.name])
        writes = [item for item in anatomy.maps if item.reads == space.name]
        if len(writes) == 1 and all(kinds[item.reads] == SpaceKind.RESIDUAL for item in reads):
            found.append(
                Layer(
                    space.name,
                    reads[0].reads,
                    tuple(weights.factor(item)[:, :-1] for item in reads),
                    weights.factor(writes[0])[:, :-1].T,
                )
            )
    return tuple(found)


def _activated_first(items: Sequence[LinearMap]) -> list[LinearMap]:
    return sorted(items, key=lambda item: item.activation is None)


def hidden_units(
    checkpoint: Checkpoint, anatomy: Anatomy, batches: Sequence[Batch]
) -> dict[str, np.ndarray]:
    """float64 (units, positions) by feed-forward space: what enters the activations on these
    inputs.

    A position counts once for each token of each sequence, padding included. The model runs in
    float32.
    """
    model = build_model(checkpoint, "float32")
    kept: dict[str, list[torch.Tensor]] = {}
    handles = []
    for item in anatomy.maps:
        if item.activation and anatomy.space(item.writes).kind == SpaceKind.FFN:
            rows, places = kept.setdefault(item.writes, []), rows_of(anatomy, item)

            def keep(module, inputs, output, rows=rows, places=places):
                kept = output.detach()[..., places]
                rows.append(kept.reshape(-1, len(places)).double())

            handles.append(model.get_submodule(item.module).register_forward_hook(keep))
    with torch.no_grad():
        for batch in batches:
            model(**batch.inputs)
    for handle in handles:
        handle.remove()
    return {name: torch.cat(rows).T.numpy() for name, rows in kept.items() if rows}


@dataclass(frozen=True, eq=False)
class Anchors:
    """What writes or reads a stream from places that nothing moves (tokens, positions, features),
    by name without the class's prefix: float64 (places, width) each.
    """

    stream: str
    tables: Mapping[str, np.ndarray]


def anchors_of(
    anatomy: Anatomy, tensors: Mapping[str, torch.Tensor], prefix: str
) -> dict[str, Anchors]:
    """The anchors of every stream; `prefix` is left out of the names."""
    found: dict[str, dict[str, np.ndarray]] = {}
    streams = {stack.space for stack in anatomy.stacks}
    for name, axes in layout_of(anatomy).axes.items():
        own = [number for number, axis in enumerate(axes) if axis.part in streams]
        fixed = all(axis.part is None for number, axis in enumerate(axes) if number not in own)
        if (
            len(own) != 1
            or not fixed
            or anatomy.tensor(name).axes[own[0]].role
            in (
                Role.NORMALISE,
                Role.SCALE,
            )
        ):
            continue
        value = tensors[stored_name(anatomy, name, tensors)].double().numpy()
        width = anatomy.space(str(axes[own[0]].part)).size
        if value.shape[own[0]] == width:
            rows = np.moveaxis(value, own[0], -1).reshape(-1, width)
            found.setdefault(str(axes[own[0]].part), {})[name.removeprefix(prefix)] = rows
    return {stream: Anchors(stream, tables) for stream, tables in found.items()}


@dataclass(frozen=True, eq=False)
class Pair:
    """Two models as the tests see them: layers of both, side by side, and the anchors that both
    have, cut to the places that both have.
    """

    layers: tuple[tuple[Layer, Layer], ...]
    anchors: Mapping[str, tuple[Mapping[str, np.ndarray], Mapping[str, np.ndarray]]]


@dataclass(frozen=True, eq=False)
class Side:
    """One model: its anatomy, and its tensors by the names of the class."""

    anatomy: Anatomy
    tensors: Mapping[str, torch.Tensor]


def side_of(checkpoint: Checkpoint) -> Side:
    return Side(describe(checkpoint.config), checkpoint.tensors)


def pair_of(a: Side, b: Side) -> Pair:
    """Two models of one family, of any depths and widths: layers are paired by their names.

    Raises InputError for models of two families, for weights that are no numbers, and for models
    without a layer in common.
    """
    require_comparable(a.anatomy, b.anatomy)
    for side, letter in ((a, "A"), (b, "B")):
        require_finite(side, letter)
    prefixes = class_prefixes(a.anatomy, b.anatomy)
    pair = pair_of_parts(
        *(
            (layers_of(x.anatomy, x.tensors), anchors_of(x.anatomy, x.tensors, prefix))
            for x, prefix in zip((a, b), prefixes, strict=True)
        )
    )
    if not pair.layers:
        raise InputError(
            f"{b.anatomy.architecture}: no feed-forward layer of {a.anatomy.architecture}'s; "
            "compare models with such layers"
        )
    return pair


Parts = tuple[Sequence[Layer], Mapping[str, Anchors]]
"""What a model shows of itself: its layers and its anchors."""


def pair_of_parts(a: Parts, b: Parts) -> Pair:
    """Layers of equal names side by side, and the anchors that both have."""
    (layers, anchors), (others, other_anchors) = a, b
    named = {each.name: each for each in others}
    return Pair(
        tuple((each, named[each.name]) for each in layers if each.name in named),
        {
            stream: _common(anchors[stream].tables, other_anchors[stream].tables)
            for stream in anchors
            if stream in other_anchors
        },
    )


def require_comparable(a: Anatomy, b: Anatomy) -> None:
    """InputError for models of two families."""
    if a.family != b.family:
        raise InputError(
            f"A is a {a.architecture}, B a {b.architecture}; lineage compares models of one family"
        )


def require_finite(side: Side, letter: str) -> None:
    """InputError, naming the tensor, for weights that are NaN or infinite: nothing is near them."""
    for name, value in side.tensors.items():
        if not bool(torch.isfinite(value).all()):
            raise InputError(
                f"{letter}: tensor {name} holds values that are no finite numbers; restore its file"
            )


def class_prefixes(a: Anatomy, b: Anatomy) -> tuple[str, str]:
    """What either class puts before the names that both have."""
    first, second = (each.stacks[0].blocks[0] for each in (a, b))
    return (
        first.removesuffix(second) if first.endswith(second) else "",
        second.removesuffix(first) if second.endswith(first) else "",
    )


def _common(
    first: Mapping[str, np.ndarray], second: Mapping[str, np.ndarray]
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    rows = {name: min(len(first[name]), len(second[name])) for name in first if name in second}
    return (
        {name: first[name][:count] for name, count in rows.items()},
        {name: second[name][:count] for name, count in rows.items()},
    )
