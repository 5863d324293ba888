"""Where the coordinates of every space lie on the axes of the stored tensors, numbered through.

A slot is a coordinate as tensors see it. A value coordinate has one slot where it is written and,
with several query heads in a group, one more per head where the output projection reads it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from normgauge.anatomy.lookup import gate_runs
from normgauge.anatomy.structure import Anatomy, Axis, Role, Space, SpaceKind
from normgauge.gauge.admissible import Group, QueryMaps, admissible, gauge_spaces
from normgauge.gauge.model_gauge import HEAD_SPACES, attention_of
from normgauge.lineage.words import Words, mixed

SIGNED = (Group.COMMON_SIGN, Group.SIGNED_PERMUTATION, Group.MONOMIAL, Group.ATTENTION)


@dataclass(frozen=True, eq=False)
class TensorAxis:
    """One axis of a stored tensor: int64 (size,) slots, which time each occurs there, and whether
    signs act on the axis.

    `part`: the name of what moves there, None where nothing does.
    """

    slots: np.ndarray
    occurrence: np.ndarray
    signed: bool
    part: str | None

    @cached_property
    def places(self) -> Words:
        """The colours of its slots where nothing moves them."""
        return mixed(self.slots, 11)


@dataclass(frozen=True)
class Coordinates:
    """A space that moves by itself: its slots are `first`, first + 1, ..."""

    name: str
    group: Group
    first: int
    size: int


@dataclass(frozen=True)
class HeadCoordinates:
    """An attention layer: G groups of R query heads; slots by their first number.

    Queries (G, R, d), keys (G, d), values (G, v), and, where R > 1, what the output projection
    reads (G, R, v), else None. `rotary`: coordinates of a head that turn in pairs.
    """

    name: str
    maps: QueryMaps
    heads_move: bool
    groups: int
    repeats: int
    query_size: int
    value_size: int
    rotary: int
    query: int
    key: int
    value: int
    read: int | None

    @property
    def stop(self) -> int:
        last = self.value + self.groups * self.value_size
        return last if self.read is None else self.read + self._read_size

    @property
    def _read_size(self) -> int:
        return self.groups * self.repeats * self.value_size

    def arrange(self, slots: np.ndarray) -> tuple[np.ndarray, ...]:
        """Numbers by slot as (G, R, d) of queries, (G, d) of keys, (G, v) of values, (G, R, v) of
        what is read (R = 0 there where it has no slots of its own).
        """
        groups, repeats = self.groups, self.repeats
        query = slots[self.query : self.query + groups * repeats * self.query_size]
        key = slots[self.key : self.key + groups * self.query_size]
        value = slots[self.value : self.value + groups * self.value_size]
        read = slots[:0] if self.read is None else slots[self.read : self.stop]
        return (
            query.reshape(groups, repeats, self.query_size),
            key.reshape(groups, self.query_size),
            value.reshape(groups, self.value_size),
            read.reshape(groups, -1, self.value_size),
        )


Part = Coordinates | HeadCoordinates


@dataclass(frozen=True, eq=False)
class Layout:
    """All axes by tensor, the parts that move, and the number of slots.

    `fixed`: names of the slots that nothing moves, from `first_fixed` on, one run per name.
    """

    axes: Mapping[str, tuple[TensorAxis, ...]]
    parts: Mapping[str, Part]
    fixed: Mapping[str, tuple[int, int]]
    slots: int


def layout_of(anatomy: Anatomy) -> Layout:
    """The layout of all tensors that are no copies of others."""
    parts, stop = _parts(anatomy)
    fixed: dict[str, tuple[int, int]] = {}
    for space in anatomy.spaces:
        if _part_of(space, parts) is None:
            fixed[space.name] = (stop, space.size)
            stop += space.size
    gates = gate_runs(anatomy)
    axes = {}
    for tensor in anatomy.tensors:
        if tensor.alias_of is None:
            found = []
            for axis in tensor.axes:
                name = f"axis of {axis.size}"
                if _is_fixed(anatomy, axis, parts) and name not in fixed:
                    fixed[name] = (stop, axis.size)
                    stop += axis.size
                found.append(_axis(anatomy, axis, parts, fixed, tensor.name in gates))
            axes[tensor.name] = tuple(found)
    return Layout(axes, parts, fixed, stop)


def _parts(anatomy: Anatomy) -> tuple[dict[str, Part], int]:
    parts: dict[str, Part] = {}
    stop = 0
    for name in gauge_spaces(anatomy):
        rule = admissible(anatomy, name)
        if rule.group == Group.ATTENTION:
            parts[name] = part = _heads(anatomy, name, stop)
            stop = part.stop
        else:
            parts[name] = Coordinates(name, rule.group, stop, rule.size)
            stop += rule.size
    return parts, stop


def _heads(anatomy: Anatomy, name: str, first: int) -> HeadCoordinates:
    rule = admissible(anatomy, name)
    query, key, value = (
        anatomy.space(f"{name.removesuffix('attention')}{kind}") for kind in HEAD_SPACES
    )
    groups, repeats = key.heads, query.heads // key.heads
    rotary = 0 if rule.query_maps == QueryMaps.GENERAL else anatomy.rotary_size
    after_query = first + query.size
    after_key = after_query + key.size
    after_value = after_key + value.size
    return HeadCoordinates(
        name,
        rule.query_maps,
        rule.heads_move,
        groups,
        repeats,
        query.size // query.heads,
        value.size // value.heads,
        rotary,
        first,
        after_query,
        after_key,
        after_value if repeats > 1 else None,
    )


def _part_of(space: Space, parts: Mapping[str, Part]) -> Part | None:
    return parts.get(attention_of(space.name) if space.kind in HEAD_SPACES else space.name)


def _is_fixed(anatomy: Anatomy, axis: Axis, parts: Mapping[str, Part]) -> bool:
    """Whether nothing moves the axis: an index, a space that stays, or the gain of a query or key
    norm, which the heads share.
    """
    if axis.role == Role.INDEX:
        return True
    spaces = {segment.space: 0 for segment in axis.segments}
    for segment in axis.segments:
        spaces[segment.space] += segment.stop - segment.start
    return all(
        _part_of(anatomy.space(name), parts) is None
        or (anatomy.space(name).kind in HEAD_SPACES and length < anatomy.space(name).size)
        for name, length in spaces.items()
    )


def _axis(
    anatomy: Anatomy,
    axis: Axis,
    parts: Mapping[str, Part],
    fixed: Mapping[str, tuple[int, int]],
    gate: bool,
) -> TensorAxis:
    if _is_fixed(anatomy, axis, parts):
        first, _ = fixed[f"axis of {axis.size}"]
        slots = np.arange(first, first + axis.size)
        return TensorAxis(slots, np.zeros_like(slots), False, None)
    slots = np.concatenate(
        [_run(anatomy, axis, number, parts, fixed) for number in range(len(axis.segments))]
    )
    part = next(
        part
        for segment in axis.segments
        if (part := _part_of(anatomy.space(segment.space), parts)) is not None
    )
    group = part.group if isinstance(part, Coordinates) else Group.ATTENTION
    signed = group in SIGNED and axis.role in (Role.READ, Role.WRITE)
    if gate and any(
        anatomy.space(segment.space).kind == SpaceKind.FFN for segment in axis.segments
    ):
        signed = False
    return TensorAxis(slots, _occurrences(slots), signed, part.name)


def _run(
    anatomy: Anatomy,
    axis: Axis,
    number: int,
    parts: Mapping[str, Part],
    fixed: Mapping[str, tuple[int, int]],
) -> np.ndarray:
    segment = axis.segments[number]
    space = anatomy.space(segment.space)
    part = _part_of(space, parts)
    steps = np.arange(segment.start, segment.stop)
    if part is None:
        return fixed[space.name][0] + steps
    if isinstance(part, Coordinates):
        return part.first + steps
    if space.kind == SpaceKind.VALUE and axis.role == Role.READ and part.read is not None:
        # one run per query head, in the order of the heads
        return part.read + number * part.value_size + np.arange(len(steps))
    return {SpaceKind.QUERY: part.query, SpaceKind.KEY: part.key, SpaceKind.VALUE: part.value}[
        space.kind
    ] + steps


def _occurrences(slots: np.ndarray) -> np.ndarray:
    """Of each slot, how often it stood on the axis before."""
    if len(np.unique(slots)) == len(slots):
        return np.zeros_like(slots)
    seen: dict[int, int] = {}
    found = np.empty_like(slots)
    for place, slot in enumerate(slots.tolist()):
        found[place] = seen[slot] = seen.get(slot, -1) + 1
    return found


def common_sign(part: Part) -> bool:
    """Whether all coordinates share one sign."""
    return isinstance(part, Coordinates) and part.group == Group.COMMON_SIGN


def tensors_of(layout: Layout, part: str) -> Sequence[tuple[str, int]]:
    """Tensor and number of every axis on which a part lies."""
    return [
        (name, number)
        for name, axes in layout.axes.items()
        for number, axis in enumerate(axes)
        if axis.part == part
    ]
