"""Does a norm have a kernel that its gains tell? Predicted from its forward map, measured on
samples (arXiv 2606.19491, contribution 3).

A norm has such a kernel exactly where it subtracts a mean over some of the coordinates of one
sample: those outputs, divided by their gains, then sum to a constant. What counts as a sample
decides: GroupNorm subtracts the mean of each group of channels, so on vectors it has one direction
for each group; on pictures it subtracts one mean over the channels of a group and all positions, so
that no vector of channels at one position has a kernel, but the whole picture has one for each
group.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from normgauge.anatomy.kernel import kernel_basis
from normgauge.fingerprint.kernel import containment
from normgauge.moments import Accumulator

Rows = list[dict[str, Any]]
CHANNELS, POSITIONS, SAMPLES, PARTS = 24, 6, 6000, 4
NULL = 1e-7
"""Singular values below this share of the largest are null: between the accumulator's floor, 3e-8,
and the spread of the samples, above 1e-3.
"""


@dataclass(frozen=True)
class Norm:
    """A norm on samples (n, channels, positions), its gain per channel, and what a sample's vector
    is: `vector` of (n, channels, positions) gives (samples, coordinates).

    mean_over: over what of one sample it subtracts a mean, in words; "nothing" where it does not.
    predicted: orthonormal (coordinates, k) from the gain, None where inspection predicts none.
    """

    name: str
    sample: str
    mean_over: str
    forward: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
    vector: Callable[[torch.Tensor], torch.Tensor]
    predicted: Callable[[np.ndarray], np.ndarray] | None


def _pointwise(values: torch.Tensor) -> torch.Tensor:
    """Each position is a sample of its channels."""
    return values.transpose(1, 2).flatten(0, 1)


def _whole(values: torch.Tensor) -> torch.Tensor:
    """The whole of channels and positions is one sample."""
    return values.flatten(1)


def _channels(values: torch.Tensor, gain: torch.Tensor) -> torch.Tensor:
    return values * gain[:, None] + torch.linspace(-1, 1, gain.numel()).to(gain)[:, None]


def _layer_norm(x: torch.Tensor, gain: torch.Tensor) -> torch.Tensor:
    normed = torch.nn.functional.layer_norm(x.transpose(1, 2), (x.shape[1],)).transpose(1, 2)
    return _channels(normed, gain)


def _rms_norm(x: torch.Tensor, gain: torch.Tensor) -> torch.Tensor:
    return x / x.pow(2).mean(1, keepdim=True).sqrt() * gain[:, None]


def _scale_norm(x: torch.Tensor, gain: torch.Tensor) -> torch.Tensor:
    """One learned length for the whole vector (Nguyen and Salazar 2019)."""
    return gain[0] * x / x.norm(dim=1, keepdim=True)


def _dynamic_tanh(x: torch.Tensor, gain: torch.Tensor) -> torch.Tensor:
    """gain * tanh(alpha x) + bias (Zhu et al. 2025)."""
    return _channels(torch.tanh(0.5 * x), gain)


def _fixup(x: torch.Tensor, gain: torch.Tensor) -> torch.Tensor:
    """No norm: a scalar factor and a scalar bias (Zhang et al. 2019)."""
    return gain[0] * x + 0.3


def _weight_norm(x: torch.Tensor, gain: torch.Tensor) -> torch.Tensor:
    """Normalises rows of a weight, not activations (Salimans and Kingma 2016)."""
    generator = torch.Generator().manual_seed(1)
    rows = torch.randn(gain.numel(), gain.numel(), generator=generator, dtype=x.dtype)
    weight = gain[:, None] * rows / rows.norm(dim=1, keepdim=True)
    return torch.einsum("oc,ncp->nop", weight, x)


def _batch_norm(x: torch.Tensor, gain: torch.Tensor) -> torch.Tensor:
    return _channels(torch.nn.functional.batch_norm(x, None, None, training=True), gain)


def _instance_norm(x: torch.Tensor, gain: torch.Tensor) -> torch.Tensor:
    return _channels(torch.nn.functional.instance_norm(x), gain)


def _group_norm(x: torch.Tensor, gain: torch.Tensor) -> torch.Tensor:
    return _channels(torch.nn.functional.group_norm(x, PARTS), gain)


def _group_norm_of_vectors(x: torch.Tensor, gain: torch.Tensor) -> torch.Tensor:
    flat = torch.nn.functional.group_norm(_pointwise(x), PARTS)
    return _channels(flat.unflatten(0, (-1, x.shape[2])).transpose(1, 2), gain)


def _inverse(gain: np.ndarray) -> np.ndarray:
    return kernel_basis(gain)


def _inverse_by(gain: np.ndarray, parts: int, repeat: int) -> np.ndarray:
    """1/gain restricted to each of `parts` runs of channels, each channel repeated at every
    position.
    """
    inverse = np.repeat(1 / gain, repeat)
    runs = np.repeat(np.arange(parts), inverse.size // parts)
    basis = np.where(runs[:, None] == np.arange(parts), inverse[:, None], 0.0)
    return basis / np.linalg.norm(basis, axis=0)


NORMS = (
    Norm("LayerNorm", "channels", "channels", _layer_norm, _pointwise, _inverse),
    Norm("RMSNorm", "channels", "nothing", _rms_norm, _pointwise, None),
    Norm("ScaleNorm", "channels", "nothing", _scale_norm, _pointwise, None),
    Norm("DyT", "channels", "nothing", _dynamic_tanh, _pointwise, None),
    Norm("FixUp", "channels", "nothing", _fixup, _pointwise, None),
    Norm("WeightNorm", "channels", "nothing", _weight_norm, _pointwise, None),
    Norm("BatchNorm", "channels", "nothing", _batch_norm, _pointwise, None),
    Norm("InstanceNorm", "channels", "nothing", _instance_norm, _pointwise, None),
    Norm(
        "InstanceNorm",
        "channels and positions",
        "the positions of each channel",
        _instance_norm,
        _whole,
        lambda gain: _inverse_by(gain, CHANNELS, POSITIONS),
    ),
    Norm(
        "GroupNorm",
        "channels",
        "each group of channels",
        _group_norm_of_vectors,
        _pointwise,
        lambda gain: _inverse_by(gain, PARTS, 1),
    ),
    Norm("GroupNorm, with positions", "channels", "nothing", _group_norm, _pointwise, None),
    Norm(
        "GroupNorm, with positions",
        "channels and positions",
        "each group of channels and all positions",
        _group_norm,
        _whole,
        lambda gain: _inverse_by(gain, PARTS, POSITIONS),
    ),
)


def norm_zoo_rows(seed: int) -> Rows:
    """Rows of schema `norm_zoo`: one per norm and kind of sample, on correlated Gaussian samples
    with a mean, float64.

    `other_containment`, the control, is that of the uniform direction(s), which gains that differ
    turn away from the kernel.
    """
    generator = torch.Generator().manual_seed(seed)
    mixing = torch.randn(CHANNELS, CHANNELS, generator=generator, dtype=torch.float64)
    x = torch.randn(SAMPLES, CHANNELS, POSITIONS, generator=generator, dtype=torch.float64)
    x = torch.einsum("ij,njp->nip", mixing, x) + torch.linspace(-2, 3, CHANNELS)[:, None]
    gain = torch.linspace(0.4, 2.0, CHANNELS, dtype=torch.float64)
    return [_row(norm, norm.vector(norm.forward(x, gain)), gain.numpy()) for norm in NORMS]


def _row(norm: Norm, samples: torch.Tensor, gain: np.ndarray) -> dict[str, Any]:
    accumulator = Accumulator("tsqr64", samples.shape[1])
    accumulator.update(samples)
    moments = accumulator.moments()
    spectrum = moments.spectrum()
    null = int((spectrum.values < NULL * spectrum.values[-1]).sum())
    basis = None if norm.predicted is None else norm.predicted(gain)
    flat = None if norm.predicted is None else norm.predicted(np.ones_like(gain))
    space = spectrum.bottom(null) if null else np.empty((moments.d, 0))
    active = spectrum.values[null]
    dimension = 0 if basis is None else basis.shape[1]
    return {
        "norm": norm.name,
        "sample": norm.sample,
        "mean_over": norm.mean_over,
        "n": moments.n,
        "d": moments.d,
        "predicted_dimension": dimension,
        "null_dimension": null,
        "containment": None if basis is None else containment(basis, space),
        "other_containment": None if flat is None else containment(flat, space),
        "smallest_active_share": float(active / spectrum.values[-1]),
        "largest_null_share": (
            float(spectrum.values[null - 1] / spectrum.values[-1]) if null else None
        ),
        "floor": moments.accumulator_floor(1.0),
        "as_predicted": null == dimension
        and (basis is None or containment(basis, space) > 1 - 1e-9),
    }
