"""The two lines of algebra against a checkpoint, in seconds: sum_j (y_j - beta_j) / g_j = 0 on any input of any LayerNorm.

python -m normgauge.recovery.check_gauge CHECKPOINT_FOLDER
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from normgauge.anatomy import describe
from normgauge.anatomy.structure import Anatomy
from normgauge.checkpoints.building import build_model
from normgauge.checkpoints.opening import open_checkpoint

ROWS = 64


def check_gauge(anatomy: Anatomy, model: nn.Module, tensors: Mapping[str, torch.Tensor], seed: int = 0) -> list[dict[str, Any]]:
    """One row per norm: the largest |sum_j (y_j - beta_j) / g_j| of the model's own norm on random inputs, over the terms' sizes.

    `model`: in float64; `tensors`: the stored gains and biases. About 1e-16 for a LayerNorm (its consumers have a gauge line), of
    order 1 / sqrt(d) for an RMSNorm (they have none). `spread` is the largest |1/g| over the median one: how much worse the
    pivot feature is determined than the others. Norms with a gain of zero are left out: they have no finite 1/g.
    """
    generator = torch.Generator().manual_seed(seed)
    rows = []
    for norm in anatomy.norms:
        if norm.gain is None:
            continue
        gains = tensors[norm.gain].to(torch.float64) + norm.gain_offset
        biases = tensors[norm.bias].to(torch.float64) if norm.bias else torch.zeros_like(gains)
        if not gains.all():
            continue
        inputs = torch.randn(ROWS, norm.size, generator=generator, dtype=torch.float64) * 3 + 1
        terms = (model.get_submodule(norm.name)(inputs) - biases) / gains
        inverse = (1 / gains).abs()
        rows.append(
            {
                "norm": norm.name,
                "kind": str(norm.kind),
                "maps": len(norm.feeds),
                "violation": float((terms.sum(dim=1).abs() / terms.abs().sum(dim=1)).max()),
                "spread": float(inverse.max() / inverse.median()),
            }
        )
    return rows


def main(folder: str) -> None:
    checkpoint = open_checkpoint(folder)
    for row in check_gauge(describe(checkpoint.config), build_model(checkpoint, "float64"), checkpoint.tensors):
        print(f"{row['norm']:50s} {row['kind']:10s} violation {row['violation']:.1e}  spread of 1/g {row['spread']:.1f}")


if __name__ == "__main__":
    main(sys.argv[1])
