"""Where the sublayers of a block add to the residual stream: found from the maps, norms and scales
of an anatomy.
"""

from __future__ import annotations

from normgauge.anatomy.structure import Anatomy, Placement, Role, Site, Stack

SUBLAYERS = {
    "attention_output": "attention",
    "cross_attention_output": "cross_attention",
    "down": "mlp",
}
"""Last part of the name of a map that writes the stream -> sublayer, in the order of a block."""

GROUP = "deltas"


def delta_sites(anatomy: Anatomy) -> tuple[Site, ...]:
    """A site for each term that a block adds to its stream, (positions, width): X_l = X_(l-1) + the
    sum of them.

    That is the output of the map that writes the stream or, where a norm (sandwich) or a layer
    scale acts on it, theirs. Empty for post-norm models, where a norm replaces the stream.
    """
    if anatomy.placement == Placement.POST:
        return ()
    return tuple(
        site
        for stack in anatomy.stacks
        for number, block in enumerate(stack.blocks, start=1)
        for site in _block_sites(anatomy, stack, number, block)
    )


def _block_sites(anatomy: Anatomy, stack: Stack, number: int, block: str) -> list[Site]:
    prefix = f"{stack.name}/block.{number}/"
    writers = {
        item.name.removeprefix(prefix): item.module
        for item in anatomy.maps
        if item.name.startswith(prefix) and item.name.removeprefix(prefix) in SUBLAYERS
    }
    parts = [part for part in SUBLAYERS if part in writers]
    norms = _norms_of_outputs(anatomy, stack, block)
    last = norms or _scales(anatomy, stack, block) or [writers[part] for part in parts]
    return [
        Site(
            id=f"{prefix}{SUBLAYERS[part]}_delta",
            group=GROUP,
            stack=stack.name,
            block=number,
            tap=f"{SUBLAYERS[part]}_delta",
            module=module,
            hook="output",
            width=stack.width,
            norm=module if norms else None,
        )
        for part, module in zip(parts, last, strict=True)
    ]


def _norms_of_outputs(anatomy: Anatomy, stack: Stack, block: str) -> list[str]:
    """The norms of a sandwich block that feed no map: one after each sublayer, in forward order."""
    if anatomy.placement != Placement.SANDWICH:
        return []
    return [
        norm.name
        for norm in anatomy.norms
        if norm.name.startswith(f"{block}.") and norm.space == stack.space and not norm.feeds
    ]


def _scales(anatomy: Anatomy, stack: Stack, block: str) -> list[str]:
    """The modules that hold the layer scales of a block: factors of the stream that belong to no
    norm.
    """
    return [
        tensor.name.rpartition(".")[0]
        for tensor in anatomy.tensors
        if tensor.name.startswith(f"{block}.")
        and [axis.role for axis in tensor.axes] == [Role.SCALE]
        and tensor.axes[0].segments[0].space == stack.space
    ]
