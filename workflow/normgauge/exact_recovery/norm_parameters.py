"""Gain and bias of a normalisation layer from its input and output: least squares with two
parameters per feature.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from normgauge.anatomy.structure import NormKind
from normgauge.exact_recovery.gauge_line import ACCEPTED_DEVIATIONS
from normgauge.exact_recovery.grids import Grid
from normgauge.exact_recovery.least_squares import COMMON_ROUNDING
from normgauge.exact_recovery.stragglers import REQUIRED_MARGIN

ROUNDING = 2.0**-53


@dataclass(frozen=True)
class NormParameters:
    """Effective gains and biases (d,), their noise (d,), and the deviation of the output over its
    root mean square (d,).

    `biases` is None for a norm without bias. Gains are effective ones: a stored offset is not
    removed. NaN where a feature never varies: its gain and bias cannot be told apart.
    """

    gains: np.ndarray
    biases: np.ndarray | None
    gain_noise: np.ndarray
    bias_noise: np.ndarray | None
    relative_residual: np.ndarray


def normalised(inputs: np.ndarray, kind: NormKind, eps: float) -> np.ndarray:
    """The normaliser alone, per row of (N, d): x / sqrt(mean(x^2) + eps), of the centred x for a
    LayerNorm.
    """
    centred = inputs - inputs.mean(axis=1, keepdims=True) if kind is NormKind.LAYER_NORM else inputs
    return centred / np.sqrt(np.mean(centred * centred, axis=1, keepdims=True) + eps)


def solve(
    inputs: np.ndarray, outputs: np.ndarray, kind: NormKind, eps: float, has_bias: bool
) -> NormParameters:
    """Gain and bias per feature from (N, d) input and output of a norm, with one refinement on the
    residual.

    Their noise is estimated row by row as in `least_squares`, each output having at least float64's
    rounding, part of it common to all rows. Of the common part the worst case is taken, whatever
    signs it has in the rows: a row's mean and scale are rounded for all features at once, which
    leaves biases a trace many times that of independent roundings.
    """
    unit = normalised(inputs, kind, eps)
    rows = len(unit)
    mean = unit.mean(axis=0) if has_bias else np.zeros(unit.shape[1])
    centred = unit - mean
    energy = np.einsum("ij,ij->j", centred, centred)
    energy = np.where(energy > 0, energy, np.nan)
    gains, biases, residual = np.zeros_like(mean), np.zeros_like(mean), outputs
    for _ in range(2):
        step = np.einsum("ij,ij->j", centred, residual) / energy
        gains = gains + step
        if has_bias:
            biases = biases + residual.mean(axis=0) - step * mean
        residual = outputs - unit * gains - biases
    deviation = np.sqrt(np.einsum("ij,ij->j", residual, residual) / (rows - 1 - has_bias))
    by_gain = centred / energy
    squares = np.square(np.maximum(np.abs(residual), ROUNDING * np.abs(outputs)))
    shared = COMMON_ROUNDING * np.abs(outputs)
    gain_noise, bias_noise = (
        np.sqrt(
            np.einsum("ij,ij,ij->j", part, part, squares)
            + np.einsum("ij,ij->j", np.abs(part), shared) ** 2
        )
        for part in (by_gain, 1 / rows - mean * by_gain)
    )
    scale = np.sqrt(np.einsum("ij,ij->j", outputs, outputs) / rows)
    # outputs that vary by a few of their own roundings only are rounded alike, and many of them
    # tell no more than one
    common = np.where(outputs.std(axis=0) < 16 * ROUNDING * scale, np.sqrt(rows), 1.0)
    return NormParameters(
        gains,
        biases if has_bias else None,
        gain_noise * common,
        bias_noise * common if has_bias else None,
        np.where(np.isnan(energy), 0.0, deviation / np.where(scale > 0, scale, 1.0)),
    )


def stored(
    values: np.ndarray, noise: np.ndarray, offset: float, grid: Grid
) -> tuple[np.ndarray, np.ndarray]:
    """Grid points and margins, (d,) each, of effective gains or biases with their (d,) noise: what
    is stored is less by `offset`.

    What cannot be told from zero is recorded as zero, of margin 0; what lies off the grid is NaN.
    """
    noise = np.maximum(noise, ROUNDING * np.abs(values))
    values = values - offset
    rounded = np.where(np.abs(values) < REQUIRED_MARGIN * noise, 0.0, grid.round(values))
    kept = np.abs(values - rounded) <= ACCEPTED_DEVIATIONS * noise
    return np.where(kept, rounded, np.nan), np.where(kept, grid.margin(values, rounded, noise), 0.0)
