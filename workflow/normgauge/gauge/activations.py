"""What the sites of a model saw, sequence by sequence: two models are matched by it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from normgauge.anatomy.structure import Site
from normgauge.calibration.batches import Batch
from normgauge.errors import InputError
from normgauge.gauge.correlation import run_site_activations


@dataclass(frozen=True, eq=False)
class Activations:
    """One site of one model. `rows`: float32 or float64 (samples, width), all finite. `lengths`:
    the samples of each sequence, in order; samples of one sequence depend on each other.
    """

    rows: torch.Tensor
    lengths: tuple[int, ...]

    def first(self, samples: int) -> Activations:
        """The first samples; the last of their sequences may be cut."""
        ends = np.minimum(np.cumsum(self.lengths), samples)
        lengths = np.diff(ends, prepend=0)
        return Activations(self.rows[:samples], tuple(lengths[lengths > 0].tolist()))

    def of_sequences(self, chosen: Sequence[int]) -> Activations:
        parts = self.rows.split(self.lengths)
        lengths = tuple(self.lengths[number] for number in chosen)
        return Activations(torch.cat([parts[number] for number in chosen]), lengths)


def halves(lengths: Sequence[int]) -> tuple[list[int], list[int]]:
    """Two sets of sequences, by number, that share none: each goes to the set with fewer
    samples.
    """
    sets: tuple[list[int], list[int]] = ([], [])
    counts = [0, 0]
    for number, length in enumerate(lengths):
        smaller = int(counts[1] < counts[0])
        sets[smaller].append(number)
        counts[smaller] += length
    return sets


def observe_sites(
    model: torch.nn.Module,
    sites: Sequence[Site],
    batches: Sequence[Batch],
    samples: int | None = None,
) -> dict[str, Activations]:
    """The activations of every site, by site id, all held: the first `samples`, or all of them.

    Raises InputError, naming the site, where it has fewer than asked for or saw a value that is not
    finite.
    """
    kept: dict[str, list[torch.Tensor]] = {site.id: [] for site in sites}
    lengths: dict[str, list[int]] = {site.id: [] for site in sites}
    for batch, found in zip(batches, run_site_activations(model, sites, batches), strict=False):
        for site in sites:
            kept[site.id].append(_finite(site, found[site.id]))
            lengths[site.id] += _sequence_lengths(batch, site, len(found[site.id]))
        if samples is not None and min(sum(each) for each in lengths.values()) >= samples:
            break
    observed = {}
    for name, parts in kept.items():
        rows = torch.cat(parts) if parts else torch.empty(0)
        if samples is not None and len(rows) < samples:
            raise InputError(
                f"site {name}: {len(rows)} samples in the probes, {samples} asked for; give more "
                "probes"
            )
        whole = Activations(rows, tuple(lengths[name]))
        observed[name] = whole if samples is None else whole.first(samples)
    return observed


def _finite(site: Site, rows: torch.Tensor) -> torch.Tensor:
    if not rows.sum().isfinite() and not rows.isfinite().all():
        raise InputError(
            f"site {site.id}: activations hold NaN or infinity; check the model's weights"
        )
    return rows if rows.dtype == torch.float64 else rows.float()


def _sequence_lengths(batch: Batch, site: Site, rows: int) -> list[int]:
    """The samples that each sequence of a batch left at a site."""
    mask = batch.masks.get(site.stack)
    if mask is not None:
        return [length for length in mask.reshape(len(mask), -1).sum(1).tolist() if length]
    sequences = len(next(iter(batch.inputs.values())))
    return [rows // sequences] * sequences
