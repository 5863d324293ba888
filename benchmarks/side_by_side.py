"""Timing helpers: candidates run in turn within one process, so that a noisy machine disturbs all
of them alike.
"""

from __future__ import annotations

import csv
import os
import platform
import resource
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"


def rounds(candidates: Mapping[str, Callable[[], Any]], repeats: int) -> dict[str, list[float]]:
    """Seconds of each candidate in each of `repeats` rounds; every round runs each candidate once,
    after one warm-up round.
    """
    seconds: dict[str, list[float]] = {name: [] for name in candidates}
    for round_number in range(repeats + 1):
        for name, run in candidates.items():
            start = time.perf_counter()
            run()
            if round_number:
                seconds[name].append(time.perf_counter() - start)
    return seconds


def interleaved(candidates: Mapping[str, Callable[[], Any]], repeats: int) -> dict[str, float]:
    """Median seconds of each candidate over `rounds`."""
    return {name: statistics.median(values) for name, values in rounds(candidates, repeats).items()}


def peak_memory_mb() -> float:
    """Peak resident memory of this process so far, in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def write_results(name: str, rows: Sequence[Mapping[str, Any]]) -> None:
    """benchmarks/results/{name}.csv, and the same on stdout. The first line says what arithmetic
    ran.
    """
    from normgauge.provenance import execution_environment

    environment = {
        **execution_environment(),
        "cpu": platform.processor() or platform.machine(),
        "cores": str(os.cpu_count()),
    }
    RESULTS.mkdir(exist_ok=True)
    with open(RESULTS / f"{name}.csv", "w", newline="", encoding="utf-8") as handle:
        handle.write(
            "# " + "; ".join(f"{key}={value}" for key, value in environment.items()) + "\n"
        )
        writer = csv.DictWriter(handle, fieldnames=list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    print((RESULTS / f"{name}.csv").read_text(encoding="utf-8"))
