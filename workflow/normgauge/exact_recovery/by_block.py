"""Recovery of a model part by part: each is observed, solved by a process of its own that is given
its observations alone, and these are deleted before the next.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from normgauge.anatomy import describe
from normgauge.checkpoints.opening import Checkpoint
from normgauge.errors import InputError
from normgauge.exact_recovery.joining import join
from normgauge.exact_recovery.observe import observe
from normgauge.exact_recovery.parts import parts_of
from normgauge.provenance import LIBRARY


def recover_by_block(
    checkpoint: Checkpoint,
    output: Path,
    rows: int,
    seed: int,
    route: str = "torch",
    published: bool = False,
) -> None:
    """Write `output`, the solver's folder of a checkpoint observed on `rows` token positions.

    published: on the sequences of the published protocol. The scratch space beside it is that of
    one part's observations, whatever the number of blocks.
    """
    output.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=output.parent) as name:
        scratch, solutions = Path(name), []
        before: Path | None = None
        observations = scratch / "observations"
        for part in parts_of(describe(checkpoint.config)):
            after = scratch / f"relay.{part.name}" if part.stack else None
            observe(checkpoint, observations, rows, seed, part, before, after, published)
            solutions.append(scratch / f"solution.{part.name}")
            solve_apart(observations, solutions[-1], route)
            shutil.rmtree(observations)
            if before:
                shutil.rmtree(before)
            before = after
        join(solutions, output)


def observe_numbered(
    checkpoint: Checkpoint,
    number: int,
    count: int,
    places: tuple[Path, Path | None, Path],
    rows: int,
    seed: int,
    published: bool = False,
) -> None:
    """Observe one of the parts, counted from 1. places: for its observations, of the relay before
    it, and for the relay after it, which is an empty folder after the last part.

    InputError when the model does not have `count` parts.
    """
    parts = parts_of(describe(checkpoint.config))
    if len(parts) != count:
        raise InputError(
            f"exact_recovery.block_jobs: {count} parts were configured, the model has {len(parts)} "
            "(its blocks, and what lies outside of them); configure that number"
        )
    part, (observations, before, after) = parts[number - 1], places
    relay = after if part.stack else None
    observe(checkpoint, observations, rows, seed, part, before, relay, published)
    after.mkdir(exist_ok=True)


def solve_apart(observations: Path, output: Path, route: str) -> None:
    """Solve a folder of observations in a process of its own, which gets that folder and where to
    write. InputError when it ends otherwise than well; its own message has been printed.
    """
    command = [sys.executable, "-m", "normgauge.exact_recovery.solve", observations, output]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(LIBRARY.parent), os.environ.get("PYTHONPATH", "")]),
    }
    finished = subprocess.run(
        [*map(str, command), "--arithmetic", route], env=environment, stdout=subprocess.DEVNULL
    )
    if finished.returncode:
        raise InputError("recover: the solver could not go on, for the reason above")
