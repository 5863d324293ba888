"""The study's measurements of what signed permutations are on their own, files in and files out."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice, product
from pathlib import Path
from typing import Any

import numpy as np
import torch

from normgauge.anatomy import describe
from normgauge.anatomy.structure import SpaceKind
from normgauge.calibration.batches import Batch, batches
from normgauge.checkpoints.building import build_model
from normgauge.checkpoints.configuration import parse_config
from normgauge.checkpoints.opening import Checkpoint, open_checkpoint
from normgauge.checkpoints.readers import read_json
from normgauge.errors import InputError
from normgauge.gauge.activations import Activations, observe_sites
from normgauge.gauge.groups import Monomial
from normgauge.gauge.matched_sites import sites_of
from normgauge.gauge.model_gauge import read_gauge
from normgauge.gauge.probes import require_same_tokens
from normgauge.provenance import execution_environment
from normgauge.schemas.discrete_laws import CORRELATION, COVARIANCE, tables
from normgauge.signed_permutation.greedy import greedy_rows, normal_samples
from normgauge.signed_permutation.minimal_example import example_rows
from normgauge.signed_permutation.natural_scaffold import drawn_row, scaffold_rows
from normgauge.signed_permutation.rules import rule_rows

PathLike = str | os.PathLike[str]
Output = Mapping[str, PathLike]
NORMAL = "normal samples"


def state_laws(shapes: Sequence[PathLike], output: Mapping[str, Output]) -> None:
    """Write minimal_example and transport_rules, of configurations."""
    rules = [row for path in shapes for row in rule_rows(parse_config(read_json(Path(path))))]
    _write(output["minimal_example"], "minimal_example", list(example_rows()))
    _write(output["transport_rules"], "transport_rules", rules)


def measure_greedy(
    model: str,
    folder: PathLike,
    calibration: PathLike,
    overrides: Mapping[str, Any] | None,
    settings: Mapping[str, Any],
    output: Output,
) -> None:
    """Write greedy_assignment: of normal samples, and of the feed-forward units of a checkpoint's
    first blocks together.

    `settings`: `width` coordinates, `samples`, levels of `noise`, `seeds`. InputError where the
    checkpoint has fewer units, or its calibration fewer positions.
    """
    width, samples = settings["width"], settings["samples"]
    units = _units(folder, calibration, overrides, width, samples)
    rows: list[dict[str, Any]] = []
    for noise, seed in product(settings["noise"], settings["seeds"]):
        drawn = normal_samples(samples, width, seed)
        rows += greedy_rows(drawn, NORMAL, noise, seed, [CORRELATION])
        name = f"units of {model}"
        rows += greedy_rows(units, name, noise, seed, [CORRELATION, COVARIANCE])
    _write(output, "greedy_assignment", rows)


def _units(
    folder: PathLike,
    calibration: PathLike,
    overrides: Mapping[str, Any] | None,
    width: int,
    samples: int,
) -> np.ndarray:
    """float64 (samples, width): what units of the first blocks do, side by side."""
    checkpoint = open_checkpoint(folder, overrides)
    anatomy = describe(checkpoint.config)
    sites, found = [], 0
    for space in anatomy.spaces:
        own = sites_of(anatomy, space.name) if space.kind == SpaceKind.FFN else []
        if own and found < width:
            sites.append(own[0])
            found += space.size
    if found < width:
        raise InputError(f"{folder}: {found} feed-forward units, expected {width}; ask for fewer")
    probes: list[Batch] = []
    source = batches(calibration, folder=Path(folder), config=checkpoint.config, batch_size=1)
    positions = 0
    for batch in source:
        probes.append(batch)
        positions += batch.inputs["input_ids"].numel()
        if positions >= samples:
            break
    seen = observe_sites(build_model(checkpoint, "float32"), sites, probes)
    rows = torch.cat([seen[site.id].rows for site in sites], 1)[:samples, :width]
    if len(rows) < samples:
        raise InputError(f"{calibration}: {len(rows)} positions, expected {samples}")
    return rows.double().numpy()


@dataclass(frozen=True)
class Turned:
    """Two checkpoints by name and folder, with the calibration of the first; `recorded`: files of
    the gauges that each has started with, where both are runs of one base.
    """

    names: tuple[str, str]
    folders: tuple[PathLike, PathLike]
    configs: tuple[Mapping[str, Any] | None, Mapping[str, Any] | None]
    calibration: PathLike
    recorded: tuple[PathLike, PathLike] | None = None


def measure_scaffold(pairs: Sequence[Turned], sequences: int, seed: int, output: Output) -> None:
    """Write scaffold: every pair at every site of its stream, by so many sequences of the
    calibration, and a rotation drawn at random.
    """
    rows: list[dict[str, Any]] = []
    for pair in pairs:
        require_same_tokens(*pair.folders)
        first, second = map(open_checkpoint, pair.folders, pair.configs)
        found = batches(
            pair.calibration, folder=Path(pair.folders[0]), config=first.config, batch_size=1
        )
        probes = list(islice(found, sequences))
        stream = describe(first.config).primary_stack.space
        seen = [_stream(each, probes) for each in (first, second)]
        named = dict(zip(("first", "second"), pair.names, strict=True))
        for row in scaffold_rows(seen[0], seen[1], _truth(pair, stream)):
            rows.append({**named, **row})
    rows.append(drawn_row(rows[0]["width"], seed))
    _write(output, "scaffold", rows)


def _stream(checkpoint: Checkpoint, probes: Sequence[Batch]) -> dict[str, Activations]:
    """What a checkpoint shows at the sites of its primary stream, by site."""
    anatomy = describe(checkpoint.config)
    sites = sites_of(anatomy, anatomy.primary_stack.space)
    return observe_sites(build_model(checkpoint, "float32"), sites, probes)


def _truth(pair: Turned, stream: str) -> Monomial | None:
    """From the coordinates of the first to those of the second, by way of their base."""
    if pair.recorded is None:
        return None
    back, forth = (read_gauge(path).elements[stream] for path in pair.recorded)
    assert isinstance(back, Monomial)
    assert isinstance(forth, Monomial)
    return back.inverse().compose(forth)


def _write(output: Output, kind: str, rows: Sequence[Mapping[str, Any]]) -> None:
    tables.write(output["parquet"], kind, rows, execution_environment())
    tables.write_csv(output["csv"], kind, rows)
