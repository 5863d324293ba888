"""The smallest model in which aligning by the right permutation without its signs is worse than not
aligning.

Two hidden coordinates, y = (x A) B with A = B = I, and the same function in the gauge G, a quarter
turn: A G and G^T B. G swaps the coordinates and flips one sign. docs/signed_permutation.md proves
the three midpoints.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from normgauge.gauge.groups import Monomial
from normgauge.schemas.discrete_laws import PERMUTED, SIGNED, UNALIGNED

TURN = Monomial(np.array([1, 0]), np.array([1.0, -1.0]))
ALIGNMENTS = {
    UNALIGNED: Monomial.identity(2),
    PERMUTED: TURN.permutation(),
    SIGNED: TURN,
}
SHARES = np.linspace(0, 1, 21)


def mixed_map(alignment: Monomial, share: float = 0.5) -> np.ndarray:
    """(2, 2): the function x -> x M of the model mixed with this share of its gauged copy, brought
    back by the inverse of `alignment`.
    """
    left = TURN.compose(alignment.inverse()).matrix()
    first, second = ((1 - share) * np.eye(2) + share * each for each in (left, left.T))
    return first @ second


def loss_of(mixture: np.ndarray) -> float:
    """E|x - x M|^2 over E|x|^2 where the two coordinates have mean zero, equal variances and no
    correlation.
    """
    return float(np.square(np.eye(2) - mixture).sum() / 2)


def example_rows() -> Iterator[dict[str, Any]]:
    """Rows of schema `minimal_example`: every way of aligning along the line."""
    for way, alignment in ALIGNMENTS.items():
        for share in SHARES:
            mixture = mixed_map(alignment, share)
            yield {
                "way": way,
                "share": float(share),
                "loss": loss_of(mixture),
                "map": mixture.ravel().tolist(),
            }
