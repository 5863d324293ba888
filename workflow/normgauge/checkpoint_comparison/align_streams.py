"""The residual streams of a pair in one gauge, found from the rows of tokens and positions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from normgauge.anatomy.structure import Anatomy, Role, SpaceKind
from normgauge.checkpoint_comparison.addends import anchor_rows
from normgauge.checkpoint_comparison.alignment_rows import (
    CORRESPONDS,
    alignment_row,
    verdict,
    with_gauges,
)
from normgauge.checkpoint_comparison.kernels import ratio
from normgauge.checkpoint_comparison.pair import Pair
from normgauge.gauge.admissible import admissible, gauge_spaces
from normgauge.gauge.correlation import FEWEST, CrossCorrelation
from normgauge.gauge.matching import match


def anchor_tables(anatomy: Anatomy, space: str) -> list[str]:
    """Matrices with one axis on the space and the other on coordinates that no gauge moves, such as
    tokens and positions.
    """
    moving = set(gauge_spaces(anatomy)) | {
        item.name
        for item in anatomy.spaces
        if item.kind in (SpaceKind.QUERY, SpaceKind.KEY, SpaceKind.VALUE)
    }
    names = []
    for tensor in anatomy.tensors:
        spaces = [axis.segments[0].space for axis in tensor.axes]
        if (
            tensor.alias_of is None
            and len(spaces) == 2
            and spaces[1] == space
            and spaces[0] not in moving
            and tensor.axes[1].role != Role.INDEX
        ):
            names.append(tensor.name)
    return names


def align_stream(pair: Pair, space: str) -> tuple[Pair, list[dict[str, Any]]]:
    tables = [name for name in anchor_tables(pair.anatomy, space) if name not in pair.unused]
    correlation = CrossCorrelation(pair.anatomy.space(space).size)
    for name in tables:
        for before, after in zip(anchor_rows(pair.a, name), anchor_rows(pair.b, name), strict=True):
            correlation.update(torch.from_numpy(before), torch.from_numpy(after))
    if correlation.n < FEWEST:
        return pair, [
            alignment_row("residual", space, "none", 0.0, 0.0, float("nan"), float("nan"))
        ]
    group = admissible(pair.anatomy, space).group
    found = match(correlation, group)
    element = found.gauge
    certain = 1 - float(found.uncertain.mean())
    moved = float(((element.target != np.arange(element.size)) | (element.factors != 1)).mean())
    unaligned = _table_change(pair, tables)
    taken = certain > CORRESPONDS
    aligned = with_gauges(pair, {}, {space: element.inverse()}) if taken and moved else pair
    return aligned, [
        alignment_row(
            "residual",
            space,
            verdict(taken, moved),
            moved if taken else 0.0,
            certain,
            unaligned,
            _table_change(aligned, tables),
        )
    ]


def _table_change(pair: Pair, names: Sequence[str]) -> float:
    moved = mean = 0.0
    for name in names:
        for before, after in zip(anchor_rows(pair.a, name), anchor_rows(pair.b, name), strict=True):
            moved += float(((after - before) ** 2).sum())
            mean += float(((after + before) ** 2).sum()) / 4
    return ratio(moved, mean) ** 0.5
