"""Colours refined over a whole model: part by part from tensors whose other axes are settled, and
in full rounds where that stalls.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import torch

from normgauge.anatomy.lookup import cut_apart, stored_name
from normgauge.anatomy.structure import Anatomy
from normgauge.gauge.transform import check_tensors
from normgauge.lineage.colours import (
    State,
    Sums,
    initial,
    is_settled,
    progress,
    refined,
    slot_colours,
)
from normgauge.lineage.layout import Layout, Part, TensorAxis, layout_of, tensors_of
from normgauge.lineage.words import (
    Words,
    axis_sums,
    bits_of,
    mixed,
    named,
    require_numbers,
)

States = Mapping[str, State]


@dataclass(frozen=True, eq=False)
class Model:
    """A checkpoint's distinct tensors by their root names, as bits, and where its coordinates
    lie.
    """

    anatomy: Anatomy
    layout: Layout
    tensors: Mapping[str, torch.Tensor]
    bits: Mapping[str, np.ndarray]

    def parts(self) -> Iterable[Part]:
        return self.layout.parts.values()


def model_of(anatomy: Anatomy, tensors: Mapping[str, torch.Tensor]) -> Model:
    """The tensors that are no copies of others. Raises InputError for NaN, and for a tensor that
    the anatomy lacks or lists with another shape.
    """
    anatomy, tensors = cut_apart(anatomy, tensors)
    layout = layout_of(anatomy)
    roots = {name: tensors[stored_name(anatomy, name, tensors)] for name in layout.axes}
    check_tensors(anatomy, {name: tuple(value.shape) for name, value in roots.items()})
    for name, value in roots.items():
        require_numbers(name, value)
    return Model(anatomy, layout, roots, {name: bits_of(value) for name, value in roots.items()})


def initial_states(model: Model) -> dict[str, State]:
    return {part.name: initial(part) for part in model.parts()}


def settled_states(model: Model, states: States) -> dict[str, State]:
    """The states refined until nothing more is told apart."""
    found = dict(states)
    while True:
        _settle(model, found)
        left = [part for part in model.parts() if not is_settled(part, found[part.name])]
        if not left:
            return found
        grown = {
            part.name: state
            for part, state in zip(left, _round(model, found, left), strict=True)
            if progress(part, state) > progress(part, found[part.name])
        }
        if not grown:
            return found
        found |= grown


def _settle(model: Model, states: dict[str, State]) -> None:
    """Settle, in place, every part that the settled ones settle."""
    settled = {part.name for part in model.parts() if is_settled(part, states[part.name])}
    tried: dict[str, frozenset[str]] = {}
    changed = True
    while changed:
        changed = False
        for part in model.parts():
            known = settled & _neighbours(model, part.name)
            if part.name in settled or tried.get(part.name) == known:
                continue
            tried[part.name] = frozenset(known)
            state = _grown(part, states[part.name], _sums(model, states, part, settled))
            states[part.name] = state
            if is_settled(part, state):
                settled.add(part.name)
                changed = True


def _grown(part: Part, state: State, sums: Sums) -> State:
    """The state refined by the same sums as long as that tells more apart: a layer's heads and
    coordinates tell each other apart. Signs that other sums had determined are never given up.
    """
    while True:
        found = refined(part, state, sums)
        if progress(part, found) <= progress(part, state):
            return state
        state = found


def _neighbours(model: Model, part: str) -> set[str]:
    return {
        axis.part
        for name, _ in tensors_of(model.layout, part)
        for axis in model.layout.axes[name]
        if axis.part is not None
    }


def _round(model: Model, states: States, parts: Iterable[Part]) -> list[State]:
    """All these parts refined by all tensors at once."""
    everything = set(model.layout.parts)
    return [
        refined(part, states[part.name], _sums(model, states, part, everything)) for part in parts
    ]


def _sums(model: Model, states: States, part: Part, known: set[str]) -> Sums:
    """What the tensors say of a part's slots, as far as their other axes lie in `known` parts."""
    even, odd = (np.zeros(model.layout.slots, dtype=np.uint64) for _ in range(2))
    for name, number in tensors_of(model.layout, part.name):
        axes = model.layout.axes[name]
        others = [axis for place, axis in enumerate(axes) if place != number]
        if not all(axis.part is None or axis.part in known for axis in others):
            continue
        own = axes[number]
        blind = not any(axis.signed for axis in axes)
        colours = [_axis_colours(model, states, axis) for axis in others]
        odds = [
            pair[1] if axis.signed else pair[0] for pair, axis in zip(colours, others, strict=True)
        ]
        found, found_odd = axis_sums(
            model.bits[name], number, [pair[0] for pair in colours], None if blind else odds
        )
        salt = mixed(named(f"{name} {number}"), own.occurrence)
        if found_odd is None:
            found = mixed(found, salt)
        elif own.signed:
            found = mixed(found, salt)
            np.add.at(odd, own.slots, found_odd * (salt | np.uint64(1)))
        else:
            found = mixed(found, found_odd, salt)
        np.add.at(even, own.slots, found)
    return Sums(even, odd)


def _axis_colours(model: Model, states: States, axis: TensorAxis) -> tuple[Words, Words]:
    """Even and odd colours along an axis."""
    even = axis.places
    odd = even
    if axis.part is not None:
        even, odd = even.copy(), even.copy()
        runs = slot_colours(model.layout.parts[axis.part], states[axis.part])
        for first, (run_even, run_odd) in runs.items():
            here = (axis.slots >= first) & (axis.slots < first + len(run_even))
            places = axis.slots[here] - first
            even[here], odd[here] = run_even[places], run_odd[places]
    if axis.occurrence.any():
        factor = mixed(axis.occurrence, 12) | np.uint64(1)
        even, odd = even * factor, odd * factor
    return even, odd
