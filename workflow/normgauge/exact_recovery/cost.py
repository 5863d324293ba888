"""What observing and solving a part of a model take: seconds, memory, scratch space."""

from __future__ import annotations

import json
import resource
import sys
from pathlib import Path
from typing import Any

from normgauge.errors import InputError

COST = "cost.json"
"""Beside the observations: the part, and what observing it took."""


def peak_megabytes() -> float:
    """The most memory that this process has held so far, in MB (of 10^6 bytes)."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 1e6 if sys.platform == "darwin" else peak * 1024 / 1e6


def folder_megabytes(folder: Path) -> float:
    """What the files of a folder hold, in MB."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) / 1e6


def of_part(observations: Path, seconds: float) -> dict[str, Any]:
    """A row of what a part took, at the end of solving it in `seconds` in this process."""
    path = observations / COST
    try:
        observed = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: expected what observing took; observe again") from error
    return {
        "part": observed["part"],
        "scratch_mb": folder_megabytes(observations),
        "relay_mb": observed["relay_mb"],
        "observe_seconds": observed["seconds"],
        "observe_mb": observed["mb"],
        "solve_seconds": seconds,
        "solve_mb": peak_megabytes(),
    }
