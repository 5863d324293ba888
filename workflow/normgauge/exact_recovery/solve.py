"""The solver: observations in, stored tensors out. It never meets a weight: a separate process,
given one folder of arrays.

    python -m normgauge.exact_recovery.solve OBSERVATIONS OUTPUT [--arithmetic torch|scipy]

OUTPUT gets `recovered.safetensors` (storage dtype, NaN where undetermined), `claimed.safetensors`
(bool: margin at least 4), `falsified.safetensors` (what the same solve says when rows are
permuted), `report.json`, and `evidence.safetensors` (the stragglers', for the second stage); where
embedding sums are observed `attacked.safetensors`, what the grid alone says of a table.
"""

from __future__ import annotations

import argparse
import os
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import torch

from normgauge.anatomy.structure import NormKind
from normgauge.errors import InputError
from normgauge.exact_recovery import embeddings, grids, hardest, maps, norm_parameters, trials
from normgauge.exact_recovery.arithmetic import Arithmetic, arithmetic
from normgauge.exact_recovery.attack import attack
from normgauge.exact_recovery.calls import joined
from normgauge.exact_recovery.cost import of_part
from normgauge.exact_recovery.description import Description, ObservedMap, ObservedNorm
from normgauge.exact_recovery.least_squares import distinct_rows, row_digests
from normgauge.exact_recovery.maps import COLUMNS_AT_ONCE, LINEAR, Design, Recovered
from normgauge.exact_recovery.outcomes import Outcome, Results, row
from normgauge.exact_recovery.report import write
from normgauge.exact_recovery.second_look import settle
from normgauge.exact_recovery.stragglers import REQUIRED_MARGIN
from normgauge.exact_recovery.terminal import run
from normgauge.exact_recovery.trials import Columns
from normgauge.progress import Progress


def solve_folder(folder: Path, route: Arithmetic, seed: int = 0) -> tuple[Description, Results]:
    """Recover every tensor that the folder's observations determine."""
    solver = Solver(Description.read(folder), folder, route, seed)
    solver.solve()
    return solver.description, solver.results


@dataclass(frozen=True, eq=False)
class Solver:
    """The observations in a folder, and what they have said so far.

    `description`: what was observed. `route`: the arithmetic. `seed`: of what the search on the
    gauge lines draws. Norms come before the maps behind them, the readout before the tables.
    """

    description: Description
    folder: Path
    route: Arithmetic
    seed: int = 0
    results: Results = field(default_factory=Results)

    def solve(self) -> None:
        """Every norm, map and table; what stays without an outcome says why."""
        for norm in self.description.norms:
            self.solve_norm(norm)
        groups: dict[tuple[str, str | None, bool | None], list[ObservedMap]] = defaultdict(list)
        for item in self.description.maps:
            behind = self.description.layer_norm_behind(item)
            key = (item.inputs.name, behind, None if behind else item.bias is not None)
            groups[key].append(item)
        progress = Progress(len(self.description.maps), "solve")
        for members in groups.values():
            self.solve_maps(members)
            progress.step(len(members))
        self._solve_tables()
        self.results.attack = attack(self.description, self.folder)
        self._study_hardest()
        self._list_unobserved()

    def solve_norm(self, norm: ObservedNorm) -> None:
        """Gain and bias of a norm."""
        start = time.perf_counter()
        inputs, outputs = norm.inputs.read(self.folder), norm.outputs.read(self.folder)
        found = norm_parameters.solve(
            inputs, outputs, NormKind(norm.kind), norm.eps, norm.bias is not None
        )
        residual = float(found.relative_residual.max())
        seconds = time.perf_counter() - start
        given = (
            (norm.gain, found.gains, found.gain_noise, norm.gain_offset),
            (norm.bias, found.biases, found.bias_noise, 0.0),
        )
        for name, values, noise, offset in given:
            if name is None or values is None or noise is None:
                continue
            grid = self._grid(name)
            rounded, margins = norm_parameters.stored(values, noise, offset, grid)
            lost, reason = int(np.isnan(rounded).sum()), None
            if residual > LINEAR:
                reason = (
                    "the output is not gain times the normalised input plus bias (relative "
                    f"residual {residual:.1e}): eps or kind differ"
                )
                rounded, margins = np.full_like(rounded, np.nan), np.zeros_like(margins)
            elif lost:
                reason = (
                    f"{lost} values lie off the {grid.name} grid, or on features that never vary"
                )
            known = {
                "norm": norm.name,
                "relative_residual": residual,
                "nonpositive": int((rounded + offset <= 0).sum()) if name == norm.gain else None,
                "seconds": seconds,
                "reason": reason,
            }
            self.results.outcomes[name] = Outcome(
                rounded, margins, row("norm", "two-parameter least squares", **known)
            )
            seconds = 0.0

    def solve_maps(self, members: Sequence[ObservedMap]) -> None:
        """Maps with one input array (and, without a LayerNorm, with or without bias alike)."""
        start = time.perf_counter()
        inputs = members[0].inputs.read(self.folder)
        kept = distinct_rows(row_digests(inputs))
        inputs = inputs[kept]
        try:
            design = self._design(members[0], inputs)
        except InputError as error:
            for item in members:
                self._leave_undetermined(item, str(error))
            return
        shared = (time.perf_counter() - start) / len(members)
        for item in members:
            start = time.perf_counter()
            parts = []
            for first in range(0, item.outputs.width, COLUMNS_AT_ONCE):
                run = slice(first, min(first + COLUMNS_AT_ONCE, item.outputs.width))
                outputs = item.outputs.read(self.folder, run)[kept]
                columns = Columns(item, first, outputs, self._grid(item.weight))
                parts.append(self._solve_columns(columns, design, inputs))
            self._store(item, parts, time.perf_counter() - start + shared)

    def _solve_columns(self, columns: Columns, design: Design, inputs: np.ndarray) -> Recovered:
        item, outputs, grid, results = columns.item, columns.outputs, columns.grid, self.results
        part = maps.recover(design, [outputs], [columns.intercept], grid, self.route, self.seed)[0]
        if part.calls:
            part = replace(part, calls=part.calls.shifted(columns.first))
        results.hardest = hardest.harder(results.hardest, item, part, columns.first)
        part, looks = settle(design, part, inputs, outputs, columns.intercept, grid, self.route)
        part = trials.certified(columns, part, results)
        if columns.first == 0 and not design.factors.null_rank:
            trials.falsify(columns, design, self.route, results)
            trials.show_minimum_norm(columns, part, inputs, self.route, results)
        open_looks = [look for look in looks if not part.undetermined[look.straggler.column]]
        trials.keep_stragglers(columns, open_looks, results)
        return part

    def _grid(self, name: str) -> grids.Grid:
        return grids.grid(self.description.tensor(name).dtype)

    def _gains(self, norm: ObservedNorm) -> np.ndarray:
        """float64 (size,): the effective gains that were recovered."""
        return self.results.outcomes[norm.gain].values + norm.gain_offset

    def _design(self, item: ObservedMap, inputs: np.ndarray) -> Design:
        behind = self.description.layer_norm_behind(item)
        if behind is None:
            return maps.full_design(inputs, item.bias is not None, self.route)
        norm = self.description.norm(behind)
        outcomes, gains = self.results.outcomes, self._gains(norm)
        bias = outcomes[norm.bias] if norm.bias else None
        if not (outcomes[norm.gain].margins[gains != 0] >= REQUIRED_MARGIN).all() or (
            bias and np.isnan(bias.values).any()
        ):
            raise InputError(f"gains or biases of {behind} are not determined")
        # a bias may be flagged: what is left open of it is far below the noise of the outputs
        return maps.gauge_design(inputs, gains, bias.values if bias else None, self.route)

    def _population(self, item: ObservedMap) -> str:
        if self.description.layer_norm_behind(item):
            return "behind a LayerNorm"
        return "behind an RMSNorm" if item.norm else "no norm"

    def _leave_undetermined(self, item: ObservedMap, reason: str) -> None:
        for name in (item.weight, item.bias):
            stored = self.description.stored_name(name) if name else None
            if stored and stored not in self.results.outcomes:
                known = row(
                    self._population(item),
                    "none",
                    norm=item.norm,
                    reason=reason,
                    gauge_dimension=int(self.description.layer_norm_behind(item) is not None),
                )
                shape = self.description.tensor(stored).shape
                self.results.outcomes[stored] = Outcome.undetermined(shape, known)

    def _store(self, item: ObservedMap, parts: list[Recovered], seconds: float) -> None:
        values, margins = (
            np.hstack([part.values for part in parts]),
            np.hstack([part.margins for part in parts]),
        )
        first, width = parts[0], item.inputs.width
        scores = [part.score for part in parts if part.score is not None]
        least = [part.least_score for part in parts if part.least_score is not None]
        nulls = [part.log10_null for part in parts if part.log10_null is not None]
        known = {
            "gauge_dimension": max(part.gauge_dimension for part in parts),
            "norm": item.norm,
            "null_rank": first.null_rank,
            "null_cosine": first.null_cosine,
            "relative_residual": max(part.relative_residual for part in parts),
            "draws": max(part.draws for part in parts),
            "score": max(scores, default=None),
            "least_score": min(least, default=None),
            "extended": sum(part.extended for part in parts),
            "log10_null": max(nulls, default=None),
            "reason": next((part.reason for part in parts if part.reason), None),
            "seconds": seconds,
        }
        kept = row(self._population(item), first.argument, **known)
        if calls := [part.calls for part in parts if part.calls]:
            self.results.calls |= joined(calls).arrays(item.module)
        weight, weight_margins = values[:width], margins[:width]
        if not item.input_first:
            weight, weight_margins = weight.T, weight_margins.T
        named = self.description.stored_name
        self.results.outcomes[named(item.weight)] = Outcome(weight, weight_margins, kept)
        if item.bias:
            self.results.outcomes[named(item.bias)] = Outcome(
                values[width], margins[width], {**kept, "seconds": 0.0, "extended": None}
            )

    def _solve_tables(self) -> None:
        """Embedding tables from their sums, after the readout has given what it can."""
        if self.description.embedding is None:
            return
        outcomes = self.results.outcomes
        names = [table.weight for table in self.description.tables]
        unknown = [name for name in names if name not in outcomes]
        if len(unknown) == 1:
            self._solve_table(unknown[0])
            return
        reason = (
            f"a constant moved between {len(unknown)} tables leaves every sum as it is, and no "
            "readout is tied to one of them"
        )
        free = (len(unknown) - 1) * self.description.embedding.width
        for name in unknown:
            shape = self.description.tensor(name).shape
            known = row("embedding", "none", gauge_dimension=free, reason=reason)
            outcomes[name] = Outcome.undetermined(shape, known)

    def _solve_table(self, name: str) -> None:
        """The one table that is not known otherwise: the sums less the known tables."""
        start = time.perf_counter()
        description, outcomes = self.description, self.results.outcomes
        assert description.embedding is not None
        if alone := len(description.tables) == 1:
            total = description.read_sums(self.folder)
        else:
            total = description.embedding.read(self.folder)
        indices = {}
        for table in description.tables:
            read = table.read_all_indices if alone else table.read_indices
            indices[table.weight] = read(self.folder, description.tensor(table.weight).shape[0])
        known = {
            table.weight: embeddings.TableRows(
                outcomes[table.weight].values, outcomes[table.weight].margins
            )
            for table in description.tables
            if table.weight in outcomes
        }
        rows = description.tensor(name).shape[0]
        found = embeddings.remaining_table(total, known, indices, name, rows, self._grid(name))
        unseen = int(np.isnan(found.values).any(axis=1).sum())
        kept = row(
            "embedding",
            "sum less the known tables",
            reason=f"{unseen} of {rows} rows were not used at any position" if unseen else None,
            seconds=time.perf_counter() - start,
        )
        outcomes[name] = Outcome(found.values, found.margins, kept)

    def _study_hardest(self) -> None:
        found = self.results.hardest
        if found is None:
            return
        item, column = found.item, found.column
        assert item.norm is not None
        inputs = item.inputs.read(self.folder)
        kept = distinct_rows(row_digests(inputs))
        self.results.hardest_study = hardest.study(
            found,
            lambda inputs: self._design(item, inputs),
            inputs[kept],
            item.outputs.read(self.folder, slice(column, column + 1))[kept],
            self._gains(self.description.norm(item.norm)),
            self._grid(item.weight),
            self.route,
            self.seed,
        )

    def _list_unobserved(self) -> None:
        for tensor in self.description.tensors:
            if tensor.alias_of is None and tensor.name not in self.results.outcomes:
                reason = (
                    "no input and output of it is observed"
                    if tensor.used
                    else "the class does not use it"
                )
                self.results.outcomes[tensor.name] = Outcome.undetermined(
                    tensor.shape, row("not observed", "none", reason=reason)
                )


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description="Recover stored weights from a folder of observations."
    )
    parser.add_argument("observations", type=Path)
    parser.add_argument("output", type=Path)
    parser.add_argument("--arithmetic", default="torch")
    chosen = parser.parse_args(arguments)
    start = time.perf_counter()
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", torch.get_num_threads())))
    description, results = solve_folder(chosen.observations, arithmetic(chosen.arithmetic))
    cost = of_part(chosen.observations, time.perf_counter() - start)
    write(chosen.output, description, results, cost)


if __name__ == "__main__":
    run(main)
