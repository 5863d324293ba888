"""The Schur ratio at the inputs of linear maps: how far below the quadratic form along the
predicted direction the bottom of A lies.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from normgauge.fingerprint.kernel import NormFacts, alignment
from normgauge.fingerprint.mahalanobis import mean_length, predicted_ratio
from normgauge.fingerprint.protocol import FLOOR_MARGIN
from normgauge.fingerprint.rounding import ROUNDOFF, Rounding
from normgauge.moments import Moments

RECOVERY_LIMIT = 1e-4
"""The published noise-floor recovery (arXiv 2606.19491, A.6) applies when both numbers are smaller
than this and of the same sign. When both are positive it changes nothing; what it recovers are
pairs that rounding made negative.
"""

PREDICTED = (
    "predicted_quadratic_form",
    "mahalanobis_squared",
    "mahalanobis_error",
    "mahalanobis_unresolved",
    "predicted_ratio_low",
    "predicted_ratio",
    "predicted_ratio_high",
)


def schur_columns(moments: Moments, forward_dtype: str, norm: NormFacts | None) -> dict[str, Any]:
    """Columns of schema `schur` but flags: A = X^T X / n (raw), R = lambda_min / u^T A u, delta = 1
    - R.

    u = (1/gamma)/|1/gamma| of the norm that feeds the site; where gains are zero, the zero-gain
    axis with the smallest u^T A u. A site
    that no norm feeds has no predicted direction: its delta is null and lambda_min is still
    reported. lambda_min <= u^T A u for every symmetric A (Rayleigh), so delta >= 0 up to rounding.
    Where u^T A u lies at or below the floor delta is noise and marked; where lambda_min alone does,
    delta is known from below (`delta_lower`).
    """
    eigenvalues = moments.gram_eigenvalues()
    lowest, highest = float(eigenvalues[0]), float(eigenvalues[-1])
    diagonal = np.diag(moments.scatter(centred=False)) / moments.n
    rounding = _rounding(moments, forward_dtype, highest, float(diagonal.sum()))
    quadratic = None if norm is None else _quadratic_form(moments, norm.kernel)
    delta, recovered_delta, recovered = noise_floor_recovery(lowest, quadratic)
    return {
        "lambda_min": lowest,
        "lambda_max": highest,
        "quadratic_form": quadratic,
        "delta": delta,
        "delta_lower": delta_lower(lowest, quadratic, rounding),
        "delta_recovered": recovered_delta,
        "recovered": recovered,
        "axis_minimum": float(diagonal.min()),
        "floor": rounding.floor,
        "below_floor": (lowest if quadratic is None else quadratic) <= rounding.floor,
        **_bottom_columns(moments, eigenvalues, norm, rounding),
        **_prediction_columns(moments, norm, rounding),
    }


def _rounding(moments: Moments, forward_dtype: str, highest: float, trace: float) -> Rounding:
    # Rounding of the forward pass acts on single coordinates (twice epsilon, as for a scatter) and,
    # through a norm's mean, on all of them alike: float32 LayerNorm outputs of Gaussian samples,
    # widths 64 to 4096, carry epsilon^2 trace / 70 to 200 along 1/gamma.
    forward = ROUNDOFF[forward_dtype] * max(4 * highest, trace / 16) ** 0.5
    return Rounding.of(moments, forward, moments.accumulator_floor(max(highest, 0.0) ** 0.5))


def _quadratic_form(moments: Moments, kernel: np.ndarray) -> float:
    """min over the basis of u^T A u. Signs are kept, so that rounding below zero stays visible."""
    if moments.method == "tsqr64":
        factor = moments.factor(centred=False)
        return float(min(np.sum((factor @ axis) ** 2) for axis in kernel.T) / moments.n)
    gram = moments.scatter(centred=False) / moments.n
    return float(min(axis @ gram @ axis for axis in kernel.T))


def delta_lower(lowest: float, quadratic: float | None, rounding: Rounding) -> float | None:
    """What delta is at least, whatever rounding did, where lambda_min is lost in it and u^T A u is
    not; else None.
    """
    if quadratic is None or not lowest <= rounding.floor < quadratic:
        return None
    form = rounding.smallest(quadratic)
    return max(1 - rounding.largest(lowest) / form, 0.0) if form else 0.0


def _bottom_columns(
    moments: Moments, eigenvalues: np.ndarray, norm: NormFacts | None, rounding: Rounding
) -> dict[str, Any]:
    """The bottom vector of A against the predicted kernel: null where rounding leaves the vector
    open.
    """
    determined = norm is not None and rounding.turn(np.sqrt(np.maximum(eigenvalues[:2], 0.0))) < 1
    if norm is None or not determined:
        return {"bottom_cos_gamma_inv": None}
    bottom = moments.spectrum(centred=False).bottom(1)[:, 0]
    return {"bottom_cos_gamma_inv": alignment(bottom, norm.kernel)}


def _prediction_columns(
    moments: Moments, norm: NormFacts | None, rounding: Rounding
) -> dict[str, Any]:
    """What Proposition 2 says of this site: (beta . v)^2 = u^T A u, and the ratio from T^2. Null
    but behind a LayerNorm.
    """
    if norm is None or norm.kind != "LayerNorm":
        return dict.fromkeys(PREDICTED)
    along = predicted_quadratic_form(norm)
    length = mean_length(moments, norm.kernel, rounding)
    ratios = predicted_ratio(length, along, norm.kernel.shape[1]) if along else (None, None, None)
    values = (along, length.squared, length.error, length.unresolved, *ratios)
    return dict(zip(PREDICTED, values, strict=True))


def predicted_quadratic_form(norm: NormFacts) -> float:
    """(beta . v)^2, which u^T A u is behind a LayerNorm: the smallest over the axes where several
    gains are zero, 0 without a bias.
    """
    return 0.0 if norm.bias is None else float(np.min((norm.kernel.T @ norm.bias) ** 2))


def schur_faults(columns: dict[str, Any]) -> list[str]:
    """`wrong-hook` where u^T A u is not (beta . v)^2: then the activations are not the LayerNorm's
    output.
    """
    expected, floor = columns["predicted_quadratic_form"], columns["floor"]
    if expected is None:
        return []
    allowed = FLOOR_MARGIN * (2 * (expected * floor) ** 0.5 + floor)
    return ["wrong-hook"] if abs(columns["quadratic_form"] - expected) > allowed else []


def noise_floor_recovery(
    lowest: float, quadratic: float | None
) -> tuple[float | None, float | None, bool]:
    """(delta, delta after the published recovery, whether it applied), from lambda_min and u^T
    A u.
    """
    if quadratic is None or quadratic == 0:
        return None, None, False
    delta = 1 - lowest / quadratic if quadratic > 0 else None
    both_negative = max(lowest, quadratic) < 0 and min(lowest, quadratic) > -RECOVERY_LIMIT
    return delta, 1 - abs(lowest) / abs(quadratic) if both_negative else delta, both_negative
