"""Peak memory of whole captures, with NORMGAUGE_MEMORY=1: minutes, and 2 GB of disk."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.skipif(
    os.environ.get("NORMGAUGE_MEMORY") != "1",
    reason="1.1 billion parameters take minutes and 2 GB: set NORMGAUGE_MEMORY=1",
)
def test_a_billion_parameters_are_measured_within_three_gigabytes() -> None:
    """TinyLlama-1.1B's shape, 22 blocks in float32: whole it would be 4.4 GB of weights alone."""
    code = (
        "import json; from any_size import measure; print(json.dumps(measure("
        "'tinyllama-1.1b', 22, 'float32', 12, ['residual', 'terminal'])))"
    )
    paths = [str(ROOT / "benchmarks"), str(ROOT / "workflow")]
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        text=True,
        check=True,
        encoding="utf-8",
    )
    assert int(json.loads(done.stdout.splitlines()[-1])["peak_mb"]) < 3000
