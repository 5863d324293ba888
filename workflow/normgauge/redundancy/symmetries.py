"""The continuous symmetries of a model's parameters, read off its anatomy: what moves, in how many
directions, and by what.

A symmetry is a family of changes of the stored tensors, smooth in `dimension` coordinates, the
identity at zero, that leaves the function alone at every value of them. Families never overlap, so
the directions that leave the function alone are the sum of their dimensions. docs/redundancy.md
derives each. The function is what the model's head returns; without a head, its last hidden states.
"""

from __future__ import annotations

from collections.abc import Iterator

from normgauge.anatomy.structure import Anatomy, Placement, Positions, SpaceKind
from normgauge.errors import InputError
from normgauge.gauge.admissible import norms_on, scale_tensors
from normgauge.redundancy.constants import biases, constants
from normgauge.redundancy.family import Symmetry
from normgauge.redundancy.layers import attention, feed_forward, head_gains, score_biases
from normgauge.redundancy.norm_folds import norm_folds
from normgauge.redundancy.streams import null_lines, rotations


def symmetries(anatomy: Anatomy) -> tuple[Symmetry, ...]:
    """Every family of the model. Raises InputError, naming the part, for a model with parts whose
    symmetries are not derived.
    """
    _require_derived(anatomy)
    parts = (
        attention,
        feed_forward,
        rotations,
        norm_folds,
        head_gains,
        null_lines,
        biases,
        constants,
        score_biases,
    )
    return tuple(found for part in parts for found in part(anatomy) if found.dimension)


def _require_derived(anatomy: Anatomy) -> None:
    reason = next(_underived_parts(anatomy), None)
    if reason:
        raise InputError(
            f"{anatomy.architecture}: {reason}, and the symmetries of that are not derived; leave "
            "it out of the counts"
        )


def _underived_parts(anatomy: Anatomy) -> Iterator[str]:
    if anatomy.positions == Positions.VECTORS:
        yield "its queries and keys meet vectors of positions"
    for stack in anatomy.stacks:
        if len(set(stack.blocks)) < len(stack.blocks):
            yield "its blocks share their weights"
        if scales := scale_tensors(anatomy, stack.space):
            yield f"{scales[0]} scales the stream"
        if anatomy.placement != Placement.POST and any(
            item.reads == stack.space and not item.norm for item in anatomy.maps
        ):
            yield "a head reads the stream beside its last norm"
    for space in anatomy.spaces:
        writers = [item for item in anatomy.maps if item.writes == space.name]
        read = any(item.reads == space.name for item in anatomy.maps)
        if (
            space.kind == SpaceKind.OTHER
            and read
            and not norms_on(anatomy, space.name)
            and not any(item.activation for item in writers)
        ):
            yield f"two maps meet in {space.name} with nothing between them"
        if (
            space.kind in (SpaceKind.QUERY, SpaceKind.VALUE)
            and space.size // space.heads >= anatomy.primary_stack.width
        ):
            yield f"a head of {space.name} is as wide as the stream"
    streams = {stack.space for stack in anatomy.stacks}
    known = {item.bias for item in anatomy.maps}
    known |= {name for norm in anatomy.norms for name in (norm.gain, norm.bias)}
    for tensor in anatomy.tensors:
        spaces = {segment.space for axis in tensor.axes for segment in axis.segments}
        alone = len(tensor.axes) == 1 and tensor.name not in known and spaces <= streams
        if alone or "singleton" in spaces:
            yield f"{tensor.name} enters the stream at some positions alone"
