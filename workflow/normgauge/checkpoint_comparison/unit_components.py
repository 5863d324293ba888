"""The feed-forward units of all layers as components of a change."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from normgauge.checkpoint_comparison.alignment import Aligned
from normgauge.checkpoint_comparison.components import (
    UNIFORM,
    Components,
    Noise,
    arithmetic,
    joined,
    square_variance,
)
from normgauge.checkpoint_comparison.factor_noise import read_noise, write_noise
from normgauge.checkpoint_comparison.factors import (
    Layer,
    Mode,
    branch_norm,
    feed_forward_factors,
    feed_forward_layers,
)
from normgauge.checkpoint_comparison.kernels import Units, change_terms
from normgauge.checkpoint_comparison.pair import Side

UNITS = "mlp_unit_terms"  # the statistic


def unit_components(aligned: Aligned) -> Components | None:
    """The units of all feed-forward layers; None without any.

    Their energy is that of the terms of the exact split, each by itself: inner products between the
    terms are products of two sums over few large entries, whose tails no gamma law has.
    """
    places: list[dict[str, Any]] = []
    energies, sizes, susceptibilities, spreads = [], [], [], []
    noises: list[Noise] = []
    for layer in feed_forward_layers(aligned.pair.anatomy):
        sides = [_unit_factors(side, layer) for side in (aligned.pair.a, aligned.pair.b)]
        units = Units(*sides)
        parts = unit_parts(sides[0]) + unit_parts(sides[1])
        weights = parts / np.maximum(parts.sum(0), 1e-300)
        size = sides[0][0].shape[1]
        places += [
            {"block": layer.block, "part": "mlp", "unit": unit} for unit in range(len(sides[0][0]))
        ]
        energies.append(units.term_energies(change_terms(units.count)))
        susceptibilities.append(parts.sum(0))
        spreads.append(2 * (weights**2).sum(0) / size)
        sizes.append(_sizes(sides))
        noises.append(_layer_noise(aligned, layer) + arithmetic(energies[-1], sizes[-1]))
    if not places:
        return None
    return Components(
        UNITS,
        places,
        energies=np.concatenate(energies),
        susceptibilities=np.concatenate(susceptibilities),
        spreads=np.concatenate(spreads),
        noise=joined(noises),
        sizes=np.concatenate(sizes),
    )


def _unit_factors(side: Side, layer: Layer) -> tuple[np.ndarray, ...]:
    factors = feed_forward_factors(side, layer, Mode.FOLDED)
    return (factors.down, *(read[:, :-1] for read in factors.reads))


def _sizes(sides: Sequence[tuple[np.ndarray, ...]]) -> np.ndarray:
    """(f,): bounds of the squared norms of d (x) sym(reads), the mean of both sides."""
    return np.mean(
        [np.prod([(part**2).sum(1) for part in factors], axis=0) for factors in sides], axis=0
    )


def unit_parts(factors: tuple[np.ndarray, ...]) -> np.ndarray:
    """(factors, f): expected energy of the change of d (x) sym(reads) when one factor alone moves
    by a random vector of unit length; up and down are taken equally long, as a scale of the unit
    can make them.
    """
    down, reads = factors[0], factors[1:]
    length = np.linalg.norm(down, axis=1) * np.linalg.norm(reads[-1], axis=1)
    if len(reads) == 1:
        return np.stack([length, length])
    gate = (reads[0] ** 2).sum(1)
    up = (reads[1] ** 2).sum(1)
    overlap = np.divide(
        (reads[0] * reads[1]).sum(1) ** 2, gate * up, out=np.zeros_like(gate), where=gate * up > 0
    )
    return np.stack([length * gate * (1 + overlap), length**2, length * gate]) / 2


def _layer_noise(aligned: Aligned, layer: Layer) -> Noise:
    """Per unit of A: what rounding both sides' stored values adds to the energies of the terms of
    the change.
    """
    order, stream = aligned.orders[f"{layer.prefix}ffn"], aligned.stream
    factors = [_unit_factors(side, layer) for side in (stream.a, stream.b)]
    factors[1] = tuple(part[order] for part in factors[1])
    after = branch_norm(stream.anatomy, layer, "mlp")
    parts = [write_noise(stream, layer.maps["down"], after, order)]
    parts += [
        [noise[:, :-1] for noise in read_noise(stream, layer.maps[part], order)]
        for part in ("gate", "up")
        if part in layer.maps
    ]
    return _unit_noise(factors[0], [part[0] for part in parts]) + _unit_noise(
        factors[1], [part[1] for part in parts]
    )


def _unit_noise(factors: Sequence[np.ndarray], rounding: Sequence[np.ndarray]) -> Noise:
    """Per unit: what rounding one side's factors adds to the energies of the terms of d (x)
    sym(reads).
    """
    down, *reads = factors
    down_noise, *noise = rounding
    squares, lengths = (down**2).sum(1), [(read**2).sum(1) for read in reads]
    if len(reads) == 1:
        mean = down_noise.sum(1) * lengths[0] + squares * noise[0].sum(1)
        return Noise(
            mean,
            square_variance(down_noise, lengths[0] ** 2) + square_variance(noise[0], squares**2),
        )
    form = (lengths[0] * lengths[1] + (reads[0] * reads[1]).sum(1) ** 2) / 2
    mean, variance = down_noise.sum(1) * form, square_variance(down_noise, form**2)
    for own, partner, length in (
        (noise[0], reads[1], lengths[1]),
        (noise[1], reads[0], lengths[0]),
    ):
        seen, wide = (own * partner**2).sum(1), length[:, None]
        mean = mean + squares * (own.sum(1) * length + seen) / 2
        spread = 2 * ((own**2 * (wide**2 + 2 * wide * partner**2)).sum(1) + seen**2)
        variance = variance + squares**2 / 4 * (
            spread - UNIFORM * (own**2 * (wide + partner**2) ** 2).sum(1)
        )
    return Noise(mean, variance)
