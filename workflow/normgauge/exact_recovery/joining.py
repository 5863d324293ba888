"""One solver's folder out of those of a model's parts."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file

from normgauge.exact_recovery import certificate
from normgauge.exact_recovery.description import Description
from normgauge.exact_recovery.report import NULL
from normgauge.provenance import atomic_path

TENSORS = ("recovered", "claimed", "falsified", "calls")
ATTACKED = "attacked.safetensors"


def join(folders: Sequence[Path], output: Path) -> None:
    """Write `output` (atomically), the solver's folder of a model whose parts have these.

    A norm that feeds maps of two parts is solved with both, from the same arrays: the first counts.
    """
    reports = [
        json.loads((folder / "report.json").read_text(encoding="utf-8")) for folder in folders
    ]
    with atomic_path(output) as temporary:
        temporary.mkdir()
        for name in TENSORS:
            found = _first([load_file(folder / f"{name}.safetensors") for folder in folders])
            save_file(found, temporary / f"{name}.safetensors")
        for folder in folders:
            if (folder / ATTACKED).exists():
                (temporary / ATTACKED).write_bytes((folder / ATTACKED).read_bytes())
        evidence, stragglers = _stragglers(folders, reports)
        save_file(evidence, temporary / "evidence.safetensors")
        residuals = torch.cat([load_file(folder / NULL)["residuals"] for folder in folders])
        save_file({"residuals": residuals}, temporary / NULL)
        joined_description(map(Description.read_alone, folders)).write(temporary)
        joined = _report(reports, residuals.numpy()) | {"stragglers": stragglers}
        (temporary / "report.json").write_text(
            json.dumps(joined, indent=1) + "\n", encoding="utf-8"
        )


def joined_description(parts: Iterable[Description]) -> Description:
    """What the parts' descriptions say together. Tables are observed in one of them alone."""
    parts = list(parts)
    summed = next((part for part in parts if part.embedding), parts[-1])
    tensors = _first([{each.name: each for each in part.tensors} for part in parts])
    norms = _first([{each.name: each for each in part.norms} for part in parts])
    return replace(
        summed,
        tensors=tuple(tensors.values()),
        norms=tuple(norms.values()),
        maps=tuple(item for part in parts for item in part.maps),
    )


def _first(parts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """All entries, of those with one key the first."""
    found: dict[str, Any] = {}
    for part in parts:
        found = {**part, **found}
    return found


def _stragglers(
    folders: Sequence[Path], reports: Sequence[Mapping[str, Any]]
) -> tuple[dict[str, torch.Tensor], list[dict[str, Any]]]:
    """Evidence and entries of the parts' stragglers, which are numbered by their place."""
    evidence: dict[str, torch.Tensor] = {}
    entries: list[dict[str, Any]] = []
    for folder, report in zip(folders, reports, strict=True):
        for key, tensor in load_file(folder / "evidence.safetensors").items():
            number, rest = key.split(".", 1)
            evidence[f"{int(number) + len(entries)}.{rest}"] = tensor
        entries += report["stragglers"]
    return evidence, entries


def _report(reports: Sequence[Mapping[str, Any]], residuals: np.ndarray) -> dict[str, Any]:
    tensors = _first(
        [{entry["tensor"]: entry for entry in report["tensors"]} for report in reports]
    )
    studies = [report["hardest"] for report in reports if report["hardest"]]
    attacks = [report["embedding_attack"] for report in reports if report["embedding_attack"]]
    left_out = sum(report["null"]["left_out"] for report in reports)
    return {
        "tensors": list(tensors.values()),
        **{
            name: {key: row for report in reports for key, row in report[name].items()}
            for name in ("falsified", "minimum_norms")
        },
        "certificates": [row for report in reports for row in report["certificates"]],
        "null": certificate.null_summary([residuals], left_out),
        "embedding_attack": attacks[0] if attacks else None,
        "hardest": min(studies, key=lambda study: study["margin"], default=None),
        "kernels": reports[0]["kernels"],
        "parts": [row for report in reports for row in report["parts"]],
    }
