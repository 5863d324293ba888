"""What accumulates over a model while it is solved, and how it is written: the solver's output folder."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file

from normgauge.provenance import atomic_path
from normgauge.recovery import certificate
from normgauge.recovery.attack import Attack
from normgauge.recovery.description import Description
from normgauge.recovery.hardest import Hardest
from normgauge.recovery.stragglers import REQUIRED_MARGIN


@dataclass
class Outcome:
    """One tensor: values in its stored shape (float64, NaN where undetermined), the margins, and its row of the map."""

    values: np.ndarray
    margins: np.ndarray
    row: dict[str, Any]


@dataclass
class Results:
    """What accumulates over a model."""

    outcomes: dict[str, Outcome] = field(default_factory=dict)
    falsified: dict[str, np.ndarray] = field(default_factory=dict)
    falsifications: dict[str, dict[str, Any]] = field(default_factory=dict)
    certificates: list[dict[str, Any]] = field(default_factory=list)
    null_residuals: list[np.ndarray] = field(default_factory=list)
    null_left_out: int = 0
    pending: list[dict[str, Any]] = field(default_factory=list)
    evidence: dict[str, np.ndarray] = field(default_factory=dict)
    attack: Attack | None = None
    hardest: Hardest | None = None
    hardest_study: dict[str, Any] | None = None


def row(population: str, argument: str, **known: Any) -> dict[str, Any]:
    """A row of the identifiability map; what does not apply is None."""
    fields = ("norm", "null_rank", "null_cosine", "relative_residual", "draws", "score", "log10_null", "reason")
    return {"population": population, "argument": argument, "gauge_dimension": 0, "seconds": 0.0, **dict.fromkeys(fields), **known}


def write(folder: Path, description: Description, results: Results) -> None:
    """The output folder, atomically."""
    with atomic_path(folder) as temporary:
        temporary.mkdir()
        outcomes = results.outcomes
        dtypes = {name: getattr(torch, description.tensor(name).dtype) for name in outcomes}
        values = {name: torch.from_numpy(np.ascontiguousarray(outcome.values)).to(dtypes[name]) for name, outcome in outcomes.items()}
        claimed = {
            name: torch.from_numpy(np.ascontiguousarray((outcome.margins >= REQUIRED_MARGIN) & np.isfinite(outcome.values)))
            for name, outcome in outcomes.items()
        }
        save_file(values, temporary / "recovered.safetensors")
        save_file(claimed, temporary / "claimed.safetensors")
        save_file(
            {name: torch.from_numpy(np.ascontiguousarray(array)) for name, array in results.falsified.items()},
            temporary / "falsified.safetensors",
        )
        rows = []
        for name, outcome in outcomes.items():
            determined = np.isfinite(outcome.values)
            margins = outcome.margins[determined & (outcome.values != 0)]
            decided = margins[margins >= REQUIRED_MARGIN]
            least = {"min_margin": margins.min(initial=np.inf), "decided_margin": decided.min(initial=np.inf)}
            rows.append({"tensor": name, "values": outcome.values.size, "determined": int(determined.sum()), **least, **outcome.row})
        report = {
            "tensors": rows,
            "falsified": results.falsifications,
            "certificates": results.certificates,
            "null": certificate.null_summary(results.null_residuals, results.null_left_out),
            "stragglers": results.pending,
            "embedding_attack": _attack_report(results.attack),
            "hardest": results.hardest_study,
        }
        (temporary / "report.json").write_text(json.dumps(report, indent=1) + "\n")
        if results.attack:
            reached = {"rows": results.attack.rows, "values": results.attack.values}
            save_file({name: torch.from_numpy(array) for name, array in reached.items()}, temporary / "attacked.safetensors")
        save_file(
            {name: torch.from_numpy(np.ascontiguousarray(array)) for name, array in results.evidence.items()},
            temporary / "evidence.safetensors",
        )


def _attack_report(found: Attack | None) -> dict[str, Any] | None:
    if found is None:
        return None
    return {
        "table": found.table,
        "rows": found.constraints,
        "survivors": found.survivors.tolist(),
        "sides": found.sides,
        "single": found.features.tolist(),
    }
