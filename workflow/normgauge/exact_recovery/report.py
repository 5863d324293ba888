"""The solver's output folder: values and what is claimed of them in storage dtypes, the arrays of
the controls, `report.json`, and the description of what was observed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file

from normgauge.exact_recovery import certificate
from normgauge.exact_recovery.attack import Attack
from normgauge.exact_recovery.description import Description
from normgauge.exact_recovery.outcomes import Outcome, Results
from normgauge.exact_recovery.stragglers import REQUIRED_MARGIN
from normgauge.provenance import atomic_path, execution_environment

CALLS = "calls.safetensors"
NULL = "null.safetensors"
"""The residuals at wrong places, one by one: the test of all parts' takes them together."""


def write(
    folder: Path,
    description: Description,
    results: Results,
    cost: Mapping[str, Any] | None = None,
) -> None:
    """The output folder, atomically. cost: a row of what the part took (`cost.of_part`)."""
    with atomic_path(folder) as temporary:
        temporary.mkdir()
        values = {
            name: _tensor(outcome.values).to(getattr(torch, description.tensor(name).dtype))
            for name, outcome in results.outcomes.items()
        }
        claimed = {
            name: (outcome.margins >= REQUIRED_MARGIN) & np.isfinite(outcome.values)
            for name, outcome in results.outcomes.items()
        }
        save_file(values, temporary / "recovered.safetensors")
        _save(claimed, temporary / "claimed.safetensors")
        _save(results.falsified, temporary / "falsified.safetensors")
        (temporary / "report.json").write_text(
            json.dumps(_report(results) | {"parts": [cost] if cost else []}, indent=1) + "\n",
            encoding="utf-8",
        )
        description.write(temporary)
        _save(results.calls, temporary / CALLS)
        _save({"residuals": _joined(results.null_residuals)}, temporary / NULL)
        if results.attack:
            reached = {"rows": results.attack.rows, "values": results.attack.values}
            _save(reached, temporary / "attacked.safetensors")
        _save(results.evidence, temporary / "evidence.safetensors")


def _joined(arrays: Sequence[np.ndarray]) -> np.ndarray:
    return np.concatenate(arrays) if arrays else np.empty(0)


def _tensor(array: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(array))


def _save(arrays: Mapping[str, np.ndarray], path: Path) -> None:
    save_file({name: _tensor(array) for name, array in arrays.items()}, path)


def _report(results: Results) -> dict[str, Any]:
    return {
        "tensors": [_tensor_row(name, outcome) for name, outcome in results.outcomes.items()],
        "falsified": results.falsifications,
        "minimum_norms": results.minimum_norms,
        "certificates": results.certificates,
        "null": certificate.null_summary(results.null_residuals, results.null_left_out),
        "stragglers": results.pending,
        "embedding_attack": _attack_report(results.attack),
        "hardest": results.hardest_study,
        "kernels": kernels(),
    }


def kernels() -> str:
    """Which processor kernels the arithmetic of this process uses."""
    environment = execution_environment()
    return f"torch {environment['torch_cpu_capability']}; {environment['blas']}"


def _tensor_row(name: str, outcome: Outcome) -> dict[str, Any]:
    determined = np.isfinite(outcome.values)
    margins = outcome.margins[determined & (outcome.values != 0)]
    decided = margins[margins >= REQUIRED_MARGIN]
    return {
        "tensor": name,
        "values": outcome.values.size,
        "determined": int(determined.sum()),
        "min_margin": margins.min(initial=np.inf),
        "decided_margin": decided.min(initial=np.inf),
        **outcome.row,
    }


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
