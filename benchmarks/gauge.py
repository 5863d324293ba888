"""Matching against scipy, correlation against a bare matrix product, and the memory of a streamed
transform.

How to run it: benchmarks/README.md. The transform works on smollm2-135m of the default study,
    acquired before.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file
from scipy.optimize import linear_sum_assignment

from normgauge.anatomy import describe
from normgauge.checkpoints.opening import open_checkpoint
from normgauge.gauge.correlation import CrossCorrelation
from normgauge.gauge.groups import Monomial
from normgauge.gauge.matching import assign, match_matrix
from normgauge.gauge.random_gauges import random_gauge
from normgauge.transport.folders import transform_folder
from side_by_side import interleaved, write_results

N, D, CHUNK = 8192, 4096, 2048
CHECKPOINT = Path("results/smollm2-135m/0.1.2/checkpoint")

# Run in a process of its own: peak resident memory while a folder is gauged, above what the imports
# and the configuration take.
TRANSFORM = """
import sys, time
from normgauge.gauge.random_gauges import random_gauge
from normgauge.transport.folders import stored_folder, transform_folder
from normgauge.gauge.model_gauge import Gauge
from pathlib import Path

def memory(key):
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(key))

source, destination = sys.argv[1:]
gauge = random_gauge(stored_folder(source).anatomy(), 42, ("residual",))
Path("/proc/self/clear_refs").write_text("5")  # the peak starts again from what is resident now
base, start = memory("VmRSS"), time.perf_counter()
transform_folder(source, destination, gauge)
print(f"{memory('VmHWM') - base} {time.perf_counter() - start}")
"""


def samples() -> torch.Tensor:
    """(N, D) float32 with correlated coordinates of unlike means and scales."""
    generator = torch.Generator().manual_seed(0)
    mixing = torch.eye(D) + torch.randn(D, D, generator=generator) / D**0.5
    scales = torch.randn(D, generator=generator).exp()
    return torch.randn(N, D, generator=generator) @ mixing * scales + 3 * torch.randn(
        D, generator=generator
    )


def correlated(source: torch.Tensor, target: torch.Tensor) -> CrossCorrelation:
    found = CrossCorrelation(D)
    for first, second in zip(source.split(CHUNK), target.split(CHUNK), strict=True):
        found.update(first, second)
    return found


def row(
    what: str, candidate: str, value: float, unit: str, ratio: str = "", note: str = ""
) -> dict[str, str]:
    return {
        "what": what,
        "candidate": candidate,
        "value": f"{value:.4g}",
        "unit": unit,
        "ratio": ratio,
        "note": note,
    }


def correlation_rows(source: torch.Tensor, target: torch.Tensor) -> list[dict[str, str]]:
    """Accumulation, whose work is one product of D x N by N x D, against that product alone."""
    seconds = interleaved(
        {
            "CrossCorrelation": lambda: correlated(source, target),
            "torch X.T @ Y": lambda: source.T @ target,
        },
        repeats=5,
    )
    rate = seconds["torch X.T @ Y"] / seconds["CrossCorrelation"]
    operations = 2 * N * D * D / 1e9
    what = f"correlation, N = {N}, d = {D}, float32"
    return [
        row(
            what,
            "CrossCorrelation",
            operations / seconds["CrossCorrelation"],
            "GFLOP/s",
            f"{rate:.2f} of the product's rate",
        ),
        row(what, "torch X.T @ Y", operations / seconds["torch X.T @ Y"], "GFLOP/s"),
    ]


def matching_rows(recorded: np.ndarray, truth: Monomial) -> list[dict[str, str]]:
    """Assignment on the correlations of a recorded gauge, and on a matrix of noise, against scipy;
    and the whole of `match_matrix`.
    """
    rows = []
    noise = np.random.default_rng(0).random((D, D), dtype=np.float32)
    for name, score, repeats in (
        ("recorded gauge", np.abs(recorded), 9),
        ("noise (adversarial)", noise, 3),
    ):
        seconds = interleaved(
            {
                "assign": lambda score=score: assign(score),
                "scipy": lambda score=score: linear_sum_assignment(score, maximize=True),
            },
            repeats,
        )
        found, method, _ = assign(score)
        best = linear_sum_assignment(score, maximize=True)
        loss = 1 - score[np.arange(D), found].sum(dtype=np.float64) / score[best].sum(
            dtype=np.float64
        )
        note = f"{method}; objective below scipy's by {loss:.1g}"
        what = f"matching, d = {D}, {name}"
        rows.append(
            row(
                what,
                "assign",
                1e3 * seconds["assign"],
                "ms",
                f"{seconds['scipy'] / seconds['assign']:.1f} times scipy",
                note,
            )
        )
        rows.append(row(what, "scipy linear_sum_assignment", 1e3 * seconds["scipy"], "ms"))
    flat = np.zeros(D, dtype=bool)
    whole = interleaved({"match": lambda: match_matrix(recorded, N, flat, flat)}, 9)["match"]
    right = match_matrix(recorded, N, flat, flat).gauge == truth
    note = (
        "with signs, margins and flags; "
        f"{'the recorded gauge' if right else 'NOT the recorded gauge'}"
    )
    rows.append(
        row(f"matching, d = {D}, recorded gauge", "match_matrix", 1e3 * whole, "ms", note=note)
    )
    return rows


def transform_rows() -> list[dict[str, str]]:
    checkpoint = open_checkpoint(CHECKPOINT)
    largest = (
        max(value.numel() * value.element_size() for value in checkpoint.tensors.values()) / 2**20
    )
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "source"
        source.mkdir()
        save_file(
            {name: value.contiguous() for name, value in checkpoint.tensors.items()},
            source / "model.safetensors",
        )
        (source / "config.json").write_text(
            json.dumps(checkpoint.config.to_dict()), encoding="utf-8"
        )
        done = subprocess.run(
            [sys.executable, "-c", TRANSFORM, str(source), str(Path(folder) / "moved")],
            check=True,
            capture_output=True,
            text=True,
            env={**os.environ, "PYTHONPATH": f"workflow:{Path(__file__).parent}"},
            encoding="utf-8",
        )
        gauge = random_gauge(describe(checkpoint.config), 42, ("residual",))
        transform_folder(Path(folder) / "moved", Path(folder) / "back", gauge.inverse())
        files = [
            (Path(folder) / name / "model.safetensors").read_bytes()
            for name in ("source", "moved", "back")
        ]
    note = (
        "the inverse gives back "
        f"{'every byte' if files[2] == files[0] != files[1] else 'ANOTHER FILE'}"
    )
    peak, seconds = map(float, done.stdout.split())
    what = "transform of a folder, 135M parameters, float32"
    return [
        row(
            what,
            "transform_folder, peak above the base",
            peak,
            "MiB",
            f"{peak / largest:.2f} of the largest tensor, {largest:.0f} MiB",
        ),
        row(what, "transform_folder", seconds, "s", note=note),
    ]


def main() -> None:
    source = samples()
    truth = Monomial.random(D, 42)
    target = truth.apply(source)
    rows = [
        *correlation_rows(source, target),
        *matching_rows(correlated(source, target).matrix(), truth),
    ]
    write_results("gauge", [*rows, *transform_rows()])


if __name__ == "__main__":
    main()
