"""The second stage: fresh observations for the stragglers' columns alone, merged chunk by chunk until their margins suffice.

    python -m normgauge.recovery.second_stage OBSERVATIONS OUTPUT FRESH [--chunks COUNT]

Like the solver it is given arrays only. OUTPUT is the solver's folder and is replaced by its successor; FRESH holds `{module}.inputs`
and `{module}.outputs` (the columns `open_columns` asks for, in that order).
"""

from __future__ import annotations

import argparse
import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file

from normgauge.provenance import atomic_path
from normgauge.recovery import grids
from normgauge.recovery.arithmetic import arithmetic
from normgauge.recovery.description import Array, Description, ObservedMap
from normgauge.recovery.least_squares import design_matrix, distinct_rows, row_digests
from normgauge.recovery.stragglers import REQUIRED_MARGIN, Decision, Evidence, Straggler, decisive, gather
from normgauge.recovery.terminal import run

MOST_CHUNKS = 8


def open_columns(report: dict[str, Any]) -> dict[str, list[int]]:
    """The output columns that need fresh observations, ascending, by module."""
    found: dict[str, list[int]] = {}
    for entry in report["stragglers"]:
        if entry["open"]:
            found.setdefault(entry["module"], []).append(entry["column"])
    return {module: sorted(columns) for module, columns in found.items()}


def merge(observations: Path, output: Path, fresh: Path, chunks: int) -> None:
    """Merge fresh observations, counted as `chunks`, into the evidence and decide again."""
    description = Description.read(observations)
    report = json.loads((output / "report.json").read_text())
    evidence = {name: tensor.numpy() for name, tensor in load_file(output / "evidence.safetensors").items()}
    tensors, claimed = load_file(output / "recovered.safetensors"), load_file(output / "claimed.safetensors")
    maps = {item.module: item for item in description.maps}
    for module, columns in open_columns(report).items():
        item = maps[module]
        grid = grids.grid(description.tensor(item.weight).dtype)
        inputs = Array(f"{module}.inputs", item.inputs.width).read(fresh)
        digests, before = row_digests(inputs), evidence.get(f"{module}.seen", np.empty(0, dtype=np.uint64))
        new_rows = distinct_rows(digests)
        new_rows = new_rows[~np.isin(digests[new_rows], before)]
        evidence[f"{module}.seen"] = np.concatenate([before, digests[new_rows]])
        design = design_matrix(inputs[new_rows], item.bias is not None)
        outputs = Array(f"{module}.outputs", len(columns)).read(fresh)[new_rows]
        waiting = [number for number, entry in enumerate(report["stragglers"]) if entry["open"] and entry["module"] == module]
        given = [_straggler(report["stragglers"][number], evidence[f"{number}.start"]) for number in waiting]
        order = [columns.index(straggler.column) for straggler in given]
        looks = gather(given, design, outputs[:, order], arithmetic("torch"), rounded_once=True)
        for number, straggler, new in zip(waiting, given, looks, strict=True):
            entry = report["stragglers"][number]
            fresh_rows = evidence[f"{number}.fresh_rows"].item() if f"{number}.fresh_rows" in evidence else 0
            first = Evidence(evidence[f"{number}.triangle"], evidence[f"{number}.spread"], entry["rows"] - fresh_rows)
            drawn = _fresh_evidence(evidence, number, fresh_rows, len(straggler.coordinates)).merge(new)
            evidence |= _kept(drawn, number)
            decision = straggler.decide(decisive(first, drawn), grid)
            entry.update(record(decision, first.rows + drawn.rows, entry["chunks"] + chunks))
            entry["history"].append([entry["rows"], entry["margin"]])
            _settle(description, item, straggler, decision, tensors, claimed)
    _update_margins(description, report, maps)
    with atomic_path(output) as temporary:
        shutil.copytree(output, temporary)
        save_file(tensors, temporary / "recovered.safetensors")
        save_file(claimed, temporary / "claimed.safetensors")
        save_file(
            {name: torch.from_numpy(np.ascontiguousarray(array)) for name, array in evidence.items()}, temporary / "evidence.safetensors"
        )
        (temporary / "report.json").write_text(json.dumps(report, indent=1) + "\n")


def _straggler(entry: dict[str, Any], start: np.ndarray) -> Straggler:
    return Straggler(entry["column"], np.array(entry["coordinates"]), start)


def _fresh_evidence(evidence: dict[str, np.ndarray], number: int, rows: int, count: int) -> Evidence:
    """What earlier chunks said, kept apart from the first observations (see `decisive`)."""
    if not rows:
        return Evidence.nothing(count)
    return Evidence(evidence[f"{number}.fresh_triangle"], evidence[f"{number}.fresh_spread"], rows)


def _kept(drawn: Evidence, number: int) -> dict[str, np.ndarray]:
    return {
        f"{number}.fresh_triangle": drawn.triangle,
        f"{number}.fresh_spread": drawn.spread,
        f"{number}.fresh_rows": np.array(drawn.rows),
    }


def record(decision: Decision, rows: int, chunks: int) -> dict[str, Any]:
    """What the report keeps of a straggler after a decision; it stays open while more chunks can be expected to decide it.

    The first chunk is drawn for all but zeros: fresh outputs are sums rounded once, and how much less noisy these are is only then known.
    """
    margin = float(decision.margins.min())
    reachable = (chunks < MOST_CHUNKS and decision.within_reach(MOST_CHUNKS / (1 + chunks))) if chunks else decision.resolution > 0
    return {
        "margins": decision.margins.tolist(),
        "margin": margin,
        "rows": rows,
        "chunks": chunks,
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
    for coordinate, value, margin in zip(straggler.coordinates, decision.values, decision.margins, strict=True):
        if coordinate == item.inputs.width and item.bias:
            name, place = description.stored_name(item.bias), [straggler.column]
        else:
            name, place = weight, [coordinate, straggler.column] if item.input_first else [straggler.column, coordinate]
        tensors[name][tuple(place)] = float(value)
        claimed[name][tuple(place)] = bool(margin >= REQUIRED_MARGIN)


def _update_margins(description: Description, report: dict[str, Any], maps: dict[str, ObservedMap]) -> None:
    """The least margin of each tensor that had stragglers: that of its decided values and of its stragglers as they are now."""
    rows = {entry["tensor"]: entry for entry in report["tensors"]}
    now: dict[str, float] = {}
    for entry in report["stragglers"]:
        item = maps[entry["module"]]
        for coordinate, margin in zip(entry["coordinates"], entry["margins"], strict=True):
            name = description.stored_name(item.bias if item.bias and coordinate == item.inputs.width else item.weight)
            if margin:  # a zero has none
                now[name] = min(now.get(name, np.inf), margin)
    for name, margin in now.items():
        rows[name]["min_margin"] = min(margin, rows[name]["decided_margin"])


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Merge fresh observations into the stragglers' evidence.")
    for name in ("observations", "output", "fresh"):
        parser.add_argument(name, type=Path)
    parser.add_argument("--chunks", type=int, default=1)
    chosen = parser.parse_args(arguments)
    merge(chosen.observations, chosen.output, chosen.fresh, chosen.chunks)


if __name__ == "__main__":
    run(main)
