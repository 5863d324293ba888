"""The O V and the Q^T K kernels of all heads as components of a change."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from normgauge.checkpoint_comparison.alignment import Aligned
from normgauge.checkpoint_comparison.components import (
    UNIFORM,
    Components,
    Noise,
    arithmetic,
    joined,
)
from normgauge.checkpoint_comparison.factor_noise import head_noise
from normgauge.checkpoint_comparison.factors import (
    AttentionFactors,
    Layer,
    Mode,
    attention_factors,
    attention_layers,
)
from normgauge.checkpoint_comparison.kernels import Kernel, change
from normgauge.checkpoint_comparison.ov import head_kernel
from normgauge.checkpoint_comparison.qk import score_kernel


def head_components(aligned: Aligned) -> list[Components]:
    """The O V and the Q^T K kernels of all heads, between coordinates of the stream: constants are
    no entries of like variance, and parts of their own (`equality`).
    """
    found = []
    kinds = (
        ("ov_energy", _moved, "attention_output", "value"),
        ("qk_energy", _scored, "query", "key"),
    )
    for statistic, kernel, many, shared in kinds:
        places, energies, sizes, susceptibilities, spreads = [], [], [], [], []
        noises: list[Noise] = []
        for layer in attention_layers(aligned.pair.anatomy):
            first, second = (
                attention_factors(side, layer, Mode.FOLDED)
                for side in (aligned.pair.a, aligned.pair.b)
            )
            noises.append(_kernel_noise(aligned, layer, many, shared))
            for head in range(first.heads):
                pair = kernel(first, head), kernel(second, head)
                values = [each.singular_values() for each in pair]
                places.append({"block": layer.block, "part": "attention", "head": head})
                energies.append(change(*pair).energy())
                sizes.append(sum(float((each**2).sum()) for each in values) / 2)
                susceptibilities.append(sum(float(each.sum()) for each in values))
                spreads.append(kernel_spread(values[0] + values[1], len(pair[0].left)))
        if len(places) > 1:
            noise = joined(noises) + arithmetic(np.array(energies), np.array(sizes))
            found.append(
                Components(
                    statistic,
                    places,
                    energies=np.array(energies),
                    susceptibilities=np.array(susceptibilities),
                    spreads=np.array(spreads),
                    noise=noise,
                    sizes=np.array(sizes),
                )
            )
    return found


def _moved(factors: AttentionFactors, head: int) -> Kernel:
    kernel = head_kernel(factors, head)
    return Kernel(kernel.left, kernel.right[:, :-1])


def _scored(factors: AttentionFactors, head: int) -> Kernel:
    kernel = score_kernel(factors, head)
    return Kernel(kernel.left[:-1], kernel.right[:, :-1])


def kernel_spread(values: np.ndarray, size: int) -> float:
    """Variance over squared mean of |dL R + L dR|^2 for a product with these singular values, in
    its balanced basis, dL and dR with `size`
    independent normal entries per column and row: sum s^2 / (n (sum s)^2) + 1 / n^2.
    """
    total = float(values.sum())
    return float((values**2).sum()) / (size * total**2) + 1 / size**2 if total else 1.0


def _kernel_noise(aligned: Aligned, layer: Layer, many: str, shared: str) -> Noise:
    """Per head of A: what rounding both sides' stored values adds to the energy of the change of
    their folded product.

    The second factor is shared in its group.
    """
    order = aligned.orders[f"{layer.prefix}attention"]
    stream = aligned.stream
    heads, groups = len(order), stream.anatomy.space(layer.maps[shared].writes).heads
    orders = (order, order[:: heads // groups] * groups // heads)
    factors = [
        _by_head(attention_factors(side, layer, Mode.FOLDED), many, shared)
        for side in (stream.a, stream.b)
    ]
    factors[1] = [part[place] for part, place in zip(factors[1], orders, strict=True)]
    noise = [
        head_noise(stream, layer, part, place)
        for part, place in zip((many, shared), orders, strict=True)
    ]
    if many == "query":
        noise[0] = [part[..., :-1] for part in noise[0]]
    noise[1] = [part[..., :-1] for part in noise[1]]
    return _product_noise(factors[0], [part[0] for part in noise]) + _product_noise(
        factors[1], [part[1] for part in noise]
    )


def _by_head(factors: AttentionFactors, many: str, shared: str) -> list[np.ndarray]:
    """(heads, d_h, n) of what heads have of their own, (groups, d_h, n) of what they share."""
    rest = getattr(factors, shared)[..., :-1]
    if many == "attention_output":
        return [factors.output.transpose(0, 2, 1), rest]
    return [getattr(factors, many)[..., :-1], rest]


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
