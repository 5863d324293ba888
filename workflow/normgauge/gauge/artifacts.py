"""What people carry, moved with a recorded gauge of a real model: acts as before, does not by the permutation alone, nor unmoved.

The artifacts are drawn, not trained: transport is exact for every one of them, so nothing depends on what they mean.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from normgauge.anatomy.structure import Anatomy, LinearMap, Role, Site
from normgauge.calibration.batches import Batch
from normgauge.checkpoints.building import build_model
from normgauge.checkpoints.opening import Checkpoint
from normgauge.gauge.admissible import random_gauge
from normgauge.gauge.audit import middle_site
from normgauge.gauge.correlation import run_site_activations
from normgauge.gauge.equivalence import CONTROL_FACTOR, TOLERANCES, deviation_from, recorded_outputs
from normgauge.gauge.groups import Monomial
from normgauge.gauge.model_gauge import Gauge
from normgauge.gauge.transform import transformed
from normgauge.gauge.transport.adapters import PREFIX, moved_adapter
from normgauge.gauge.transport.dictionaries import LAYOUT, moved_array
from normgauge.gauge.transport.vectors import moved_vectors

Arrays = dict[str, torch.Tensor]
RANK, FEATURES = 4, 2  # of the drawn adapter; of the drawn dictionary, features per coordinate
PRECISION = "float64"


@dataclass(frozen=True, eq=False)
class Artifact:
    """`act` makes a model use the arrays while it is entered; `move` transports them. `dense` gives what they add up to on the stream:
    by name, the tensor and its axis that lies in the stream."""

    name: str
    arrays: Arrays
    act: Callable[[torch.nn.Module, Arrays], Any]
    move: Callable[[Arrays, Gauge], Arrays]
    dense: Callable[[Arrays], dict[str, tuple[torch.Tensor, int]]]


def transport_rows(checkpoint: Checkpoint, anatomy: Anatomy, batches: Sequence[Batch], seeds: Sequence[int]) -> list[dict[str, Any]]:
    """Rows of schema `gauge_transport`: per seed a steering vector and a dictionary spliced in at the middle block's output, and a LoRA
    adapter on every map of that block. The model is gauged on its primary stream; forward passes are in float64."""
    site = middle_site(anatomy)
    wide = replace(checkpoint, tensors={name: value.double() for name, value in checkpoint.tensors.items()})
    inputs = [batch.inputs for batch in batches]
    source = build_model(wide, PRECISION)
    states = next(iter(run_site_activations(source, [site], batches[:1])))[site.id]
    scale = float(states.square().mean().sqrt())
    rows = []
    for seed in seeds:
        gauge = random_gauge(anatomy, seed, (anatomy.primary_stack.space,))
        target = build_model(transformed(wide, anatomy, gauge), PRECISION)
        for artifact in artifacts(anatomy, site, scale, seed):
            with artifact.act(source, artifact.arrays):
                recorded = recorded_outputs(source, inputs)
            ways = {
                "transported": artifact.move(artifact.arrays, gauge),
                "permutation": artifact.move(artifact.arrays, gauge.without_signs()),
                "raw": artifact.arrays,
            }
            found = {}
            for way, arrays in ways.items():
                with artifact.act(target, arrays):
                    found[way] = deviation_from(recorded, target, anatomy, gauge).relative
            element = gauge.elements[anatomy.primary_stack.space]
            assert isinstance(element, Monomial)
            error, predicted = sign_energy(artifact, element, ways["transported"], ways["permutation"])
            rows.append(_row(artifact.name, site.id, seed, found, error, predicted))
    return rows


def _row(name: str, site: str, seed: int, found: Mapping[str, float], error: float, predicted: float) -> dict[str, Any]:
    tolerance = TOLERANCES[PRECISION]
    fails = predicted == 0 or found["permutation"] >= CONTROL_FACTOR * tolerance
    return {
        "artifact": name,
        "site": site,
        "seed": seed,
        "forward_dtype": PRECISION,
        "transported_deviation": found["transported"],
        "permutation_deviation": found["permutation"],
        "raw_deviation": found["raw"],
        "permutation_error": error,
        "predicted_error": predicted,
        "passed": found["transported"] <= tolerance and fails,
    }


def sign_energy(artifact: Artifact, element: Monomial, signed: Arrays, permuted: Arrays) -> tuple[float, float]:
    """|T_G a - T_P a|^2 over |a|^2 as measured on the transported arrays, and as predicted from the original ones: four times the share of
    their energy on coordinates of negative sign."""
    negative = torch.from_numpy(np.flatnonzero(element.factors < 0))
    own, first, second = (artifact.dense(arrays) for arrays in (artifact.arrays, signed, permuted))
    energy = sum(float(value.square().sum()) for value, _ in own.values())
    error = sum(float((first[name][0] - second[name][0]).square().sum()) for name in own)
    below = sum(float(value.index_select(axis, negative).square().sum()) for value, axis in own.values())
    return error / energy, 4 * below / energy


def artifacts(anatomy: Anatomy, site: Site, scale: float, seed: int) -> Iterator[Artifact]:
    """Drawn artifacts, float64, for the output of a block whose activations have root mean square `scale`. No adapter where the block
    shares its weights with others or holds no plain linear layer."""
    generator = torch.Generator().manual_seed(seed)
    space, width = anatomy.stack(site.stack).space, site.width

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    def elements(gauge: Gauge) -> Monomial:
        element = gauge.elements[space]
        assert isinstance(element, Monomial)
        return element

    yield Artifact(
        "steering vector",
        {"direction": scale * normal(width)},
        lambda model, arrays: _output_changed(model, site, lambda state: state + arrays["direction"]),
        lambda arrays, gauge: {name: moved_vectors(elements(gauge), name, value, "steering vector") for name, value in arrays.items()},
        lambda arrays: {name: (value, 0) for name, value in arrays.items()},
    )
    features = FEATURES * width
    shapes = {"W_enc": (width, features), "b_enc": (features,), "W_dec": (features, width), "b_dec": (width,)}
    sizes = {"W_enc": width**-0.5 / scale, "b_enc": 0.1, "W_dec": scale * features**-0.5, "b_dec": 0.1 * scale}
    yield Artifact(
        "dictionary",
        {name: sizes[name] * normal(*shape) for name, shape in shapes.items()},
        lambda model, arrays: _output_changed(model, site, lambda state: reconstructed(arrays, state)),
        lambda arrays, gauge: {name: moved_array(elements(gauge), name, value, "dictionary") for name, value in arrays.items()},
        lambda arrays: {name: (value, place[0]) for name, value in arrays.items() if (place := LAYOUT[name])},
    )
    maps = _block_maps(anatomy, site)
    if not maps:
        return
    factors = {}
    for item in maps:
        sizes_ = [anatomy.tensor(item.weight).axes[axis].size for axis in (item.input_axis, 1 - item.input_axis)]
        factors[f"{_module(item)}.lora_A.weight"] = sizes_[0] ** -0.5 * normal(RANK, sizes_[0])
        factors[f"{_module(item)}.lora_B.weight"] = 0.1 * normal(sizes_[1], RANK)
    yield Artifact(
        "LoRA adapter",
        factors,
        lambda model, arrays: _weights_added(model, maps, arrays),
        lambda arrays, gauge: moved_adapter(arrays, anatomy, gauge),
        lambda arrays: {item.weight: (_update(item, arrays), _stream_axis(anatomy, item, space)) for item in maps},
    )


def reconstructed(arrays: Arrays, state: torch.Tensor) -> torch.Tensor:
    """A sparse autoencoder's reconstruction of activations (..., d)."""
    codes = torch.relu((state - arrays["b_dec"]) @ arrays["W_enc"] + arrays["b_enc"])
    return codes @ arrays["W_dec"] + arrays["b_dec"]


@contextmanager
def _output_changed(model: torch.nn.Module, site: Site, change: Callable[[torch.Tensor], torch.Tensor]) -> Iterator[None]:
    def hook(_module: torch.nn.Module, _arguments: Any, output: Any) -> Any:
        return (change(output[0]), *output[1:]) if isinstance(output, tuple) else change(output)

    handle = model.get_submodule(site.module).register_forward_hook(hook)
    try:
        yield
    finally:
        handle.remove()


@contextmanager
def _weights_added(model: torch.nn.Module, maps: Sequence[LinearMap], arrays: Arrays) -> Iterator[None]:
    kept = {item.weight: model.get_parameter(item.weight).detach().clone() for item in maps}
    try:
        for item in maps:
            model.get_parameter(item.weight).data += _update(item, arrays)
        yield
    finally:
        for name, value in kept.items():
            model.get_parameter(name).data.copy_(value)


def _block_maps(anatomy: Anatomy, site: Site) -> list[LinearMap]:
    """The maps of the site's block that read or write its stream, one per stored weight."""
    space, block = anatomy.stack(site.stack).space, f"{site.stack}/block.{site.block}/"
    inside = [item for item in anatomy.maps if item.name.startswith(block) and space in (item.reads, item.writes)]
    return list({item.weight: item for item in inside if item.weight.endswith(".weight")}.values())


def _module(item: LinearMap) -> str:
    return PREFIX + item.weight.removesuffix(".weight")


def _update(item: LinearMap, arrays: Arrays) -> torch.Tensor:
    """B A in the layout of the stored weight."""
    update = arrays[f"{_module(item)}.lora_B.weight"] @ arrays[f"{_module(item)}.lora_A.weight"]
    return update if item.input_axis == 1 else update.T


def _stream_axis(anatomy: Anatomy, item: LinearMap, space: str) -> int:
    axes = anatomy.tensor(item.weight).axes
    return next(
        number
        for number, axis in enumerate(axes)
        if axis.role in (Role.READ, Role.WRITE) and any(segment.space == space for segment in axis.segments)
    )
