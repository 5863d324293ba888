"""The O V and the Q^T K kernels of all heads as components of a change."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from normgauge.checkpoint_comparison.alignment import Aligned
from normgauge.checkpoint_comparison.components import (
    UNIFORM,
    Components,
    Noise,
    joined,
    where_differing,
)
from normgauge.checkpoint_comparison.factors import (
    Layer,
    Mode,
    attention_factors,
    attention_layers,
    bias,
    matrix,
)
from normgauge.checkpoint_comparison.kernels import change
from normgauge.checkpoint_comparison.ov import head_kernel
from normgauge.checkpoint_comparison.pair import Side
from normgauge.checkpoint_comparison.qk import score_kernel


def head_components(aligned: Aligned) -> list[Components]:
    """The O V and the Q^T K kernels of all heads."""
    found = []
    kinds = (
        ("ov_energy", head_kernel, "attention_output", "value"),
        ("qk_energy", score_kernel, "query", "key"),
    )
    for statistic, kernel, many, shared in kinds:
        places, energies, susceptibilities, spreads = [], [], [], []
        noises: list[Noise] = []
        for layer in attention_layers(aligned.pair.anatomy):
            first, second = (
                attention_factors(side, layer, Mode.RAW)
                for side in (aligned.pair.a, aligned.pair.b)
            )
            noises.append(_kernel_noise(aligned, layer, many, shared))
            for head in range(first.heads):
                pair = kernel(first, head), kernel(second, head)
                values = [each.singular_values() for each in pair]
                places.append({"block": layer.block, "part": "attention", "head": head})
                energies.append(change(*pair).energy())
                susceptibilities.append(sum(float(each.sum()) for each in values))
                spreads.append(kernel_spread(values[0] + values[1], len(pair[0].left)))
        if len(places) > 1:
            columns = [np.array(column) for column in (energies, susceptibilities, spreads)]
            found.append(
                Components(statistic, places, columns[0], columns[1], columns[2], joined(noises))
            )
    return found


def kernel_spread(values: np.ndarray, size: int) -> float:
    """Variance over squared mean of |dL R + L dR|^2 for a product with these singular values, in
    its balanced basis, dL and dR with `size`
    independent normal entries per column and row: sum s^2 / (n (sum s)^2) + 1 / n^2.
    """
    total = float(values.sum())
    return float((values**2).sum()) / (size * total**2) + 1 / size**2 if total else 1.0


def _by_head(side: Side, layer: Layer, part: str, floor: bool) -> np.ndarray:
    """(heads, d_h, n + 1) of queries, keys, values with their biases or, transposed, (heads, d_h,
    n) of the output map.
    """
    item = layer.maps[part]
    rows = matrix(side, item, floor)
    if part == "attention_output":
        rows = rows.T
        return rows.reshape(side.anatomy.space(layer.maps["query"].writes).heads, -1, rows.shape[1])
    rows = np.column_stack([rows, bias(side, item, floor)])
    return rows.reshape(side.anatomy.space(item.writes).heads, -1, rows.shape[1])


def _kernel_noise(aligned: Aligned, layer: Layer, many: str, shared: str) -> Noise:
    """Per head of A: what rounding both sides' factors as stored adds to the energy of the change
    of their product.

    The second factor is shared in its group.
    """
    order = aligned.orders[f"{layer.prefix}attention"]
    sides = (aligned.stream.a, aligned.stream.b)
    factors = [[_by_head(side, layer, part, False) for part in (many, shared)] for side in sides]
    noise = [[_by_head(side, layer, part, True) for part in (many, shared)] for side in sides]
    heads, groups = len(factors[0][0]), len(factors[0][1])
    places = (order, order[:: heads // groups] * groups // heads)
    for values in (factors, noise):
        values[1] = [value[place] for value, place in zip(values[1], places, strict=True)]
    noise = [
        where_differing([side[part] for side in factors], [side[part] for side in noise])
        for part in range(2)
    ]
    return _product_noise(factors[0], [part[0] for part in noise]) + _product_noise(
        factors[1], [part[1] for part in noise]
    )


def _product_noise(factors: Sequence[np.ndarray], noise: Sequence[np.ndarray]) -> Noise:
    """Per head: what rounding one side's two factors adds to the energy of their product; the
    second is shared in its group.

    With P = R R^T and f the variances of the entries of dL, |dL R|^2 = sum_i dl_i^T P dl_i; entries
    are independent and uniform.
    """
    means, variances = [], []
    for head in range(len(factors[0])):
        group = head * len(factors[1]) // len(factors[0])
        left, right, left_noise, right_noise = (
            factors[0][head],
            factors[1][group],
            noise[0][head],
            noise[1][group],
        )
        mean = variance = 0.0
        for own, other in ((left_noise, right), (right_noise, left)):
            gram = other @ other.T
            mean += float(own.sum(1) @ np.diag(gram))
            variance += 2 * float(np.vdot(own @ own.T, gram**2)) - UNIFORM * float(
                (own**2).sum(1) @ np.diag(gram) ** 2
            )
        crossed = (left_noise @ (left**2).T) * (right_noise @ (right**2).T).T
        means.append(mean)
        variances.append(variance + 4 * float(crossed.sum()))
    return Noise(np.array(means), np.array(variances))
