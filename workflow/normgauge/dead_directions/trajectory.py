"""The fingerprint along a training: every kept step of every run of one model (arXiv 2606.19491,
A.5.1, figures 2 and 5).
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from normgauge.anatomy import describe
from normgauge.calibration.prepare import prepare
from normgauge.calibration.settings import Settings
from normgauge.checkpoints.opening import open_checkpoint
from normgauge.dead_directions.subject import PathLike, Rows, Subject
from normgauge.errors import InputError
from normgauge.fingerprint.study import Identity, fingerprint_rows

FORWARD = "float32"
GROUPS = ("residual", "terminal")


def trajectory_rows(
    model: str,
    runs: PathLike,
    entry: Mapping[str, Any],
    corpus: PathLike | None,
    settings: Settings,
    batch_size: int,
    groups: int,
) -> Rows:
    """Rows of schema `trajectory`: one per run, kept step and block of the primary stream, X_0
    included.

    runs: a folder of runs, each with folders step{k}. All steps are measured on the same sequences.
    Raises InputError for a folder without steps.
    """
    steps = sorted(
        (
            (path.parent.name, int(path.name.removeprefix("step")), path)
            for path in Path(runs).glob("*/step*")
        ),
    )
    if not steps:
        raise InputError(f"{runs}: holds no kept step; list steps under `keep` of {model}")
    rows = []
    with tempfile.TemporaryDirectory() as scratch:
        calibration = Path(scratch) / "calibration.parquet"
        for run, step, folder in steps:
            checkpoint = open_checkpoint(folder, entry.get("config"))
            if not calibration.is_file():
                prepare(
                    entry, folder, corpus, calibration, config=checkpoint.config, settings=settings
                )
            anatomy = describe(checkpoint.config)
            subject = Subject(folder, checkpoint, anatomy, _identity(model, run, step, anatomy))
            rows += _step_rows(subject, run, step, calibration, batch_size, groups)
    return rows


def _identity(model: str, run: str, step: int, anatomy: Any) -> Identity:
    return Identity(
        model=model,
        revision=f"{run}-step{step}",
        family=anatomy.family,
        provenance="trained here",
        precision="full",
        objective=None,
        placement=str(anatomy.placement),
        blocks={stack.name: len(stack.blocks) for stack in anatomy.stacks},
        primary=anatomy.primary_stack.name,
    )


def _step_rows(
    subject: Subject, run: str, step: int, calibration: Path, batch_size: int, groups: int
) -> Rows:
    [measurement] = subject.measure(calibration, {FORWARD: GROUPS}, batch_size, groups)
    stack = subject.anatomy.primary_stack
    rows = [
        row for row in fingerprint_rows(measurement, subject.identity) if row["stack"] == stack.name
    ]
    post = next((row for row in rows if row["tap"] == "terminal_norm"), None)
    gain = measurement.norms[stack.terminal_norm].gain if stack.terminal_norm else np.ones(1)
    return [
        {
            "model": subject.identity.model,
            "run": run,
            "step": step,
            "stack": stack.name,
            "norm_kind": str(subject.anatomy.norm_kind),
            "blocks": len(stack.blocks),
            "block": row["block"],
            "n": row["n"],
            "d": row["d"],
            "forward_dtype": row["forward_dtype"],
            "accumulation": row["accumulation"],
            "ratio": 1.0 if row["tap"] == "embedding" else row["fixed_rank_ratio"],
            "ratio_se": row["fixed_rank_ratio_se"] if row["tap"] == "output" else None,
            "ratio_to_embedding": row["ratio_to_embedding"],
            "sigma_over_floor": (row["sigma_at_rank"] or 0.0)
            / max(row["forward_floor"], row["accumulator_floor"]),
            "kernel_cosine": post["cos_gamma_inv"] if post else None,
            "ones_cosine": post["cos_ones"] if post else None,
            "gain_dispersion": float(gain.std() / np.abs(gain).mean()),
        }
        for row in rows
        if row["tap"] in ("embedding", "output")
    ]
