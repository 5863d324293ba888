"""The robust count: units matched by what they read and again by what they write, in a frame of the
stream found from the token tables; two matches of unrelated models agree at about one unit a layer.

Not an exact test: its null is that two matchings from unlike data are independent, and unrelated
pairs are shown beside it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from scipy.optimize import linear_sum_assignment
from scipy.stats import poisson

from normgauge.lineage.units import Layer, Pair

LEAST_LEFT = 8  # dimensions of the units that regression must leave


@dataclass(frozen=True)
class LayerMatch:
    """One layer: units on which both matches agree, of `units`, the fewer of the two sides';
    `expected`: the agreements of two unrelated matches, 1 where the sides have equally many.
    """

    layer: str
    agreements: int
    units: int
    expected: float


@dataclass(frozen=True)
class FrameMatch:
    """All layers. p: the Poisson probability of so many agreements."""

    layers: tuple[LayerMatch, ...]
    p: float

    @property
    def agreements(self) -> int:
        return sum(each.agreements for each in self.layers)

    @property
    def units(self) -> int:
        return sum(each.units for each in self.layers)

    @property
    def expected(self) -> float:
        """Agreements of unrelated models."""
        return sum(each.expected for each in self.layers)


def frame_match(pair: Pair) -> FrameMatch:
    """Match the units of A to those of B, layer by layer, whatever the coordinates of either.

    Layers whose units are too few for a regression on what they read, or whose stream has no token
    table, are left out.
    """
    frames = frames_of(pair)
    found = tuple(
        LayerMatch(
            first.name,
            len(agreeing(first, second, frames[first.stream])),
            *_sizes(first.units, second.units),
        )
        for first, second in pair.layers
        if first.stream in frames and enough_units(first) and enough_units(second)
    )
    match = FrameMatch(found, 1.0)
    return replace(match, p=float(poisson.sf(match.agreements - 1, match.expected)) if found else 1)


def _sizes(first: int, second: int) -> tuple[int, float]:
    """The fewer units, and the expected agreements of two independent matches: of m pairs each,
    drawn at random among n, m / n.
    """
    return min(first, second), min(first, second) / max(first, second)


def enough_units(layer: Layer) -> bool:
    """Whether a regression on what the units read leaves something of what they write."""
    return layer.write.shape[1] + LEAST_LEFT <= layer.units


def frames_of(pair: Pair) -> dict[str, np.ndarray]:
    """The frame of every stream that has a table on both sides."""
    return {stream: frame_of(*tables) for stream, tables in pair.anchors.items() if tables[0]}


def frame_of(first: Mapping[str, np.ndarray], second: Mapping[str, np.ndarray]) -> np.ndarray:
    """float64 (width of A, width of B), orthonormal along the shorter side: rows of A times it are
    rows in B's coordinates.

    The nearest orthogonal map between the tables (Schoenemann, 1966); where the tables do not span
    the stream, the best signed permutation, which they still determine.
    """
    left, right = (
        np.concatenate([_centred(tables[name]) for name in first]) for tables in (first, second)
    )
    product = left.T @ right
    outer, values, inner = np.linalg.svd(product, full_matrices=False)
    # one direction may be missing: a LayerNorm stream does not see the mean
    least = values[0] * max(product.shape) * np.finfo(np.float64).eps
    if (values > least).sum() >= len(values) - 1:
        return outer @ inner
    lengths = [np.linalg.norm(side, axis=0) for side in (left, right)]
    cosines = product / np.maximum(np.outer(*lengths), 1e-300)
    rows, columns = linear_sum_assignment(-np.abs(cosines))
    frame = np.zeros(product.shape)
    frame[rows, columns] = np.where(cosines[rows, columns] < 0, -1.0, 1.0)
    return frame


def _centred(table: np.ndarray) -> np.ndarray:
    """A table without its mean row, at length one, so that a large one does not outweigh all."""
    moved = table - table.mean(0) if len(table) > 1 else table
    return moved / max(float(np.linalg.norm(moved)), 1e-300)


def agreeing(first: Layer, second: Layer, frame: np.ndarray) -> np.ndarray:
    """int64 (k, 2): units of A, and the unit of B to which both what they read and what they write
    send them.
    """
    matches = []
    for similarity in similarities(first, second, frame):
        rows, columns = linear_sum_assignment(-similarity)
        matches.append(set(zip(rows.tolist(), columns.tolist(), strict=True)))
    return np.array(sorted(matches[0] & matches[1]), dtype=np.int64).reshape(-1, 2)


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
