"""The rotation between the residual streams of a pair, where gains can be carried around it:
pre-norm models with an untied readout.

What is compared is in folded coordinates, in which tables, readers and writers all turn by one
orthogonal matrix. It is fitted to half of the rows of the tables and readouts and taken where it
brings the other half together by half; then it is fitted to all.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from normgauge.anatomy.structure import NormKind
from normgauge.checkpoint_comparison.addends import anchor_rows
from normgauge.checkpoint_comparison.align_streams import anchor_tables
from normgauge.checkpoint_comparison.alignment_rows import CORRESPONDS
from normgauge.checkpoint_comparison.factors import gain
from normgauge.checkpoint_comparison.folds import fold_steps
from normgauge.checkpoint_comparison.kernels import ratio
from normgauge.checkpoint_comparison.pair import Pair, Side
from normgauge.gauge.admissible import norms_on
from normgauge.gauge.groups import Orthogonal
from normgauge.gauge.model_gauge import Gauge
from normgauge.gauge.transform import tensor_moves
from normgauge.redundancy.streams import centred_basis, rotations


def find_rotation(pair: Pair, space: str) -> tuple[Orthogonal, float, float] | None:
    """(element that leads from B to A, relative change of the rows before and after it), None where
    the stream admits no rotation or none brings it together.
    """
    if all(each.place != space for each in rotations(pair.anatomy)):
        return None
    norms = norms_on(pair.anatomy, space)
    if not all(gain(side, norm).all() for side in (pair.a, pair.b) for norm in norms):
        return None  # nothing can be carried around a gain of zero
    fixed = any(norm.kind == NormKind.LAYER_NORM for norm in norms)
    products, norms_of = _moments(pair, space)
    half = _nearest(products[0], fixed)
    before, after = (
        _relative(norms_of[1], products[1], turn) for turn in (np.eye(len(half)), half)
    )
    if not after < CORRESPONDS * before:
        return None
    whole = _nearest(products[0] + products[1], fixed)
    after = _relative(norms_of[0] + norms_of[1], products[0] + products[1], whole)
    return Orthogonal(whole.T), before, after


def with_rotation(pair: Pair, space: str, element: Orthogonal) -> Pair:
    """The pair with B's stream turned, and A's gains in place of B's."""
    norms = norms_on(pair.anatomy, space)
    gains = [{norm.name: gain(side, norm) for norm in norms} for side in (pair.a, pair.b)]
    errors = {
        norm.name: pair.b.floor(norm.gain) / gains[1][norm.name] ** 2 for norm in norms if norm.gain
    }
    inverse = {name: 1 / values for name, values in gains[1].items()}
    side = pair.b.with_steps(fold_steps(pair.anatomy, inverse, errors))
    side = side.with_steps(tensor_moves(pair.anatomy, Gauge({space: element})))
    return replace(pair, b=side.with_steps(fold_steps(pair.anatomy, gains[0])))


def _moments(pair: Pair, space: str) -> tuple[list[np.ndarray], list[float]]:
    """Of the rows with even and with odd numbers: A^T B, (n, n), and |A|^2 + |B|^2."""
    width = pair.anatomy.space(space).size
    products, squares = [np.zeros((width, width)) for _ in range(2)], [0.0, 0.0]
    for first, second in zip(_rows(pair.a, space), _rows(pair.b, space), strict=True):
        for part in (0, 1):
            before, after = first[part::2], second[part::2]
            products[part] += before.T @ after
            squares[part] += float((before**2).sum() + (after**2).sum())
    return products, squares


def _rows(side: Side, space: str) -> Iterator[np.ndarray]:
    """Rows of the tables that write the stream and of the readouts, folded, in runs, each table
    with the same weight.
    """
    anatomy = side.anatomy
    for name in anchor_tables(anatomy, space):
        for rows in anchor_rows(side, name):
            yield rows / np.sqrt(anatomy.tensor(name).shape[0] * rows.shape[1])


def _nearest(product: np.ndarray, fixes_ones: bool) -> np.ndarray:
    """The orthogonal matrix G, (n, n), for which A G is nearest to B, from A^T B."""
    if not fixes_ones:
        left, _, right = np.linalg.svd(product)
        return left @ right
    basis = centred_basis(len(product))
    left, _, right = np.linalg.svd(basis.T @ product @ basis)
    return basis @ (left @ right) @ basis.T + np.full_like(product, 1 / len(product))


def _relative(squares: float, product: np.ndarray, turn: np.ndarray) -> float:
    """|B - A G| over the norm of their mean."""
    inner = float(np.vdot(product, turn))
    return ratio(max(squares - 2 * inner, 0.0), (squares + 2 * inner) / 4) ** 0.5
