"""How tensors of a model and what people carry move, read off what the code does with them.

Nothing is stated here: a normal tensor is moved by the functions that move checkpoints and
artifacts, and what it became is compared with it under G and under its permutation |G|.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import torch

from normgauge.anatomy import describe
from normgauge.anatomy.structure import Anatomy, Axis, NormKind, Role, SpaceKind
from normgauge.gauge.groups import Monomial
from normgauge.gauge.model_gauge import Gauge
from normgauge.gauge.transform import apply_moves, tensor_moves
from normgauge.schemas.discrete_laws import ARTIFACTS, WEIGHTS
from normgauge.transport.adapter_roles import PREFIX
from normgauge.transport.adapters import moved_adapter
from normgauge.transport.dictionaries import moved_array
from normgauge.transport.optimizers import FIRST, SECOND, moved_state
from normgauge.transport.vectors import moved_vectors

FEATURES, RANK = 12, 2
Move = Callable[[torch.Tensor, Gauge], torch.Tensor]


def rule_rows(config: Any) -> Iterator[dict[str, Any]]:
    """Rows of schema `transport_rules` of a configuration: the tensors of its first block and those
    outside all blocks, and, of an RMSNorm model, artifacts on its stream.
    """
    anatomy = describe(config)
    gauge = half_negative(anatomy)
    for tensor in anatomy.tensors:
        if tensor.alias_of or _in_later_block(tensor.name):
            continue
        ends = {number: _elements(gauge, axis) for number, axis in enumerate(tensor.axes)}
        value = _normal(tensor.shape)
        row = judged(value, gauge, ends, partial(_tensor, anatomy, tensor.name))
        axis = " by ".join(_axis(anatomy, each) for each in tensor.axes)
        yield {
            "about": WEIGHTS,
            "owner": anatomy.architecture,
            "tensor": tensor.name,
            "axis": axis,
            **row,
        }
    if anatomy.norm_kind == NormKind.RMS_NORM:
        yield from _artifacts(anatomy, gauge)


def half_negative(anatomy: Anatomy) -> Gauge:
    """A gauge of the primary stream, G, and of the first feed-forward space, F. Every other sign is
    negative, or all of them where the stream has LayerNorm, whose sign is common.
    """
    stream = anatomy.primary_stack.space
    units = next(space.name for space in anatomy.spaces if space.kind == SpaceKind.FFN)
    elements = {}
    for name, seed in ((stream, 1), (units, 2)):
        size = anatomy.space(name).size
        signs = np.where(np.arange(size) % 2, -1.0, 1.0)
        if name == stream and anatomy.norm_kind == NormKind.LAYER_NORM:
            signs = -np.ones(size)
        elements[name] = Monomial(np.random.default_rng(seed).permutation(size), signs)
    if _gateless(anatomy):
        elements[units] = elements[units].permutation()
    return Gauge(elements)


def _gateless(anatomy: Anatomy) -> bool:
    """Whether all that writes units has an activation, so that no sign passes."""
    writers = [item for item in anatomy.maps if anatomy.space(item.writes).kind == SpaceKind.FFN]
    return all(item.activation for item in writers)


def judged(
    value: torch.Tensor, gauge: Gauge, ends: Mapping[int, tuple[str, Monomial] | None], move: Move
) -> dict[str, Any]:
    """The rule that a move follows, and what leaving its signs out costs. `ends`: of each axis the
    letter and the element of the space that lies along it, if one does. ValueError where it is none
    of the rules.
    """
    moved, even = move(value, gauge), value.sign()
    wrong = move(even, gauge.without_signs()) - move(even, gauge)
    without = float(wrong.square().mean())
    free = [number for number, end in ends.items() if end is not None]
    for signed in product((True, False), repeat=len(free)):
        expected, words = value, {}
        for number, keeps in zip(free, signed, strict=True):
            letter, element = ends[number]  # type: ignore[misc]
            expected = (element if keeps else element.permutation()).apply(expected, number)
            words[number] = letter if keeps else f"|{letter}|"
        if torch.equal(expected, moved):
            return {"rule": _written(words, value.ndim), "without_signs": without}
    raise ValueError("a tensor moves by no rule of signed permutations; mend the rules")


def _written(words: Mapping[int, str], axes: int) -> str:
    """The rule of a tensor X in words: G^T X on its rows, X G on its last axis."""
    if not words:
        return "stays"
    left = "".join(f"{words[number]}^T " for number in range(axes - 1) if number in words)
    right = f" {words[axes - 1]}" if axes - 1 in words else ""
    return f"{left}X{right}"


def _tensor(anatomy: Anatomy, name: str, value: torch.Tensor, gauge: Gauge) -> torch.Tensor:
    return apply_moves(value, tensor_moves(anatomy, gauge)[name])


def _elements(gauge: Gauge, axis: Axis) -> tuple[str, Monomial] | None:
    """The letter and the element of the space along an axis; None where no gauge acts."""
    for letter, (name, element) in zip("GF", gauge.elements.items(), strict=True):
        if axis.role != Role.INDEX and {each.space for each in axis.segments} == {name}:
            assert isinstance(element, Monomial)
            return letter, element
    return None


def _axis(anatomy: Anatomy, axis: Axis) -> str:
    if axis.role == Role.INDEX:
        return "number"
    kinds = dict.fromkeys(str(anatomy.space(each.space).kind) for each in axis.segments)
    return f"{axis.role} {', '.join(kinds)}"


def _in_later_block(name: str) -> bool:
    numbers = [part for part in name.split(".") if part.isdigit()]
    return bool(numbers) and numbers[0] != "0"


def _normal(shape: tuple[int, ...]) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(shape, generator=generator, dtype=torch.float64)


@dataclass(frozen=True, eq=False)
class _Artifact:
    """A tensor of an artifact on the stream: `along` is its axis there, `move` what moves it."""

    owner: str
    tensor: str
    axis: str
    shape: tuple[int, ...]
    along: int | None
    move: Move


def _artifacts(anatomy: Anatomy, gauge: Gauge) -> Iterator[dict[str, Any]]:
    element = gauge.elements[anatomy.primary_stack.space]
    assert isinstance(element, Monomial)
    for each in (*_dictionary(anatomy), *_adapter(anatomy), *_states(anatomy)):
        ends = {
            number: ("G", element) if number == each.along else None
            for number in range(len(each.shape))
        }
        said = {"owner": each.owner, "tensor": each.tensor, "axis": each.axis}
        found = judged(_normal(each.shape), gauge, ends, each.move)
        yield {"about": ARTIFACTS, **said, **found}


def _dictionary(anatomy: Anatomy) -> Iterator[_Artifact]:
    """A steering vector, and the arrays of a sparse autoencoder."""
    stream = anatomy.primary_stack.space
    width = anatomy.space(stream).size

    def direction(value: torch.Tensor, by: Gauge) -> torch.Tensor:
        return moved_vectors(_monomial(by, stream), "direction", value, "rule")

    yield _Artifact("steering vector", "direction", "write", (width,), 0, direction)
    arrays: tuple[tuple[str, tuple[int, ...], int | None, str], ...] = (
        ("W_enc", (width, FEATURES), 0, "read by number"),
        ("b_enc", (FEATURES,), None, "number"),
        ("W_dec", (FEATURES, width), 1, "number by write"),
        ("b_dec", (width,), 0, "write"),
    )
    for name, shape, along, axis in arrays:

        def array(value: torch.Tensor, by: Gauge, name: str = name) -> torch.Tensor:
            return moved_array(_monomial(by, stream), name, value, "rule")

        yield _Artifact("sparse autoencoder", name, axis, shape, along, array)


def _adapter(anatomy: Anatomy) -> Iterator[_Artifact]:
    """Factors of an adapter in the stream: A of a map that reads it, B of one that writes it."""
    stream = anatomy.primary_stack.space
    width = anatomy.space(stream).size
    reader = next(item.weight for item in anatomy.maps if item.reads == stream)
    for part, weight, shape, along, axis in (
        ("lora_A", reader, (RANK, width), 1, "number by read"),
        ("lora_B", _writer(anatomy), (width, RANK), 0, "write by number"),
    ):
        name = f"{PREFIX}{weight.removesuffix('.weight')}.{part}.weight"

        def factor(value: torch.Tensor, by: Gauge, name: str = name) -> torch.Tensor:
            return moved_adapter({name: value}, anatomy, by)[name]

        yield _Artifact("LoRA adapter", f"{part} of {weight}", axis, shape, along, factor)


def _states(anatomy: Anatomy) -> Iterator[_Artifact]:
    """Averages that optimizers keep of a weight that writes the stream."""
    stream = anatomy.primary_stack.space
    weight = anatomy.tensor(_writer(anatomy))
    axis = " by ".join(_axis(anatomy, each) for each in weight.axes)
    along = next(
        number for number, each in enumerate(weight.axes) if each.segments[0].space == stream
    )
    for owner, keys in (("AdamW", (FIRST[0], SECOND[0])), ("SGD with momentum", (FIRST[1],))):
        for key in keys:

            def entry(
                value: torch.Tensor, by: Gauge, key: str = key, keys: tuple[str, ...] = keys
            ) -> torch.Tensor:
                own = Gauge({stream: by.elements[stream]})
                group = {"params": [0], "param_names": [weight.name]}
                state = {"state": {0: dict.fromkeys(keys, value)}, "param_groups": [group]}
                found: torch.Tensor = moved_state(state, anatomy, own)["state"][0][key]
                return found

            named = f"{key} of {weight.name}"
            yield _Artifact(owner, named, axis, weight.shape, along, entry)


def _monomial(gauge: Gauge, space: str) -> Monomial:
    found = gauge.elements[space]
    assert isinstance(found, Monomial)
    return found


def _writer(anatomy: Anatomy) -> str:
    stream = anatomy.primary_stack.space
    return next(item.weight for item in anatomy.maps if item.writes == stream)
