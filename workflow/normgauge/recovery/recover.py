"""One checkpoint from end to end: observe, solve in a process that gets arrays only, close the stragglers.

This module reads weights, to observe them; the solver and the second stage run as processes of their own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from normgauge.checkpoints import build_model
from normgauge.checkpoints.opening import Checkpoint
from normgauge.provenance import LIBRARY
from normgauge.recovery.observe import observe_columns
from normgauge.recovery.second_stage import MOST_CHUNKS, open_columns

MOST_AT_ONCE = 16


def solve_apart(observations: Path, output: Path, arithmetic: str) -> None:
    """Run the solver as a separate process on a folder of observations."""
    _run("solve", str(observations), str(output), "--arithmetic", arithmetic)


def close_stragglers(checkpoint: Checkpoint, observations: Path, output: Path, rows: int, seed: int) -> int:
    """Fresh chunks of `rows` positions for the columns that still need them; returns how many were drawn.

    As the noise falls with the root of their number, each round draws as many as all before it, up to MOST_AT_ONCE.
    """
    model, chunks = None, 0
    while columns := open_columns(json.loads((output / "report.json").read_text())):
        model = model or build_model(checkpoint, "float64")
        count = min(max(chunks, 1), MOST_AT_ONCE, MOST_CHUNKS - chunks)
        with tempfile.TemporaryDirectory(dir=output.parent) as scratch:
            fresh = Path(scratch) / "fresh"
            observe_columns(model, checkpoint.config, fresh, count * rows, seed + chunks, columns)
            _run("second_stage", str(observations), str(output), str(fresh), "--chunks", str(count))
        chunks += count
    return chunks


def _run(module: str, *arguments: str) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(LIBRARY.parent), os.environ.get("PYTHONPATH", "")])}
    subprocess.run([sys.executable, "-m", f"normgauge.recovery.{module}", *arguments], check=True, env=environment)
