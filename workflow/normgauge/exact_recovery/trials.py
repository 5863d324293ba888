"""What each solved map is tried by: certificates that a column has one place, the same solve on
permuted rows, and the evidence that its stragglers leave for the second stage.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from normgauge.exact_recovery import certificate, falsifier, minimum_norm
from normgauge.exact_recovery.arithmetic import Arithmetic
from normgauge.exact_recovery.description import ObservedMap
from normgauge.exact_recovery.grids import Grid
from normgauge.exact_recovery.maps import Design, Recovered
from normgauge.exact_recovery.outcomes import Results
from normgauge.exact_recovery.second_look import SecondLook
from normgauge.exact_recovery.second_stage import record
from normgauge.exact_recovery.stragglers import REQUIRED_MARGIN

FALSIFIED_COLUMNS = 32
CERTIFIED_SHARE = 0.01
NULL_PLACES = 20


@dataclass(frozen=True, eq=False)
class Columns:
    """A run of a map's outputs: the first one's number, and their different observations, float64
    (N, k).
    """

    item: ObservedMap
    first: int
    outputs: np.ndarray
    grid: Grid

    @property
    def intercept(self) -> bool:
        return self.item.bias is not None


def certified(columns: Columns, part: Recovered, results: Results) -> Recovered:
    """`part` less the columns that its evidence does not single out: every other place on the line
    is excluded for a share of the columns, and for all of them where one of the share has other
    than one place. The first such column of each part of the model is tried by the full
    sieve.
    """
    known: list[int] = np.flatnonzero(~part.undetermined).tolist()
    if part.solved is None or not known:
        return part
    sample = known[:: int(1 / CERTIFIED_SHARE)]
    single = {column: _certify(columns, part, column, results) for column in sample}
    if all(single.values()):
        return part
    single |= {
        column: _certify(columns, part, column, results) for column in known if column not in single
    }
    return part.without(
        [column for column in known if not single[column]],
        "several places on the line keep every coordinate on the grid",
    )


def _certify(columns: Columns, part: Recovered, column: int, results: Results) -> bool:
    """Whether a column, counted from the run's first, has exactly one place on its line."""
    solved = part.solved
    assert solved is not None
    full, number = columns.item.part not in results.sieved, column + columns.first
    results.sieved.add(columns.item.part)
    start = time.perf_counter()
    weights = part.values[: solved.line.weights, column]
    values, noise, alpha = (
        solved.values[:, column],
        solved.noise[:, column],
        float(solved.found.alpha[column]),
    )
    found = certificate.certify(solved.line, values, noise, weights, columns.grid, full, alpha)
    generator = np.random.default_rng(_seed(columns.item.module, number))
    residuals, left_out = certificate.null_residuals(
        solved.line, values, noise, columns.grid, NULL_PLACES, generator
    )
    results.null_residuals.append(residuals)
    results.null_left_out += left_out
    results.certificates.append(
        {
            "module": columns.item.module,
            "column": number,
            "method": "sieve" if full else "walk",
            "candidates": found.candidates,
            "survivors": len(found.survivors),
            "half_width": found.half_width,
            "tolerance": found.tolerance,
            "seconds": time.perf_counter() - start,
        }
    )
    return len(found.survivors) == 1


def falsify(columns: Columns, design: Design, route: Arithmetic, results: Results) -> None:
    """Keep what the run's first columns give with their rows as they are and permuted."""
    item = columns.item
    seeds = (_seed(item.module, "permutation"), _seed(item.module, "lattices"))
    outputs = np.ascontiguousarray(columns.outputs[:, :FALSIFIED_COLUMNS])
    found = falsifier.falsify(design, outputs, columns.intercept, columns.grid, route, seeds)
    width = item.inputs.width
    kept = {"true": found.true, "permuted": found.permuted, "decided": found.decided}
    results.falsified |= {f"{item.module}.{name}": array[:width] for name, array in kept.items()}
    results.falsifications[item.module] = {
        "claimed": found.claimed,
        "residual_ratio": found.residual_ratio,
        "true_score": found.true_score,
        "permuted_score": found.permuted_score,
    }


def show_minimum_norm(
    columns: Columns, part: Recovered, inputs: np.ndarray, route: Arithmetic, results: Results
) -> None:
    """Keep what the minimum-norm fit of the run's first columns gives, behind a LayerNorm."""
    if part.solved is None:
        return
    count, places = FALSIFIED_COLUMNS, part.values[:, :FALSIFIED_COLUMNS]
    if not columns.intercept:
        places = np.vstack([places, np.zeros((1, places.shape[1]))])
    found = minimum_norm.fit(
        part.solved.line,
        part.solved.values[:, :count],
        places,
        inputs,
        np.ascontiguousarray(columns.outputs[:, :count]),
        columns.grid,
        route,
    )
    module = columns.item.module
    results.falsified[f"{module}.minimum_norm"] = found.values[: columns.item.inputs.width]
    results.minimum_norms[module] = {
        "distance": found.distance,
        "place_distance": found.place_distance,
        "moved": found.moved,
    }


def _seed(*names: object) -> int:
    """A seed of its own for everything that is drawn, from what it is drawn for."""
    return zlib.crc32("/".join(map(str, names)).encode())


def keep_stragglers(columns: Columns, looks: Sequence[SecondLook], results: Results) -> None:
    """What the second stage needs, and the report says, of columns whose first margin was too small
    or whose second still is.
    """
    for look in looks:
        if min(look.first_margin, float(look.decision.margins.min())) >= REQUIRED_MARGIN:
            continue
        key = str(len(results.pending))
        entry = {
            "module": columns.item.module,
            "column": look.straggler.column + columns.first,
            "coordinates": look.straggler.coordinates.tolist(),
            "first_margin": look.first_margin,
            "history": [[look.evidence.rows, float(look.decision.margins.min())]],
        }
        results.pending.append({**entry, **record(look.decision, look.evidence.rows, chunks=0)})
        results.evidence |= look.evidence.arrays(f"{key}.first")
        results.evidence[f"{key}.start"] = look.straggler.start
