"""What was tried beside the recovery, against the stored weights: permuted rows, minimum-norm fits,
close calls, another arithmetic. Like `compare`, this is the step in which the truth appears.
"""

from __future__ import annotations

import json
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file

from normgauge.anatomy.lookup import holder
from normgauge.anatomy.structure import Anatomy
from normgauge.checkpoints.opening import Checkpoint
from normgauge.exact_recovery.calls import EDGES, Calls, chance_wrong
from normgauge.exact_recovery.report import CALLS


def falsifier_rows(checkpoint: Checkpoint, anatomy: Anatomy, folder: Path) -> list[dict[str, Any]]:
    """Rows of schema `recovery_falsifier`: how many stored values the same procedure gives on the
    true and on permuted rows.

    Compared are those that are not zero and that the true rows decide.
    """
    report, guesses = (
        json.loads((folder / "report.json").read_text(encoding="utf-8")),
        load_file(folder / "falsified.safetensors"),
    )
    maps = {item.module: item for item in anatomy.maps}
    rows = []
    for module, found in report["falsified"].items():
        item = maps[module]
        weight = checkpoint.tensors[holder(anatomy, item.weight)]
        pairings = {name: guesses[f"{module}.{name}"] for name in ("true", "permuted")}
        stored = (weight if item.input_axis == 0 else weight.T)[:, : pairings["true"].shape[1]]
        counted = (stored != 0) & guesses[f"{module}.decided"]
        matches = {
            name: int((same_bits(guess.to(stored.dtype), stored) & counted).sum())
            for name, guess in pairings.items()
        }
        # the values of one column against the stored ones of the next: what a coarse grid lets
        # coincide
        chance = int(
            (
                same_bits(pairings["permuted"].roll(1, dims=1).to(stored.dtype), stored) & counted
            ).sum()
        )
        given = {
            "matches": matches["permuted"],
            "chance_matches": chance,
            "true_matches": matches["true"],
        }
        rows.append({"module": module, "values": int(counted.sum()), **given, **found})
    return rows


def minimum_norm_rows(
    checkpoint: Checkpoint, anatomy: Anatomy, folder: Path
) -> list[dict[str, Any]]:
    """Rows of schema `recovery_minimum_norm`: of the first columns of each map behind a LayerNorm,
    how many stored values the minimum-norm fit gives, and how many the places that were found.
    """
    report = json.loads((folder / "report.json").read_text(encoding="utf-8"))
    fits, recovered = (
        load_file(folder / f"{name}.safetensors") for name in ("falsified", "recovered")
    )
    maps, rows = {item.module: item for item in anatomy.maps}, []
    for module, found in report["minimum_norms"].items():
        item, fit = maps[module], fits[f"{module}.minimum_norm"]
        stored, place = (
            (tensor if item.input_axis == 0 else tensor.T)[:, : fit.shape[1]]
            for tensors in (checkpoint.tensors, recovered)
            for tensor in (tensors[holder(anatomy, item.weight)],)
        )
        rows.append(
            {
                "module": module,
                "norm": item.norm,
                "values": stored.numel(),
                "matches": int(same_bits(fit.to(stored.dtype), stored).sum()),
                "place_matches": int(same_bits(place, stored).sum()),
                **found,
            }
        )
    return rows


def call_rows(checkpoint: Checkpoint, anatomy: Anatomy, folder: Path) -> list[dict[str, Any]]:
    """Rows of schema `recovery_calls`: of the values to which the joint fits give a margin within a
    bin, how many are not the stored ones, and how many Gaussian noise would make wrong.
    """
    tensors = load_file(folder / CALLS)
    arrays = {name: tensor.numpy() for name, tensor in tensors.items()}
    maps = {item.module: item for item in anatomy.maps}
    counts: Counter[int] = Counter()
    wrongs: Counter[int] = Counter()
    expected = np.zeros(len(EDGES) - 1)
    for module in dict.fromkeys(name.rpartition(".")[0] for name in arrays):
        item, calls = maps[module], Calls.read(arrays, module)
        weight = checkpoint.tensors[holder(anatomy, item.weight)]
        stored = (weight if item.input_axis == 0 else weight.T).double().numpy()
        if item.bias:
            bias = checkpoint.tensors[holder(anatomy, item.bias)]
            stored = np.vstack([stored, bias.double().numpy()])
        wrong = calls.values != stored[calls.coordinates, calls.columns]
        chances = chance_wrong(calls.margins, calls.widths)
        bins = np.searchsorted(EDGES, calls.margins, side="right") - 1
        for place in range(len(EDGES) - 1):
            inside = bins == place
            counts[place] += int(inside.sum())
            wrongs[place] += int(wrong[inside].sum())
            expected[place] += float(chances[inside].sum())
    return [
        {
            "low": low,
            "high": high,
            "values": counts[place],
            "wrong": wrongs[place],
            "expected": float(expected[place]),
        }
        for place, (low, high) in enumerate(pairwise(EDGES))
    ]


def route_rows(first: Path, second: Path) -> list[dict[str, Any]]:
    """Rows of schema `recovery_routes`: two solvers' output folders, of different arithmetic."""
    values = [load_file(folder / "recovered.safetensors") for folder in (first, second)]
    claimed = [load_file(folder / "claimed.safetensors") for folder in (first, second)]
    reports = [
        json.loads((folder / "report.json").read_text(encoding="utf-8"))
        for folder in (first, second)
    ]
    extended = [
        {entry["tensor"]: entry["extended"] for entry in report["tensors"]} for report in reports
    ]
    used = {
        "kernels": reports[0]["kernels"],
        "second_kernels": reports[1]["kernels"],
    }
    rows = []
    for name in values[0]:
        both = claimed[0][name] & claimed[1][name]
        different = both & ~same_bits(values[0][name], values[1][name])
        one = claimed[0][name] ^ claimed[1][name]
        counts = {"both": int(both.sum()), "different": int(different.sum()), "one": int(one.sum())}
        looks = {"extended": extended[0][name], "second_extended": extended[1][name]}
        rows.append({"tensor": name, "values": both.numel(), **counts, **looks, **used})
    return rows


def same_bits(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    """Elementwise equality of the stored bits, signed zeros and NaN included."""
    integers = {2: torch.int16, 4: torch.int32}[first.element_size()]
    return first.contiguous().view(integers) == second.contiguous().view(integers)
