"""Coordinates, heads and groups that refinement leaves alike: which of them are truly
interchangeable, and what to choose where they are not.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from normgauge.gauge.admissible import Group, QueryMaps
from normgauge.lineage.colours import FLIPS, TURNS, Heads, Plain, State
from normgauge.lineage.layout import Coordinates, HeadCoordinates, Part
from normgauge.lineage.refinement import Model
from normgauge.lineage.words import mixed

CHOSEN = np.uint64(0x5851F42D4C957F2D)
Index = tuple[int, ...]


@dataclass(frozen=True)
class Cell:
    """Members of a part that look alike, or the ways in which one that is open can be turned.

    kind: even, sign, group, head, query, value, query_sign, value_sign or turn. members: index
    arrays of the state's colours; of an open sign or turn one. ways: orientations to choose from.
    colour: the colour they share, which orders the cells.
    """

    part: str
    kind: str
    members: tuple[Index, ...]
    colour: int
    ways: tuple[int, ...] = (1,)


ORDER = ("group", "head", "even", "query", "value", "sign", "query_sign", "value_sign", "turn")


def cells_of(part: Part, state: State) -> list[Cell]:
    """All cells of a part, coordinates before heads before groups."""
    if isinstance(part, Coordinates):
        assert isinstance(state, Plain)
        return list(_plain_cells(part, state))
    assert isinstance(state, Heads)
    return list(_head_cells(part, state))


def _plain_cells(part: Coordinates, state: Plain) -> Iterator[Cell]:
    yield from (
        Cell(part.name, "even", tuple((each,) for each in members), colour)
        for colour, members in _alike(state.even)
    )
    if part.group == Group.COMMON_SIGN:
        if not state.sign.all():
            yield Cell(part.name, "sign", ((0,),), 0, (1, -1))
        return
    for place in np.flatnonzero(state.sign == 0):
        yield Cell(part.name, "sign", ((int(place),),), int(state.even[place]), (1, -1))


def _head_cells(part: HeadCoordinates, state: Heads) -> Iterator[Cell]:
    half, free = part.rotary // 2, part.rotary
    in_group = mixed(state.group)
    for group in range(part.groups):
        own = int(in_group[group])
        for kind, words, first in (
            ("query", state.query[group], free),
            ("value", state.value[group], 0),
            ("head", state.head[group], 0),
        ):
            for colour, members in _alike(words[first:]):
                places = tuple((group, first + each) for each in members)
                yield Cell(part.name, kind, places, colour ^ own)
        for kind, signs, first in (
            ("query_sign", state.query_sign[group], free),
            ("value_sign", state.value_sign[group], 0),
        ):
            for place in np.flatnonzero(signs[first:] == 0) + first:
                words = state.query if kind == "query_sign" else state.value
                colour = int(words[group, place]) ^ own
                yield Cell(part.name, kind, ((group, int(place)),), colour, (1, -1))
        ways = FLIPS if part.maps == QueryMaps.SIGNS else TURNS
        for pair in np.flatnonzero(state.turn[group] < 0):
            colour = int(state.query[group, pair]) ^ own
            yield Cell(part.name, "turn", ((group, int(pair), half),), colour, ways)
    for colour, members in _alike(state.group):
        yield Cell(part.name, "group", tuple((each,) for each in members), colour)


def _alike(words: np.ndarray) -> Iterator[tuple[int, list[int]]]:
    values, inverse, counts = np.unique(words, return_inverse=True, return_counts=True)
    for number in np.flatnonzero(counts > 1):
        yield int(values[number]), np.flatnonzero(inverse == number).tolist()


def chosen(state: State, cell: Cell, member: Index, way: int = 1, word: int = 1) -> State:
    """The state with one member of a cell told apart, or an open sign or turn chosen."""
    mark = mixed(CHOSEN, word)
    if isinstance(state, Plain):
        if cell.kind == "even":
            return replace(state, even=_marked(state.even, member, mark))
        return replace(state, seed=_seeded(state.seed, member, way))
    if cell.kind in ("group", "head", "query", "value"):
        words = _marked(getattr(state, cell.kind), member, mark)
        return replace(state, **{cell.kind: words})
    if cell.kind == "turn":
        group, pair, half = member
        place = pair if way % 2 == 0 else pair + half
        seed = _seeded(state.query_seed, (group, place), 1 if way < 2 else -1)
        return replace(state, query_seed=seed)
    field = cell.kind.replace("_sign", "_seed")
    return replace(state, **{field: _seeded(getattr(state, field), member, way)})


def _marked(words: np.ndarray, member: Index, mark: np.ndarray) -> np.ndarray:
    changed = words.copy()
    changed[member] = mixed(words[member], mark)
    return changed


def _seeded(seeds: np.ndarray, member: Index, way: int) -> np.ndarray:
    changed = seeds.copy()
    # an odd number below 2^63: its sign is determined whatever the sum that it is added to, 0 here
    word = np.uint64(0x2545F4914F6CDD1D)
    changed[member] = word if way > 0 else np.uint64(2**64 - int(word))
    return changed


def is_trivial(model: Model, part: Part, state: State, cell: Cell) -> bool:
    """Whether exchanging the members, or turning the open one, changes no stored value."""
    if cell.kind in ("sign", "query_sign", "value_sign", "turn"):
        slots = np.array([_open_slots(part, cell)])
        return _compare(model, part, slots, np.ones(slots.shape), zero=True)
    if cell.kind == "group" and not _told_apart(state, cell):
        return False
    pairs = [_object(part, state, cell.kind, member) for member in cell.members]
    slots, signs = (np.stack(each) for each in zip(*pairs, strict=True))
    return _compare(model, part, slots, np.where(signs == 0, 1, signs), zero=False)


def _told_apart(state: State, cell: Cell) -> bool:
    """Whether nothing inside the groups of a cell is open."""
    assert isinstance(state, Heads)
    for (group,) in cell.members:
        rows = (state.head[group], state.query[group], state.value[group])
        signs = state.query_sign[group].all() and state.value_sign[group].all()
        if not signs or any(len(np.unique(row)) < len(row) for row in rows):
            return False
    return True


def _open_slots(part: Part, cell: Cell) -> np.ndarray:
    if isinstance(part, Coordinates):
        if part.group == Group.COMMON_SIGN:
            return np.arange(part.first, part.first + part.size)
        return np.array([part.first + cell.members[0][0]])
    query, key, value, read = part.arrange(np.arange(part.stop))
    group, place = cell.members[0][:2]
    if cell.kind == "value_sign":
        return np.append(read[group, :, place], value[group, place])
    places = [place, place + cell.members[0][2]] if cell.kind == "turn" else [place]
    return np.concatenate([key[group, places], query[group][:, places].ravel()])


def _object(part: Part, state: State, kind: str, member: Index) -> tuple[np.ndarray, np.ndarray]:
    """Slots of a coordinate, head or group in an order of its own, and their signs."""
    if isinstance(part, Coordinates):
        assert isinstance(state, Plain)
        return np.array([part.first + member[0]]), state.sign[list(member)]
    assert isinstance(state, Heads)
    query, key, value, read = part.arrange(np.arange(part.stop))
    group = member[0]
    if kind in ("query", "value"):
        own, many = (key, query) if kind == "query" else (value, read)
        signs = state.query_sign if kind == "query" else state.value_sign
        slots = np.append(many[group, :, member[1]], own[group, member[1]])
        return slots, np.full(len(slots), signs[group, member[1]])
    orders = np.argsort(state.query[group]), np.argsort(state.value[group])
    signs_of = [
        signs[group, order]
        for signs, order in zip((state.query_sign, state.value_sign), orders, strict=True)
    ]
    heads = [member[1]] if kind == "head" else np.argsort(state.head[group])
    runs = [(query[group, head, orders[0]], signs_of[0]) for head in heads]
    if read.size:
        runs += [(read[group, head, orders[1]], signs_of[1]) for head in heads]
    if kind == "group":
        runs += [(key[group, orders[0]], signs_of[0]), (value[group, orders[1]], signs_of[1])]
    return (
        np.concatenate([each for each, _ in runs]),
        np.concatenate([each for _, each in runs]),
    )


def _compare(model: Model, part: Part, slots: np.ndarray, signs: np.ndarray, zero: bool) -> bool:
    """Whether the stored values at the slots (objects, m), times the signs, agree over the objects;
    with `zero`, whether they are their own negatives.
    """
    for name, axes in model.layout.axes.items():
        own = [number for number, axis in enumerate(axes) if axis.part == part.name]
        if len(own) > 1:
            return False
        for number in own:
            axis = axes[number]
            if zero and not axis.signed:
                continue
            for copy in np.unique(axis.occurrence):
                places = _places(model, axis.slots, axis.occurrence == copy, slots)
                value = model.tensors[name].movedim(number, 0)
                if not places.size:
                    continue
                flat = torch.from_numpy(places.ravel())
                rows = value.index_select(0, flat).reshape(*places.shape, -1)
                if zero:
                    if bool(rows.any()):
                        return False
                    continue
                if axis.signed:
                    kept = _kept(model, axis.slots, axis.occurrence == copy, slots, signs)
                    rows = rows * torch.from_numpy(kept).to(rows.dtype)[..., None]
                if not bool((rows == rows[:1]).all()):
                    return False
    return True


def _positions(model: Model, slots: np.ndarray, here: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    place = np.full(model.layout.slots, -1)
    place[slots[here]] = np.flatnonzero(here)
    return place[wanted]


def _places(model: Model, slots: np.ndarray, here: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """(objects, those on the axis): where the wanted slots lie on an axis."""
    found = _positions(model, slots, here, wanted)
    return found[:, (found >= 0).all(0)]


def _kept(
    model: Model, slots: np.ndarray, here: np.ndarray, wanted: np.ndarray, signs: np.ndarray
) -> np.ndarray:
    found = _positions(model, slots, here, wanted)
    return signs[:, (found >= 0).all(0)]


def target_cell(cells: Sequence[Cell], parts: Sequence[str]) -> Cell | None:
    """The cell at which to choose: of the first part and kind, the smallest."""

    def key(cell: Cell) -> tuple[int, int, int, int]:
        return parts.index(cell.part), ORDER.index(cell.kind), len(cell.members), cell.colour

    return min(cells, key=key, default=None)
