"""Rows of tables as the maps behind them see them, and the tables that are added to one sum."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from normgauge.anatomy.structure import Anatomy, LinearMap, NormKind
from normgauge.checkpoint_comparison.factors import centred, gain
from normgauge.checkpoint_comparison.pair import Side
from normgauge.redundancy.constants import sums, tied_readouts


def reader_of(anatomy: Anatomy, table: str) -> LinearMap | None:
    """The map whose rows a table of `anchor_tables` holds; None of what is looked up."""
    return next(
        (item for item in anatomy.maps if item.weight == table and item.input_axis == 1), None
    )


def seen_rows(side: Side, name: str) -> Iterator[np.ndarray]:
    """The rows of a table in the runs of `Side.rows`: of a reading map behind its norm's gain and
    centring, else without the multiples of ones that LayerNorms take away.
    """
    anatomy = side.anatomy
    reader = reader_of(anatomy, name)
    norm = anatomy.norm(reader.norm) if reader and reader.norm else None
    scale = gain(side, norm) if norm else 1.0
    unseen = norm.kind == NormKind.LAYER_NORM if norm else centred(anatomy, name)
    for rows in side.rows(name):
        folded = rows * scale
        yield folded - folded.mean(1, keepdims=True) if unseen else folded


def anchor_rows(side: Side, name: str) -> Iterator[np.ndarray]:
    """The same without the mean of all rows, where another table can take it."""
    mean = table_mean(side, name) if name in exchanged(side.anatomy) else 0.0
    for rows in seen_rows(side, name):
        yield rows - mean


def table_sums(anatomy: Anatomy) -> list[list[str]]:
    """The tables that are added to one sum, and those of them that a readout with a bias is tied
    to, by sum.
    """
    found = []
    for place, names in sums(anatomy):
        if len(anatomy.tensor(names[0]).axes) > 1:
            found.append([*names, *(table for _, table in tied_readouts(anatomy, place))])
    return found


def exchanged(anatomy: Anatomy) -> set[str]:
    """The tables whose rows may all move by one vector, because another addend of the same sum
    takes it back.
    """
    return {name for names in table_sums(anatomy) if len(names) > 1 for name in names}


def table_mean(side: Side, name: str) -> np.ndarray:
    """(n,): the mean of a table's rows, as `seen_rows` has them."""
    total = sum(rows.sum(0) for rows in seen_rows(side, name))
    return np.asarray(total) / side.anatomy.tensor(name).shape[0]
