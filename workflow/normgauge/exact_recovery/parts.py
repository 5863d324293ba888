"""The parts in which a model is observed and solved: its blocks one by one, and what lies outside
of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from normgauge.anatomy.structure import Anatomy, Stack

ENDS = "ends"
WHOLE = "whole"


@dataclass(frozen=True)
class Part:
    """A part of a model, by its module paths.

    name: `{stack}-{number}` of a block, counted from 1, "ends" or "whole". stack, number: of a
    block, else None and 0. inside: the path of the block. outside: the paths of the blocks that are
    parts of their own, for what lies outside of them.
    """

    name: str
    stack: str | None = None
    number: int = 0
    inside: str | None = None
    outside: tuple[str, ...] = ()

    def holds(self, path: str) -> bool:
        """Whether a module or tensor of that path belongs to the part."""
        if self.inside is not None:
            return _is_below(path, self.inside)
        return not any(_is_below(path, block) for block in self.outside)

    def runs(self, path: str, blocks: Sequence[str]) -> bool:
        """Whether a tensor of that path is used when the part runs: its own, and those outside of
        `blocks`, the blocks of divided stacks.
        """
        return self.holds(path) or not any(_is_below(path, block) for block in blocks)


def _is_below(path: str, module: str) -> bool:
    return path.startswith(f"{module}.")


def divided(anatomy: Anatomy) -> tuple[Stack, ...]:
    """The stacks whose blocks are parts: not those that use one block several times (ALBERT)."""
    return tuple(
        stack for stack in anatomy.stacks if len(set(stack.blocks)) == len(stack.blocks) > 1
    )


def parts_of(anatomy: Anatomy) -> tuple[Part, ...]:
    """Every part once: blocks in forward order, then the ends; the whole where none is divided."""
    stacks = divided(anatomy)
    if not stacks:
        return (whole(),)
    blocks = [
        Part(f"{stack.name}-{number}", stack.name, number, module)
        for stack in stacks
        for number, module in enumerate(stack.blocks, start=1)
    ]
    paths = tuple(block for stack in stacks for block in stack.blocks)
    return (*blocks, Part(ENDS, outside=paths))


def whole() -> Part:
    """All of a model as one part."""
    return Part(WHOLE)


def part_of(anatomy: Anatomy, path: str) -> str:
    """The name of the part to which a module or tensor belongs when the model is divided."""
    return next(part.name for part in parts_of(anatomy) if part.holds(path))
