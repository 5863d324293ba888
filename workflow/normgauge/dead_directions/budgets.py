"""How many tokens does the smallest active singular value take? (arXiv 2606.19491, B.2.)

The paper measures one model ten times on random subsets of one data set and finds that the
coefficient of variation falls below 1 % when the subset is the whole set. Ten subsets that are the
whole set are one subset: their spread is 0 whatever the estimator. So each sample size is measured
twice: on ten subsets that share no token, and on ten subsets of one pool of the largest size.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from normgauge.anatomy.structure import Site
from normgauge.calibration.batches import Batch
from normgauge.capture.hooks import body_of, hooked, placed
from normgauge.dead_directions.subject import Rows, Subject
from normgauge.errors import InputError
from normgauge.fingerprint.rounding import ROUNDOFF
from normgauge.jackknife import standard_error
from normgauge.moments import Accumulator, Moments, Workspace, merge_all

FORWARD, ACCUMULATION = "float32", "cov64"
PARTS = 8
"""Parts of a subset that the jackknife leaves out in turn."""


@dataclass(frozen=True)
class Design:
    """How subsets are drawn: samples per coordinate, and how many subsets of each."""

    per_coordinate: Sequence[float]
    subsets: int
    seed: int


class UnitMoments:
    """Receives the chunks of one site and keeps the moments of each by itself: a batch is a unit.

    Any subset of units is then a merge, so that one forward pass serves all subsets.
    """

    def __init__(self, width: int, workspace: Workspace) -> None:
        self.width, self.workspace = width, workspace
        self.units: list[Moments] = []

    def update(self, rows: Any) -> None:
        accumulator = Accumulator(ACCUMULATION, self.width, self.workspace)
        accumulator.update(rows)
        self.units.append(accumulator.moments())


def unit_moments(
    subject: Subject, sites: Sequence[Site], batches: Iterable[Batch]
) -> dict[str, list[Moments]]:
    """Site id -> moments of each batch."""
    import torch

    model, workspace = subject.build(FORWARD), Workspace()
    parameter = next(model.parameters())
    receivers = {site.id: UnitMoments(site.width, workspace) for site in sites}
    with torch.inference_mode(), hooked(model, sites, receivers) as state:
        for batch in batches:
            state.begin(batch.masks)
            body_of(model)(**{key: placed(value, parameter) for key, value in batch.inputs.items()})
    return {site: receiver.units for site, receiver in receivers.items()}


def subsets_of(units: int, size: int, count: int, disjoint: bool, seed: int) -> list[np.ndarray]:
    """`count` subsets of `size` of the units: of all of them without a common unit, or each drawn
    anew from the first `units // count`.

    The latter are one pool of the largest disjoint size, as a data set is.
    """
    generator = np.random.default_rng(seed)
    if disjoint:
        order = generator.permutation(units)
        return [order[number * size : (number + 1) * size] for number in range(count)]
    pool = units // count
    return [np.sort(generator.permutation(pool)[:size]) for _ in range(count)]


def budget_rows(subject: Subject, sites: Mapping[str, Sequence[Moments]], design: Design) -> Rows:
    """Rows of schema `sample_budget`: one per site, design and number of samples.

    sites: site id -> moments of units of equal size. Raises InputError where the units do not make
    that many disjoint subsets of the largest size.
    """
    rows = []
    for site, units in sites.items():
        whole = merge_all(units)
        sizes = [round(each * whole.d / units[0].n) for each in design.per_coordinate]
        if max(sizes) * design.subsets > len(units) or min(sizes) < 1:
            raise InputError(
                f"site {site}: {design.subsets} subsets of {max(sizes)} units take more than the "
                f"{len(units)} that were drawn; lower dead_directions.sample_budget.per_coordinate"
            )
        reference = _smallest(whole)
        for disjoint in (True, False):
            for size in sizes:
                chosen = subsets_of(len(units), size, design.subsets, disjoint, design.seed)
                parts = [[units[index] for index in subset] for subset in chosen]
                rows.append(
                    {
                        **subject.labels,
                        "kind": subject.kind,
                        "site": site,
                        "design": "disjoint" if disjoint else "one pool",
                        "forward_dtype": FORWARD,
                        "accumulation": ACCUMULATION,
                        "d": whole.d,
                        "subsets": design.subsets,
                        "pool": whole.n if disjoint else whole.n // design.subsets,
                        **_spread(parts, whole, reference),
                    }
                )
    return rows


def _smallest(moments: Moments, forward: str = FORWARD) -> tuple[float, float, float]:
    """(smallest active, largest) singular value per root of the samples, and the floor likewise.

    Active values lie above the floor of the forward pass and of the accumulation.
    """
    sigma = moments.spectrum().values
    raw = float(moments.spectrum(False).values[-1])
    floor = max(raw * ROUNDOFF[forward], moments.accumulator_floor(float(sigma[-1])))
    active = sigma[sigma > floor]
    root = moments.n**0.5
    return float(active[0]) / root, float(sigma[-1]) / root, floor / root


def _spread(
    parts: Sequence[Sequence[Moments]], whole: Moments, reference: tuple[float, float, float]
) -> dict[str, Any]:
    """The smallest active eigenvalue over subsets: its mean over that of all samples, its
    coefficient of variation, and what a jackknife and the published bounds say of it.
    """
    read = [_smallest(merge_all(subset)) for subset in parts]
    values = np.array([sigma**2 for sigma, _, _ in read])
    n, d = sum(unit.n for unit in parts[0]), whole.d
    # equal values have no spread, whatever the rounding of their mean
    spread = float(values.std(ddof=1) / values.mean()) if np.ptp(values) else 0.0
    condition = reference[1] / reference[0]
    jackknives = [_jackknife(subset) for subset in parts]
    known = [error for error in jackknives if error is not None]
    return {
        "n": n,
        "n_over_d": n / d,
        "mean_eigenvalue": float(values.mean()),
        "eigenvalue": reference[0] ** 2,
        "mean_over_eigenvalue": float(values.mean() / reference[0] ** 2),
        "marchenko_pastur": max(1 - (d / n) ** 0.5, 0.0) ** 2,
        "variation": spread,
        "variation_se": spread / (2 * (len(parts) - 1)) ** 0.5,
        "jackknife_variation": (
            float(np.sqrt(np.mean(np.square(known))) / values.mean()) if known else None
        ),
        "first_order_bound": condition / n**0.5,
        "wishart_bound": (d / n) ** 0.5 * condition**2,
        "floor_margin": float(min(sigma / floor for sigma, _, floor in read)),
    }


def _jackknife(units: Sequence[Moments]) -> float | None:
    """Standard error of the eigenvalue from the subset's own parts; None where a part left out
    would leave too few samples.
    """
    cuts = np.array_split(np.arange(len(units)), min(PARTS, len(units)))
    groups = [merge_all(units[index] for index in cut) for cut in cuts]
    n, d = sum(group.n for group in groups), units[0].d
    if len(groups) < 2 or n - max(group.n for group in groups) <= d:
        return None
    whole = _smallest(merge_all(groups))[0] ** 2
    left = [
        _smallest(merge_all(group for group in groups if group is not out))[0] ** 2
        for out in groups
    ]
    return standard_error(whole, left, [group.n for group in groups])
