"""The canonical form of a checkpoint: one representative of all its copies under discrete gauges,
the same bytes whichever copy it is made from (docs/design/lineage.md).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import torch

from normgauge.anatomy.structure import Anatomy
from normgauge.gauge.groups import AttentionGauge, Element, Monomial
from normgauge.gauge.model_gauge import Gauge
from normgauge.gauge.transform import transform_unchecked
from normgauge.lineage.colours import Heads, Plain, State
from normgauge.lineage.layout import Coordinates, HeadCoordinates, Part
from normgauge.lineage.refinement import (
    Model,
    States,
    initial_states,
    model_of,
    settled_states,
)
from normgauge.lineage.ties import Cell, Index, cells_of, chosen, is_trivial, target_cell

LEAVES = 256  # forms that are tried before a tie counts as not decided


@dataclass(frozen=True, eq=False)
class Canonical:
    """The form of a class. sha256: of its tensors, by root name, dtype, shape and bytes. gauge:
    leads from the given copy to the form. proven: whether every tie was decided; if not, unequal
    hashes say nothing. leaves: forms that were compared.
    """

    sha256: str
    gauge: Gauge
    proven: bool
    leaves: int


def canonical(
    anatomy: Anatomy, tensors: Mapping[str, torch.Tensor], leaves: int = LEAVES
) -> Canonical:
    """The canonical form of a model.

    tensors: by the names of the class, tied ones once or twice. leaves: the budget of forms that
    ties may cost. Floats are moved and negated, never rounded; -0.0 becomes 0.0. Raises InputError
    for NaN, and for a tensor that the anatomy lacks or lists with another shape.
    """
    search = _Search(model_of(anatomy, tensors), leaves)
    found = search.best(initial_states(search.model), ())
    return Canonical(found.digest, found.gauge, search.proven, search.count)


def canonical_tensors(
    anatomy: Anatomy, tensors: Mapping[str, torch.Tensor], gauge: Gauge
) -> dict[str, torch.Tensor]:
    """The tensors moved by the gauge that leads to the form, with 0.0 for -0.0."""
    return {
        name: positive_zeros(value) for name, value in transform_unchecked(anatomy, tensors, gauge)
    }


def positive_zeros(value: torch.Tensor) -> torch.Tensor:
    """The values with 0.0 for -0.0, bit by bit else."""
    return torch.where(value == 0, torch.zeros_like(value), value)


def digest_of(tensors: Mapping[str, torch.Tensor]) -> str:
    """sha256 over tensors in the order of their names: name, dtype, shape and bytes."""
    digest = hashlib.sha256()
    for name in sorted(tensors):
        value = tensors[name].contiguous()
        digest.update(f"{name} {value.dtype} {list(value.shape)}\n".encode())
        digest.update(value.view(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


@dataclass(frozen=True, eq=False)
class _Leaf:
    """A form that was reached. ranks: where what was chosen on the way lies in it."""

    digest: str
    gauge: Gauge
    ranks: tuple[tuple[int, ...], ...]


Choice = tuple[Cell, Index, int]


@dataclass
class _Search:
    """Individualisation and refinement: the smallest form over all choices.

    A choice is skipped where its first form is one that was seen, with everything chosen so far at
    the same place: then an automorphism fixes the choices before and leads from one choice to the
    other.
    """

    model: Model
    budget: int
    proven: bool = True
    count: int = 0
    parts: tuple[str, ...] = field(init=False)

    def __post_init__(self) -> None:
        self.parts = tuple(self.model.layout.parts)

    def best(self, states: States, path: tuple[Choice, ...]) -> _Leaf:
        return min(self._explore(states, path), key=lambda leaf: leaf.digest)

    def _explore(self, states: States, path: tuple[Choice, ...]) -> list[_Leaf]:
        states = self._closed(states)
        cell = self._target(states)
        if cell is None:
            return [self._leaf(states, path)]
        found: list[_Leaf] = []
        for member in cell.members:
            for way in cell.ways:
                taken = (*path, (cell, member, way))
                child = self._chosen(states, cell, member, way)
                if found and self._seen(self._first(child, taken), found, len(taken)):
                    continue
                if found and self.count >= self.budget:
                    self.proven = False
                    return found
                found += self._explore(child, taken)
        return found

    def _first(self, states: States, path: tuple[Choice, ...]) -> _Leaf:
        """The form at the end of the first choices."""
        while True:
            states = self._closed(states)
            cell = self._target(states)
            if cell is None:
                return self._leaf(states, path)
            choice = (cell, cell.members[0], cell.ways[0])
            states, path = self._chosen(states, *choice), (*path, choice)

    @staticmethod
    def _seen(leaf: _Leaf, found: list[_Leaf], depth: int) -> bool:
        key = (leaf.digest, leaf.ranks[:depth])
        return any((each.digest, each.ranks[:depth]) == key for each in found)

    def _chosen(self, states: States, cell: Cell, member: Index, way: int) -> States:
        return {**states, cell.part: chosen(states[cell.part], cell, member, way)}

    def _cells(self, states: States) -> list[Cell]:
        return [cell for part in self.model.parts() for cell in cells_of(part, states[part.name])]

    def _target(self, states: States) -> Cell | None:
        return target_cell(self._cells(states), self.parts)

    def _closed(self, states: States) -> States:
        """Refined, with members told apart, in any order, where exchanging them changes nothing."""
        while True:
            states = settled_states(self.model, states)
            changed = dict(states)
            broken = 0
            for part in self.model.parts():
                for cell in cells_of(part, states[part.name]):
                    if is_trivial(self.model, part, changed[part.name], cell):
                        changed[part.name] = _broken(changed[part.name], cell)
                        broken += 1
            if not broken:
                return states
            states = changed

    def _leaf(self, states: States, path: tuple[Choice, ...]) -> _Leaf:
        self.count += 1
        gauge = Gauge(
            {part.name: element_of(part, states[part.name]) for part in self.model.parts()}
        )
        moved = canonical_tensors(self.model.anatomy, self.model.tensors, gauge)
        return _Leaf(digest_of(moved), gauge, tuple(_rank(gauge, choice) for choice in path))


def _broken(state: State, cell: Cell) -> State:
    for word, member in enumerate(cell.members, start=2):
        state = chosen(state, cell, member, cell.ways[0], word)
    return state


def _rank(gauge: Gauge, choice: Choice) -> tuple[int, ...]:
    """Where a chosen member, turned as it was chosen, lies in a form."""
    cell, member, way = choice
    element = gauge.elements[cell.part]
    if isinstance(element, Monomial):
        turned = () if cell.kind == "even" else (int(element.factors[member[0]]) * way,)
        return (int(element.target[member[0]]), *turned)
    assert isinstance(element, AttentionGauge)
    group = int(element.group_order[member[0]])
    if cell.kind == "group":
        return (group,)
    if cell.kind == "head":
        return (group, int(element.head_order[member]))
    maps = (element.value_maps if cell.kind.startswith("value") else element.query_maps)[member[0]]
    if cell.kind == "turn":
        place = member[1] + (member[2] if way % 2 else 0)
        row = maps[place] * (1 if way < 2 else -1)
        return (group, *row.astype(int).tolist())
    place = int(np.abs(maps[member[1]]).argmax())
    turned = (int(maps[member[1], place]) * way,) if cell.kind.endswith("sign") else ()
    return (group, place, *turned)


def element_of(part: Part, state: State) -> Element:
    """The gauge of a part that brings it into the order of its colours and the signs of its odd
    ones.
    """
    if isinstance(part, Coordinates):
        assert isinstance(state, Plain)
        return Monomial(_ranks(state.even), np.where(state.sign < 0, -1.0, 1.0))
    assert isinstance(state, Heads)
    values = np.stack(
        [
            _matrix(_ranks(even), sign)
            for even, sign in zip(state.value, state.value_sign, strict=True)
        ]
    )
    queries = np.stack([_query_map(part, state, group) for group in range(part.groups)])
    heads = np.stack([_ranks(row) for row in state.head])
    return AttentionGauge(_ranks(state.group), heads, queries, values)


def _ranks(words: np.ndarray) -> np.ndarray:
    ranks = np.empty(len(words), dtype=np.int64)
    ranks[np.argsort(words, kind="stable")] = np.arange(len(words))
    return ranks


def _matrix(target: np.ndarray, sign: np.ndarray) -> np.ndarray:
    matrix = np.zeros((len(target), len(target)))
    matrix[np.arange(len(target)), target] = np.where(sign < 0, -1.0, 1.0)
    return matrix


def _query_map(part: HeadCoordinates, state: Heads, group: int) -> np.ndarray:
    """Rotary pairs keep their place and turn; all others move by their rank."""
    half, turned = part.rotary // 2, part.rotary
    target, sign = np.arange(part.query_size), state.query_sign[group]
    moved = state.turn[group] % 2 == 1
    target[:half], target[half:turned] = (
        np.where(moved, target[half:turned], target[:half]),
        np.where(moved, target[:half], target[half:turned]),
    )
    target[turned:] = turned + _ranks(state.query[group, turned:])
    return _matrix(target, sign)
