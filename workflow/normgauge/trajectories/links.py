"""Local matches along a trajectory, and what their composition says."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from normgauge.errors import InputError
from normgauge.gauge.groups import Monomial, compose_all
from normgauge.gauge.matching import Matching
from normgauge.schemas.trajectories import tables

BASE = -1  # the step of the base, before the recorded gauge


@dataclass(frozen=True)
class Scope:
    """What is matched: a space, by all its sites or, of the stream, by its last block's output."""

    space: str
    sites: str

    def __str__(self) -> str:
        return f"{self.space}, {self.sites}"


@dataclass(frozen=True, eq=False)
class Link:
    """A match between two steps of a run, from `tokens` samples. `stride`: which chain it belongs
    to; 0 for the one from the base, which all chains begin with.

    `certain`: bool (d,), `lead`: float64 (d,), by the coordinate of `start`; as in `Matching`.
    """

    scope: Scope
    tokens: int
    stride: int
    start: int
    stop: int
    gauge: Monomial
    certain: np.ndarray
    lead: np.ndarray

    @classmethod
    def of(cls, scope: Scope, tokens: int, steps: tuple[int, int, int], found: Matching) -> Link:
        """From a matching; `steps`: stride, start and stop."""
        return cls(scope, tokens, *steps, found.gauge, ~found.uncertain, found.lead)

    def row(self) -> dict[str, Any]:
        """A row of schema `trajectory_links`."""
        return {
            "space": self.scope.space,
            "sites": self.scope.sites,
            "tokens": self.tokens,
            "stride": self.stride,
            "start": self.start,
            "stop": self.stop,
            "targets": self.gauge.target.tolist(),
            "factors": self.gauge.factors.tolist(),
            "certain": self.certain.astype(np.int64).tolist(),
            "lead": self.lead.tolist(),
        }


def link_of(row: Mapping[str, Any]) -> Link:
    """A link from its row."""
    return Link(
        Scope(row["space"], row["sites"]),
        row["tokens"],
        row["stride"],
        row["start"],
        row["stop"],
        Monomial(np.array(row["targets"]), row["factors"]),
        np.array(row["certain"], dtype=bool),
        np.array(row["lead"]),
    )


def read_links(path: str | os.PathLike[str]) -> list[Link]:
    """All links of a run."""
    return [link_of(row) for row in tables.read(path, "trajectory_links")]


@dataclass(frozen=True, eq=False)
class Chain:
    """The composition of links. `certain`: bool (d,), coordinates that meet certain matches alone;
    `leads`: float64 (links, d), what they meet on their way, both by the first link's coordinate.
    """

    gauge: Monomial
    certain: np.ndarray
    leads: np.ndarray

    def __len__(self) -> int:
        return len(self.leads)

    def then(self, other: Chain) -> Chain:
        """This one first, then the other."""
        here = self.gauge.target
        return Chain(
            self.gauge.compose(other.gauge),
            self.certain & other.certain[here],
            np.concatenate([self.leads, other.leads[:, here]]),
        )

    def back(self) -> Chain:
        """From the end to the beginning: every link undone, in the opposite order."""
        inverse = self.gauge.inverse()
        return Chain(inverse, self.certain[inverse.target], self.leads[::-1, inverse.target])


def chain(links: Sequence[Link]) -> Chain:
    """The composition of consecutive links. InputError where one does not begin where the last has
    ended.
    """
    for first, second in pairwise(links):
        if first.stop != second.start:
            raise InputError(
                f"{first.scope}: a link ends at step {first.stop} and the next begins at "
                f"{second.start}; match the steps between them"
            )
    size = links[0].gauge.size
    certain, here, leads = np.ones(size, dtype=bool), np.arange(size), []
    for link in links:
        certain &= link.certain[here]
        leads.append(link.lead[here])
        here = link.gauge.target[here]
    return Chain(compose_all([link.gauge for link in links]), certain, np.array(leads))


def chain_of(links: Iterable[Link], scope: Scope, tokens: int, stride: int) -> Chain:
    """The chain of a stride, from the base to the end of the run."""
    chosen = [
        link
        for link in links
        if (link.scope, link.tokens) == (scope, tokens) and link.stride in (0, stride)
    ]
    return chain(sorted(chosen, key=lambda link: link.start))


def right(found: Monomial, truth: Monomial) -> np.ndarray:
    """bool (d,): coordinates with the true target and sign."""
    return (found.target == truth.target) & (np.sign(found.factors) == np.sign(truth.factors))
