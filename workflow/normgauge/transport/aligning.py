"""One checkpoint folder written in the coordinates of another."""

from __future__ import annotations

import os
from collections.abc import Sequence

from normgauge.calibration.batches import Batch
from normgauge.checkpoints.opening import open_checkpoint
from normgauge.gauge.model_matching import ModelMatching, match_models
from normgauge.transport.folders import Transformed, transform_folder

PathLike = str | os.PathLike[str]


def align_folders(
    first: PathLike,
    second: PathLike,
    output: PathLike,
    probes: Sequence[Batch],
    leave_behind: bool = False,
) -> tuple[ModelMatching, Transformed]:
    """Write `second` in the coordinates of `first`: all spaces, matched on the same probes.

    What is found leads from the first to the second. Raises InputError as `match_models` and
    `transform_folder`.
    """
    found = match_models(open_checkpoint(first), open_checkpoint(second), probes)
    done = transform_folder(second, output, found.gauge.inverse(), leave_behind=leave_behind)
    return found, done
