"""The order of blocks: all sequences pass one block before the next is loaded.

Each pass is the model's own forward pass with one block real. So masks, rotary tables and position
biases are what the model's own code makes of them, whatever the family.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from normgauge.anatomy.structure import Anatomy, Role, Site, SpaceKind, Tensor


@dataclass(frozen=True)
class BlockPass:
    """One block's turn.

    number: which call of a block in one forward pass is real, counted from 0 over all stacks.
    stacks, blocks: the stack and the module of the block of each call up to this one. first:
    whether it is its stack's first block, before which the embeddings count. terminal: the norm
    that follows, where the block is its stack's last. sites: those that are read in this pass; of a
    module that serves several blocks the call is counted in this pass alone.
    """

    number: int
    stacks: tuple[str, ...]
    blocks: tuple[str, ...]
    first: bool
    terminal: str | None
    sites: tuple[Site, ...]


def block_passes(
    anatomy: Anatomy, sites: Sequence[Site], every: bool = False
) -> tuple[BlockPass, ...]:
    """The passes in which all sites are read, in order; after the last one nothing is left to
    read. every: those of all blocks, whether a site is read in them or not.
    """
    passes: list[BlockPass] = []
    stacks: tuple[str, ...] = ()
    blocks: tuple[str, ...] = ()
    for stack in anatomy.stacks:
        for index, block in enumerate(stack.blocks):
            stacks, blocks = (*stacks, stack.name), (*blocks, block)
            passes.append(
                BlockPass(
                    number=len(passes),
                    stacks=stacks,
                    blocks=blocks,
                    first=index == 0,
                    terminal=stack.terminal_norm if index == len(stack.blocks) - 1 else None,
                    sites=_sites_of(stack.name, stack.blocks, index, sites),
                )
            )
    needed = max((each.number for each in passes if each.sites), default=-1)
    return tuple(passes if every else passes[: needed + 1])


def _sites_of(
    stack: str, blocks: Sequence[str], index: int, sites: Sequence[Site]
) -> tuple[Site, ...]:
    """The sites of one block; of the first also the embedding, of the last also the terminal
    norm.
    """
    block, earlier = blocks[index], blocks[:index].count(blocks[index])
    return tuple(
        replace(site, call=site.call - earlier) if _within(block, site.module) else site
        for site in sites
        if site.stack == stack and min(max(site.block, 1), len(blocks)) - 1 == index
    )


def _within(block: str, name: str) -> bool:
    return name == block or name.startswith(f"{block}.")


@dataclass(frozen=True)
class Parts:
    """Names of a model's tensors by when the order of blocks needs them.

    outer: in every pass; norms, positions and projections around the blocks. tables, convolutions:
    before a stack's first block alone, since later blocks take up what the one before them gave;
    the tables over the vocabulary, and the parts of the outside that are slow. head: behind all
    blocks and sites; the readout over the vocabulary, and what is not in the body.
    """

    outer: tuple[str, ...]
    tables: tuple[str, ...]
    convolutions: tuple[str, ...]
    blocks: dict[str, tuple[str, ...]]
    head: tuple[str, ...]


def parts_of(anatomy: Anatomy, names: Sequence[str], body: str) -> Parts:
    """names: of all tensors of the class, computed tables included. body: path of the module that
    is run, empty for the whole model.
    """
    blocks = {
        block: tuple(name for name in names if _within(block, name))
        for stack in anatomy.stacks
        for block in stack.blocks
    }
    inside = {name for members in blocks.values() for name in members}
    around = [name for name in names if name not in inside and (not body or _within(body, name))]
    described = {tensor.name: tensor for tensor in anatomy.tensors}
    vocabularies = {space.name for space in anatomy.spaces if space.kind == SpaceKind.VOCABULARY}
    over = {name for name in around if name in described and _over(described[name], vocabularies)}
    windows = {item.module for item in anatomy.maps if len(described[item.weight].axes) > 2}
    convolutions = tuple(name for name in around if name.rpartition(".")[0] in windows)
    tables = tuple(
        name for name in around if name in over and described[name].axes[0].role == Role.INDEX
    )
    outer = tuple(name for name in around if name not in over and name not in convolutions)
    before = {*inside, *outer, *tables, *convolutions}
    head = tuple(name for name in names if name not in before)
    return Parts(outer, tables, convolutions, blocks, head)


def _over(tensor: Tensor, vocabularies: set[str]) -> bool:
    """Whether one of the tensor's axes goes over a vocabulary."""
    return any(segment.space in vocabularies for axis in tensor.axes for segment in axis.segments)
