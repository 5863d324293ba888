"""The score of the stored columns themselves, as the paper defines it: what float64 alone leaves of
the rounding residual at the stored place on a gauge line. This module reads weights.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

from normgauge.anatomy.lookup import effective_gain, holder
from normgauge.anatomy.structure import Anatomy, NormKind
from normgauge.checkpoints.opening import Checkpoint
from normgauge.exact_recovery.gauge_line import GaugeLine
from normgauge.exact_recovery.grids import Grid, grid

COLUMNS_AT_ONCE = 4096


def stored_scores(checkpoint: Checkpoint, anatomy: Anatomy) -> dict[str, dict[str, Any]]:
    """By weight tensor of a map behind a LayerNorm: `stored_score`, the worst rounding residual
    over all coordinates of all columns at the stored alpha, in ulp, and `stored_log10_null`, the
    logarithm of the chance that a wrong place scores as well, (2 score)^(coordinates).

    Maps behind a gain of zero, and tensors that are not stored as floating point, are left out.
    """
    tensors, found = checkpoint.tensors, {}
    for item in {item.module: item for item in anatomy.maps}.values():
        norm = anatomy.norm(item.norm) if item.norm else None
        weight = tensors[holder(anatomy, item.weight)]
        if norm is None or norm.kind != NormKind.LAYER_NORM or weight.ndim != 2:
            continue
        gains = effective_gain(norm, tensors).numpy()
        if not gains.all() or not gains.size:
            continue
        biases = tensors[norm.bias].double().numpy() if norm.bias else None
        line = GaugeLine.behind(gains, biases, intercept=item.bias is not None)
        columns = weight.T if item.input_axis == 1 else weight
        bias = tensors[holder(anatomy, item.bias)] if item.bias else None
        score = max(
            _score(line, _joined(columns, bias, start), grid(str(weight.dtype).split(".")[-1]))
            for start in range(0, columns.shape[1], COLUMNS_AT_ONCE)
        )
        chance = len(line.direction) * math.log10(2 * score) if score else None
        found[holder(anatomy, item.weight)] = {
            "stored_score": score,
            "stored_log10_null": chance,
        }
    return found


def _joined(columns: torch.Tensor, bias: torch.Tensor | None, start: int) -> np.ndarray:
    """(n, k) float64: some columns of an (inputs, outputs) weight, their bias last."""
    run = slice(start, start + COLUMNS_AT_ONCE)
    parts = [columns[:, run].double()]
    if bias is not None:
        parts.append(bias[run].double()[None])
    return torch.cat(parts).numpy()


def _score(line: GaugeLine, stored: np.ndarray, storage: Grid) -> float:
    """The worst residual of (n, k) stored columns: moved to where the pivot is zero, and back."""
    alpha = stored[line.pivot] / line.direction[line.pivot]
    shift = line.direction[:, None] * alpha
    again = (stored - shift) + shift
    rounded = storage.round(again)
    return float((np.abs(again - rounded) / storage.ulp(rounded)).max())
