"""Where a space or attention layer shows in activations, and how many such places are observed at
once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from normgauge.anatomy.structure import Anatomy, Site, SpaceKind
from normgauge.calibration.batches import Batch

HELD = 2**31  # bytes of activations, of both models, that are in memory at once

# positions that a sequence of sound or a picture is taken to have, for the bound above
FRAMES = 2048


def sites_of(anatomy: Anatomy, name: str) -> list[Site]:
    """The sites at which a space or attention layer shows; none for a space outside the blocks."""
    if name.endswith("attention"):
        reading = f"{name.removesuffix('attention')}attention_output"
    else:
        kind = anatomy.space(name).kind
        if kind == SpaceKind.RESIDUAL:
            stacks = {stack.name for stack in anatomy.stacks if stack.space == name}
            return [
                site for site in anatomy.sites_in(("residual", "terminal")) if site.stack in stacks
            ]
        if kind != SpaceKind.FFN:
            return []
        reading = next(item.name for item in anatomy.maps if item.reads == name)
    item = next(item for item in anatomy.maps if item.name == reading)
    known = [site for site in anatomy.sites if site.module == item.module and site.hook == "input"]
    width = anatomy.tensor(item.weight).axes[item.input_axis].size
    stack = name.split("/")[0]
    return known or [
        Site(f"{item.name}_input", "gauge", stack, 0, "input", item.module, "input", width)
    ]


def in_memory(sites: Mapping[str, Sequence[Site]], batches: Sequence[Batch]) -> list[list[str]]:
    """Names of the spaces with sites, in runs whose activations fit into memory together."""
    rows = sum(_positions(batch) for batch in batches)
    runs: list[list[str]] = [[]]
    held = 0
    for name, own in sites.items():
        size = 8 * rows * sum(site.width for site in own)
        if not own:
            continue
        if runs[-1] and held + size > HELD:
            runs.append([])
            held = 0
        runs[-1].append(name)
        held += size
    return [run for run in runs if run]


def _positions(batch: Batch) -> int:
    """About how many samples a batch leaves at a site."""
    counts = [
        FRAMES * len(value) if value.is_floating_point() else value.shape[0] * value.shape[1]
        for value in batch.inputs.values()
    ]
    return max(counts)
