"""Whether two checkpoints are one up to continuous changes of coordinates and the rounding of
stored weights.

Continuous groups have no exact form in floats. What they leave alone is compared instead, entry by
entry, each with the bound that half a unit in the last place of every stored value allows: the
products of a head's factors, in which its map cancels; the rows of units up to one factor; and
everything else in the frame of the streams. Every tensor is compared or the answer is None.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment

from normgauge.anatomy.lookup import matrix_of, rows_of, stored_name
from normgauge.anatomy.structure import Anatomy, LinearMap, Role, SpaceKind
from normgauge.gauge.admissible import Group, admissible
from normgauge.gauge.folding import folds_gain
from normgauge.gauge.model_gauge import HEAD_SPACES
from normgauge.lineage.bounded import ROUNDOFF, Bounded, exact, joined, over_bound, stored
from normgauge.lineage.layout import Layout

NEAR = 1e-2  # of a monomial map, within which a frame is taken as one
HALF = 0.5  # ulp, by which a value that is rounded once is off


@dataclass(frozen=True)
class Rounding:
    """ulp: the error of every stored value, in units of its last place, that explains all
    differences; at most 1/2 where rounding once does. tensor: where the most is needed. rotated:
    whether a stream was turned by more than a signed permutation.
    """

    ulp: float
    tensor: str
    rotated: bool

    @property
    def explained(self) -> bool:
        return self.ulp <= HALF


@dataclass(frozen=True, eq=False)
class Given:
    """A model: its anatomy, its tensors by the names of the class, and its config, where its
    settings are to be compared.
    """

    anatomy: Anatomy
    tensors: Mapping[str, torch.Tensor]
    config: Any = None


@dataclass(frozen=True, eq=False)
class Frame:
    """A map of coordinates of A to those of B, (n, n), orthogonal. bound: on its distance from the
    true one in the Frobenius norm, 0 for a signed permutation.
    """

    turn: np.ndarray
    bound: float = 0.0

    @property
    def monomial(self) -> bool:
        return not self.bound


@dataclass(eq=False)
class Sides:
    """Two models of one class, frames by space, and what was compared: the worst ratio by name.
    anatomy: B's, which differs from A's by ties at most.
    """

    anatomy: Anatomy
    layout: Layout
    given: tuple[Given, Given]
    frames: dict[str, Frame] = field(default_factory=dict)
    ratios: dict[str, float] = field(default_factory=dict)
    compared: set[str] = field(default_factory=set)

    def stored(self, name: str) -> list[Bounded]:
        return [
            stored(side.tensors[stored_name(side.anatomy, name, side.tensors)])
            for side in self.given
        ]

    def reading(self, item: LinearMap, side: int) -> tuple[Bounded, Bounded]:
        """(out, in) and (out,): a map of the output of the norm before it without gain and bias,
        and its constant.
        """
        anatomy = self.anatomy
        weight = self.stored(item.weight)[side]
        matrix = Bounded(*(matrix_of(anatomy, item, x) for x in (weight.value, weight.error)))
        constant = exact(np.zeros(len(matrix.value)))
        if item.bias:
            constant = self.stored(item.bias)[side][rows_of(anatomy, item)]
        if item.norm:
            norm = anatomy.norm(item.norm)
            if norm.bias:
                shift = self.stored(norm.bias)[side]
                constant = constant + (matrix @ shift[:, None])[:, 0]
            if norm.gain:
                gain = self.stored(norm.gain)[side]
                offset = exact(np.full(len(gain.value), norm.gain_offset))
                matrix = matrix * (gain + offset)
        return matrix, constant

    def into(self, space: str, rows: Bounded, axis: int = -1) -> Bounded:
        """Rows of A, along an axis of `space`, in B's coordinates; as they are where none move."""
        if space not in self.frames:
            return rows
        frame = self.frames[space]
        moved = Bounded(*(np.moveaxis(x, axis, -1) for x in (rows.value, rows.error)))
        shape, width = moved.value.shape, len(frame.turn)  # an axis may hold the space twice
        flat = Bounded(*(x.reshape(-1, width) for x in (moved.value, moved.error)))
        lengths = np.linalg.norm(flat.value, axis=1, keepdims=True)
        flat = flat @ exact(frame.turn)
        flat = Bounded(flat.value, flat.error + frame.bound * lengths)
        return Bounded(*(np.moveaxis(x.reshape(shape), -1, axis) for x in (flat.value, flat.error)))

    def compare(self, name: str, first: Bounded, second: Bounded) -> None:
        self.ratios[name] = max(self.ratios.get(name, 0.0), over_bound(first, second))

    def known(self, space: str) -> bool:
        """Whether coordinates of the space are in place: nothing moves them, or a frame does."""
        inside = self.anatomy.space(space).kind in HEAD_SPACES
        return space in self.frames or not (inside or space in self.layout.parts)


def frame_from(first: Bounded, second: Bounded) -> Frame | None:
    """The orthogonal map with first map = second, (n, width) each, snapped to the signed
    permutation that it is near to; None where rounding does not explain what is left.

    A map that is no signed permutation comes with a bound on its distance from the true one: with
    the errors' Frobenius norm e and the residual r (which the true map could not make larger than
    e), that is (r + e) over the least singular value.
    """
    product = first.value.T @ second.value
    outer, _, inner = np.linalg.svd(product)
    turn = outer @ inner
    signed = _snapped(turn, product)
    if signed is not None:
        return Frame(signed)
    least = float(np.linalg.svd(first.value, compute_uv=False)[-1])
    rank = min(first.value.shape) == first.value.shape[1]
    errors = float(np.hypot(np.linalg.norm(first.error), np.linalg.norm(second.error)))
    left = float(np.linalg.norm(first.value @ turn - second.value))
    if not rank or not least > 0 or not left <= errors * (1 + 1e-6):
        return None
    bound = min(1.0, (left + errors) / least)
    return Frame(turn, bound)


def _snapped(turn: np.ndarray, product: np.ndarray) -> np.ndarray | None:
    """The signed permutation next to a map, or, where the tables leave it open, next to their
    correlations.
    """
    size = len(turn)
    near = np.abs(turn) > 1 - NEAR
    if not (near.sum(0) == 1).all() or not (near.sum(1) == 1).all():
        values = np.linalg.svd(product, compute_uv=False)
        if values[-1] > values[0] * size * np.finfo(np.float64).eps:
            return None
        rows, columns = linear_sum_assignment(-np.abs(product))
    else:
        rows, columns = np.nonzero(near)
    signed = np.zeros((size, size))
    entries = product[rows, columns]
    signed[rows, columns] = np.where(entries < 0, -1.0, 1.0)
    return signed


def find_frames(sides: Sides) -> bool:
    """Frames of the streams and of the spaces beside them (poolers, transforms, convolutions, small
    embeddings): from tables that nothing else moves, else from a map out of a known space. False
    where one cannot be found, or is none that the space admits.
    """
    wanted = [
        space.name
        for space in sides.anatomy.spaces
        if space.kind in (SpaceKind.RESIDUAL, SpaceKind.OTHER) and not sides.known(space.name)
    ]
    while wanted:
        found = {name: frame for name in wanted if (frame := _frame_of(sides, name))}
        if not found or not all(admits(sides.anatomy, *each) for each in found.items()):
            return False
        sides.frames |= found
        wanted = [name for name in wanted if name not in found]
    return True


def _frame_of(sides: Sides, space: str) -> Frame | None:
    width = sides.anatomy.space(space).size
    rows: list[list[Bounded]] = [[], []]
    for name, axes in sides.layout.axes.items():
        moved = [number for number, axis in enumerate(axes) if axis.part]
        if (
            len(axes) > 1
            and [axes[number].part for number in moved] == [space]
            and sides.anatomy.tensor(name).axes[moved[0]].role == Role.WRITE
        ):
            for side, found in zip(rows, sides.stored(name), strict=True):
                side.append(_rows_along(found, moved[0], width))
    for item in sides.anatomy.maps:
        if not rows[0] and item.writes == space and sides.known(item.reads):
            (first, _), (second, _) = (sides.reading(item, side) for side in (0, 1))
            first = sides.into(item.reads, first, axis=1)
            for side, found in zip(rows, (first, second), strict=True):
                side.append(_rows_along(found, 0, width))
    return frame_from(joined(rows[0], 0), joined(rows[1], 0)) if rows[0] else None


def _rows_along(value: Bounded, axis: int, width: int) -> Bounded:
    return Bounded(
        *(np.moveaxis(each, axis, -1).reshape(-1, width) for each in (value.value, value.error))
    )


def admits(anatomy: Anatomy, space: str, frame: Frame) -> bool:
    """Whether the space's activation and norms let the map pass: an activation no sign, LayerNorm
    only what sends the vector of ones to itself or its negative.
    """
    group = admissible(anatomy, space).group
    if group in (Group.PERMUTATION, Group.POSITIVE_MONOMIAL):
        return frame.monomial and not (frame.turn < 0).any()
    if group == Group.COMMON_SIGN:
        size = len(frame.turn)
        slack = frame.bound * size**0.5 + size * ROUNDOFF
        sums = frame.turn.sum(0)
        return bool(min(np.abs(sums - sign).max() for sign in (1, -1)) <= slack)
    return True


def compare_rest(sides: Sides, done: set[str]) -> bool:
    """Compare all maps but those `done`, and then every tensor that no map holds; False where an
    axis lies in a space without a frame.
    """
    anatomy = sides.anatomy
    for item in anatomy.maps:
        if item.name in done:
            continue
        if not sides.known(item.reads) or not sides.known(item.writes):
            return False
        (first, constant), (second, other) = (sides.reading(item, side) for side in (0, 1))
        moved = sides.into(item.writes, sides.into(item.reads, first, axis=1), axis=0)
        sides.compare(item.weight, moved, second)
        sides.compare(item.bias or item.weight, sides.into(item.writes, constant), other)
        sides.compared |= {item.weight, item.bias or item.weight}
    for norm in anatomy.norms:
        if folds_gain(anatomy, norm):
            sides.compared |= {name for name in (norm.gain, norm.bias) if name}
    return all(
        _compare_tensor(sides, name) for name in sides.layout.axes if name not in sides.compared
    )


def _compare_tensor(sides: Sides, name: str) -> bool:
    first, second = sides.stored(name)
    for number, axis in enumerate(sides.layout.axes[name]):
        if axis.part is None:
            continue
        if axis.part not in sides.frames:
            return False
        frame = sides.frames[axis.part]
        role = sides.anatomy.tensor(name).axes[number].role
        if role in (Role.NORMALISE, Role.SCALE):
            if not frame.monomial:
                if np.ptp(first.value) or np.ptp(second.value):
                    return False  # unequal gains under a rotation
                continue
            first = _permuted(first, np.abs(frame.turn), number)
        else:
            first = sides.into(axis.part, first, axis=number)
    sides.compare(name, first, second)
    return True


def _permuted(value: Bounded, permutation: np.ndarray, axis: int) -> Bounded:
    order = permutation.argmax(0)
    return Bounded(*(np.take(each, order, axis) for each in (value.value, value.error)))
