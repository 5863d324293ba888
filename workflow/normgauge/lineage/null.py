"""Both tests on one pair, as the tables hold them."""

from __future__ import annotations

from typing import Any

import numpy as np

from normgauge.anatomy.structure import NormKind
from normgauge.lineage.frame_match import FrameMatch, frame_match
from normgauge.lineage.trace_test import DRAWS, TraceTest, trace_test, unit_rows
from normgauge.lineage.units import Pair, Side


def units_test(pair: Pair, seed: int, draws: int = DRAWS) -> TraceTest:
    """The exact test on what units read and write, each in its own coordinates."""
    similarities = [
        unit_rows((*first.reads, first.write)) @ unit_rows((*second.reads, second.write)).T
        for first, second in pair.layers
        if first.write.shape == second.write.shape
    ]
    return trace_test(similarities, seed, draws)


def hidden_test(
    first: dict[str, np.ndarray], second: dict[str, np.ndarray], seed: int, draws: int = DRAWS
) -> TraceTest:
    """The exact test on what enters the activations of the same inputs, (units, positions) by
    layer: gauges of the stream and of attention leave it alone.
    """
    similarities = [
        _standard(first[name]) @ _standard(second[name]).T
        for name in first
        if name in second and first[name].shape == second[name].shape
    ]
    return trace_test(similarities, seed, draws)


def _standard(rows: np.ndarray) -> np.ndarray:
    centred = rows - rows.mean(1, keepdims=True)
    return centred / max(float(np.linalg.norm(centred)), 1e-300)


def stream_test(pair: Pair, seed: int, signs: bool = False, draws: int = DRAWS) -> TraceTest:
    """The exact test on the coordinates of each stream, as tokens and positions write them."""
    similarities = [
        sum(
            (unit_rows([first[name].T]) @ unit_rows([second[name].T]).T for name in first),
            start=np.zeros(()),
        )
        for first, second in pair.anchors.values()
        if first and all(first[name].shape == second[name].shape for name in first)
    ]
    return trace_test(similarities, seed, draws, signs)


def admits_signs(side: Side) -> bool:
    """Whether initialisation and training treat the signs of the stream's coordinates alike."""
    return side.anatomy.norm_kind == NormKind.RMS_NORM


def null_row(pair: Pair, signs: bool, seed: int, draws: int = 999) -> dict[str, Any]:
    """The tests of one pair. signs: see `admits_signs`."""
    units, stream = units_test(pair, seed, draws), stream_test(pair, seed, signs, draws)
    match: FrameMatch = frame_match(pair)
    return {
        "p_units": units.p,
        "z_units": units.z,
        "p_stream": stream.p,
        "z_stream": stream.z,
        "agreements": match.agreements,
        "layers": len(match.layers),
        "p_count": match.p,
    }
