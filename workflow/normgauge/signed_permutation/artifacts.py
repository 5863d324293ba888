"""Artifacts drawn for a real model, and how each acts on it.

They are drawn, not trained: transport is exact for every one of them, so nothing depends on what
    they mean.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from normgauge.anatomy.structure import Anatomy, LinearMap, Role, Site
from normgauge.gauge.groups import Monomial
from normgauge.gauge.model_gauge import Gauge
from normgauge.transport.adapter_roles import PREFIX
from normgauge.transport.adapters import moved_adapter
from normgauge.transport.dictionaries import LAYOUT, moved_array
from normgauge.transport.vectors import moved_vectors

Arrays = dict[str, torch.Tensor]
RANK, FEATURES = 4, 2  # of the drawn adapter; of the drawn dictionary, features per coordinate


@dataclass(frozen=True, eq=False)
class Artifact:
    """`content`: arrays by name, or an optimizer's state_dict. `act` makes a model, which a gauge
    has moved, use the content while it is entered; `move` transports the content. `dense` gives
    what it adds up to on the stream: by name, the tensor and its axis that lies in the stream.
    """

    name: str
    content: Any
    act: Callable[[torch.nn.Module, Any, Gauge], AbstractContextManager[None]]
    move: Callable[[Any, Gauge], Any]
    dense: Callable[[Any], dict[str, tuple[torch.Tensor, int]]]


def drawn_artifacts(anatomy: Anatomy, site: Site, scale: float, seed: int) -> Iterator[Artifact]:
    """Drawn artifacts, float64, for the output of a block whose activations have root mean square
    `scale`. No adapter where the block shares its weights with others or holds no plain linear
    layer.
    """
    generator = torch.Generator().manual_seed(seed)
    space = anatomy.stack(site.stack).space

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    yield _steering_vector(site, space, scale * normal(site.width))
    yield _dictionary(site, space, scale, normal)
    if maps := _block_maps(anatomy, site):
        yield _adapter(anatomy, maps, space, normal)


def _element(gauge: Gauge, space: str) -> Monomial:
    element = gauge.elements[space]
    assert isinstance(element, Monomial)
    return element


def _steering_vector(site: Site, space: str, direction: torch.Tensor) -> Artifact:
    return Artifact(
        "steering vector",
        {"direction": direction},
        lambda model, arrays, _: _output_changed(
            model, site, lambda state: state + arrays["direction"]
        ),
        lambda arrays, gauge: {
            name: moved_vectors(_element(gauge, space), name, value, "steering vector")
            for name, value in arrays.items()
        },
        lambda arrays: {name: (value, 0) for name, value in arrays.items()},
    )


def _dictionary(
    site: Site, space: str, scale: float, normal: Callable[..., torch.Tensor]
) -> Artifact:
    width, features = site.width, FEATURES * site.width
    shapes = {
        "W_enc": (width, features),
        "b_enc": (features,),
        "W_dec": (features, width),
        "b_dec": (width,),
    }
    sizes = {
        "W_enc": width**-0.5 / scale,
        "b_enc": 0.1,
        "W_dec": scale * features**-0.5,
        "b_dec": 0.1 * scale,
    }
    return Artifact(
        "dictionary",
        {name: sizes[name] * normal(*shape) for name, shape in shapes.items()},
        lambda model, arrays, _: _output_changed(
            model, site, lambda state: reconstructed(arrays, state)
        ),
        lambda arrays, gauge: {
            name: moved_array(_element(gauge, space), name, value, "dictionary")
            for name, value in arrays.items()
        },
        lambda arrays: {
            name: (value, places[0][0])
            for name, value in arrays.items()
            if (places := LAYOUT[name])
        },
    )


def _adapter(
    anatomy: Anatomy, maps: Sequence[LinearMap], space: str, normal: Callable[..., torch.Tensor]
) -> Artifact:
    factors = {}
    for item in maps:
        inputs, outputs = (
            anatomy.tensor(item.weight).axes[axis].size
            for axis in (item.input_axis, 1 - item.input_axis)
        )
        factors[f"{_module(item)}.lora_A.weight"] = inputs**-0.5 * normal(RANK, inputs)
        factors[f"{_module(item)}.lora_B.weight"] = 0.1 * normal(outputs, RANK)
    return Artifact(
        "LoRA adapter",
        factors,
        lambda model, arrays, _: _weights_added(model, maps, arrays),
        lambda arrays, gauge: moved_adapter(arrays, anatomy, gauge),
        lambda arrays: {
            item.weight: (_update(item, arrays), axis)
            for item in maps
            if (axis := stream_axis(anatomy, item.weight, space)) is not None
        },
    )


def reconstructed(arrays: Arrays, state: torch.Tensor) -> torch.Tensor:
    """A sparse autoencoder's reconstruction of activations (..., d)."""
    codes = torch.relu((state - arrays["b_dec"]) @ arrays["W_enc"] + arrays["b_enc"])
    return codes @ arrays["W_dec"] + arrays["b_dec"]


@contextmanager
def _output_changed(
    model: torch.nn.Module, site: Site, change: Callable[[torch.Tensor], torch.Tensor]
) -> Iterator[None]:
    def hook(_module: torch.nn.Module, _arguments: Any, output: Any) -> Any:
        return (change(output[0]), *output[1:]) if isinstance(output, tuple) else change(output)

    handle = model.get_submodule(site.module).register_forward_hook(hook)
    try:
        yield
    finally:
        handle.remove()


@contextmanager
def _weights_added(
    model: torch.nn.Module, maps: Sequence[LinearMap], arrays: Arrays
) -> Iterator[None]:
    with weights_kept(model, [item.weight for item in maps]) as parameters:
        for item in maps:
            parameters[item.weight].data += _update(item, arrays)
        yield


@contextmanager
def weights_kept(
    model: torch.nn.Module, names: Sequence[str]
) -> Iterator[dict[str, torch.nn.Parameter]]:
    """The named parameters, free to change and with gradients; afterwards they are as they were."""
    parameters = {name: model.get_parameter(name) for name in names}
    kept = {name: parameter.detach().clone() for name, parameter in parameters.items()}
    try:
        for parameter in parameters.values():
            parameter.requires_grad_(True)
        yield parameters
    finally:
        for name, parameter in parameters.items():
            parameter.requires_grad_(False).data.copy_(kept[name])
            parameter.grad = None


def _block_maps(anatomy: Anatomy, site: Site) -> list[LinearMap]:
    """The maps of the site's block that read or write its stream, one per stored weight."""
    space, block = anatomy.stack(site.stack).space, f"{site.stack}/block.{site.block}/"
    inside = [
        item
        for item in anatomy.maps
        if item.name.startswith(block) and space in (item.reads, item.writes)
    ]
    return list({item.weight: item for item in inside if item.weight.endswith(".weight")}.values())


def _module(item: LinearMap) -> str:
    return PREFIX + item.weight.removesuffix(".weight")


def _update(item: LinearMap, arrays: Arrays) -> torch.Tensor:
    """B A in the layout of the stored weight."""
    update = arrays[f"{_module(item)}.lora_B.weight"] @ arrays[f"{_module(item)}.lora_A.weight"]
    return update if item.input_axis == 1 else update.T


def stream_axis(anatomy: Anatomy, name: str, space: str) -> int | None:
    """The axis along which a tensor reads or writes a stream, None where it does neither."""
    places = (
        number
        for number, axis in enumerate(anatomy.tensor(name).axes)
        if axis.role in (Role.READ, Role.WRITE)
        and any(segment.space == space for segment in axis.segments)
    )
    return next(places, None)
