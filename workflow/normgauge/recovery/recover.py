"""One checkpoint from end to end: observe, solve in a process that gets arrays only, close the stragglers.

This module reads weights, to observe them; the solver and the second stage run as processes of their own.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

from normgauge.checkpoints import build_model
from normgauge.checkpoints.opening import Checkpoint
from normgauge.recovery.observe import observe_columns
from normgauge.recovery.second_stage import open_columns


def solve_apart(observations: Path, output: Path, arithmetic: str) -> None:
    """Run the solver as a separate process on a folder of observations."""
    _run("solve", str(observations), str(output), "--arithmetic", arithmetic)


def close_stragglers(checkpoint: Checkpoint, observations: Path, output: Path, rows: int, seed: int) -> int:
    """Fresh chunks of `rows` positions for the columns that still need them; returns how many were drawn."""
    model, chunks = None, 0
    while columns := open_columns(json.loads((output / "report.json").read_text())):
        model = model or build_model(checkpoint, "float64")
        chunks += 1
        with tempfile.TemporaryDirectory(dir=output.parent) as scratch:
            fresh = Path(scratch) / "fresh"
            observe_columns(model, checkpoint.config, fresh, rows, seed + chunks, columns)
            _run("second_stage", str(observations), str(output), str(fresh))
    return chunks


def _run(module: str, *arguments: str) -> None:
    subprocess.run([sys.executable, "-m", f"normgauge.recovery.{module}", *arguments], check=True)
