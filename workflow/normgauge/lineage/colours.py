"""Colours of the coordinates of a part: an even one, blind to its sign, and an odd one that flips
with it, refined from what the tensors say.

Every step is a function of the class of a model: copies under a discrete gauge get the same
colours, moved and flipped. An odd colour of 0 means that the sign is not determined.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from normgauge.gauge.admissible import Group, QueryMaps
from normgauge.lineage.layout import Coordinates, HeadCoordinates, Part
from normgauge.lineage.words import Words, mixed, negated, sign_of, signed, without_sign

TURNS = (0, 1, 2, 3)  # quarter turns of a rotary pair
FLIPS = (0, 2)


@dataclass(frozen=True, eq=False)
class Sums:
    """What the tensors say of every slot: uint64 (slots,)."""

    even: Words
    odd: Words


@dataclass(frozen=True, eq=False)
class Plain:
    """The colours of a space: uint64 (n,) each; `seed` holds what was chosen for odd ones (one for
    all under a common sign); `sign` int8 (n,), 0 where open.
    """

    even: Words
    seed: Words
    sign: np.ndarray


@dataclass(frozen=True, eq=False)
class Heads:
    """The colours of an attention layer.

    group (G,), head (G, R), query (G, d) and value (G, v): even. query_seed, value_seed: what was
    chosen for odd ones. query_sign, value_sign: int8, 0 where open. turn: int8 (G, pairs), the
    quarter turn that brings a rotary pair into its form, -1 where open.
    """

    group: Words
    head: Words
    query: Words
    value: Words
    query_seed: Words
    value_seed: Words
    query_sign: np.ndarray
    value_sign: np.ndarray
    turn: np.ndarray


State = Plain | Heads


def initial(part: Part) -> State:
    """The colours before any tensor was seen: what the positions fix, and nothing else."""
    if isinstance(part, Coordinates):
        zeros = np.zeros(part.size, dtype=np.uint64)
        return Plain(zeros, zeros, np.zeros(part.size, dtype=np.int8))
    groups = np.arange(part.groups, dtype=np.uint64)
    heads = np.arange(part.repeats, dtype=np.uint64)
    query = np.zeros((part.groups, part.query_size), dtype=np.uint64)
    half = part.rotary // 2
    pairs = np.arange(1, half + 1, dtype=np.uint64)
    query[:, :half] = query[:, half : part.rotary] = pairs
    if part.maps == QueryMaps.SIGNS:  # no quarter turns: the two keep their places
        query[:, :] = np.arange(1, part.query_size + 1, dtype=np.uint64)
    value = np.zeros((part.groups, part.value_size), dtype=np.uint64)
    still = not part.heads_move
    return Heads(
        groups * np.uint64(still),
        np.tile(heads * np.uint64(still), (part.groups, 1)),
        query,
        value,
        np.zeros_like(query),
        np.zeros_like(value),
        np.zeros(query.shape, dtype=np.int8),
        np.zeros(value.shape, dtype=np.int8),
        np.full((part.groups, half), -1, dtype=np.int8),
    )


def refined(part: Part, state: State, sums: Sums) -> State:
    """The colours after the sums were seen; what was told apart before stays apart."""
    if isinstance(part, Coordinates):
        assert isinstance(state, Plain)
        return _refined_plain(part, state, sums)
    assert isinstance(state, Heads)
    return _refined_heads(part, state, sums)


def _refined_plain(part: Coordinates, state: Plain, sums: Sums) -> Plain:
    slots = slice(part.first, part.first + part.size)
    even, odd = sums.even[slots], sums.odd[slots]
    if part.group in (Group.PERMUTATION, Group.POSITIVE_MONOMIAL):
        return replace(
            state, even=mixed(state.even, even, odd), sign=np.ones(part.size, dtype=np.int8)
        )
    if part.group == Group.COMMON_SIGN:
        blind = mixed(state.even, even, without_sign(odd))
        total = (odd * mixed(blind, 1)).sum(dtype=np.uint64) + state.seed.sum(dtype=np.uint64)
        common = sign_of(np.asarray(total))
        signs = np.full(part.size, common, dtype=np.int8)
        return replace(state, even=mixed(blind, signed(odd, signs)), sign=signs)
    odd = odd + state.seed
    return replace(state, even=mixed(state.even, even, without_sign(odd)), sign=sign_of(odd))


def _refined_heads(part: HeadCoordinates, state: Heads, sums: Sums) -> Heads:
    query, key, value, read = part.arrange(sums.even)
    query_odd, key_odd, value_odd, read_odd = part.arrange(sums.odd)
    weight = mixed(state.head, 2)[:, :, None]  # of a head among those of its group
    scores = mixed(state.query, key) + mixed(query, weight).sum(1, dtype=np.uint64)
    scores_odd = key_odd + (query_odd * weight).sum(1, dtype=np.uint64) + state.query_seed
    values = mixed(state.value, value)
    values_odd = value_odd + state.value_seed
    if read.size:
        values = values + mixed(read, weight).sum(1, dtype=np.uint64)
        values_odd = values_odd + (read_odd * weight).sum(1, dtype=np.uint64)
    values, value_sign = mixed(values, without_sign(values_odd)), sign_of(values_odd)
    scores, query_sign, turn = _turned(part, scores, scores_odd)
    head = mixed(state.head, _over(query, scores, query_odd, query_sign))
    if read.size:
        head = mixed(head, _over(read, values, read_odd, value_sign))
    group = mixed(
        state.group,
        mixed(scores, 3).sum(1, dtype=np.uint64),
        mixed(values, 4).sum(1, dtype=np.uint64),
        mixed(head, 5).sum(1, dtype=np.uint64),
    )
    return replace(
        state,
        group=group,
        head=head,
        query=scores,
        value=values,
        query_sign=query_sign,
        value_sign=value_sign,
        turn=turn,
    )


def _over(even: Words, colours: Words, odd: Words, signs: np.ndarray) -> Words:
    """(G, R): what a head's slots say, over the coordinates of its group."""
    oriented = signed(odd, np.broadcast_to(signs[:, None], odd.shape))
    return mixed(even, colours[:, None], oriented).sum(2, dtype=np.uint64)


def _turned(part: HeadCoordinates, even: Words, odd: Words) -> tuple[Words, np.ndarray, np.ndarray]:
    """Even colours, signs and turns of the query coordinates (G, d).

    A pair (a, b) turns as a complex number: of its images under the admitted turns the smallest is
    its form, and where two turns give it the turn is open. All other coordinates take signs alone.
    """
    half = part.rotary // 2
    first, second = slice(0, half), slice(half, part.rotary)
    colours, signs = mixed(even, without_sign(odd)), sign_of(odd)
    if not half:
        return colours, signs, np.full((part.groups, 0), -1, dtype=np.int8)
    turns = FLIPS if part.maps == QueryMaps.SIGNS else TURNS
    pair = (even[:, first], even[:, second], odd[:, first], odd[:, second])
    images = np.stack([np.stack(_image(pair, turn)) for turn in turns])  # (turns, 4, G, half)
    best, open_turn = _smallest(images)
    form = np.take_along_axis(images, best[None, None], 0)[0]
    common = mixed(*form)
    turn = np.where(open_turn, -1, np.array(turns, dtype=np.int8)[best]).astype(np.int8)
    for place, slots in enumerate((first, second)):
        slot, sign = _placed(turn, place)
        # an open turn of a pair whose places are fixed still tells them apart
        own = even[:, slots] if part.maps == QueryMaps.SIGNS else np.uint64(0)
        colours[:, slots] = mixed(common, np.where(open_turn, 0, slot + 1).astype(np.uint64), own)
        signs[:, slots] = np.where(open_turn, 0, sign)
    return colours, signs, turn


def _image(pair: tuple[Words, Words, Words, Words], turn: int) -> tuple[Words, ...]:
    """The even and odd colours of a pair after so many quarter turns: (a, b) -> (-b, a)."""
    a, b, odd_a, odd_b = pair
    return {
        0: (a, b, odd_a, odd_b),
        1: (b, a, negated(odd_b), odd_a),
        2: (a, b, negated(odd_a), negated(odd_b)),
        3: (b, a, odd_b, negated(odd_a)),
    }[turn]


def _smallest(images: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Index of the least image, entry by entry, and whether two images are least."""
    best = np.zeros(images.shape[2:], dtype=np.int64)
    for number in range(1, len(images)):
        held = np.take_along_axis(images, best[None, None], 0)[0]
        best = np.where(_less(images[number], held), number, best)
    held = np.take_along_axis(images, best[None, None], 0)[0]
    return best, (images == held).all(1).sum(0) > 1


def _less(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Lexicographic, along the first axis."""
    less = np.zeros(one.shape[1:], dtype=bool)
    for first, second in zip(one[::-1], other[::-1], strict=True):
        less = np.where(first == second, less, first < second)
    return less


def _placed(turn: np.ndarray, place: int) -> tuple[np.ndarray, np.ndarray]:
    """Where the first (0) or second (1) of a pair goes under its turn, and with which sign."""
    moved = turn % 2 == 1
    slot = np.where(moved, 1 - place, place)
    minus = np.isin(turn, (2, 3) if place == 0 else (1, 2))
    return slot, np.where(minus, -1, 1).astype(np.int8)


def slot_colours(part: Part, state: State) -> Mapping[int, tuple[Words, Words]]:
    """Even and odd colours of a part's runs of slots, by the first slot of the run."""
    if isinstance(part, Coordinates):
        assert isinstance(state, Plain)
        return {part.first: (state.even, signed(mixed(state.even, 6), state.sign))}
    assert isinstance(state, Heads)
    head = mixed(state.head, state.group[:, None])
    runs = {
        part.query: (mixed(state.query[:, None], head[:, :, None], 7), state.query_sign[:, None]),
        part.key: (mixed(state.query, state.group[:, None], 8), state.query_sign),
        part.value: (mixed(state.value, state.group[:, None], 9), state.value_sign),
    }
    if part.read is not None:
        even = mixed(state.value[:, None], head[:, :, None], 10)
        runs[part.read] = (even, state.value_sign[:, None])
    return {
        first: (even.ravel(), signed(mixed(even, 6), np.broadcast_to(sign, even.shape)).ravel())
        for first, (even, sign) in runs.items()
    }


def is_settled(part: Part, state: State) -> bool:
    """Whether every coordinate, head and group is told apart and no sign is open."""
    if isinstance(part, Coordinates):
        assert isinstance(state, Plain)
        return bool(state.sign.all()) and _distinct(state.even)
    assert isinstance(state, Heads)
    return (
        bool(state.query_sign.all() and state.value_sign.all())
        and _distinct(state.group)
        and all(_distinct(row) for rows in (state.head, state.query, state.value) for row in rows)
    )


def _distinct(words: Words) -> bool:
    return len(np.unique(words)) == len(words)


def progress(part: Part, state: State) -> int:
    """How much is told apart: classes of coordinates, heads and groups, and determined signs."""
    if isinstance(part, Coordinates):
        assert isinstance(state, Plain)
        return len(np.unique(state.even)) + int(np.count_nonzero(state.sign))
    assert isinstance(state, Heads)
    by_group = state.group[:, None]
    rows = (mixed(each, by_group) for each in (state.head, state.query, state.value))
    classes = sum(len(np.unique(each)) for each in (state.group, *rows))
    signs = sum(int(np.count_nonzero(each)) for each in (state.query_sign, state.value_sign))
    return classes + signs
