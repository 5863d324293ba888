"""Time and peak memory of a capture by block at the full width of a published shape.

`python benchmarks/any_size.py llama-3.1-8b 4 float32 32 [residual terminal schur]`: the shape of
config/shapes, so many blocks of it, the forward dtype, sequences of 256 tokens and groups of sites.
Weights are random, in bfloat16, on disk only for as long as the program runs; of a shape of more
blocks the same block is made again. It adds a row to results/any_size.csv, since a row takes
minutes: what stands there is of several calls. How to run it: benchmarks/README.md.
"""

from __future__ import annotations

import csv
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from normgauge.calibration.prepare import prepare
from normgauge.calibration.settings import Settings
from normgauge.capture.settings import CaptureSettings
from normgauge.capture.study import capture_checkpoint
from normgauge.checkpoints.local import initialise_by_tensor
from normgauge.checkpoints.opening import open_checkpoint
from side_by_side import RESULTS, peak_memory_mb

BATCH = 4


def cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def drawn_apart(config: Path, folder: Path) -> list[float]:
    """CPU seconds and peak memory in MiB of the process that draws the weights."""
    command = [sys.executable, __file__, "--draw", str(config), str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, encoding="utf-8")
    return json.loads(done.stdout.splitlines()[-1])


def measure(
    shape: str, blocks: int, forward_dtype: str, sequences: int, groups: list[str]
) -> dict[str, object]:
    settings = json.loads(Path(f"config/shapes/{shape}.json").read_text(encoding="utf-8"))
    whole = settings["num_hidden_layers"]
    # below results/, where the disk has room: the system's temporary folder may lie in memory
    Path("results").mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir="results") as scratch:
        folder = Path(scratch)
        config = folder / "shape.json"
        config.write_text(json.dumps(settings | {"num_hidden_layers": blocks}), encoding="utf-8")
        drawn, peak_drawn = drawn_apart(config, folder / "checkpoint")
        stored = sum(path.stat().st_size for path in (folder / "checkpoint").iterdir())
        calibration = folder / "calibration.parquet"
        prepare(
            {"modality": "text", "calibration": "random-tokens"},
            folder / "checkpoint",
            None,
            calibration,
            config=open_checkpoint(folder / "checkpoint").config,
            settings=Settings(sequences, 256),
        )
        start, clock = cpu_seconds(), time.monotonic()
        capture_checkpoint(
            folder / "checkpoint",
            {"weights_sha256": "0", "precision": "half"},
            calibration,
            folder / "moments",
            CaptureSettings(
                {forward_dtype: groups}, "cov64", BATCH, schur_sites=["query_key_value_input"]
            ),
            named=(shape, "seed42"),
        )
        seconds = cpu_seconds() - start
    return {
        "shape": shape,
        "blocks": f"{blocks} of {whole}",
        "forward_dtype": forward_dtype,
        "n": sequences * 256,
        "sites": " ".join(groups),
        "stored_gb": f"{stored / 1e9:.2f}",
        "draw_cpu_seconds": f"{drawn:.0f}",
        "draw_peak_mb": f"{peak_drawn:.0f}",
        "capture_cpu_seconds": f"{seconds:.0f}",
        "capture_wall_seconds": f"{time.monotonic() - clock:.0f}",
        "cpu_seconds_of_whole": f"{seconds * whole / blocks:.0f}",
        "peak_mb": f"{peak_memory_mb():.0f}",
    }


def add_row(row: dict[str, object]) -> None:
    path = RESULTS / "any_size.csv"
    fresh = not path.exists()
    with open(path, "a", newline="", encoding="utf-8") as handle:
        writer = csv.DictWriter(handle, fieldnames=list(row), lineterminator="\n")
        if fresh:
            writer.writeheader()
        writer.writerow(row)


if __name__ == "__main__" and sys.argv[1] == "--draw":
    initialise_by_tensor(Path(sys.argv[2]), 42, Path(sys.argv[3]), "bfloat16")
    print(json.dumps([cpu_seconds(), peak_memory_mb()]))
elif __name__ == "__main__":
    name, blocks, forward_dtype, sequences, *groups = sys.argv[1:]
    row = measure(
        name, int(blocks), forward_dtype, int(sequences), groups or ["residual", "terminal"]
    )
    add_row(row)
    print(row)
