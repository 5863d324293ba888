"""What the alignment of every group says and does: its row of the table, its verdict, and gauges on
both sides of a pair.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from normgauge.checkpoint_comparison.kernels import ratio
from normgauge.checkpoint_comparison.pair import Pair
from normgauge.gauge.groups import Element
from normgauge.gauge.model_gauge import Gauge
from normgauge.gauge.transform import tensor_moves

# share of certain matches, or mean similarity of matched heads, above which a correspondence is
# taken
CORRESPONDS = 0.5


def alignment_row(
    group: str, space: str, found: str, moved: float, certain: float, before: float, after: float
) -> dict[str, Any]:
    return {
        "group": group,
        "space": space,
        "found": found,
        "moved": float(moved),
        "certain": float(certain),
        "residual_before": float(before),
        "residual_after": float(after),
    }


def with_gauges(pair: Pair, first: dict[str, Element], second: dict[str, Element]) -> Pair:
    steps = [tensor_moves(pair.anatomy, Gauge(elements)) for elements in (first, second)]
    return replace(pair, a=pair.a.with_steps(steps[0]), b=pair.b.with_steps(steps[1]))


def relative_change(first: Sequence[np.ndarray], second: Sequence[np.ndarray]) -> float:
    """|B - A| / |(A + B) / 2| over several arrays together."""
    moved = sum(
        float(((after - before) ** 2).sum()) for before, after in zip(first, second, strict=True)
    )
    mean = (
        sum(
            float(((after + before) ** 2).sum())
            for before, after in zip(first, second, strict=True)
        )
        / 4
    )
    return ratio(moved, mean) ** 0.5


def verdict(taken: bool, moved: float) -> str:
    return "none" if not taken else "gauge" if moved else "identity"
