"""The robust count: units matched by what they read and again by what they write, in a frame of the
stream found from the token tables; two matches of unrelated models agree at about one unit a layer.

Not an exact test: its null is that two matchings from unlike data are independent, and unrelated
pairs are shown beside it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from scipy.optimize import linear_sum_assignment
from scipy.stats import poisson

from normgauge.lineage.units import Layer, Pair

LEAST_LEFT = 8  # dimensions of the units that regression must leave


@dataclass(frozen=True)
class LayerMatch:
    """One layer: units on which both matches agree, of `units`."""

    layer: str
    agreements: int
    units: int


@dataclass(frozen=True)
class FrameMatch:
    """All layers. p: the Poisson probability of so many agreements, one a layer expected."""

    layers: tuple[LayerMatch, ...]
    p: float

    @property
    def agreements(self) -> int:
        return sum(each.agreements for each in self.layers)

    @property
    def units(self) -> int:
        return sum(each.units for each in self.layers)


def frame_match(pair: Pair) -> FrameMatch:
    """Match the units of A to those of B, layer by layer, whatever the coordinates of either.

    Layers whose units are too few for a regression on what they read, or whose stream has no token
    table, are left out.
    """
    frames = {stream: frame_of(*tables) for stream, tables in pair.anchors.items() if tables[0]}
    found = tuple(
        LayerMatch(first.name, agreements(first, second, frames[first.stream]), first.units)
        for first, second in pair.layers
        if first.stream in frames
        and first.units == second.units
        and first.write.shape[1] + LEAST_LEFT <= first.units
    )
    total = sum(each.agreements for each in found)
    return FrameMatch(found, float(poisson.sf(total - 1, len(found))) if found else 1.0)


def frame_of(first: Mapping[str, np.ndarray], second: Mapping[str, np.ndarray]) -> np.ndarray:
    """float64 (width, width), orthogonal: rows of A times it are rows in B's coordinates.

    The nearest orthogonal map between the tables (Schoenemann, 1966); where the tables do not span
    the stream, the best signed permutation, which they still determine.
    """
    left, right = (
        np.concatenate([_centred(tables[name]) for name in first]) for tables in (first, second)
    )
    product = left.T @ right
    width = len(product)
    outer, values, inner = np.linalg.svd(product)
    # one direction may be missing: a LayerNorm stream does not see the mean
    if (values > values[0] * width * np.finfo(np.float64).eps).sum() >= width - 1:
        return outer @ inner
    lengths = [np.linalg.norm(side, axis=0) for side in (left, right)]
    cosines = product / np.maximum(np.outer(*lengths), 1e-300)
    rows, columns = linear_sum_assignment(-np.abs(cosines))
    frame = np.zeros((width, width))
    frame[rows, columns] = np.where(cosines[rows, columns] < 0, -1.0, 1.0)
    return frame


def _centred(table: np.ndarray) -> np.ndarray:
    """A table without its mean row, at length one, so that a large one does not outweigh all."""
    moved = table - table.mean(0) if len(table) > 1 else table
    return moved / max(float(np.linalg.norm(moved)), 1e-300)


def agreements(first: Layer, second: Layer, frame: np.ndarray) -> int:
    """Units of A that what they read and what they write send to the same unit of B."""
    by_read, by_write = (
        linear_sum_assignment(-similarity)[1] for similarity in similarities(first, second, frame)
    )
    return int((by_read == by_write).sum())


def similarities(first: Layer, second: Layer, frame: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """float64 (units, units): of what units read, and of what they write beyond what that
    predicts. The linear branch of a gated unit may change its sign, and what it writes with it.
    """
    reads = [_cosines(a @ frame, b) for a, b in zip(first.reads, second.reads, strict=True)]
    read = reads[0] + np.abs(sum(reads[1:])) if first.gated else reads[0]
    write = _cosines(beyond_reads(first) @ frame, beyond_reads(second))
    return read, np.abs(write) if first.gated else write


def beyond_reads(layer: Layer) -> np.ndarray:
    """float64 (units, width): what units write without what a linear map of their reads predicts,
    which would tie the two matches together in unrelated models as well.

    Rows count by their direction, so that scales and signs of units change nothing; of a gated
    layer the linear branch predicts, whose sign is that of what is written.
    """
    basis = np.linalg.qr(_directions(layer.reads[-1]))[0]
    write = _directions(layer.write)
    return write - basis @ (basis.T @ write)


def _cosines(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    return _directions(first) @ _directions(second).T


def _directions(rows: np.ndarray) -> np.ndarray:
    return rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-300)
