"""Planted LayerNorm and linear layers with known stored bits, in float64 forward arithmetic."""

from dataclasses import dataclass

import numpy as np

from normgauge.anatomy.structure import NormKind
from normgauge.exact_recovery.grids import Grid, grid
from normgauge.exact_recovery.norm_parameters import normalised


@dataclass(frozen=True)
class PlantedLayer:
    residual: np.ndarray
    inputs: np.ndarray
    outputs: np.ndarray
    gains: np.ndarray
    biases: np.ndarray
    weights: np.ndarray
    bias: np.ndarray
    grid: Grid

    @property
    def truth(self) -> np.ndarray:
        return np.vstack([self.weights, self.bias])


def layer(
    seed=0,
    width=48,
    columns=40,
    rows=1200,
    dtype="float32",
    gains=None,
    biases=None,
    weights=None,
    bias=None,
    condition=30.0,
) -> PlantedLayer:
    """A LayerNorm on correlated features that feeds a linear map; everything stored is rounded to
    `dtype`.
    """
    generator = np.random.default_rng(seed)
    store = grid(dtype)
    rotation = np.linalg.qr(generator.standard_normal((width, width)))[0]
    residual = generator.standard_normal((rows, width)) * np.geomspace(
        1, 1 / condition, width
    ) @ rotation + generator.standard_normal(width)
    gains = store.round(generator.lognormal(-0.5, 0.6, width)) if gains is None else gains
    biases = store.round(generator.standard_normal(width) * 0.2) if biases is None else biases
    weights = (
        store.round(generator.standard_normal((width, columns)) * 0.14)
        if weights is None
        else weights
    )
    bias = store.round(generator.standard_normal(weights.shape[1]) * 0.3) if bias is None else bias
    inputs = normalised(residual, NormKind.LAYER_NORM, 1e-5) * gains + biases
    return PlantedLayer(
        residual, inputs, inputs @ weights + bias, gains, biases, weights, bias, store
    )
