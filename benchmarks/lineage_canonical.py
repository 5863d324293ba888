"""Canonical forms of real checkpoints under random discrete gauges: are their bytes equal?

Run after `make tables`:
PYTHONPATH=workflow python benchmarks/lineage_canonical.py 20 results/*/*/checkpoint
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import torch

from normgauge.anatomy import describe
from normgauge.checkpoints.opening import open_checkpoint
from normgauge.gauge.transform import transform
from normgauge.lineage.canonical import canonical
from normgauge.lineage.discrete import random_discrete_gauge
from normgauge.yaml_files import read_yaml
from side_by_side import write_results

ENTRIES = read_yaml("config/models.yaml")["models"]


def row(folder: Path, gauges: int) -> dict[str, Any]:
    """One checkpoint: its hash, and how many copies under random gauges have it."""
    # what the table lays over a config.json that lacks it, as rxnfp's lacks its model_type
    checkpoint = open_checkpoint(folder, ENTRIES[folder.parent.parent.name].get("config"))
    anatomy = describe(checkpoint.config)
    form = canonical(anatomy, checkpoint.tensors)
    equal, proven, seconds = 0, form.proven, 0.0
    for seed in range(gauges):
        copy = dict(transform(anatomy, checkpoint.tensors, random_discrete_gauge(anatomy, seed)))
        began = time.process_time()
        found = canonical(anatomy, copy)
        seconds += time.process_time() - began
        equal += found.sha256 == form.sha256
        proven = proven and found.proven
    return {
        "model": folder.parent.parent.name,
        "revision": folder.parent.name,
        "architecture": anatomy.architecture,
        "parameters": sum(value.numel() for value in checkpoint.tensors.values()),
        "gauges": gauges,
        "equal": equal,
        "proven": proven,
        "cpu_seconds_each": round(seconds / gauges, 2),
        "sha256": form.sha256,
    }


def main(gauges: int, folders: list[Path]) -> None:
    """A row for each folder, written as CSV."""
    torch.set_num_threads(1)
    rows = []
    for folder in folders:
        rows.append(row(folder, gauges))
        print(rows[-1], flush=True)
    write_results("lineage_canonical", rows)


if __name__ == "__main__":
    main(int(sys.argv[1]), [Path(each) for each in sys.argv[2:]])
