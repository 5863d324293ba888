"""A real checkpoint: every family of its symmetries at a random place in float64, and changes outside them that must show."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from scipy.linalg import expm

from normgauge.anatomy import describe
from normgauge.anatomy.structure import Anatomy, LinearMap, NormKind, Role, SpaceKind
from normgauge.checkpoints.building import build_model
from normgauge.checkpoints.opening import Checkpoint
from normgauge.gauge.admissible import QueryMaps, admissible, gauge_spaces, random_gauge
from normgauge.gauge.equivalence import Deviation, Recorded, deviation_from, outputs, recorded_outputs
from normgauge.gauge.groups import AttentionGauge
from normgauge.gauge.model_gauge import Gauge
from normgauge.gauge.transform import transform, transform_unchecked
from normgauge.progress import Progress
from normgauge.recovery.probes import probes
from normgauge.redundancy.falsifier import claimed_transformation
from normgauge.redundancy.family import Kind, dimensions
from normgauge.redundancy.jacobian import head_outputs
from normgauge.redundancy.readers import Mutable, Tensors, add_constant, add_to_matrix, holder, matrix_of, output_map, rows_of, stored
from normgauge.redundancy.streams import residual_rotation
from normgauge.redundancy.symmetries import symmetries

SPREAD = 0.1  # standard deviation of the coordinates of a random place
POSITIONS = 64  # token positions that are compared

Change = Callable[[Tensors], tuple[Mapping[str, torch.Tensor], Gauge]]


def check_rows(checkpoint: Checkpoint, seed: int) -> list[dict[str, Any]]:
    """Rows of schema `redundancy_checks`. Raises InputError for a model whose symmetries are not derived."""
    anatomy = describe(checkpoint.config)
    symmetries(anatomy)  # refuses the model with its reason before anything else does
    inputs = list(probes(checkpoint.config, POSITIONS, seed, cover=False))[:1]
    recorded = recorded_outputs(build_model(checkpoint, "float64"), inputs)
    tensors = stored(anatomy, checkpoint.tensors)
    cases = list(_cases(anatomy, tensors, seed))
    progress = Progress(len(cases), f"symmetries of {anatomy.architecture}")
    rows = []
    for name, dimension, symmetric, change in cases:
        moved, gauge = change(tensors)
        other = build_model(_with(checkpoint, moved), "float64")
        found = deviation_from(recorded, other, anatomy, gauge) if gauge.elements else _difference(recorded, other)
        rows.append(
            {
                "symmetry": name,
                "dimension": dimension,
                "symmetric": symmetric,
                "seed": seed,
                "max_abs_deviation": found.max_abs,
                "relative_deviation": found.relative,
                "passed": found.unchanged("float64") if symmetric else found.changed("float64"),
            }
        )
        progress.step()
    return rows


def _with(checkpoint: Checkpoint, tensors: Mapping[str, torch.Tensor]) -> Checkpoint:
    return Checkpoint(checkpoint.config, tensors, checkpoint.stored, checkpoint.files)


def _difference(recorded: Sequence[Recorded], other: torch.nn.Module) -> Deviation:
    """Of what the head returns: states inside the model may change."""
    pairs = [(head_outputs(found), head_outputs(outputs(other, inputs))) for inputs, found in recorded]
    largest = max(float((second - first).abs().max().nan_to_num(float("inf"))) for first, second in pairs)
    return Deviation(largest, largest / max(float(first.abs().max()) for first, _ in pairs))


def _cases(anatomy: Anatomy, tensors: Tensors, seed: int) -> Iterator[tuple[str, int, bool, Change]]:
    """(what is done, its dimension, whether it is a symmetry, the change)."""
    for kind, dimension in dimensions(symmetries(anatomy)).items():
        yield str(kind), dimension, True, _at_random_place(anatomy, kind, seed)
    discrete = tuple(space for space in gauge_spaces(anatomy) if not space.endswith("attention"))
    gauge = random_gauge(anatomy, seed, discrete)
    yield "permutations with their signs", 0, True, lambda each: (dict(transform(anatomy, each, gauge)), gauge)
    yield from ((name, 0, False, change) for name, change in _controls(anatomy, seed))


def _at_random_place(anatomy: Anatomy, kind: Kind, seed: int) -> Change:
    def change(tensors: Tensors) -> tuple[Mutable, Gauge]:
        generator = np.random.default_rng(seed)
        moved = dict(tensors)
        for symmetry in symmetries(anatomy):
            if symmetry.kind == kind:
                moved = symmetry.act(moved, SPREAD * generator.standard_normal(symmetry.dimension))
        return moved, Gauge({})

    return change


def _controls(anatomy: Anatomy, seed: int) -> Iterator[tuple[str, Change]]:
    """Changes that look like symmetries and are none for this model."""
    yield "rotation as claimed, gains and biases untouched", _claimed_rotation(anatomy, seed)
    activated = [item for item in anatomy.maps if item.activation and anatomy.space(item.writes).kind == SpaceKind.FFN]
    if activated[0].activation != "relu":
        yield f"positive scales through {activated[0].activation}", _scales_through(anatomy, activated, seed)
    layers = [name for name in gauge_spaces(anatomy) if name.endswith("attention")]
    if admissible(anatomy, layers[0]).query_maps != QueryMaps.GENERAL:
        yield "any invertible query and key maps", _general_queries(anatomy, layers, seed)
    if anatomy.norm_kind == NormKind.RMS_NORM:
        yield "ones added before RMSNorm", _ones(anatomy, seed)


def _claimed_rotation(anatomy: Anatomy, seed: int) -> Change:
    def change(tensors: Tensors) -> tuple[Mapping[str, torch.Tensor], Gauge]:
        stream = anatomy.primary_stack
        width = stream.width
        coordinates = np.random.default_rng(seed).standard_normal(width * (width - 1) // 2) / width**0.5
        gauge = Gauge({stream.space: residual_rotation(width, anatomy.norm_kind == NormKind.LAYER_NORM, coordinates)})
        return claimed_transformation(anatomy, tensors, gauge, printed=False), gauge

    return change


def _scales_through(anatomy: Anatomy, activated: list[LinearMap], seed: int) -> Change:
    def change(tensors: Tensors) -> tuple[Mutable, Gauge]:
        generator = np.random.default_rng(seed)
        moved = dict(tensors)
        for item in activated:
            factors = torch.from_numpy(np.exp(SPREAD * generator.standard_normal(anatomy.space(item.writes).size)))
            add_to_matrix(anatomy, moved, item, (factors - 1)[:, None] * matrix_of(anatomy, tensors, item))
            if item.bias:
                add_constant(anatomy, moved, item, (factors - 1) * tensors[holder(anatomy, item.bias)][rows_of(anatomy, item)])
            down = output_map(anatomy, item)
            assert down is not None
            add_to_matrix(anatomy, moved, down, (1 / factors - 1) * matrix_of(anatomy, tensors, down))
        return moved, Gauge({})

    return change


def _general_queries(anatomy: Anatomy, layers: list[str], seed: int) -> Change:
    def change(tensors: Tensors) -> tuple[Mapping[str, torch.Tensor], Gauge]:
        generator = np.random.default_rng(seed)
        elements = {}
        for name, drawn in random_gauge(anatomy, seed, tuple(layers)).elements.items():
            assert isinstance(drawn, AttentionGauge)
            identity = AttentionGauge.identity(drawn.groups, drawn.repeats, drawn.query_maps.shape[-1], drawn.value_maps.shape[-1])
            maps = expm(SPREAD * generator.standard_normal(drawn.query_maps.shape))
            elements[name] = AttentionGauge(identity.group_order, identity.head_order, maps, identity.value_maps)
        return dict(transform_unchecked(anatomy, tensors, Gauge(elements))), Gauge({})

    return change


def _ones(anatomy: Anatomy, seed: int) -> Change:
    def change(tensors: Tensors) -> tuple[Mutable, Gauge]:
        table = next(tensor for tensor in anatomy.tensors if tensor.axes[-1].role == Role.WRITE and tensor.axes[0].role == Role.INDEX)
        generator = torch.Generator().manual_seed(seed)
        value = tensors[table.name]
        shifts = value.std() * torch.randn(len(value), 1, generator=generator).double()
        return {**tensors, table.name: value + shifts}, Gauge({})

    return change
