"""The second stage: fresh observations for the stragglers' columns alone, merged chunk by chunk
until their margins suffice.

    python -m normgauge.exact_recovery.second_stage OUTPUT FRESH [--chunks COUNT]
    [--outputs KIND] [--most COUNT]

Like the solver it is given arrays only. OUTPUT is the solver's folder and is replaced by its
successor; FRESH holds `{module}.inputs` and the outputs of the columns `open_columns` asks for, in
that order: `{module}.rounded-once` and `{module}.float64`. KIND says which of them decide; where
these are sums rounded once, the others say beside it what the forward pass itself would have.
"""

from __future__ import annotations

import argparse
import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file

from normgauge.errors import InputError
from normgauge.exact_recovery import grids
from normgauge.exact_recovery.arithmetic import arithmetic
from normgauge.exact_recovery.description import Array, Description, ObservedMap
from normgauge.exact_recovery.least_squares import design_matrix, distinct_rows, row_digests
from normgauge.exact_recovery.stragglers import (
    FLOAT64,
    OUTPUTS,
    REQUIRED_MARGIN,
    ROUNDED_ONCE,
    Decision,
    Evidence,
    Straggler,
    decisive,
    gather,
)
from normgauge.exact_recovery.terminal import run
from normgauge.provenance import atomic_path

MOST_CHUNKS = 8


@dataclass(frozen=True)
class Protocol:
    """outputs: what is observed of fresh sequences, and decides (of `stragglers.OUTPUTS`).
    most_chunks: how many are drawn at most.
    """

    outputs: str = ROUNDED_ONCE
    most_chunks: int = MOST_CHUNKS

    def __post_init__(self) -> None:
        if self.outputs not in OUTPUTS:
            raise InputError(
                f"fresh outputs {self.outputs!r}: expected one of {', '.join(OUTPUTS)}"
            )

    @property
    def observed(self) -> tuple[str, ...]:
        """The kinds of outputs that are looked at: those that decide, and float64's."""
        return tuple(dict.fromkeys((self.outputs, FLOAT64)))


DEFAULT = Protocol()


def open_columns(report: dict[str, Any]) -> dict[str, list[int]]:
    """The output columns that need fresh observations, ascending, by module."""
    found: dict[str, list[int]] = {}
    for entry in report["stragglers"]:
        if entry["open"]:
            found.setdefault(entry["module"], []).append(entry["column"])
    return {module: sorted(columns) for module, columns in found.items()}


def merge(output: Path, fresh: Path, chunks: int, protocol: Protocol = DEFAULT) -> None:
    """Merge fresh observations, counted as `chunks`, into the evidence and decide again."""
    description = Description.read_alone(output)
    report = json.loads((output / "report.json").read_text(encoding="utf-8"))
    evidence = {
        name: tensor.numpy() for name, tensor in load_file(output / "evidence.safetensors").items()
    }
    tensors, claimed = (
        load_file(output / "recovered.safetensors"),
        load_file(output / "claimed.safetensors"),
    )
    maps = {item.module: item for item in description.maps}
    for module, columns in open_columns(report).items():
        item = maps[module]
        grid = grids.grid(description.tensor(item.weight).dtype)
        inputs = Array(f"{module}.inputs", item.inputs.width).read(fresh)
        digests, before = (
            row_digests(inputs),
            evidence.get(f"{module}.seen", np.empty(0, dtype=np.uint64)),
        )
        new_rows = distinct_rows(digests)
        new_rows = new_rows[~np.isin(digests[new_rows], before)]
        evidence[f"{module}.seen"] = np.concatenate([before, digests[new_rows]])
        design = design_matrix(inputs[new_rows], item.bias is not None)
        waiting = [
            number
            for number, entry in enumerate(report["stragglers"])
            if entry["open"] and entry["module"] == module
        ]
        given = [
            _straggler(report["stragglers"][number], evidence[f"{number}.start"])
            for number in waiting
        ]
        order = [columns.index(straggler.column) for straggler in given]
        looks = {}
        for kind in protocol.observed:
            outputs = Array(f"{module}.{kind}", len(columns)).read(fresh)[new_rows][:, order]
            looks[kind] = gather(
                given, design, outputs, arithmetic("torch"), rounded_once=kind == ROUNDED_ONCE
            )
        for place, (number, straggler) in enumerate(zip(waiting, given, strict=True)):
            entry, decisions, count = report["stragglers"][number], {}, len(straggler.coordinates)
            first = Evidence.read(evidence, f"{number}.first", count)
            # what chunks said is kept apart from the first observations (see `decisive`)
            for kind, found in looks.items():
                drawn = Evidence.read(evidence, f"{number}.{kind}", count).merge(found[place])
                evidence |= drawn.arrays(f"{number}.{kind}")
                decisions[kind] = straggler.decide(decisive(first, drawn), grid)
            decision = decisions[protocol.outputs]
            entry.update(
                record(decision, first.rows + drawn.rows, entry["chunks"] + chunks, protocol)
            )
            entry["float64_margin"] = float(decisions[FLOAT64].margins.min())
            entry["history"].append([entry["rows"], entry["margin"]])
            _settle(description, item, straggler, decision, tensors, claimed)
    _update_margins(description, report, maps)
    with atomic_path(output) as temporary:
        shutil.copytree(output, temporary)
        save_file(tensors, temporary / "recovered.safetensors")
        save_file(claimed, temporary / "claimed.safetensors")
        save_file(
            {
                name: torch.from_numpy(np.ascontiguousarray(array))
                for name, array in evidence.items()
            },
            temporary / "evidence.safetensors",
        )
        (temporary / "report.json").write_text(
            json.dumps(report, indent=1) + "\n", encoding="utf-8"
        )


def _straggler(entry: dict[str, Any], start: np.ndarray) -> Straggler:
    return Straggler(entry["column"], np.array(entry["coordinates"]), start)


def record(
    decision: Decision, rows: int, chunks: int, protocol: Protocol = DEFAULT
) -> dict[str, Any]:
    """What the report keeps of a straggler after a decision; it stays open while more chunks can be
    expected to decide it.

    The first chunk is drawn for all but zeros: fresh outputs are sums rounded once, and how much
        less noisy these are is only then known.
    """
    margin = float(decision.margins.min())
    growth = protocol.most_chunks / (1 + chunks)
    reachable = (
        (chunks < protocol.most_chunks and decision.within_reach(growth))
        if chunks
        else decision.resolution > 0
    )
    return {
        "margins": decision.margins.tolist(),
        "margin": margin,
        "rows": rows,
        "chunks": chunks,
        "outputs": protocol.outputs if chunks else None,
        "float64_margin": None,
        "within_reach": reachable,
        "open": margin < REQUIRED_MARGIN and reachable,
    }


def _settle(
    description: Description,
    item: ObservedMap,
    straggler: Straggler,
    decision: Decision,
    tensors: dict[str, torch.Tensor],
    claimed: dict[str, torch.Tensor],
) -> None:
    weight = description.stored_name(item.weight)
    for coordinate, value, margin in zip(
        straggler.coordinates, decision.values, decision.margins, strict=True
    ):
        if coordinate == item.inputs.width and item.bias:
            name, place = description.stored_name(item.bias), [straggler.column]
        else:
            name, place = (
                weight,
                [coordinate, straggler.column]
                if item.input_first
                else [straggler.column, coordinate],
            )
        tensors[name][tuple(place)] = float(value)
        claimed[name][tuple(place)] = bool(margin >= REQUIRED_MARGIN)


def _update_margins(
    description: Description, report: dict[str, Any], maps: dict[str, ObservedMap]
) -> None:
    """The least margin of each tensor that had stragglers: that of its decided values and of its
    stragglers as they are now.
    """
    rows = {entry["tensor"]: entry for entry in report["tensors"]}
    now: dict[str, float] = {}
    for entry in report["stragglers"]:
        item = maps[entry["module"]]
        for coordinate, margin in zip(entry["coordinates"], entry["margins"], strict=True):
            name = description.stored_name(
                item.bias if item.bias and coordinate == item.inputs.width else item.weight
            )
            if margin:  # a zero has none
                now[name] = min(now.get(name, np.inf), margin)
    for name, margin in now.items():
        rows[name]["min_margin"] = min(margin, rows[name]["decided_margin"])


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description="Merge fresh observations into the stragglers' evidence."
    )
    for name in ("output", "fresh"):
        parser.add_argument(name, type=Path)
    parser.add_argument("--chunks", type=int, default=1)
    parser.add_argument("--outputs", default=ROUNDED_ONCE)
    parser.add_argument("--most", type=int, default=MOST_CHUNKS)
    chosen = parser.parse_args(arguments)
    merge(chosen.output, chosen.fresh, chosen.chunks, Protocol(chosen.outputs, chosen.most))


if __name__ == "__main__":
    run(main)
