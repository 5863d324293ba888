"""What the rounding of stored weights can do: which values it can have moved, and how far.

A value that is rounded once to its dtype is off by at most half a unit in the last place (ulp), and
by 1/sqrt(12) = 0.29 ulp in root mean square (Higham, Accuracy and Stability of Numerical
Algorithms, 2nd edition, chapter 2).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import reduce

import numpy as np
import torch

from normgauge.checkpoints.readers.mapped import ChangedTensors

SINGLE_ROUNDING = 12**-0.5  # root mean square error of one rounding, ulp
SINGLE_VALUES = 64  # changed values of one tensor that are compared one by one
_MIXERS = (-7046029254386353131, -4658895280553007687)  # odd constants of SplitMix64, as int64


def ulp(value: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """float64, of the shape of `value`: the distance of neighbours in `dtype` at each value.

    Below the normal range it is that of the smallest normal number.
    """
    limits = torch.finfo(dtype)
    smallest = int(np.log2(limits.smallest_normal))
    exponent = torch.frexp(value.double().abs())[1] - 1
    exponent = torch.where(value == 0, smallest, exponent).clamp(min=smallest)
    return torch.from_numpy(np.ldexp(limits.eps, exponent.numpy()))


def roundable(source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """bool, of the shape of `target`: the values that no move of whole slices explains.

    Permutations along any axes, signs and powers of two keep the multiset of the significands of
    every slice. A value counts when along each axis its slice of the target has no equal in the
    source. Both tensors are of one shape, in any floating dtypes.
    """
    if target.ndim == 0:
        return target != source
    words = [_mixed(_significands(value)) for value in (source, target)]
    axes = []
    for axis in range(target.ndim):
        others = tuple(number for number in range(target.ndim) if number != axis)
        source_digests, digests = (word.sum(others) if others else word for word in words)
        shape = [1] * target.ndim
        shape[axis] = -1
        axes.append(_unmatched(source_digests, digests).reshape(shape))
    return reduce(torch.logical_and, axes).expand(target.shape)


def isolated(changed: torch.Tensor) -> bool:
    """Whether these values of a tensor, as `roundable` found them, are single ones.

    A map along one axis changes some of its slices, and in these every slice of the other axes.
    Single values are in fewer than half the slices of every axis. One axis shows nothing.
    """
    if changed.ndim < 2 or not changed.any():
        return False
    others = [tuple(set(range(changed.ndim)) - {axis}) for axis in range(changed.ndim)]
    return all(float(changed.any(rest).double().mean()) < 0.5 for rest in others)


def change_in_ulp(source: torch.Tensor, target: torch.Tensor, dtype: torch.dtype) -> float:
    """The largest change among values of which few have changed, in ulp of `dtype`.

    Places, signs and powers of two do not count: the significands that only one side has are
    paired, in order, on the circle on which doubling closes. NaN where the sides differ in number,
    or where there are more than SINGLE_VALUES of them, or none.
    """
    words = [_significands(value.reshape(-1)) for value in (source, target)]
    kept = [
        value.reshape(-1).double()[_unmatched(*pair)]
        for value, pair in ((source, words[::-1]), (target, words))
    ]
    if (
        len(kept[0]) != len(kept[1])
        or not 0 < len(kept[0]) <= SINGLE_VALUES
        or not all(each.all() for each in kept)
    ):
        return float("nan")
    units = ulp(kept[1], dtype) / kept[1].abs() / np.log(2)
    angles = [torch.log2(each.abs()) % 1 for each in kept]
    first, order = angles[0].sort().values, angles[1].argsort()
    gaps = torch.stack([(angles[1][order] - first.roll(turn)).abs() for turn in range(len(first))])
    return float((torch.minimum(gaps, 1 - gaps) / units[order]).max(1).values.min())


def moved_by_an_ulp(
    tensors: Mapping[str, torch.Tensor],
    places: Mapping[str, torch.Tensor],
    dtypes: Mapping[str, torch.dtype],
    seed: int,
) -> ChangedTensors:
    """The tensors, float64, with the values at `places` (bool, of the tensor's shape or one for
    all) one ulp up or down at random; made when they are asked for.

    Each tensor draws from a generator of its own, seeded by its name and `seed`.
    """

    def moved(name: str, value: torch.Tensor) -> torch.Tensor:
        wide = value.double()
        if name not in places:
            return wide
        digest = hashlib.sha256(f"{seed} {name}".encode()).digest()
        generator = torch.Generator().manual_seed(int.from_bytes(digest[:7], "little"))
        drawn = torch.randint(0, 2, value.shape, generator=generator, dtype=torch.int8)
        signs = drawn.double() * 2 - 1
        return wide + signs.mul_(ulp(wide, dtypes[name])).mul_(places[name])

    return ChangedTensors(tensors, moved)


def _significands(value: torch.Tensor) -> torch.Tensor:
    """int64: the 53 bits of each significand; 0 for a zero."""
    return (torch.frexp(value.double().abs())[0] * 2.0**53).long()


def _mixed(words: torch.Tensor) -> torch.Tensor:
    """int64 words scattered so that sums of them, modulo 2^64, tell multisets apart."""
    for factor in _MIXERS:
        words = words * factor
        words = words ^ (words >> 29)
    return words


def _unmatched(source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """bool (n,): words that occur more often in the target than in the source."""
    values, place, counts = np.unique(target.numpy(), return_inverse=True, return_counts=True)
    ordered = np.sort(source.numpy())
    found = np.searchsorted(ordered, values, "right") - np.searchsorted(ordered, values, "left")
    return torch.from_numpy((counts > found)[place])
