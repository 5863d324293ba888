"""LayerNorm's null line: multiples of the vector of ones in what is written to a residual stream
that LayerNorms alone read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from normgauge.anatomy.structure import Anatomy, NormKind, Placement, Role, SpaceKind
from normgauge.errors import InputError
from normgauge.gauge.admissible import norms_on, scale_tensors


@dataclass(frozen=True, eq=False)
class NullLine:
    """An element of the vector group of shifts. `shifts`: by tensor, what is added to all
    coordinates of the stream, float64, in the tensor's shape without its residual axis: (in,) for a
    weight, () for a bias, (rows,) for a table.
    """

    shifts: Mapping[str, torch.Tensor]

    def compose(self, other: NullLine) -> NullLine:
        names = self.shifts.keys() | other.shifts.keys()
        zero = torch.zeros((), dtype=torch.float64)
        return NullLine(
            {name: self.shifts.get(name, zero) + other.shifts.get(name, zero) for name in names}
        )

    def inverse(self) -> NullLine:
        return NullLine({name: -shift for name, shift in self.shifts.items()})


def null_line_axes(anatomy: Anatomy, space: str) -> dict[str, int]:
    """The tensors that may be shifted, and which of their axes is the stream.

    Left out are norm biases but for that of an embedding's norm (the others do not write the
    stream), what passes an activation, and tables that a readout is tied to. Where norms write the
    stream (post-norm), what enters a sum that a norm reads at once may be shifted: the output maps
    of the sublayers, and the tables where a norm follows them. Raises InputError, with the reason,
    where the stream is read by anything but a LayerNorm, or leaves the model without one.
    """
    for norm in norms_on(anatomy, space):
        if norm.kind != NormKind.LAYER_NORM:
            raise InputError(
                f"{anatomy.architecture}: {norm.name} is an {norm.kind}, which keeps the mean; "
                "only LayerNorm has a null line"
            )
    post = anatomy.placement == Placement.POST
    bare = next(
        (item.name for item in anatomy.maps if item.reads == space and item.norm is None), None
    )
    if bare and not post:
        raise InputError(
            f"{anatomy.architecture}: {bare} reads {space} without one LayerNorm; it has no null "
            "line"
        )
    ends = [stack for stack in anatomy.stacks if stack.space == space]
    if ends and not post and not all(stack.terminal_norm for stack in ends):
        raise InputError(
            f"{anatomy.architecture}: {space} leaves the model without a norm; it has no null line"
        )
    if scales := scale_tensors(anatomy, space):
        raise InputError(
            f"{anatomy.architecture}: {scales[0]} scales what is written to {space}; it has no "
            "null line in its weights"
        )
    embedded = {site.norm for site in anatomy.sites if site.tap == "embedding" and not post}
    skipped = {norm.bias for norm in anatomy.norms if norm.feeds or norm.name not in embedded}
    skipped |= {
        name for item in anatomy.maps if item.activation for name in (item.weight, item.bias)
    }
    skipped |= {tensor.alias_of for tensor in anatomy.tensors}
    if post:
        sublayer = {SpaceKind.VALUE, SpaceKind.FFN}
        skipped |= {
            name
            for item in anatomy.maps
            if anatomy.space(item.reads).kind not in sublayer
            for name in (item.weight, item.bias)
        }
        if bare:
            written = {name for item in anatomy.maps for name in (item.weight, item.bias)}
            skipped |= {tensor.name for tensor in anatomy.tensors} - written
    return {
        tensor.name: number
        for tensor in anatomy.tensors
        if tensor.name not in skipped and tensor.alias_of is None
        for number, axis in enumerate(tensor.axes)
        if axis.role == Role.WRITE and axis.segments[0].space == space
    }


def shifts_states(anatomy: Anatomy, space: str) -> bool:
    """Whether shifts reach the states of the stream. Where norms write it (post-norm) they end in
    the sum that a norm reads at once.
    """
    try:
        return bool(null_line_axes(anatomy, space)) and anatomy.placement != Placement.POST
    except InputError:
        return False


def random_null_line(anatomy: Anatomy, space: str, seed: int) -> NullLine:
    """Standard normal shifts of every tensor that may be shifted."""
    generator = torch.Generator().manual_seed(seed)
    shifts = {}
    for name, axis in null_line_axes(anatomy, space).items():
        shape = [size for number, size in enumerate(anatomy.tensor(name).shape) if number != axis]
        shifts[name] = torch.randn(shape, generator=generator, dtype=torch.float64)
    return NullLine(shifts)


def centring(anatomy: Anatomy, tensors: Mapping[str, torch.Tensor], space: str) -> NullLine:
    """The shift that leaves nothing on the null line: minus the mean of every writer over the
    stream's coordinates.
    """
    return NullLine(
        {
            name: -tensors[name].double().mean(axis)
            for name, axis in null_line_axes(anatomy, space).items()
        }
    )


def shifted(
    anatomy: Anatomy, tensors: Mapping[str, torch.Tensor], space: str, line: NullLine
) -> dict[str, torch.Tensor]:
    """The tensors with the shifts added, rounded once to their dtype. Raises InputError for a
    tensor that may not be shifted.
    """
    axes = null_line_axes(anatomy, space)
    moved = dict(tensors)
    for name, shift in line.shifts.items():
        if name not in axes:
            raise InputError(
                f"null line of {space}: {name} may not be shifted; expected one of "
                f"{', '.join(list(axes)[:4])}, ..."
            )
        moved[name] = (tensors[name].double() + shift.unsqueeze(axes[name])).to(tensors[name].dtype)
    return moved
