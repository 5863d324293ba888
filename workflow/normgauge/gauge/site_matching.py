"""The coordinates of two spaces matched by the activations at all their sites together.

The sites vote: what is maximised is the weighted mean over sites of atanh of the correlations. What
is certain is judged by the jackknife over sequences, since the samples of one sequence, and the
sites of one stream, depend on each other.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

import numpy as np
import torch

from normgauge.errors import InputError
from normgauge.gauge.activations import Activations
from normgauge.gauge.admissible import Group
from normgauge.gauge.correlation import CONSTANT, FEWEST
from normgauge.gauge.jackknife import Blocks, blocks_of
from normgauge.gauge.matching import (
    FARTHEST,
    LARGEST,
    Assigned,
    Entries,
    Matching,
    Solver,
    assign_in,
    cost_of,
    leads,
)

Pair = tuple[Activations, Activations]
"""One site of the source and of the target model, on the same samples."""


def match_sites(
    sites: Sequence[PairedSite], group: Group, solver: Solver | None = None
) -> Matching:
    """Match the coordinates of two spaces of one width inside a group, by all their sites.

    Scales are left at one: `weight_maps.unit_scales` reads them off the weights.
    """
    blocks = blocks_of([site.lengths for site in sites])
    started = time.perf_counter()
    pooled = _Pooled(sites, blocks)
    found = assign_in(group, pooled.values, solver)
    own = pooled.sums(found.matched)
    if len(sites) > 1:
        first, pooled = found, _Pooled(sites, blocks, pooled.effective_by_site(found.matched, own))
        found = assign_in(group, pooled.values, solver)
        own = own if np.array_equal(found.target, first.target) else pooled.sums(found.matched)
    seconds = time.perf_counter() - started
    constant = pooled.constant[0] | pooled.constant[1][found.target]
    influences = pooled.mean(own)
    sign_certain = found.opposite is None or _sign_is_certain(pooled, found, influences)
    ahead, lead = _ahead(pooled, found, influences)
    samples = max(site.samples for site in sites)
    effective = _effective(blocks.standard_error(influences), samples)
    return Matching(
        gauge=found.gauge,
        margins=found.margins,
        lead=np.where(constant, 0.0, lead),
        uncertain=constant | ~ahead | (not sign_certain),
        constant=constant,
        certified=found.certified and not constant.any(),
        method=f"{found.method} on {cost_of(group)}",
        samples=samples,
        effective=np.where(constant, 0.0, effective),
        sign_certain=sign_certain,
        seconds=seconds,
        by_weights=np.zeros(len(found.target), dtype=bool),
    )


def _ahead(pooled: _Pooled, found: Assigned, own: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """bool (d,): matches that beat the best rival in their row and the best in their column beyond
    doubt; float64 (d,): by how many standard errors, of the two the fewer.
    """
    ahead, lead = np.ones(len(found.target), dtype=bool), np.full(len(found.target), FARTHEST)
    if len(ahead) == 1:
        return ahead, lead
    own = own * found.signs(found.matched)
    for rival in found.rivals:
        gap = (found.score[found.matched] - found.score[rival]).astype(np.float64)
        error = pooled.blocks.standard_error(
            own - pooled.mean(pooled.sums(rival)) * found.signs(rival)
        )
        ahead &= gap > pooled.blocks.quantile * error
        lead = np.minimum(lead, leads(gap, error))
    return ahead, lead


def _sign_is_certain(pooled: _Pooled, found: Assigned, own: np.ndarray) -> bool:
    """Whether the mean matched value beats the mean of the best values with the opposite sign."""
    assert found.opposite is not None
    other = (found.matched[0], found.opposite)
    gap = (found.score[found.matched] + found.score[other]).mean()
    error = pooled.blocks.standard_error(
        (own + pooled.mean(pooled.sums(other))).mean(1, keepdims=True)
    )[0]
    return bool(gap > pooled.blocks.quantile * error)


def _effective(error: np.ndarray, samples: int) -> np.ndarray:
    """Independent samples that give atanh of a correlation this standard error, 1 / sqrt(n - 3); at
    most those there are.
    """
    return np.minimum(3 + 1 / np.maximum(np.square(error), 1 / samples), samples)


class PairedSite:
    """Standardised activations of one site of two models, and atanh of their correlations.

    `values`: (d, d), source by target coordinate, in the activations' dtype. Raises InputError with
    fewer than four samples, or where source and target saw different ones.
    """

    def __init__(self, source: Activations, target: Activations) -> None:
        if source.rows.shape != target.rows.shape or source.lengths != target.lengths:
            raise InputError(
                f"activations of shapes {list(source.rows.shape)} and {list(target.rows.shape)}, "
                "expected the same samples of both "
                f"models; use one tokenizer and one set of probes"
            )
        self.samples, self.lengths = len(source.rows), source.lengths
        if self.samples < FEWEST:
            raise InputError(
                f"{self.samples} samples, expected at least {FEWEST}; give more probes"
            )
        (self.source, first), (self.target, second) = (
            _standardised(each.rows) for each in (source, target)
        )
        self.constant = (first, second)
        correlation = (self.source @ self.target.T).div_(self.samples)
        self.values = correlation.clamp_(-LARGEST, LARGEST).atanh_().numpy()
        self.limit = 0.9999 * np.arctanh(self.values.dtype.type(LARGEST))
        self._kept: tuple[bytes, np.ndarray, np.ndarray] | None = None

    def block_sums(self, entries: Entries, blocks: Blocks, number: int) -> np.ndarray:
        """float64 (blocks, k): the influence of each block's samples on atanh of the named
        correlations, at this site, number `number` of the blocks; none where a correlation is one
        up to rounding.
        """
        values = self.values[entries].astype(np.float64)
        sums = np.zeros((len(blocks.sequences), len(values)))
        moving = np.flatnonzero(np.abs(values) < self.limit)
        if len(moving):
            rows, columns = (place[moving] for place in entries)
            products = blocks.sums(
                number, _picked(self.source, rows) * _picked(self.target, columns)
            )
            own, other = self._squares(blocks, number)
            correlation = np.tanh(values[moving])[:, None]
            sums[:, moving] = (
                (products - correlation / 2 * (own[rows] + other[columns]))
                / (1 - correlation**2)
                / self.samples
            ).T
        return sums

    def _squares(self, blocks: Blocks, number: int) -> tuple[np.ndarray, np.ndarray]:
        """float64 (d, blocks) each: every block's sum of squares, kept for the blocks that were
        last asked for.
        """
        key = blocks.starts[number].tobytes()
        if self._kept is None or self._kept[0] != key:
            self._kept = (
                key,
                blocks.sums(number, self.source.square()),
                blocks.sums(number, self.target.square()),
            )
        return self._kept[1:]


def _picked(rows: torch.Tensor, places: np.ndarray) -> torch.Tensor:
    """The named rows, without a copy where these are all of them in order."""
    if len(places) == len(rows) and (places == np.arange(len(rows))).all():
        return rows
    return rows.index_select(0, torch.from_numpy(places))


def paired(
    source: Mapping[str, Activations], target: Mapping[str, Activations]
) -> dict[str, PairedSite]:
    """Sites of two models, by site id. Raises the InputErrors of `PairedSite`, naming the site."""
    found = {}
    for name, activations in source.items():
        try:
            found[name] = PairedSite(activations, target[name])
        except InputError as error:
            raise InputError(f"site {name}: {error}") from error
    return found


def _standardised(rows: torch.Tensor) -> tuple[torch.Tensor, np.ndarray]:
    """(d, samples): coordinates with mean zero and variance one, zeros where one is constant up to
    rounding; and which are, bool (d,).
    """
    mean = rows.mean(0, dtype=torch.float64)
    centred = (rows - mean.to(rows.dtype)).T.contiguous()
    rest = centred.mean(1, keepdim=True, dtype=torch.float64)  # what rounding the mean has left
    centred = centred.sub_(rest.to(rows.dtype))
    variance = centred.square().mean(1, dtype=torch.float64)
    constant = variance <= CONSTANT**2 * (variance + mean.square())
    scale = torch.where(constant, 0.0, torch.where(constant, 1.0, variance).rsqrt())
    return centred.mul_(scale.to(rows.dtype)[:, None]), constant.numpy()


class _Pooled:
    """The weighted mean over sites of atanh of the correlations. `constant`: of source and target,
    at every site.
    """

    def __init__(
        self, sites: Sequence[PairedSite], blocks: Blocks, weights: np.ndarray | None = None
    ) -> None:
        weights = np.ones(len(sites)) if weights is None else weights
        self.sites, self.blocks, self.weights = sites, blocks, weights / weights.sum()
        self.values = sites[0].values
        if len(sites) > 1:
            self.values = np.zeros_like(sites[0].values)
            for weight, site in zip(self.weights, sites, strict=True):
                self.values += self.values.dtype.type(weight) * site.values
        self.constant = tuple(
            np.all([site.constant[side] for site in sites], axis=0) for side in (0, 1)
        )

    def sums(self, entries: Entries) -> list[np.ndarray]:
        """By site, float64 (blocks, k): the influence of each block on the site's values."""
        return [
            site.block_sums(entries, self.blocks, number) for number, site in enumerate(self.sites)
        ]

    def mean(self, sums: Sequence[np.ndarray]) -> np.ndarray:
        """float64 (blocks, k): the influence of each block on the pooled values, from those on the
        sites'.
        """
        total = np.zeros_like(sums[0])
        for weight, each in zip(self.weights, sums, strict=True):
            total += weight * each
        return total

    def effective_by_site(self, matched: Entries, sums: Sequence[np.ndarray]) -> np.ndarray:
        """(sites,): effective samples, the median over matches that vary at the site; equal ones
        where none does.
        """
        found = []
        for site, each in zip(self.sites, sums, strict=True):
            varies = ~(site.constant[0] | site.constant[1][matched[1]])
            effective = _effective(self.blocks.standard_error(each), site.samples)
            found.append(float(np.median(effective[varies])) if varies.any() else 0.0)
        return np.array(found) if any(found) else np.ones(len(found))
