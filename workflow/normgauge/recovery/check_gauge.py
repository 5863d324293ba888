"""The two lines of algebra against a checkpoint, in seconds: sum_j (y_j - beta_j) / g_j = 0 on any input of any LayerNorm.

    python -m normgauge.recovery.check_gauge CHECKPOINT_FOLDER
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from normgauge.anatomy.structure import Anatomy, NormKind
from normgauge.recovery.norm_parameters import normalised

ROWS = 64


def check_gauge(anatomy: Anatomy, tensors: Mapping[str, torch.Tensor], seed: int = 0) -> list[dict[str, Any]]:
    """One row per norm: the largest |sum_j (y_j - beta_j) / g_j| on random inputs, over the sum of the terms' sizes.

    About 1e-16 for a LayerNorm (its consumers have a gauge line), of order 1 / sqrt(d) for an RMSNorm (they have none). `spread`
    is the largest |1/g| over the median one: how much worse the pivot feature is determined than the others.
    """
    generator = np.random.default_rng(seed)
    rows = []
    for norm in anatomy.norms:
        if norm.gain is None:
            continue
        gains = tensors[norm.gain].to(torch.float64).numpy() + norm.gain_offset
        biases = tensors[norm.bias].to(torch.float64).numpy() if norm.bias else np.zeros_like(gains)
        if not gains.all():
            continue
        inputs = generator.standard_normal((ROWS, norm.size)) * 3 + generator.standard_normal(norm.size)
        outputs = normalised(inputs, norm.kind, norm.eps) * gains + biases
        terms = (outputs - biases) / gains
        inverse = np.abs(1 / gains)
        rows.append(
            {
                "norm": norm.name,
                "kind": str(norm.kind),
                "maps": len(norm.feeds),
                "violation": float((np.abs(terms.sum(axis=1)) / np.abs(terms).sum(axis=1)).max()),
                "gauge": norm.kind is NormKind.LAYER_NORM,
                "spread": float(inverse.max() / np.median(inverse)),
                "distinct_gains": len(np.unique(gains)),
            }
        )
    return rows


def main(folder: str) -> None:
    from normgauge.anatomy import describe
    from normgauge.checkpoints import open_checkpoint

    checkpoint = open_checkpoint(folder)
    for row in check_gauge(describe(checkpoint.config), checkpoint.tensors):
        print(f"{row['norm']:50s} {row['kind']:10s} violation {row['violation']:.1e}  spread of 1/g {row['spread']:.1f}")


if __name__ == "__main__":
    main(sys.argv[1])
