"""The Schur ratio at the inputs of linear maps: how much deeper than the predicted direction the bottom of A lies."""

from __future__ import annotations

from typing import Any

import numpy as np

from normgauge.fingerprint.kernel import NormFacts
from normgauge.fingerprint.spectrum import ROUNDOFF
from normgauge.moments import Moments

RECOVERY_LIMIT = 1e-4
"""The published noise-floor recovery (arXiv 2606.19491, A.6) applies when both numbers are smaller than this and of the same sign. When
both are positive it changes nothing; what it recovers are pairs that rounding made negative."""


def schur_columns(moments: Moments, forward_dtype: str, norm: NormFacts | None) -> dict[str, Any]:
    """Columns of schema `schur` but flags: A = X^T X / n (raw), R = lambda_min / u^T A u, delta = 1 - R.

    u = (1/gamma)/|1/gamma| of the norm that feeds the site; where gains are zero, the zero-gain axis with the smallest u^T A u. A site
    that no norm feeds has no predicted direction: its delta is null and lambda_min is still reported. lambda_min <= u^T A u for every
    symmetric A (Rayleigh), so delta >= 0 up to rounding; what lies below the floor is rounding and marked.
    """
    eigenvalues = moments.gram_eigenvalues()
    lowest, highest = float(eigenvalues[0]), float(eigenvalues[-1])
    diagonal = np.diag(moments.scatter(centred=False)) / moments.n
    # Rounding of the forward pass acts on single coordinates (twice epsilon, as for a scatter) and, through a norm's mean, on all of them
    # alike: float32 LayerNorm outputs of Gaussian samples, widths 64 to 4096, carry epsilon^2 trace / 70 to 200 along 1/gamma.
    forward = ROUNDOFF[forward_dtype] ** 2 * max(4 * highest, float(diagonal.sum()) / 16)
    floor = max(forward, moments.accumulator_floor(max(highest, 0.0) ** 0.5) ** 2)
    quadratic = None if norm is None else _quadratic_form(moments, norm.kernel)
    delta, recovered_delta, recovered = noise_floor_recovery(lowest, quadratic)
    return {
        "lambda_min": lowest,
        "lambda_max": highest,
        "quadratic_form": quadratic,
        "delta": delta,
        "delta_recovered": recovered_delta,
        "recovered": recovered,
        "axis_minimum": float(diagonal.min()),
        "floor": floor,
        "below_floor": lowest <= floor or (quadratic is not None and quadratic <= floor),
    }


def _quadratic_form(moments: Moments, kernel: np.ndarray) -> float:
    """min over the basis of u^T A u. Signs are kept, so that rounding below zero stays visible."""
    if moments.method == "tsqr64":
        factor = moments.factor(centred=False)
        return float(min(np.sum((factor @ axis) ** 2) for axis in kernel.T) / moments.n)
    gram = moments.scatter(centred=False) / moments.n
    return float(min(axis @ gram @ axis for axis in kernel.T))


def noise_floor_recovery(lowest: float, quadratic: float | None) -> tuple[float | None, float | None, bool]:
    """(delta, delta after the published recovery, whether it applied), from lambda_min and u^T A u."""
    if quadratic is None or quadratic == 0:
        return None, None, False
    delta = 1 - lowest / quadratic if quadratic > 0 else None
    both_negative = max(lowest, quadratic) < 0 and min(lowest, quadratic) > -RECOVERY_LIMIT
    return delta, 1 - abs(lowest) / abs(quadratic) if both_negative else delta, both_negative
