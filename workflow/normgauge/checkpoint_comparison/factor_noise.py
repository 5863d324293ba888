"""What storage rounding does to folded factors: variances of their entries on both sides.

Errors of stored values are independent and uniform over their spacing; to first order a folded
entry W g has the variance g^2 var(W) + W^2 var(g). A value that is equal on both sides carries no
rounding, or the same on both. Centring spreads errors over a row; their covariances are left out.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from normgauge.anatomy.structure import LinearMap, Norm, NormKind
from normgauge.checkpoint_comparison.components import where_differing
from normgauge.checkpoint_comparison.factors import (
    Layer,
    Mode,
    bias,
    branch_norm,
    centred,
    gain,
    head_norm,
    matrix,
    read_factor,
    unseen_constants,
)
from normgauge.checkpoint_comparison.pair import Pair

Both = list[np.ndarray]


def read_noise(pair: Pair, item: LinearMap, order: np.ndarray) -> Both:
    """(out, n + 1) of A and of B: variances of the entries of `read_factor`, folded. `order`: the
    row of B as stored that stands where A's is.
    """
    weights, weight_noise = _rows(pair, item, order)
    constants = where_differing(
        _ordered([bias(side, item) for side in (pair.a, pair.b)], order),
        _ordered([bias(side, item, True) for side in (pair.a, pair.b)], order),
    )
    if item.norm is None:
        return [np.column_stack([*parts]) for parts in zip(weight_noise, constants, strict=True)]
    norm = pair.anatomy.norm(item.norm)
    gains, gain_noise = norm_values(pair, norm, norm.size)
    shifts, shift_noise = shift_values(pair, norm, norm.size)
    found = []
    for side in (0, 1):
        squares = weights[side] ** 2
        variance = weight_noise[side] * gains[side] ** 2 + squares * gain_noise[side]
        constant = constants[side] + weight_noise[side] @ shifts[side] ** 2
        constant = constant + squares @ shift_noise[side]
        if norm.kind == NormKind.LAYER_NORM:
            variance = centred_variance(variance)
        found.append(np.column_stack([variance, constant]))
    return found


def write_noise(pair: Pair, item: LinearMap, after: Norm | None, order: np.ndarray) -> Both:
    """(in, out) of A and of B: variances of the entries of `write_factor`, folded and transposed, a
    row per input. `order`: the input of B as stored that stands where A's is.
    """
    sides = (pair.a, pair.b)
    weights = _ordered([matrix(side, item).T for side in sides], order)
    noise = where_differing(
        weights, _ordered([matrix(side, item, True).T for side in sides], order)
    )
    if after is not None:
        gains, gain_noise = norm_values(pair, after, after.size)
        noise = [
            noise[side] * gains[side] ** 2 + weights[side] ** 2 * gain_noise[side]
            for side in (0, 1)
        ]
    if centred(pair.anatomy, item.weight):
        noise = [centred_variance(each) for each in noise]
    return noise


def head_noise(pair: Pair, layer: Layer, part: str, order: np.ndarray) -> Both:
    """(heads, d_h, n + 1) of A and of B: `read_noise` of queries, keys or values by head, behind
    the gains of their norm; (heads, d_v, n) of what each head writes. `order`: the head of B, or
    its group, that stands where A's is.
    """
    item = layer.maps[part]
    space = pair.anatomy.space(item.reads if part == "attention_output" else item.writes)
    heads = len(order)
    size = space.size // space.heads
    rows = (order[:, None] * size + np.arange(size)).ravel()
    if part == "attention_output":
        after = branch_norm(pair.anatomy, layer, "attention")
        return [each.reshape(heads, size, -1) for each in write_noise(pair, item, after, rows)]
    noise = [each.reshape(heads, size, -1) for each in read_noise(pair, item, rows)]
    unseen = unseen_constants(pair.anatomy, item).reshape(heads, size)
    for each in noise:
        each[..., -1][unseen] = 0.0
    if norm := head_norm(pair.anatomy, item.writes):
        gains, gain_noise = norm_values(pair, norm, norm.size)
        for side, factor in enumerate((pair.a, pair.b)):
            before = read_factor(factor, item, Mode.FOLDED).reshape(heads, size, -1)
            before = before if side == 0 else before[order]
            noise[side] = (
                noise[side] * gains[side][:, None] ** 2 + before**2 * gain_noise[side][:, None]
            )
    return noise


def centred_variance(variance: np.ndarray) -> np.ndarray:
    """Variances (m, n) of rows of independent entries behind the centring of each row."""
    size = variance.shape[1]
    return variance * (1 - 2 / size) + variance.sum(1, keepdims=True) / size**2


def _ordered(values: Sequence[np.ndarray], order: np.ndarray) -> Both:
    return [values[0], values[1][order]]


def _rows(pair: Pair, item: LinearMap, order: np.ndarray) -> tuple[Both, Both]:
    sides = (pair.a, pair.b)
    weights = _ordered([matrix(side, item) for side in sides], order)
    noise = _ordered([matrix(side, item, True) for side in sides], order)
    return weights, where_differing(weights, noise)


def norm_values(pair: Pair, norm: Norm | None, size: int) -> tuple[Both, Both]:
    """Effective gains (size,) of both sides, ones without any, and the variances of their
    rounding.
    """
    if norm is None or norm.gain is None:
        return [np.ones(size) for _ in "ab"], [np.zeros(size) for _ in "ab"]
    gains = [gain(side, norm) for side in (pair.a, pair.b)]
    return gains, where_differing(gains, [side.floor(norm.gain) for side in (pair.a, pair.b)])


def shift_values(pair: Pair, norm: Norm | None, size: int) -> tuple[Both, Both]:
    """Biases (size,) of a norm on both sides, zeros without one, and the variances of their
    rounding.
    """
    if norm is None or norm.bias is None:
        return [np.zeros(size) for _ in "ab"], [np.zeros(size) for _ in "ab"]
    shifts = [side.tensor(norm.bias) for side in (pair.a, pair.b)]
    return shifts, where_differing(shifts, [side.floor(norm.bias) for side in (pair.a, pair.b)])
