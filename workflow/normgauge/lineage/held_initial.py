"""The exact test with the initial weights of A held: given B, fresh initialisations are
exchangeable with the true one, for any statistic that survives changes of coordinates.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import torch

from normgauge.checkpoints.building import reinitialise
from normgauge.checkpoints.opening import Checkpoint
from normgauge.lineage.frame_match import frames_of, similarities
from normgauge.lineage.units import Side, pair_of

DRAWS = 99


@dataclass(frozen=True)
class InitialTest:
    """Units of the held initialisation that read and write like one unit of B, the most of any of
    the fresh ones, and the p-value, never below 1 / (draws + 1).
    """

    statistic: int
    largest_fresh: int
    p: float
    draws: int


def held_initial_test(
    initial: Side,
    b: Side,
    fresh: Callable[[int], Mapping[str, torch.Tensor]],
    draws: int = DRAWS,
) -> InitialTest:
    """Rank the held initialisation among fresh ones.

    initial: as A was initialised. fresh: the same random initialisation, independent by number.
    Exact where A0 was drawn as the fresh ones are, and B, if it does not descend from A0, does not
    depend on it.
    """
    held = nearest_agreements(initial, b)
    drawn = [nearest_agreements(Side(initial.anatomy, fresh(number)), b) for number in range(draws)]
    reaching = sum(each >= held for each in drawn)
    return InitialTest(held, max(drawn), (1 + reaching) / (1 + draws), draws)


def fresh_initialisations(initial: Checkpoint) -> Callable[[int], dict[str, torch.Tensor]]:
    """Initialisations of the class of A0 by their number.

    Their seeds are ones that nobody has typed: a small one may be that of A0 itself.
    """

    def fresh(number: int) -> dict[str, torch.Tensor]:
        digest = hashlib.sha256(f"fresh initialisation {number}".encode()).digest()
        seed = int.from_bytes(digest[:4])
        return dict(reinitialise(initial, seed, "float32").state_dict())

    return fresh


def nearest_agreements(a: Side, b: Side) -> int:
    """Units of A whose nearest unit of B is the same by what they read and by what they write,
    summed over layers: quicker than matching, and any invariant will do here.
    """
    pair = pair_of(a, b)
    frames, count = frames_of(pair), 0
    for first, second in pair.layers:
        if first.stream in frames:
            read, write = similarities(first, second, frames[first.stream])
            count += int((np.argmax(read, 1) == np.argmax(write, 1)).sum())
    return count
