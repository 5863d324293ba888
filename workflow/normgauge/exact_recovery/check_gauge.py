"""The two lines of algebra against a checkpoint, in seconds: sum_j (y_j - beta_j) / g_j = 0 on any
input of any LayerNorm.

python -m normgauge.exact_recovery.check_gauge CHECKPOINT_FOLDER
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from normgauge.anatomy import describe
from normgauge.anatomy.lookup import effective_gain
from normgauge.anatomy.structure import Anatomy
from normgauge.checkpoints.building import build_model
from normgauge.checkpoints.opening import open_checkpoint
from normgauge.exact_recovery.terminal import run

ROWS = 64


def check_gauge(
    anatomy: Anatomy, model: nn.Module, tensors: Mapping[str, torch.Tensor], seed: int = 0
) -> list[dict[str, Any]]:
    """One row per norm: the largest |sum_j (y_j - beta_j) / g_j| of the model's own norm on random
    inputs, over the terms' sizes.

    `model`: in float64; `tensors`: the stored gains and biases. About 1e-16 for a LayerNorm (its
    consumers have a gauge line), of order 1 / sqrt(d) for an RMSNorm (they have none). `spread` is
    the largest |1/g| over the median one: how much worse the pivot feature is determined than the
    others. Both are None for a norm with a gain of zero: it has no finite 1/g.
    """
    generator = torch.Generator().manual_seed(seed)
    rows = []
    for norm in anatomy.norms:
        if norm.gain is None:
            continue
        gains = effective_gain(norm, tensors)
        biases = tensors[norm.bias].to(torch.float64) if norm.bias else torch.zeros_like(gains)
        row: dict[str, Any] = {
            "norm": norm.name,
            "kind": str(norm.kind),
            "maps": len(norm.feeds),
            "violation": None,
            "spread": None,
        }
        rows.append(row)
        if not gains.all():
            continue
        inputs = torch.randn(ROWS, norm.size, generator=generator, dtype=torch.float64) * 3 + 1
        terms = (model.get_submodule(norm.name)(inputs) - biases) / gains
        inverse = (1 / gains).abs()
        row["violation"] = float((terms.sum(dim=1).abs() / terms.abs().sum(dim=1)).max())
        row["spread"] = float(inverse.max() / inverse.median())
    return rows


def _object(text: str) -> dict[str, Any]:
    return dict(json.loads(text).items())


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description="Check sum_j (y_j - beta_j) / g_j = 0 for every norm of a checkpoint."
    )
    parser.add_argument("checkpoint", type=Path, help="folder of the checkpoint")
    parser.add_argument(
        "--config", type=_object, default={}, help="JSON object of keys laid over its config.json"
    )
    chosen = parser.parse_args(arguments)
    checkpoint = open_checkpoint(chosen.checkpoint, chosen.config)
    for row in check_gauge(
        describe(checkpoint.config), build_model(checkpoint, "float64"), checkpoint.tensors
    ):
        found = (
            "a gain is zero"
            if row["violation"] is None
            else f"violation {row['violation']:.1e}  spread of 1/g {row['spread']:.2g}"
        )
        print(f"{row['norm']:50s} {row['kind']:10s} {found}")


if __name__ == "__main__":
    run(main)
