"""The solver: observations in, stored tensors out. It never meets a weight: a separate process, given one folder of arrays.

    python -m normgauge.recovery.solve OBSERVATIONS OUTPUT [--arithmetic torch|scipy]

OUTPUT gets `recovered.safetensors` (storage dtype, NaN where undetermined), `claimed.safetensors` (bool: margin at least 4),
`falsified.safetensors` (what the same solve says when rows are permuted), `report.json`, and `evidence.safetensors` (the stragglers',
for the second stage); where embedding sums are observed `attacked.safetensors`, what the grid alone says of a table.
"""

from __future__ import annotations

import argparse
import os
import time
import zlib
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from normgauge.anatomy.structure import NormKind
from normgauge.errors import InputError
from normgauge.progress import Progress
from normgauge.recovery import certificate, embeddings, falsifier, grids, hardest, maps, norm_parameters
from normgauge.recovery.arithmetic import Arithmetic, arithmetic
from normgauge.recovery.attack import attack
from normgauge.recovery.description import Description, ObservedMap, ObservedNorm
from normgauge.recovery.least_squares import distinct_rows, row_digests
from normgauge.recovery.maps import COLUMNS_AT_ONCE, LINEAR, Design, Recovered
from normgauge.recovery.results import Outcome, Results, row, write
from normgauge.recovery.second_stage import record
from normgauge.recovery.stragglers import REQUIRED_MARGIN
from normgauge.recovery.terminal import run

FALSIFIED_COLUMNS = 32
CERTIFIED_SHARE = 0.01
NULL_PLACES = 20


def solve_folder(folder: Path, route: Arithmetic, seed: int = 0) -> tuple[Description, Results]:
    """Recover every tensor that the folder's observations determine."""
    description = Description.read(folder)
    results = Results()
    for norm in description.norms:
        _solve_norm(description, norm, folder, results)
    groups: dict[tuple[str, str | None, bool | None], list[ObservedMap]] = defaultdict(list)
    for item in description.maps:
        behind = description.layer_norm_behind(item)
        groups[(item.inputs.name, behind, None if behind else item.bias is not None)].append(item)
    progress = Progress(len(description.maps), "solve")
    for (_, behind, _), members in groups.items():
        _solve_group(description, members, behind, folder, route, seed, results)
        progress.step(len(members))
    _solve_tables(description, folder, results)
    results.attack = attack(description, folder)
    _study_hardest(description, folder, route, seed, results)
    for tensor in description.tensors:
        if tensor.alias_of is None and tensor.name not in results.outcomes:
            nothing = np.full(tensor.shape, np.nan)
            reason = "no input and output of it is observed"
            results.outcomes[tensor.name] = Outcome(nothing, np.zeros(tensor.shape), row("not observed", "none", reason=reason))
    return description, results


def _solve_norm(description: Description, norm: ObservedNorm, folder: Path, results: Results) -> None:
    start = time.perf_counter()
    inputs, outputs = norm.inputs.read(folder), norm.outputs.read(folder)
    found = norm_parameters.solve(inputs, outputs, NormKind(norm.kind), norm.eps, norm.bias is not None)
    residual = float(found.relative_residual.max())
    seconds = time.perf_counter() - start
    given = ((norm.gain, found.gains, found.gain_noise, norm.gain_offset), (norm.bias, found.biases, found.bias_noise, 0.0))
    for name, values, noise, offset in given:
        if name is None or values is None or noise is None:
            continue
        grid = grids.grid(description.tensor(name).dtype)
        rounded, margins = norm_parameters.stored(values, noise, offset, grid)
        lost, reason = int(np.isnan(rounded).sum()), None
        if residual > LINEAR:
            reason = f"the output is not gain times the normalised input plus bias (relative residual {residual:.1e}): eps or kind differ"
            rounded, margins = np.full_like(rounded, np.nan), np.zeros_like(margins)
        elif lost:
            reason = f"{lost} values lie off the {grid.name} grid, or on features that never vary"
        known = {"norm": norm.name, "relative_residual": residual, "seconds": seconds, "reason": reason}
        results.outcomes[name] = Outcome(rounded, margins, row("norm", "two-parameter least squares", **known))
        seconds = 0.0


def _solve_group(
    description: Description,
    members: Sequence[ObservedMap],
    behind: str | None,
    folder: Path,
    route: Arithmetic,
    seed: int,
    results: Results,
) -> None:
    """All maps with one input array (and, without a LayerNorm, with or without bias alike)."""
    start = time.perf_counter()
    inputs = members[0].inputs.read(folder)
    kept = distinct_rows(row_digests(inputs))
    inputs = inputs[kept]
    try:
        design = _design(description, members[0], behind, inputs, route, results)
    except InputError as error:
        for item in members:
            _undetermined(description, item, behind, str(error), results)
        return
    shared = (time.perf_counter() - start) / len(members)
    for item in members:
        start = time.perf_counter()
        grid = grids.grid(description.tensor(item.weight).dtype)
        parts = []
        for first in range(0, item.outputs.width, COLUMNS_AT_ONCE):
            columns = slice(first, min(first + COLUMNS_AT_ONCE, item.outputs.width))
            outputs = item.outputs.read(folder, columns)[kept]
            part = maps.recover(design, [outputs], [item.bias is not None], grid, route, seed)[0]
            results.hardest = hardest.harder(results.hardest, item, part, first)
            part, looks = maps.settle(design, part, inputs, outputs, item.bias is not None, grid, route)
            part = _certified(item, part, first, grid, results)
            if first == 0 and not design.factors.null_rank:
                _falsify(item, design, outputs[:, :FALSIFIED_COLUMNS], grid, route, results)
            _keep_stragglers(item, [look for look in looks if not part.undetermined[look.straggler.column]], first, results)
            parts.append(part)
        _store(description, item, behind, parts, time.perf_counter() - start + shared, results)


def _design(
    description: Description, item: ObservedMap, behind: str | None, inputs: np.ndarray, route: Arithmetic, results: Results
) -> Design:
    if behind is None:
        return maps.full_design(inputs, item.bias is not None, route)
    norm = next(norm for norm in description.norms if norm.name == behind)
    gain, bias = results.outcomes[norm.gain], results.outcomes[norm.bias] if norm.bias else None
    gains = gain.values + norm.gain_offset
    if not (gain.margins[gains != 0] >= REQUIRED_MARGIN).all() or (bias and np.isnan(bias.values).any()):
        raise InputError(f"gains or biases of {behind} are not determined")
    # a bias may be flagged: what is left open of it is far below the noise of the outputs
    return maps.gauge_design(inputs, gains, bias.values if bias else None, route)


def _population(item: ObservedMap, behind: str | None) -> str:
    if behind:
        return "behind a LayerNorm"
    return "behind an RMSNorm" if item.norm else "no norm"


def _undetermined(description: Description, item: ObservedMap, behind: str | None, reason: str, results: Results) -> None:
    for name in (item.weight, item.bias):
        if name and (stored := description.stored_name(name)) not in results.outcomes:
            shape = description.tensor(stored).shape
            kept = row(_population(item, behind), "none", norm=item.norm, reason=reason, gauge_dimension=1 if behind else 0)
            results.outcomes[stored] = Outcome(np.full(shape, np.nan), np.zeros(shape), kept)


def _certified(item: ObservedMap, part: Recovered, first: int, grid: grids.Grid, results: Results) -> Recovered:
    """`part` less the columns that its evidence does not single out: every other place on the line is excluded for a share of the columns,
    and for all of them where one of the share has other than one place. The model's first such column is tried by the full sieve.
    """
    known: list[int] = np.flatnonzero(~part.undetermined).tolist()
    if part.solved is None or not known:
        return part
    sample = known[:: int(1 / CERTIFIED_SHARE)]
    single = {column: _certify(item, part, column, first, grid, results) for column in sample}
    if all(single.values()):
        return part
    single |= {column: _certify(item, part, column, first, grid, results) for column in known if column not in single}
    return part.without([column for column in known if not single[column]], "several places on the line keep every coordinate on the grid")


def _certify(item: ObservedMap, part: Recovered, column: int, first: int, grid: grids.Grid, results: Results) -> bool:
    """Whether a column, counted from `first`, has exactly one place on its line."""
    solved = part.solved
    assert solved is not None
    full = not results.certificates
    start = time.perf_counter()
    weights = part.values[: solved.line.weights, column]
    values, noise, alpha = solved.values[:, column], solved.noise[:, column], float(solved.found.alpha[column])
    found = certificate.certify(solved.line, values, noise, weights, grid, full, alpha)
    generator = np.random.default_rng(_seed(item.module, column + first))
    residuals, left_out = certificate.null_residuals(solved.line, values, noise, grid, NULL_PLACES, generator)
    results.null_residuals.append(residuals)
    results.null_left_out += left_out
    results.certificates.append(
        {
            "module": item.module,
            "column": column + first,
            "method": "sieve" if full else "walk",
            "candidates": found.candidates,
            "survivors": len(found.survivors),
            "half_width": found.half_width,
            "tolerance": found.tolerance,
            "seconds": time.perf_counter() - start,
        }
    )
    return len(found.survivors) == 1


def _falsify(item: ObservedMap, design: Design, outputs: np.ndarray, grid: grids.Grid, route: Arithmetic, results: Results) -> None:
    seeds = (_seed(item.module, "permutation"), _seed(item.module, "lattices"))
    found = falsifier.falsify(design, np.ascontiguousarray(outputs), item.bias is not None, grid, route, seeds)
    width = item.inputs.width
    kept = {"true": found.true, "permuted": found.permuted, "decided": found.decided}
    results.falsified |= {f"{item.module}.{name}": array[:width] for name, array in kept.items()}
    results.falsifications[item.module] = {
        "claimed": found.claimed,
        "residual_ratio": found.residual_ratio,
        "true_score": found.true_score,
        "permuted_score": found.permuted_score,
    }


def _seed(*names: object) -> int:
    """A seed of its own for everything that is drawn, from what it is drawn for."""
    return zlib.crc32("/".join(map(str, names)).encode())


def _keep_stragglers(item: ObservedMap, looks: list[maps.SecondLook], first: int, results: Results) -> None:
    """What the second stage needs, and the report says, of columns whose first margin was too small or whose second still is."""
    for look in looks:
        if min(look.first_margin, float(look.decision.margins.min())) >= REQUIRED_MARGIN:
            continue
        key = str(len(results.pending))
        coordinates = look.straggler.coordinates.tolist()
        entry = {
            "module": item.module,
            "column": look.straggler.column + first,
            "coordinates": coordinates,
            "first_margin": look.first_margin,
            "history": [[look.evidence.rows, float(look.decision.margins.min())]],
        }
        results.pending.append({**entry, **record(look.decision, look.evidence.rows, chunks=0)})
        results.evidence |= look.evidence.arrays(f"{key}.first")
        results.evidence[f"{key}.start"] = look.straggler.start


def _study_hardest(description: Description, folder: Path, route: Arithmetic, seed: int, results: Results) -> None:
    if results.hardest is None:
        return
    item, column = results.hardest.item, results.hardest.column
    norm = next(norm for norm in description.norms if norm.name == item.norm)
    inputs = item.inputs.read(folder)
    kept = distinct_rows(row_digests(inputs))
    results.hardest_study = hardest.study(
        results.hardest,
        lambda inputs: _design(description, item, description.layer_norm_behind(item), inputs, route, results),
        inputs[kept],
        item.outputs.read(folder, slice(column, column + 1))[kept],
        results.outcomes[norm.gain].values + norm.gain_offset,
        grids.grid(description.tensor(item.weight).dtype),
        route,
        seed,
    )


def _store(
    description: Description, item: ObservedMap, behind: str | None, parts: list[Recovered], seconds: float, results: Results
) -> None:
    values, margins = np.hstack([part.values for part in parts]), np.hstack([part.margins for part in parts])
    first, width = parts[0], item.inputs.width
    known = {
        "gauge_dimension": max(part.gauge_dimension for part in parts),
        "norm": item.norm,
        "null_rank": first.null_rank,
        "null_cosine": first.null_cosine,
        "relative_residual": max(part.relative_residual for part in parts),
        "draws": max(part.draws for part in parts),
        "score": max((part.score for part in parts if part.score is not None), default=None),
        "log10_null": max((part.log10_null for part in parts if part.log10_null is not None), default=None),
        "reason": next((part.reason for part in parts if part.reason), None),
        "seconds": seconds,
    }
    kept = row(_population(item, behind), first.argument, **known)
    weight, weight_margins = values[:width], margins[:width]
    if not item.input_first:
        weight, weight_margins = weight.T, weight_margins.T
    results.outcomes[description.stored_name(item.weight)] = Outcome(weight, weight_margins, kept)
    if item.bias:
        results.outcomes[description.stored_name(item.bias)] = Outcome(values[width], margins[width], {**kept, "seconds": 0.0})


def _solve_tables(description: Description, folder: Path, results: Results) -> None:
    """Embedding tables from their sums, after the readout has given what it can."""
    if description.embedding is None:
        return
    names = [table.weight for table in description.tables]
    unknown = [name for name in names if name not in results.outcomes]
    if not unknown:
        return
    start = time.perf_counter()
    total = description.embedding.read(folder)
    indices = {table.weight: table.read_indices(folder, description.tensor(table.weight).shape[0]) for table in description.tables}
    solved = [(name, results.outcomes[name]) for name in names if name in results.outcomes]
    known = {name: embeddings.TableRows(outcome.values, outcome.margins) for name, outcome in solved}
    if len(unknown) == 1:
        tensor = description.tensor(unknown[0])
        found = embeddings.remaining_table(total, known, indices, tensor.name, tensor.shape[0], grids.grid(tensor.dtype))
        unseen = int(np.isnan(found.values).any(axis=1).sum())
        reason = f"{unseen} of {tensor.shape[0]} rows were not used at any position" if unseen else None
        kept = row("embedding", "sum less the known tables", reason=reason, seconds=time.perf_counter() - start)
        results.outcomes[tensor.name] = Outcome(found.values, found.margins, kept)
        return
    width = total.shape[1]
    reason = f"a constant moved between {len(unknown)} tables leaves every sum as it is, and no readout is tied to one of them"
    for name in unknown:
        shape = description.tensor(name).shape
        kept = row("embedding", "none", gauge_dimension=(len(unknown) - 1) * width, reason=reason)
        results.outcomes[name] = Outcome(np.full(shape, np.nan), np.zeros(shape), kept)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Recover stored weights from a folder of observations.")
    parser.add_argument("observations", type=Path)
    parser.add_argument("output", type=Path)
    parser.add_argument("--arithmetic", default="torch")
    chosen = parser.parse_args(arguments)
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", torch.get_num_threads())))
    description, results = solve_folder(chosen.observations, arithmetic(chosen.arithmetic))
    write(chosen.output, description, results)


if __name__ == "__main__":
    run(main)
