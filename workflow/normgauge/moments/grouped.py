"""Accumulation by group of sequences, and the moments without each group: what a jackknife over
sequences needs.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from itertools import accumulate

import numpy as np
import torch

from normgauge.moments.accumulators import Accumulator, Workspace
from normgauge.moments.algebra import Moments, merge, unpack
from normgauge.moments.packed import PackedMoments


class GroupedAccumulator:
    """Accumulates one site group by group: one open accumulator, and the packed moments of the
    others.

    method, d, workspace: as of `Accumulator`. distinct: whether to count the different samples,
    compared bit by bit.
    """

    def __init__(self, method: str, d: int, workspace: Workspace, distinct: bool = False) -> None:
        self.method, self.d, self.n = method, d, 0
        self._workspace = workspace
        self._current, self._number = Accumulator(method, d, workspace), 0
        self._groups: dict[int, PackedMoments] = {}
        self._hashes: set[bytes] | None = set() if distinct else None

    def update(self, chunk: torch.Tensor, group: int = 0) -> None:
        """Add samples of one group, which may come back later: chunk is (m, d).

        Raises InputError as `Accumulator.update`.
        """
        if group != self._number:
            self._close()
            self._number = group
        self._current.update(chunk)
        self.n += chunk.shape[0]
        if self._hashes is not None:
            self._hashes |= _row_hashes(chunk)

    def _close(self) -> None:
        """Pack the open group away, with what came of it before."""
        if self._current.n:
            moments = self._current.moments()
            before = self._groups.get(self._number)
            self._groups[self._number] = (
                merge(unpack(before), moments) if before else moments
            ).pack()
            self._current = Accumulator(self.method, self.d, self._workspace)

    def moments(self) -> Moments:
        """The moments of all samples so far, with those of each group."""
        self._close()
        if not self._groups:
            return Moments.empty(self.method, self.d)
        hashes = self._hashes
        distinct = (
            None
            if hashes is None
            else np.frombuffer(b"".join(sorted(hashes)), dtype=">u8").astype(np.uint64)
        )
        return Moments.of_groups(self._groups, distinct)


def _row_hashes(chunk: torch.Tensor) -> set[bytes]:
    """8-byte hashes of the rows: among 100,000 rows a collision has a probability of 3e-10."""
    rows = chunk.detach().cpu().contiguous().view(torch.uint8).numpy()
    return {hashlib.blake2b(row, digest_size=8).digest() for row in rows}


def leave_one_out(moments: Moments) -> Iterator[Moments]:
    """The moments without each group in turn, in the order of the groups' numbers.

    Nothing where no groups were kept. Scatters are subtracted: what is lost is the rounding of the
    whole scatter, which its floor states. Triangular factors are merged anew, since a difference of
    squares would lose what they are kept for.
    """
    groups = [moments.groups[number] for number in sorted(moments.groups)]
    if moments.method == "tsqr64":
        yield from _merged_without(groups)
    else:
        yield from (_without(moments, unpack(group)) for group in groups)


def _without(whole: Moments, group: Moments) -> Moments:
    """The updating formula of `merge`, solved for one of the two parts."""
    n = whole.n - group.n
    difference = group.mean - whole.mean
    mean = whole.mean - difference * (group.n / n)
    between = difference * np.sqrt(whole.n * group.n / n)
    return Moments(
        whole.method, n, mean, whole.scatter() - group.scatter() - np.outer(between, between)
    )


def _merged_without(groups: list[PackedMoments]) -> Iterator[Moments]:
    """Merges of the groups before each with those after it."""
    empty = Moments.empty("tsqr64", groups[0].mean.shape[0])
    after = list(
        accumulate((unpack(group) for group in reversed(groups[1:])), merge, initial=empty)
    )[::-1]
    before = empty
    for group, later in zip(groups, after, strict=True):
        yield merge(before, later)
        before = merge(before, unpack(group))
