"""The coordinates of two spaces matched by the activations at all their sites together.

The sites vote: what is maximised is the weighted mean over sites of atanh of the correlations. What is
certain is judged by the jackknife over sequences, since the samples of one sequence, and the sites of
one stream, depend on each other.
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
from normgauge.gauge.matching import LARGEST, Assigned, Entries, Matching, Solver, assign_in, cost_of

Pair = tuple[Activations, Activations]
"""One site of the source and of the target model, on the same samples."""


def match_sites(sites: Sequence[PairedSite], group: Group, solver: Solver | None = None) -> Matching:
    """Match the coordinates of two spaces of one width inside a group, by all their sites.

    Scales are left at one: `weight_maps.unit_scales` reads them off the weights.
    """
    blocks = blocks_of([site.lengths for site in sites])
    started = time.perf_counter()
    pooled = _Pooled(sites, blocks, np.ones(len(sites)))
    found = assign_in(group, pooled.values, solver)
    if len(sites) > 1:
        pooled = _Pooled(sites, blocks, pooled.effective_by_site(found.matched))
        found = assign_in(group, pooled.values, solver)
    seconds = time.perf_counter() - started
    own = pooled.influences(found.matched)
    constant = pooled.constant[0] | pooled.constant[1][found.target]
    sign_certain = found.opposite is None or _sign_is_certain(pooled, found, own)
    samples = max(site.samples for site in sites)
    effective = _effective(blocks.standard_error(own), samples)
    return Matching(
        gauge=found.gauge,
        margins=found.margins,
        uncertain=constant | ~_ahead(pooled, found, own) | (not sign_certain),
        constant=constant,
        certified=found.certified and not constant.any(),
        method=f"{found.method} on {cost_of(group)}",
        samples=samples,
        effective=np.where(constant, 0.0, effective),
        sign_certain=sign_certain,
        seconds=seconds,
    )


def _ahead(pooled: _Pooled, found: Assigned, own: np.ndarray) -> np.ndarray:
    """bool (d,): matches that beat the best rival in their row and the best in their column beyond doubt."""
    ahead = np.ones(len(found.target), dtype=bool)
    if len(ahead) == 1:
        return ahead
    own = own * found.signs(found.matched)
    for rival in found.rivals:
        gap = found.score[found.matched] - found.score[rival]
        error = pooled.blocks.standard_error(own - pooled.influences(rival) * found.signs(rival))
        ahead &= gap > pooled.blocks.quantile * error
    return ahead


def _sign_is_certain(pooled: _Pooled, found: Assigned, own: np.ndarray) -> bool:
    """Whether the mean matched value beats the mean of the best values with the opposite sign."""
    assert found.opposite is not None
    other = (found.matched[0], found.opposite)
    gap = (found.score[found.matched] + found.score[other]).mean()
    error = pooled.blocks.standard_error((own + pooled.influences(other)).mean(1, keepdims=True))[0]
    return bool(gap > pooled.blocks.quantile * error)


def _effective(error: np.ndarray, samples: int) -> np.ndarray:
    """Independent samples that give atanh of a correlation this standard error, 1 / sqrt(n - 3); at most those there are."""
    return np.minimum(3 + 1 / np.maximum(np.square(error), 1 / samples), samples)


class PairedSite:
    """Standardised activations of one site of two models, and atanh of their correlations.

    `values`: (d, d), source by target coordinate, in the activations' dtype. Raises InputError with
    fewer than four samples, or where source and target saw different ones.
    """

    def __init__(self, source: Activations, target: Activations) -> None:
        if source.rows.shape != target.rows.shape or source.lengths != target.lengths:
            raise InputError(
                f"activations of shapes {list(source.rows.shape)} and {list(target.rows.shape)}, expected the same samples of both "
                f"models; use one tokenizer and one set of probes"
            )
        self.samples, self.lengths = len(source.rows), source.lengths
        if self.samples < FEWEST:
            raise InputError(f"{self.samples} samples, expected at least {FEWEST}; give more probes")
        (self.source, first), (self.target, second) = (_standardised(each.rows) for each in (source, target))
        self.constant = (first, second)
        correlation = (self.source @ self.target.T).div_(self.samples)
        self.values = correlation.clamp_(-LARGEST, LARGEST).atanh_().numpy()
        self.limit = 0.9999 * np.arctanh(self.values.dtype.type(LARGEST))

    def block_sums(self, entries: Entries, blocks: Blocks, number: int) -> np.ndarray:
        """float64 (blocks, k): the influence of each block's samples on atanh of the named correlations, at this site, number `number` of
        the blocks; none where a correlation is one up to rounding."""
        values = self.values[entries].astype(np.float64)
        sums = np.zeros((len(blocks.sequences), len(values)))
        moving = np.flatnonzero(np.abs(values) < self.limit)
        if not len(moving):
            return sums
        source, target = (side.index_select(0, torch.from_numpy(place[moving])) for side, place in zip(self._sides, entries, strict=True))
        correlation = np.tanh(values[moving])[:, None]
        products, squares = (blocks.sums(number, each) for each in (source * target, source.square_().add_(target.square_())))
        sums[:, moving] = ((products - correlation / 2 * squares) / (1 - correlation**2) / self.samples).T
        return sums

    @property
    def _sides(self) -> tuple[torch.Tensor, torch.Tensor]:
        return self.source, self.target


def paired(source: Mapping[str, Activations], target: Mapping[str, Activations]) -> dict[str, PairedSite]:
    """Sites of two models, by site id. Raises the InputErrors of `PairedSite`, naming the site."""
    found = {}
    for name, activations in source.items():
        try:
            found[name] = PairedSite(activations, target[name])
        except InputError as error:
            raise InputError(f"site {name}: {error}") from error
    return found


def _standardised(rows: torch.Tensor) -> tuple[torch.Tensor, np.ndarray]:
    """(d, samples): coordinates with mean zero and variance one, zeros where one is constant up to rounding; and which are, bool (d,)."""
    wide = rows.T.double()
    mean = wide.mean(1, keepdim=True)
    wide = wide - mean
    variance = wide.square().mean(1, keepdim=True)
    constant = variance <= CONSTANT**2 * (variance + mean.square())
    scale = torch.where(constant, 0.0, torch.where(constant, 1.0, variance).rsqrt())
    return wide.mul_(scale).to(rows.dtype).contiguous(), constant[:, 0].numpy()


class _Pooled:
    """The weighted mean over sites of atanh of the correlations. `constant`: of source and target, at every site."""

    def __init__(self, sites: Sequence[PairedSite], blocks: Blocks, weights: np.ndarray) -> None:
        self.sites, self.blocks, self.weights = sites, blocks, weights / weights.sum()
        self.values = np.zeros_like(sites[0].values)
        for weight, site in zip(self.weights, sites, strict=True):
            self.values += self.values.dtype.type(weight) * site.values
        self.constant = tuple(np.all([site.constant[side] for site in sites], axis=0) for side in (0, 1))

    def influences(self, entries: Entries) -> np.ndarray:
        """float64 (blocks, k): of each block on the pooled values."""
        total = np.zeros((len(self.blocks.sequences), len(entries[0])))
        for number, (weight, site) in enumerate(zip(self.weights, self.sites, strict=True)):
            total += weight * site.block_sums(entries, self.blocks, number)
        return total

    def effective_by_site(self, matched: Entries) -> np.ndarray:
        """(sites,): effective samples, the median over matches that vary at the site; equal ones where none does."""
        found = []
        for number, site in enumerate(self.sites):
            varies = ~(site.constant[0] | site.constant[1][matched[1]])
            error = self.blocks.standard_error(site.block_sums(matched, self.blocks, number))
            found.append(float(np.median(_effective(error, site.samples)[varies])) if varies.any() else 0.0)
        return np.array(found) if any(found) else np.ones(len(found))
