"""A gauge applied to a checkpoint: tensor by tensor, from the roles of the anatomy's axes alone.

WRITE axes move by the element, READ axes by its dual, gains by its permutation; a gate passes the
permutation alone.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from normgauge.anatomy.lookup import gate_runs, runs_of
from normgauge.anatomy.structure import Anatomy, Axis, Role, SpaceKind
from normgauge.checkpoints.opening import Checkpoint
from normgauge.errors import InputError
from normgauge.gauge.groups import AttentionGauge, HeadMap, Monomial, Orthogonal
from normgauge.gauge.model_gauge import Gauge, attention_of
from normgauge.gauge.requirements import require_admissible


@dataclass(frozen=True, eq=False)
class Move:
    """One element acting along one axis of one tensor; `positions` are where its space lies on it,
    None when on the whole axis.
    """

    axis: int
    element: Monomial | Orthogonal | HeadMap
    positions: torch.Tensor | None

    def apply(self, value: torch.Tensor) -> torch.Tensor:
        if self.positions is None:
            return self.element.apply(value, self.axis)
        moved = self.element.apply(value.index_select(self.axis, self.positions), self.axis)
        return value.index_copy(self.axis, self.positions, moved)


def tensor_moves(anatomy: Anatomy, gauge: Gauge) -> dict[str, tuple[Move, ...]]:
    """What the gauge does to each tensor, by name; tensors that stay as they are have no moves."""
    gates = gate_runs(anatomy)
    return {
        tensor.name: tuple(
            move
            for number, axis in enumerate(tensor.axes)
            for move in axis_moves(anatomy, gauge, number, axis, gates.get(tensor.name, ()))
        )
        for tensor in anatomy.tensors
    }


def axis_moves(
    anatomy: Anatomy, gauge: Gauge, number: int, axis: Axis, gates: Collection[int] = ()
) -> list[Move]:
    """The moves along one axis, number `number` of its tensor. `gates`: which of its runs over a
    feed-forward space a gate writes (`lookup.gate_runs`).
    """
    if axis.role == Role.INDEX:
        return []
    moves = []
    for name in dict.fromkeys(segment.space for segment in axis.segments):
        space = anatomy.space(name)
        element = gauge.on_space(anatomy, name)
        if element is None:
            continue
        copies = list(runs_of(axis, name))
        if isinstance(element, HeadMap):
            if any(len(copy) < space.size for copy in copies):
                # the gain of a query or key norm, shared by the heads: no admissible map moves it
                continue
            if len(copies) > 1:  # one run of values per query head
                if space.kind != SpaceKind.VALUE:
                    raise ValueError(
                        f"an axis holds {len(copies)} runs of {name}; only values are repeated, "
                        "once per query head"
                    )
                layer = gauge.elements[attention_of(name)]
                assert isinstance(layer, AttentionGauge)
                element, copies = layer.mixed, [np.arange(axis.size)]
        for run, copy in enumerate(copies):
            gated = run in gates and space.kind == SpaceKind.FFN
            acting = _by_role(element, axis.role, gated)
            if len(copy) != acting.size:
                raise ValueError(
                    f"an axis holds {len(copy)} of the {acting.size} coordinates of {name}"
                )
            everywhere = len(copy) == axis.size and bool((copy == np.arange(axis.size)).all())
            moves.append(Move(number, acting, None if everywhere else torch.from_numpy(copy)))
    return moves


def _by_role(
    element: Monomial | Orthogonal | HeadMap, role: Role, gate: bool
) -> Monomial | Orthogonal | HeadMap:
    if role == Role.READ:
        return element.dual()
    if role == Role.WRITE and not gate:
        return element
    return element.permutation()


def apply_moves(value: torch.Tensor, moves: Sequence[Move]) -> torch.Tensor:
    """A new tensor (the same one without moves), rounded once to its dtype, whatever the number of
    moves that round.
    """
    rounding = sum(not move.element.exact for move in moves) > 1
    moved = value.double() if rounding else value
    for move in moves:
        moved = move.apply(moved)
    return moved.to(value.dtype)


def moved_value(what: str, value: torch.Tensor, moves: Sequence[Move]) -> torch.Tensor:
    """`apply_moves`; InputError naming `what` where values that are finite leave the range of their
    dtype, as float16 does at 65504.
    """
    moved = apply_moves(value, moves)
    if not all(move.element.is_signed_permutation for move in moves):
        require_range(what, value, moved)
    return moved


def require_range(what: str, value: torch.Tensor, moved: torch.Tensor) -> None:
    """InputError where a moved value is not finite, and the reason."""
    if bool(moved.isfinite().all()):
        return
    if not bool(value.isfinite().all()):
        raise InputError(
            f"{what} holds values that are not finite, which no gauge but signed permutations "
            "moves; restore its file"
        )
    raise InputError(
        f"{what} leaves the range of {moved.dtype} under the gauge; store it in a wider dtype first"
    )


def transform(
    anatomy: Anatomy, tensors: Mapping[str, torch.Tensor], gauge: Gauge
) -> Iterator[tuple[str, torch.Tensor]]:
    """The gauged tensors one by one, in their order and dtype; the given ones are not changed.

    Permutations, signs and powers of two are exact: the inverse gives back every bit. All else is
    rounded once. Raises InputError, before the first tensor, for a gauge that changes the function,
    or for a tensor that the anatomy does not list or lists with another shape; at a tensor that
    leaves the range of its dtype.
    """
    require_admissible(anatomy, gauge, tensors)
    return transform_unchecked(anatomy, tensors, gauge)


def transform_unchecked(
    anatomy: Anatomy, tensors: Mapping[str, torch.Tensor], gauge: Gauge
) -> Iterator[tuple[str, torch.Tensor]]:
    """The same without asking whether the gauge is admissible: for controls that must change the
    function.
    """
    check_tensors(anatomy, {name: tuple(value.shape) for name, value in tensors.items()})
    moves = tensor_moves(anatomy, gauge)
    return (
        (name, moved_value(f"tensor {name}", value, moves[name])) for name, value in tensors.items()
    )


def check_tensors(anatomy: Anatomy, shapes: Mapping[str, tuple[int, ...]]) -> None:
    """InputError naming the first tensor that the anatomy does not list or lists with another
    shape.
    """
    listed = {tensor.name: tensor.shape for tensor in anatomy.tensors}
    for name, shape in shapes.items():
        if name not in listed:
            raise InputError(
                f"tensor {name} has no place in {anatomy.architecture}; name the stored class in "
                "config.architectures"
            )
        if shape != listed[name]:
            raise InputError(
                f"tensor {name} has shape {list(shape)}, {anatomy.architecture} expects "
                f"{list(listed[name])}; mend the config"
            )


def transformed(checkpoint: Checkpoint, anatomy: Anatomy, gauge: Gauge) -> Checkpoint:
    """The whole checkpoint in memory, gauged."""
    return Checkpoint(
        checkpoint.config,
        dict(transform(anatomy, checkpoint.tensors, gauge)),
        checkpoint.stored,
        checkpoint.files,
    )
