"""Where an orthogonal factor shows more of a spectrum than a scatter matrix did: the sites `auto`
passes over twice.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from normgauge.anatomy.kernel import kernel_basis
from normgauge.moments import Moments

CONDITION_LIMIT = 1e6
"""Singular values smaller than the largest by more than this have lost digits in a float64 scatter
(sqrt(eps) = 1.5e-8).
"""

NormRow = Mapping[str, Any]
"""A row of schema `norms`: kind, gain and bias are read."""


def factor_shows_more(moments: Moments, roundoff: float, norm: NormRow | None) -> bool:
    """Whether a second pass with `tsqr64` can add an active singular value to the first one's, or
    digits to one.

    moments: of the first pass, `cov64`. roundoff: spacing of 1 in the forward pass's arithmetic.
    norm: the norm whose output the activations are, if any.

    Active values lie above the floor of the forward pass too, sigma_max (uncentred) times roundoff,
    which no accumulation lowers: where it is not below the scatter's own floor, nothing can be
    gained. That is so for every forward pass in float32 or less. Below sigma_max / CONDITION_LIMIT
    a value of a scatter has lost digits (at its floor it errs by 12 %); but as many values as the
    norm's output has exact kernel directions are zero, and a second pass would find them zero
    again.
    """
    # the forward floor is relative to the largest sigma_max of all
    if roundoff >= moments.accumulator_floor(1.0):
        return False
    raw, centred = (moments.spectrum(about_mean).values for about_mean in (False, True))
    forward_floor = float(raw[-1]) * roundoff
    dimension, shown = _exact_kernel(moments, norm, forward_floor, float(raw[-1]))
    return any(
        forward_floor < moments.accumulator_floor(float(sigma[-1]))
        and np.count_nonzero(sigma < sigma[-1] / CONDITION_LIMIT) > exact
        for sigma, exact in ((centred, dimension), (raw, dimension - shown))
    )


def _exact_kernel(
    moments: Moments, norm: NormRow | None, forward_floor: float, raw_max: float
) -> tuple[int, int]:
    """Directions along which the norm's output is constant whatever the input, and how many of them
    (0 or 1) are not zero there.

    A LayerNorm's output is constant along 1/gamma, any norm's along the axes of zero gains. There
    it equals its bias, so without centring one direction shows sqrt(n) |projection of the bias|,
    unless that lies below the floors of the factor and of the forward pass.
    """
    gain = np.ones(moments.d) if norm is None else np.asarray(norm["gain"])
    if norm is None or (norm["kind"] != "LayerNorm" and gain.all()):
        return 0, 0
    basis = kernel_basis(gain)
    bias = np.zeros(moments.d) if norm["bias"] is None else np.asarray(norm["bias"])
    factor_floor = replace(moments, method="tsqr64").accumulator_floor(raw_max)
    shown = np.sqrt(moments.n) * np.linalg.norm(basis.T @ bias) > max(forward_floor, factor_floor)
    return basis.shape[1], int(shown)
