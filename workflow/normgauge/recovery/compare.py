"""The last, separate step: recovered tensors against the stored ones. Only here does the truth appear."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file

from normgauge.checkpoints.opening import Checkpoint


def compare(checkpoint: Checkpoint, folder: Path) -> list[dict[str, Any]]:
    """Rows of the identifiability map: recovered, flagged and missed values of every tensor, by bits."""
    report = json.loads((folder / "report.json").read_text())
    recovered, claimed = load_file(folder / "recovered.safetensors"), load_file(folder / "claimed.safetensors")
    rows = []
    for entry in report["tensors"]:
        name = entry["tensor"]
        same = same_bits(recovered[name], checkpoint.tensors[name])
        held = claimed[name]
        rows.append(
            {
                **entry,
                "recovered": int((same & held).sum()),
                "flagged": int((~held & recovered[name].isfinite()).sum()),
                "misses": int((~same & held).sum()),
            }
        )
    return rows


def same_bits(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    """Elementwise equality of the stored bits, signed zeros and NaN included."""
    integers = {2: torch.int16, 4: torch.int32}[first.element_size()]
    return first.contiguous().view(integers) == second.contiguous().view(integers)
