"""Capture against the bare forward pass of the same model, side by side; memory and time against N.

Needs measured checkpoints: snakemake --cores 2 results/minilm-l6/0.1.0/summary.parquet
    results/smollm2-135m/0.1.2/summary.parquet
How to run it: benchmarks/README.md [model/revision ...]
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import torch
import yaml

from normgauge.anatomy import describe
from normgauge.anatomy.structure import Site
from normgauge.calibration.batches import Batch, batches
from normgauge.capture import capture
from normgauge.capture.hooks import body_of
from normgauge.capture.study import select_sites
from normgauge.checkpoints.building import build_model
from normgauge.checkpoints.opening import open_checkpoint
from normgauge.moments import Accumulator, Workspace
from side_by_side import interleaved, peak_memory_mb, write_results

DEFAULT = {"minilm-l6/0.1.0": 5, "smollm2-135m/0.1.2": 2}  # rounds
GROUPS = {
    "residual + terminal": ("residual", "terminal"),
    "all groups": ("residual", "terminal", "taps", "schur"),
}


def load(checkpoint: str) -> tuple[torch.nn.Module, list[Batch], dict[str, tuple[Site, ...]]]:
    folder = Path("results") / checkpoint
    entry = yaml.safe_load(Path("config/models.yaml").read_text(encoding="utf-8"))["models"][
        folder.parent.name
    ]
    opened = open_checkpoint(folder / "checkpoint", entry.get("config"))
    anatomy = describe(opened.config)
    inputs = list(
        batches(
            folder / "calibration.parquet",
            folder=folder / "checkpoint",
            config=opened.config,
            batch_size=8,
        )
    )
    return (
        build_model(opened, "float32"),
        inputs,
        {name: select_sites(anatomy, groups) for name, groups in GROUPS.items()},
    )


def forward(model: torch.nn.Module, inputs: list[Batch]) -> None:
    with torch.inference_mode():
        for batch in inputs:
            body_of(model)(**batch.inputs)


def accumulate_alone(sites: tuple[Site, ...], rows: int, passes: int) -> None:
    """The symmetric rank-k updates of these sites and nothing else, on random activations."""
    workspace = Workspace()
    chunks = {width: torch.randn(rows, width) for width in {site.width for site in sites}}
    for site in sites:
        accumulator = Accumulator("cov64", site.width, workspace)
        for _ in range(passes):
            accumulator.update(chunks[site.width])


def speed_rows(checkpoint: str, rounds: int) -> list[dict[str, object]]:
    model, inputs, sites = load(checkpoint)
    rows = inputs[0].inputs["input_ids"].numel()
    everything = sites["all groups"]
    seconds = interleaved(
        {
            "forward": lambda: forward(model, inputs),
            **{
                name: lambda chosen=chosen: capture(model, chosen, inputs, "cov64")
                for name, chosen in sites.items()
            },
            "updates of all groups alone": lambda: accumulate_alone(everything, rows, len(inputs)),
        },
        repeats=rounds,
    )
    bound = seconds["forward"] + seconds["updates of all groups alone"]
    return [
        {
            "checkpoint": checkpoint,
            "what": name,
            "n": rows * len(inputs),
            "sites": len(sites.get(name, ())) or "",
            "seconds": f"{value:.2f}",
            "ratio_to_forward": f"{value / seconds['forward']:.2f}",
            "ratio_to_forward_plus_updates": f"{value / bound:.2f}" if name == "all groups" else "",
            "peak_mb": "",
        }
        for name, value in seconds.items()
    ]


def scaling_rows(checkpoint: str) -> list[dict[str, object]]:
    """Peak memory and seconds of one capture at 1, 2 and 4 times the calibration, each in a fresh
    process.
    """
    rows = []
    for times in (1, 2, 4):
        output = subprocess.run(
            [sys.executable, __file__, "--scaling", checkpoint, str(times)],
            capture_output=True,
            text=True,
            check=True,
            encoding="utf-8",
        ).stdout
        measured = json.loads(output.splitlines()[-1])
        rows.append(
            {
                "checkpoint": checkpoint,
                "what": f"residual + terminal, {times} x N",
                "n": measured["n"],
                "sites": "",
                "seconds": f"{measured['seconds']:.2f}",
                "ratio_to_forward": "",
                "ratio_to_forward_plus_updates": "",
                "peak_mb": f"{measured['peak_mb']:.0f}",
            }
        )
    return rows


def scaling(checkpoint: str, times: int) -> None:
    import time

    model, inputs, sites = load(checkpoint)
    start = time.perf_counter()
    moments = capture(
        model,
        sites["residual + terminal"],
        (batch for _ in range(times) for batch in inputs),
        "cov64",
    )
    seconds = time.perf_counter() - start
    print(
        json.dumps(
            {"n": next(iter(moments.values())).n, "seconds": seconds, "peak_mb": peak_memory_mb()}
        )
    )


if __name__ == "__main__":
    if sys.argv[1:2] == ["--scaling"]:
        scaling(sys.argv[2], int(sys.argv[3]))
    else:
        checkpoints = dict.fromkeys(sys.argv[1:], 3) or DEFAULT
        rows = [row for name, rounds in checkpoints.items() for row in speed_rows(name, rounds)]
        write_results("capture", rows + scaling_rows(next(iter(checkpoints))))
