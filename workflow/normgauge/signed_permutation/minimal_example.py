"""The smallest model in which aligning by the right permutation without its signs is worse than not
aligning.

Two hidden coordinates, y = (x A) B with A = B = I, and the same function in the gauge G, a quarter
turn: A G and G^T B. G swaps the coordinates and flips one sign. docs/signed_permutation.md proves
the three midpoints.
"""

from __future__ import annotations

import numpy as np

from normgauge.gauge.groups import Monomial

TURN = Monomial(np.array([1, 0]), np.array([1.0, -1.0]))


def midpoint_map(alignment: Monomial) -> np.ndarray:
    """(2, 2): the function x -> x M at the midpoint of the model and its gauged copy, brought back
    by the inverse of `alignment`.
    """
    left = TURN.compose(alignment.inverse()).matrix()
    return (np.eye(2) + left) / 2 @ (np.eye(2) + left.T) / 2


def midpoint_losses(x: np.ndarray) -> dict[str, float]:
    """Mean squared error at the midpoint on inputs (n, 2): not aligned, aligned by the permutation
    alone, by the signed permutation.
    """
    alignments = {
        "unaligned": Monomial.identity(2),
        "permutation": TURN.permutation(),
        "signed permutation": TURN,
    }
    return {
        name: float(np.square(x - x @ midpoint_map(alignment)).sum(1).mean())
        for name, alignment in alignments.items()
    }
