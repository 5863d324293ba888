"""What the classes of a family share, its body, and the heads that one class has and another
lacks.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from normgauge.anatomy.structure import (
    Anatomy,
    Axis,
    LinearMap,
    Norm,
    Role,
    Segment,
    Space,
    SpaceKind,
    Tensor,
)

Shape = tuple[int, ...]
Describe = Callable[[Any], Anatomy]


def base_prefix(anatomy: Anatomy, bare: Anatomy) -> str:
    """What the class puts before the names of the bare class, `bert.` or nothing."""
    return anatomy.stacks[0].blocks[0].removesuffix(bare.stacks[0].blocks[0])


def body_parts(anatomy: Anatomy, others: tuple[Anatomy, ...]) -> frozenset[str]:
    """First components, after the prefix, of the tensors that make the body of a class.

    They are those that all `others`, the family's classes with the bare one first, have, and those
    of the class's own streams.
    """
    bare = others[0]
    shared = frozenset.intersection(
        *(_parts(other, bare, (item.name for item in other.tensors)) for other in others)
    )
    modules = [
        name for stack in anatomy.stacks for name in (*stack.blocks, stack.terminal_norm) if name
    ]
    return shared | _parts(anatomy, bare, modules)


def _parts(anatomy: Anatomy, bare: Anatomy, names: Any) -> frozenset[str]:
    prefix = base_prefix(anatomy, bare)
    return frozenset(
        name.removeprefix(prefix).partition(".")[0] for name in names if name.startswith(prefix)
    )


def siblings(
    config: Any, classes: tuple[str, ...], describe: Describe, labels: tuple[int, ...] = ()
) -> Iterator[Anatomy]:
    """The anatomies of these classes for a config, poolers included, and again for other numbers of
    labels.
    """
    if len(classes) == 1:
        yield describe(config)
        return
    for name in classes:
        changed = copy.deepcopy(config)
        changed.architectures, changed.add_pooling_layer = [name], True
        anatomy = describe(changed)
        yield anatomy
        if any(
            space.name == "labels" and space.size == config.num_labels for space in anatomy.spaces
        ):
            for number in labels:
                changed.num_labels = number
                yield describe(changed)


def with_heads(
    anatomy: Anatomy, others: tuple[Anatomy, ...], shapes: Mapping[str, Shape]
) -> Anatomy:
    """The anatomy with those tensors of `shapes` added whose axes another class of the family
    states.

    anatomy: of the class that is opened. others: the family's classes, the bare one first. shapes:
    of the stored tensors that the class lacks, by name. A class speaks for a head when all its
    tensors that the opened class lacks are stored with its shapes. Where two such classes disagree
    on a tensor (a classifier that reads the pooler in one and the stream in the other), its axes
    are not known, and it is not added.
    """
    bare = others[0]
    own = _by_plain_name(anatomy, bare)
    stored = {_plain(name, anatomy, bare): name for name in shapes}
    heads = [
        _renamed(other, bare, own, stored)
        for other in others
        if _speaks(other, bare, own, stored, shapes)
    ]
    known: dict[str, Tensor] = {}
    disputed: set[str] = set()
    for head in heads:
        for tensor in head.tensors:
            if tensor.name in shapes:
                first = known.setdefault(tensor.name, tensor)
                disputed |= {tensor.name} if first.axes != tensor.axes else set()
    kept = {name: tensor for name, tensor in known.items() if name not in disputed}
    return _extended(anatomy, heads, kept)


def _plain(name: str, anatomy: Anatomy, bare: Anatomy) -> str:
    """A name as the bare class would have it."""
    return name.removeprefix(base_prefix(anatomy, bare))


def _by_plain_name(anatomy: Anatomy, bare: Anatomy) -> dict[str, str]:
    return {_plain(tensor.name, anatomy, bare): tensor.name for tensor in anatomy.tensors}


def _speaks(
    other: Anatomy,
    bare: Anatomy,
    own: Mapping[str, str],
    stored: Mapping[str, str],
    shapes: Mapping[str, Shape],
) -> bool:
    lacked = {
        _plain(tensor.name, other, bare): tensor
        for tensor in other.tensors
        if _plain(tensor.name, other, bare) not in own
    }
    needed = {
        plain: tensor
        for plain, tensor in lacked.items()
        if plain in stored or tensor.alias_of is None
    }
    return bool(needed) and all(
        plain in stored and shapes[stored[plain]] == tensor.shape
        for plain, tensor in needed.items()
    )


def _renamed(
    other: Anatomy, bare: Anatomy, own: Mapping[str, str], stored: Mapping[str, str]
) -> Anatomy:
    """Another class's tensors, maps and norms under the names of the opened class and of its unused
    tensors.
    """

    def tensor(name: str | None) -> str | None:
        plain = None if name is None else _plain(name, other, bare)
        return own.get(plain or "") or stored.get(plain or "") or name

    def module(name: str, parameter: str | None) -> str:
        return (tensor(parameter) or name).rpartition(".")[0] if parameter else name

    norm_names = {norm.name: module(norm.name, norm.gain) for norm in other.norms}
    return replace(
        other,
        tensors=tuple(
            replace(item, name=str(tensor(item.name)), alias_of=tensor(item.alias_of))
            for item in other.tensors
        ),
        norms=tuple(
            replace(
                norm, name=norm_names[norm.name], gain=tensor(norm.gain), bias=tensor(norm.bias)
            )
            for norm in other.norms
        ),
        maps=tuple(
            replace(
                item,
                module=module(item.module, item.weight),
                weight=str(tensor(item.weight)),
                bias=tensor(item.bias),
                norm=norm_names.get(item.norm or ""),
            )
            for item in other.maps
        ),
    )


def _extended(anatomy: Anatomy, heads: list[Anatomy], kept: Mapping[str, Tensor]) -> Anatomy:
    maps: dict[str, LinearMap] = {}
    norms: dict[str, Norm] = {}
    spaces: dict[str, Space] = {}
    for head in heads:
        maps |= {item.weight: item for item in head.maps if item.weight in kept}
        norms |= {norm.name: norm for norm in head.norms if norm.gain in kept}
        named = {
            segment.space
            for tensor in kept.values()
            for axis in tensor.axes
            for segment in axis.segments
        }
        spaces |= {space.name: space for space in head.spaces if space.name in named}
    known = {space.name for space in anatomy.spaces}
    every = (*anatomy.maps, *maps.values())
    return replace(
        anatomy,
        tensors=(*anatomy.tensors, *kept.values()),
        maps=every,
        norms=tuple(
            replace(norm, feeds=tuple(item.name for item in every if item.norm == norm.name))
            for norm in (*anatomy.norms, *norms.values())
        ),
        spaces=(*anatomy.spaces, *(space for name, space in spaces.items() if name not in known)),
    )


def with_unread(anatomy: Anatomy, shapes: Mapping[str, Shape]) -> Anatomy:
    """The anatomy with these tensors added as tables that no gauge moves: what they read is not
    known.
    """
    spaces = {
        f"{name}, axis {number}": size
        for name, shape in shapes.items()
        for number, size in enumerate(shape)
    }
    tensors = tuple(
        Tensor(
            name,
            tuple(
                Axis(Role.INDEX, (Segment(f"{name}, axis {number}", 0, size),))
                for number, size in enumerate(shape)
            ),
        )
        for name, shape in shapes.items()
    )
    return replace(
        anatomy,
        tensors=(*anatomy.tensors, *tensors),
        spaces=(
            *anatomy.spaces,
            *(Space(name, SpaceKind.OTHER, size) for name, size in spaces.items()),
        ),
    )


def reads_vocabulary_or_nothing(anatomy: Anatomy) -> bool:
    """Whether the class has no label head, or one beside a readout of the vocabulary (BERT's
    pre-training).
    """
    vocabulary = {space.name for space in anatomy.spaces if space.kind == SpaceKind.VOCABULARY}
    labelled = any(space.name == "labels" for space in anatomy.spaces)
    return not labelled or any(item.writes in vocabulary for item in anatomy.maps)
