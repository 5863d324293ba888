"""Six second moments of one forward pass: is a small singular value the estimator's doing? (arXiv
2606.19491, A.6.)

A chunk is one batch. Position 0 of a causal model reads nothing but its own token: where every
sequence begins with the same one, all its activations are equal and their covariance is 0, whatever
the model. Positions 0 and 1 give one sample per sequence, so that with fewer sequences than
coordinates their smallest singular value is not defined.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from normgauge.anatomy.structure import Site
from normgauge.calibration.batches import count_sequences
from normgauge.capture.hooks import body_of, hooked, placed
from normgauge.dead_directions.subject import PathLike, Rows, Subject
from normgauge.fingerprint.rounding import ROUNDOFF
from normgauge.jackknife import standard_error
from normgauge.moments import GroupedAccumulator, Moments, Workspace, leave_one_out

FORWARD, ACCUMULATION = "float32", "cov64"
EXCISED = 0.01
"""Share of a chunk's rows with the largest norms that the sink-excised estimator leaves out."""


def _without_sinks(rows: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
    norms = rows.norm(dim=1)
    kept = norms.numel() - max(1, round(EXCISED * norms.numel()))
    return rows[norms.argsort(stable=True)[:kept].sort().values]


def _about_median(rows: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
    return rows - rows.median(dim=0).values


STREAMS: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "centred": lambda rows, _: rows,
    "sink-excised": _without_sinks,
    "median-anchored": _about_median,
    "first position": lambda rows, position: rows[position == 0],
    "second position": lambda rows, position: rows[position == 1],
    "later positions": lambda rows, position: rows[position >= 2],
}
"""What each estimator keeps of a chunk, rows (tokens, d) with their positions (tokens,). With a
beginning-of-text token the first position holds it.
"""
UNCENTRED = "median-anchored"
"""Its second moment is taken about the chunk's median, not about the mean."""


class Streams:
    """Receives one site's chunks, (sequences x length, d), and keeps the moments of each
    estimator; a chunk is a group of the jackknife.
    """

    def __init__(self, site: Site, length: int, workspace: Workspace) -> None:
        self.length, self.chunks = length, 0
        self.accumulators = {
            name: GroupedAccumulator(ACCUMULATION, site.width, workspace) for name in STREAMS
        }

    def update(self, rows: torch.Tensor) -> None:
        position = torch.arange(rows.shape[0]) % self.length
        for name, keep in STREAMS.items():
            self.accumulators[name].update(keep(rows, position), self.chunks)
        self.chunks += 1


def estimator_rows(subject: Subject, calibration: PathLike, groups: int) -> Rows:
    """Rows of schema `estimators`: one per estimator and place of the primary stream."""
    stack = subject.anatomy.primary_stack.name
    sites = [
        site for site in subject.anatomy.sites if site.stack == stack and site.group == "residual"
    ]
    sites.sort(key=lambda site: site.block)
    model = subject.build(FORWARD)
    found = observed(model, sites, subject, calibration, groups)
    return [
        row
        for name in STREAMS
        for row in _rows(subject, name, [(site, found[site.id][name]) for site in sites])
    ]


def observed(
    model: torch.nn.Module,
    sites: list[Site],
    subject: Subject,
    calibration: PathLike,
    groups: int,
) -> dict[str, dict[str, Moments]]:
    """Site id -> estimator -> moments, in one forward pass over the calibration in `groups`
    batches.
    """
    workspace, parameter = Workspace(), next(model.parameters())
    batches = list(subject.batches(calibration, -(-count_sequences(calibration) // groups)))
    length = int(next(iter(batches[0].inputs.values())).shape[1])
    receivers = {site.id: Streams(site, length, workspace) for site in sites}
    with torch.inference_mode(), hooked(model, sites, receivers) as state:
        for batch in batches:
            state.begin(batch.masks)
            body_of(model)(**{key: placed(value, parameter) for key, value in batch.inputs.items()})
            state.check_all_fired()
    return {
        site: {name: each.moments() for name, each in receiver.accumulators.items()}
        for site, receiver in receivers.items()
    }


def _rows(subject: Subject, name: str, places: list[tuple[Site, Moments]]) -> Rows:
    """The profile of one estimator: sigma at the rank of X_0, and its ratio to X_0."""
    values = [_reading(name, moments) for _, moments in places]
    rank = values[0]["active_rank"]
    spectra = [_at_rank(value, rank) for value in values]
    left = [_replicates(name, moments, rank) for _, moments in places]
    samples = [part.n for _, part in sorted(places[0][1].groups.items())]
    ratios = [value / spectra[0] if value and spectra[0] else None for value in spectra]
    body = [ratio for ratio in ratios[1:] if ratio is not None]
    lowest = min(body) if len(body) == len(places) - 1 else None
    quotients = [_quotients(each, left[0]) for each in left]
    rows = []
    for (site, moments), value, sigma, ratio, replicates in zip(
        places, values, spectra, ratios, quotients, strict=True
    ):
        rows.append(
            {
                **subject.labels,
                "kind": subject.kind,
                "stack": site.stack,
                "blocks": len(places) - 1,
                "estimator": name,
                "block": site.block,
                "n": moments.n,
                "d": moments.d,
                "forward_dtype": FORWARD,
                "accumulation": ACCUMULATION,
                "defined": value["defined"],
                "active_rank": value["active_rank"],
                "sigma_max_per_root_n": float(value["sigma"][-1] / moments.n**0.5),
                "floor_per_root_n": value["floor"] / moments.n**0.5,
                "sigma_per_root_n": sigma / moments.n**0.5 if sigma else None,
                "ratio": ratio,
                "ratio_se": standard_error(ratio, replicates, samples) if site.block else None,
                "lowest_ratio": lowest,
                "share_at_least_one": (
                    sum(each >= 1 for each in body) / len(body) if lowest is not None else None
                ),
            }
        )
    return rows


def _reading(name: str, moments: Moments) -> dict[str, Any]:
    """Singular values, floor, and whether there are more samples than coordinates. A covariance
    that is 0 up to rounding has rank 0.
    """
    sigma = moments.spectrum(name != UNCENTRED).values
    scale = float(moments.spectrum(False).values[-1])
    floor = max(scale * ROUNDOFF[FORWARD], moments.accumulator_floor(scale))
    return {
        "sigma": sigma,
        "floor": floor,
        "defined": moments.n > moments.d,
        "active_rank": int((sigma > floor).sum()),
    }


def _at_rank(value: Mapping[str, Any], rank: int) -> float | None:
    """The rank-th largest singular value; None where it is not defined or lies below the floor."""
    if not value["defined"] or rank == 0:
        return None
    sigma = float(value["sigma"][value["sigma"].size - rank])
    return sigma if sigma > value["floor"] else None


def _replicates(name: str, moments: Moments, rank: int) -> list[float]:
    """sigma at the rank without each chunk, per root of the samples."""
    if rank == 0 or moments.n <= moments.d:
        return []
    return [
        float(left.spectrum(name != UNCENTRED).values[left.d - rank] / np.sqrt(left.n))
        for left in leave_one_out(moments)
    ]


def _quotients(own: list[float], reference: list[float]) -> list[float]:
    return [a / b for a, b in zip(own, reference, strict=False)] if own and all(reference) else []
