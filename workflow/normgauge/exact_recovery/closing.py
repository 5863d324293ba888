"""Fresh observations for the stragglers, until they are decided.

This module reads weights, to observe them; what decides is a process of its own that gets arrays
only.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from normgauge.checkpoints.building import build_model
from normgauge.checkpoints.opening import Checkpoint
from normgauge.exact_recovery.observe import observe_columns
from normgauge.exact_recovery.second_stage import DEFAULT, Protocol, open_columns
from normgauge.provenance import LIBRARY, atomic_path

MOST_AT_ONCE = 4


def close_stragglers(
    checkpoint: Checkpoint,
    solution: Path,
    output: Path,
    rows: int,
    seed: int,
    protocol: Protocol = DEFAULT,
    published: bool = False,
) -> int:
    """Write `output`, the solver's folder `solution` with its stragglers decided as far as may be;
    returns the fresh chunks drawn.

    A chunk is `rows` positions for the columns that still need them. As the noise falls with the
    root of their number, each round draws as many as all before it, up to MOST_AT_ONCE. `seed`: of
    the first chunk; others than that of the observations, or nothing is fresh.
    `protocol`: which outputs decide, and when no more are drawn. `published`: on sequences of the
    published protocol.
    """
    model, chunks = None, 0
    with atomic_path(output) as temporary:
        shutil.copytree(solution, temporary)
        while columns := open_columns(
            json.loads((temporary / "report.json").read_text(encoding="utf-8"))
        ):
            model = model or build_model(checkpoint, "float64")
            count = min(max(chunks, 1), MOST_AT_ONCE, protocol.most_chunks - chunks)
            with tempfile.TemporaryDirectory(dir=output.parent) as scratch:
                fresh = Path(scratch) / "fresh"
                observe_columns(
                    model,
                    checkpoint.config,
                    fresh,
                    count * rows,
                    seed + chunks,
                    columns,
                    protocol.observed,
                    published,
                )
                options = {
                    "--chunks": count,
                    "--outputs": protocol.outputs,
                    "--most": protocol.most_chunks,
                }
                _merge_apart(
                    temporary,
                    fresh,
                    *(part for option in options.items() for part in option),
                )
            chunks += count
    return chunks


def _merge_apart(*arguments: object) -> None:
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(LIBRARY.parent), os.environ.get("PYTHONPATH", "")]),
    }
    subprocess.run(
        [sys.executable, "-m", "normgauge.exact_recovery.second_stage", *map(str, arguments)],
        check=True,
        env=environment,
    )
