"""Changes of a model that look like symmetries and are none, and how far from being one each is.

The predicted effect is relative to what is changed; it is computed from the parameters and the
change alone, before any forward pass, so that a control which changes nothing is known for one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from scipy.linalg import expm
from transformers.activations import ACT2FN

from normgauge.anatomy.lookup import holder, rows_of
from normgauge.anatomy.structure import Anatomy, LinearMap, NormKind, Role, SpaceKind
from normgauge.gauge.admissible import QueryMaps, admissible, gauge_spaces, nearest_query_maps
from normgauge.gauge.groups import AttentionGauge
from normgauge.gauge.model_gauge import Gauge
from normgauge.gauge.random_gauges import random_gauge
from normgauge.gauge.transform import transform_unchecked
from normgauge.redundancy.falsifier import claimed_transformation
from normgauge.redundancy.readers import (
    Mutable,
    Tensors,
    add_constant,
    add_to_matrix,
    matrix_in,
    output_map,
)
from normgauge.redundancy.streams import residual_rotation, rotation_distance

SPREAD = 0.1  # standard deviation of logarithms of scales and of generators of maps
Change = Callable[[Tensors], tuple[Mapping[str, torch.Tensor], Gauge]]


@dataclass(frozen=True)
class Control:
    """`change` gives the changed tensors and what it does to hidden states; `predicted` its
    distance from a symmetry.
    """

    name: str
    change: Change
    predicted: Callable[[Tensors], float]


def controls(anatomy: Anatomy, seed: int) -> Iterator[Control]:
    """Those that the architecture has."""
    yield _claimed_rotation(anatomy, seed)
    activated = [
        item
        for item in anatomy.maps
        if item.activation and anatomy.space(item.writes).kind == SpaceKind.FFN
    ]
    if activated[0].activation != "relu":
        yield _scales_through(anatomy, activated, seed)
    layers = [name for name in gauge_spaces(anatomy) if name.endswith("attention")]
    if admissible(anatomy, layers[0]).query_maps != QueryMaps.GENERAL:
        yield _general_queries(anatomy, layers, seed)
    if anatomy.norm_kind == NormKind.RMS_NORM:
        yield _ones(anatomy, seed)


def _claimed_rotation(anatomy: Anatomy, seed: int) -> Control:
    stream = anatomy.primary_stack
    coordinates = (
        np.random.default_rng(seed).standard_normal(stream.width * (stream.width - 1) // 2)
        / stream.width**0.5
    )
    rotation = residual_rotation(
        stream.width, anatomy.norm_kind == NormKind.LAYER_NORM, coordinates
    )
    gauge = Gauge({stream.space: rotation})

    def change(tensors: Tensors) -> tuple[Mapping[str, torch.Tensor], Gauge]:
        return claimed_transformation(anatomy, tensors, gauge, printed=False), gauge

    name = "rotation as claimed, gains and biases untouched"
    return Control(name, change, lambda tensors: rotation_distance(anatomy, tensors, rotation))


def _scales_through(anatomy: Anatomy, activated: list[LinearMap], seed: int) -> Control:
    def change(tensors: Tensors) -> tuple[Mutable, Gauge]:
        generator = np.random.default_rng(seed)
        moved = dict(tensors)
        for item in activated:
            factors = torch.from_numpy(
                np.exp(SPREAD * generator.standard_normal(anatomy.space(item.writes).size))
            )
            add_to_matrix(
                anatomy, moved, item, (factors - 1)[:, None] * matrix_in(anatomy, tensors, item)
            )
            if item.bias:
                add_constant(
                    anatomy,
                    moved,
                    item,
                    (factors - 1) * tensors[holder(anatomy, item.bias)][rows_of(anatomy, item)],
                )
            down = output_map(anatomy, item)
            assert down is not None
            add_to_matrix(
                anatomy, moved, down, (1 / factors - 1) * matrix_in(anatomy, tensors, down)
            )
        return moved, Gauge({})

    activation = str(activated[0].activation)
    return Control(
        f"positive scales through {activation}", change, lambda _: scale_distance(activation)
    )


def scale_distance(activation: str) -> float:
    """How far f(c x) is from c f(x), c one standard deviation of the scales, relative, for standard
    normal x; 0 for relu.
    """
    function, factor = ACT2FN[activation], float(np.exp(SPREAD))
    values = torch.linspace(-4, 4, 2001, dtype=torch.float64)
    weights = torch.exp(-(values**2) / 2)
    expected = factor * function(values)
    difference = function(factor * values) - expected
    return float(((weights * difference**2).sum() / (weights * expected**2).sum()).sqrt())


def _general_queries(anatomy: Anatomy, layers: list[str], seed: int) -> Control:
    generator = np.random.default_rng(seed)
    elements = {}
    for name, drawn in random_gauge(anatomy, seed, tuple(layers)).elements.items():
        assert isinstance(drawn, AttentionGauge)
        identity = AttentionGauge.identity(
            drawn.groups, drawn.repeats, drawn.query_maps.shape[-1], drawn.value_maps.shape[-1]
        )
        maps = expm(SPREAD * generator.standard_normal(drawn.query_maps.shape))
        elements[name] = AttentionGauge(
            identity.group_order, identity.head_order, maps, identity.value_maps
        )

    def change(tensors: Tensors) -> tuple[Mapping[str, torch.Tensor], Gauge]:
        return dict(transform_unchecked(anatomy, tensors, Gauge(elements))), Gauge({})

    def predicted(_: Tensors) -> float:
        distances = []
        for name, element in elements.items():
            rest = element.query_maps - nearest_query_maps(anatomy, name, element.query_maps)
            distances.append(np.linalg.norm(rest) / np.linalg.norm(element.query_maps))
        return float(max(distances))

    return Control("any invertible query and key maps", change, predicted)


def _ones(anatomy: Anatomy, seed: int) -> Control:
    table = next(
        tensor
        for tensor in anatomy.tensors
        if tensor.axes[-1].role == Role.WRITE and tensor.axes[0].role == Role.INDEX
    )

    def change(tensors: Tensors) -> tuple[Mutable, Gauge]:
        generator = torch.Generator().manual_seed(seed)
        value = tensors[table.name]
        shifts = value.std() * torch.randn(len(value), 1, generator=generator).double()
        return {**tensors, table.name: value + shifts}, Gauge({})

    def predicted(tensors: Tensors) -> float:
        value = tensors[table.name]
        return float(value.std() / value.square().mean().sqrt())

    return Control("ones added before RMSNorm", change, predicted)
