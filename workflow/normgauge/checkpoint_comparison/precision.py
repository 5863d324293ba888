"""What rounding to the storage grid alone would change: the grid that the values really lie on, and
the error that it leaves.
"""

from __future__ import annotations

import numpy as np
import torch

CHUNK = 1 << 16  # values that are looked at together
BITS = {torch.float64: 52, torch.float32: 23, torch.float16: 10, torch.bfloat16: 7}
"""Stored bits of the mantissa by dtype."""
_SMALLEST = {torch.float64: -1022, torch.float32: -126, torch.float16: -14, torch.bfloat16: -126}
"""Exponent below which the spacing no longer shrinks, by dtype."""


def mantissa_bits(values: torch.Tensor) -> int:
    """Bits of the mantissa that the values use: 7 for bfloat16 values, also when stored as float32;
    0 for powers of two and zeros.
    """
    used = 0
    for part in values.reshape(-1).split(CHUNK):
        used = max(used, min(_used_bits(part), BITS[values.dtype]))
        if used == BITS[values.dtype]:
            break
    return used


def _used_bits(values: torch.Tensor) -> int:
    if values.dtype not in (torch.float32, torch.float64):
        values = values.float()
    width, mantissa = (torch.int32, 23) if values.dtype == torch.float32 else (torch.int64, 52)
    used = int(
        np.bitwise_or.reduce(
            values.contiguous().view(width).numpy().ravel() & ((1 << mantissa) - 1), initial=0
        )
    )
    return 0 if not used else mantissa - ((used & -used).bit_length() - 1)


def rounding_variance(values: np.ndarray, bits: int, dtype: torch.dtype) -> np.ndarray:
    """Variance of the error of rounding to `bits` mantissa bits at these values, float64, the
    values' shape.

    The error is uniform over one spacing s of the grid, so its variance is s**2 / 12; a zero is
    exact.
    """
    exponent = np.frexp(values)[1] - 1
    spacing = np.exp2(np.maximum(exponent, _SMALLEST[dtype]).astype(np.float64) - bits)
    return np.where(values == 0, 0.0, spacing**2 / 12)
