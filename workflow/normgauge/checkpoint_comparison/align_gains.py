"""Query and key norms of one side in normal form: their gains positive, and as long for queries as
for keys.

A sign goes from a gain into the row of the map in front of its norm; what is common to a rotary
pair, or to a coordinate that does not turn, goes from the query gain to the key gain. Each side is
brought there by itself, so that a swapped pair is the same.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch

from normgauge.anatomy.lookup import rows_of
from normgauge.anatomy.structure import Anatomy, LinearMap, Norm, SpaceKind
from normgauge.checkpoint_comparison.factors import gain, head_norm
from normgauge.checkpoint_comparison.pair import Side
from normgauge.checkpoint_comparison.steps import GainScale, Step
from normgauge.gauge.groups import Monomial
from normgauge.gauge.transform import Move


def head_norms(anatomy: Anatomy) -> Iterator[tuple[Norm, Norm]]:
    """The query norm and the key norm of every attention layer that has them."""
    for norm in anatomy.norms:
        if anatomy.space(norm.space).kind == SpaceKind.QUERY and norm.gain:
            key = head_norm(anatomy, f"{norm.space.removesuffix('query')}key")
            assert key is not None
            yield norm, key


def with_normal_gains(side: Side) -> Side:
    """The side with the gains of its query and key norms in normal form; the function stays."""
    for norms in head_norms(side.anatomy):
        steps: dict[str, list[Step]] = {}
        signs = [np.where(gain(side, norm) < 0, -1.0, 1.0) for norm in norms]
        for norm, sign in zip(norms, signs, strict=True):
            if (sign < 0).any():
                for item in (each for each in side.anatomy.maps if each.writes == norm.space):
                    _turn_rows(side.anatomy, item, sign, steps)
        lengths = [pair_lengths(gain(side, norm), side.anatomy.rotary_size // 2) for norm in norms]
        usable = lengths[0] * lengths[1] > 0
        scale = np.sqrt(
            np.divide(lengths[1], lengths[0], out=np.ones_like(lengths[0]), where=usable)
        )
        for norm, factors in zip(norms, (signs[0] * scale, signs[1] / scale), strict=True):
            assert norm.gain is not None
            if (factors != 1).any():
                steps.setdefault(norm.gain, []).append(GainScale(factors, norm.gain_offset))
        side = side.with_steps(steps)
    return side


def pair_lengths(gains: np.ndarray, half: int) -> np.ndarray:
    """(d_h,): the root mean square of a coordinate's gain and its rotary partner's; of one that
    does not turn its size.
    """
    squares = gains**2
    turning = (squares[:half] + squares[half : 2 * half]) / 2
    return np.sqrt(np.concatenate([turning, turning, squares[2 * half :]]))


def _turn_rows(
    anatomy: Anatomy, item: LinearMap, signs: np.ndarray, steps: dict[str, list[Step]]
) -> None:
    """Append to `steps` the signs of all heads' rows of the map and its bias."""
    rows = torch.from_numpy(rows_of(anatomy, item))
    element = Monomial(np.arange(len(rows)), np.tile(signs, len(rows) // len(signs)))
    for name, axis in ((item.weight, 1 - item.input_axis), (item.bias, 0)):
        if name:
            steps.setdefault(name, []).append(Move(axis, element, rows))
