"""How scores between tokens depend on their distance: the Fourier series of the probe kernels over
the offset (analyses 26, 28).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from normgauge.checkpoint_comparison.factors import AttentionFactors, Mode
from normgauge.checkpoint_comparison.kernels import ratio
from normgauge.checkpoint_comparison.ov import dense, token_kernel
from normgauge.checkpoint_comparison.probes import Frame
from normgauge.checkpoint_comparison.qk import rotated
from normgauge.checkpoint_comparison.statistics import row, two_sided

Rows = Iterator[dict[str, Any]]
CURVE = (0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
WINDOWS = ((1, 4, 17, 32), (1, 8, 65, 128), (1, 16, 129, 256))
"""(near from, near to, far from, far to), offsets included."""
BANDS = (0.0, 16.0, 64.0, 256.0, np.inf)
"""Edges of the bands of periods, positions."""


def fourier_series(
    factors: AttentionFactors, head: int, rows: np.ndarray, size: int
) -> tuple[np.ndarray, np.ndarray, float]:
    """(cosine (p,), sine (p,), constant): tr(X Q^T R(offset) K X^T) = constant + sum_p cosine
    cos(offset w_p) + sine sin(offset w_p).
    """
    queries, keys = factors.query[head] @ rows.T, factors.key[factors.group(head)] @ rows.T
    first, second = slice(0, size), slice(size, 2 * size)
    cosine = (queries[first] * keys[first] + queries[second] * keys[second]).sum(1)
    sine = (queries[first] * keys[second] - queries[second] * keys[first]).sum(1)
    return cosine, sine, float(np.vdot(queries[2 * size :], keys[2 * size :]))


def series_at(
    series: tuple[np.ndarray, np.ndarray, float], frequencies: np.ndarray, offsets: np.ndarray
) -> np.ndarray:
    """The series at offsets, (o,)."""
    angles = np.outer(offsets, frequencies)
    return np.cos(angles) @ series[0] + np.sin(angles) @ series[1] + series[2]


def window_difference(
    series: tuple[np.ndarray, np.ndarray, float],
    frequencies: np.ndarray,
    window: tuple[int, int, int, int],
) -> float:
    """Mean over the near offsets minus mean over the far ones."""
    near, far = (
        series_at(series, frequencies, np.arange(start, stop + 1))
        for start, stop in (window[:2], window[2:])
    )
    return float(near.mean() - far.mean())


def recency_rows(
    block: int,
    first: AttentionFactors,
    second: AttentionFactors,
    frames: Sequence[tuple[Frame, Frame]],
    frequencies: np.ndarray,
    mode: Mode,
) -> Rows:
    """All rows of one attention layer with rotary positions in one mode."""
    for head in range(first.heads):
        windows: dict[str, list[tuple[float, float]]] = {}
        for pair in frames:
            place: dict[str, Any] = {
                "block": block,
                "part": "attention",
                "head": head,
                "probe": pair[0].probe.name,
            }
            series = [
                fourier_series(
                    side, head, frame.reads / np.linalg.norm(frame.reads), len(frequencies)
                )
                for side, frame in zip((first, second), pair, strict=True)
            ]
            for offset in CURVE:
                before, after = (
                    series_at(each, frequencies, np.array([offset])).item() for each in series
                )
                yield two_sided("recency_curve", mode, before, after, label=str(offset), **place)
            windows[pair[0].probe.name] = [
                (
                    window_difference(series[0], frequencies, window),
                    window_difference(series[1], frequencies, window),
                )
                for window in WINDOWS
            ]
            for window, values in zip(WINDOWS, windows[pair[0].probe.name], strict=True):
                yield two_sided(
                    "recency_window", mode, *values, label=window_label(window), **place
                )
            yield from _band_rows(place, series, frequencies, mode)
            yield from _window_rows(place, (first, second), pair, frequencies, mode)
        for pair in frames:
            control = windows.get(pair[0].probe.control or "")
            if control is not None:
                place = {
                    "block": block,
                    "part": "attention",
                    "head": head,
                    "probe": pair[0].probe.name,
                }
                for window, own, other in zip(
                    WINDOWS, windows[pair[0].probe.name], control, strict=True
                ):
                    yield two_sided(
                        "recency_specific",
                        mode,
                        own[0] - other[0],
                        own[1] - other[1],
                        label=window_label(window),
                        **place,
                    )


def window_label(window: tuple[int, int, int, int]) -> str:
    return f"{window[0]}-{window[1]} over {window[2]}-{window[3]}"


def _band_rows(
    place: dict[str, Any],
    series: Sequence[tuple[np.ndarray, np.ndarray, float]],
    frequencies: np.ndarray,
    mode: Mode,
) -> Rows:
    energy = (series[1][0] - series[0][0]) ** 2 + (series[1][1] - series[0][1]) ** 2
    periods = 2 * np.pi / frequencies
    for low, high in pairwise(BANDS):
        share = ratio(float(energy[(periods >= low) & (periods < high)].sum()), float(energy.sum()))
        yield row("recency_band", mode, share, label=f"{low:g}-{high:g}", **place)


def _window_rows(
    place: dict[str, Any],
    sides: tuple[AttentionFactors, AttentionFactors],
    pair: tuple[Frame, Frame],
    frequencies: np.ndarray,
    mode: Mode,
) -> Rows:
    """Whether what became more recent, in each window, is what is carried more, and what is
    carried.
    """
    carried = [
        _symmetric(dense(token_kernel(side, place["head"], frame, even=True)))
        for side, frame in zip(sides, pair, strict=True)
    ]
    for window in WINDOWS:
        labelled = {**place, "label": window_label(window)}
        cosine = transport_cosine(*sides, place["head"], pair, frequencies, window)
        yield row("recency_transport", mode, cosine, **labelled)
        recency = [
            _symmetric(window_kernel(side, place["head"], frame, frequencies, window))
            for side, frame in zip(sides, pair, strict=True)
        ]
        moved = recency[1] - recency[0]
        favoured = support(moved, carried[1]) - support(-moved, carried[0])
        yield row("recency_support", mode, favoured, **labelled)


def support(update: np.ndarray, carried: np.ndarray) -> float:
    """<P, T> / (tr(P) |T|), from -1 to 1: T, (k, k), on the positive part P of a symmetric change;
    |T| its largest singular value. 0 without any.
    """
    values, vectors = np.linalg.eigh(update)
    positive = np.where(values > 1e-12 * np.abs(values).max(initial=0.0), values, 0.0)
    along = np.einsum("ip,ij,jp->p", vectors, carried, vectors)
    largest = float(np.linalg.norm(carried, 2))
    return ratio(float(positive @ along), float(positive.sum()) * largest)


def _symmetric(matrix: np.ndarray) -> np.ndarray:
    return (matrix + matrix.T) / 2


def window_kernel(
    side: AttentionFactors,
    head: int,
    frame: Frame,
    frequencies: np.ndarray,
    window: tuple[int, int, int, int],
) -> np.ndarray:
    """(k, k): mean score between tokens in even frames over the near offsets, minus the far
    ones'.
    """
    queries = side.query[head] @ frame.even_reads.T
    keys = side.key[side.group(head)] @ frame.even_reads.T
    near, far = (
        np.mean([rotated(keys, frequencies, offset) for offset in range(start, stop + 1)], axis=0)
        for start, stop in (window[:2], window[2:])
    )
    return queries.T @ (near - far)


def symmetric_updates(
    first: AttentionFactors,
    second: AttentionFactors,
    head: int,
    pair: tuple[Frame, Frame],
    frequencies: np.ndarray,
    window: tuple[int, int, int, int] = WINDOWS[1],
) -> tuple[np.ndarray, np.ndarray]:
    """Traceless symmetric parts, (k, k), of the changes of recency in a window and of O V between
    even frames.
    """
    updates = []
    for side, frame in zip((first, second), pair, strict=True):
        recency = window_kernel(side, head, frame, frequencies, window)
        updates.append((recency, dense(token_kernel(side, head, frame, even=True))))
    recency, transport = (
        _traceless(after - before) for before, after in zip(*updates, strict=True)
    )
    return recency, transport


def _traceless(matrix: np.ndarray) -> np.ndarray:
    """The symmetric part without its trace on the space of contrasts."""
    size = len(matrix)
    centring = np.eye(size) - 1 / size
    return (matrix + matrix.T) / 2 - centring * np.trace(matrix) / (size - 1)


def transport_cosine(
    first: AttentionFactors,
    second: AttentionFactors,
    head: int,
    pair: tuple[Frame, Frame],
    frequencies: np.ndarray,
    window: tuple[int, int, int, int] = WINDOWS[1],
) -> float:
    """Cosine of the two updates: whether what became more recent is what is carried more."""
    recency, transport = symmetric_updates(first, second, head, pair, frequencies, window)
    return ratio(
        float(np.vdot(recency, transport)),
        float(np.linalg.norm(recency) * np.linalg.norm(transport)),
    )
