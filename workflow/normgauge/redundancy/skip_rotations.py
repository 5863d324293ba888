"""The claim's last variant: rotations written into the skip connections give each sublayer a
rotation of its own.

A sublayer is x -> x S + f(N(x)), S the identity in a transformer. With x_l -> x_l g_l the skip
connection becomes g_l^-1 S g_(l+1), so that each g_l is free; where S stays the identity they must
all be one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import torch

from normgauge.anatomy.structure import NormKind
from normgauge.gauge.equivalence import Deviation
from normgauge.redundancy.streams import residual_rotation

HOLDS = 1e-12  # largest difference that is rounding
WIDTH, UNITS, SEQUENCES, LENGTH = 8, 16, 100, 4
SUBLAYERS = 4  # attention and feed-forward in turn


@dataclass(frozen=True, eq=False)
class Sublayer:
    """x -> x skip + f(N(x)), rows are vectors, float64. `reads`: query, key and value maps, each
    (d, d), or one (d, f); `writes` (d, d) or (f, d).
    """

    skip: torch.Tensor
    reads: tuple[torch.Tensor, ...]
    writes: torch.Tensor


def skip_rows(seed: int) -> Iterator[dict[str, Any]]:
    """Rows of schema `redundancy_falsifier`: independent rotations of every sublayer's stream, with
    the skip connections turned and with skip connections that stay the identity.
    """
    generator = torch.Generator().manual_seed(seed)
    layers = [_random_sublayer(number, generator) for number in range(SUBLAYERS)]
    states = torch.randn(SEQUENCES, LENGTH, WIDTH, generator=generator, dtype=torch.float64)
    for kind in NormKind:
        turns = [
            torch.tensor(residual_rotation(WIDTH, kind == NormKind.LAYER_NORM, drawn).matrix)
            for drawn in np.random.default_rng(seed).standard_normal((SUBLAYERS + 1, WIDTH**2))
        ]
        expected = _outputs(layers, kind, states) @ turns[-1]
        moved = rotated(layers, turns)
        for skips in ("turned", "identity"):
            kept = moved if skips == "turned" else [_plain(each) for each in moved]
            difference = float((_outputs(kept, kind, states @ turns[0]) - expected).abs().max())
            found = Deviation(difference, difference / float(expected.abs().max()))
            predicted = 0.0 if skips == "turned" else _distance(turns)
            yield result_row(
                f"one rotation per sublayer, skip connections {skips}",
                "four sublayers",
                str(kind),
                "one",
                "none",
                found,
                predicted,
            )


def rotated(layers: Sequence[Sublayer], turns: Sequence[torch.Tensor]) -> list[Sublayer]:
    """The sublayers between states x_l g_l, `turns` (d, d) one more than there are sublayers."""
    return [
        Sublayer(
            before.T @ layer.skip @ after,
            tuple(before.T @ read for read in layer.reads),
            layer.writes @ after,
        )
        for layer, before, after in zip(layers, turns[:-1], turns[1:], strict=True)
    ]


def _plain(layer: Sublayer) -> Sublayer:
    return replace(layer, skip=torch.eye(WIDTH, dtype=torch.float64))


def _distance(turns: Sequence[torch.Tensor]) -> float:
    """How far neighbouring rotations are from each other, relative to their norm."""
    steps = [float((after - before).norm()) for before, after in pairwise(turns)]
    return max(steps) / WIDTH**0.5


def _random_sublayer(number: int, generator: torch.Generator) -> Sublayer:
    sizes = [WIDTH] * 3 if number % 2 == 0 else [UNITS]
    drawn = [
        0.5 * torch.randn(*shape, generator=generator, dtype=torch.float64)
        for shape in (*((WIDTH, size) for size in sizes), (sizes[-1], WIDTH))
    ]
    return Sublayer(torch.eye(WIDTH, dtype=torch.float64), tuple(drawn[:-1]), drawn[-1])


def _outputs(layers: Sequence[Sublayer], kind: NormKind, states: torch.Tensor) -> torch.Tensor:
    for layer in layers:
        normed = (
            torch.nn.functional.layer_norm(states, (WIDTH,))
            if kind == NormKind.LAYER_NORM
            else torch.nn.functional.rms_norm(states, (WIDTH,))
        )
        read = [normed @ each for each in layer.reads]
        hidden = (
            torch.relu(read[0])
            if len(read) == 1
            else torch.nn.functional.scaled_dot_product_attention(
                read[0], read[1], read[2], is_causal=True
            )
        )
        states = states @ layer.skip + hidden @ layer.writes
    return states


def result_row(
    test: str,
    architecture: str,
    norm_kind: str,
    gain: str,
    value_rule: str,
    found: Deviation,
    predicted: float,
) -> dict[str, Any]:
    return {
        "test": test,
        "architecture": architecture,
        "norm_kind": norm_kind,
        "gain": gain,
        "value_rule": value_rule,
        "max_abs_difference": found.max_abs,
        "relative_difference": found.relative,
        "predicted_effect": predicted or None,
        "holds": found.max_abs <= HOLDS,
    }
