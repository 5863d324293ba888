"""The signed permutation inside an orthogonal matrix: Q = G R with R near the identity, G from |Q|
alone.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from normgauge.errors import InputError
from normgauge.gauge.groups import Monomial, Orthogonal
from normgauge.gauge.matching import assign
from normgauge.gauge.orthogonal import ORTHOGONALITY

RADIUS = float(np.sqrt(2 - np.sqrt(2)))
"""While every row of R is closer than this to its row of the identity, G is found; at this distance
a rotation by 45 degrees is not.
"""


@dataclass(frozen=True, eq=False)
class Scaffold:
    """Q = G R: `gauge` is G, `rest` is R = G^T Q, `certified` says that G is the only such element
    with R's rows within RADIUS.
    """

    gauge: Monomial
    rest: Orthogonal
    certified: bool


def discrete_part(rotation: Orthogonal) -> Scaffold:
    """The signed permutation nearest to an orthogonal matrix.

    It maximises the sum of |Q[i, target[i]]|, so it is the nearest in the Frobenius norm. Certified
    when every row has an entry above 1/sqrt(2) in absolute value: rows and columns have norm one,
    so each row and each column has at most one.
    """
    matrix = rotation.matrix
    target, _, _ = assign(np.abs(matrix))
    entries = matrix[np.arange(len(matrix)), target]
    gauge = Monomial(target, np.where(entries < 0, -1.0, 1.0))
    return Scaffold(
        gauge, Orthogonal(gauge.matrix().T @ matrix), bool((entries**2 > 0.5 + ORTHOGONALITY).all())
    )


def procrustes(source: np.ndarray, target: np.ndarray) -> Orthogonal:
    """The orthogonal matrix that brings activations (n, d) nearest to others of the same samples
    (Schoenemann 1966). InputError for other shapes.
    """
    if source.shape != target.shape or source.ndim != 2:
        raise InputError(
            f"activations of shapes {source.shape} and {target.shape}: expected the same samples "
            "of one width; use one set of probes"
        )
    left, _, right = np.linalg.svd(source.T @ target)
    return Orthogonal(left @ right)
