"""The kernel statement as a check of the measurement itself: when it fails, say which part of the
protocol is at fault.

At the output of a LayerNorm the centred covariance must vanish along 1/gamma, whatever the model
and the input. So a failure is either a fault of the measurement or a finding, and the parts can be
told apart because each leaves its own trace along v = 1/gamma.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from normgauge.fingerprint.kernel import NormFacts
from normgauge.moments import Moments

KERNEL_COSINE = 0.9999
RMS_COSINE = 0.10
"""The published bound for RMSNorm. Random directions in d coordinates have cosines of about
1/sqrt(d), so for narrow models (d < 900) the
bound is three times that: chance alone exceeds it in 0.3 % of cases.
"""
FLOOR_MARGIN = 32.0
"""How far above the floors |X v| may lie and still be rounding: the mean subtraction inside a norm
and the elementwise gain each round once per coordinate, and a handful of such errors add up; a norm
without mean subtraction lies orders of magnitude above.
"""


def vanishes_along_kernel(columns: Mapping[str, Any]) -> bool | None:
    """Whether the centred activations are zero along the whole predicted kernel, up to the floors.
    columns: of `spectrum_columns`.

    None where the floors, with their margin, reach the median singular value: a direction that does
    not vanish may lie below them too. A forward pass in half precision is so coarse.
    """
    reach = FLOOR_MARGIN * max(columns["forward_floor"], columns["accumulator_floor"])
    if reach >= columns["sigma_median"]:
        return None
    return bool(columns["relative_gamma_inv"] * columns["sigma_max"] <= reach)


def protocol_check(columns: Mapping[str, Any], moments: Moments, norm: NormFacts) -> list[str]:
    """Names of the failed checks at a site that is `norm`'s output; empty when the statement holds.

    - `raw-gram`: the moments along 1/gamma are those of an uncentred Gram matrix (n (mean . v)^2),
      not of a covariance.
    - `wrong-hook`: the activations vary along 1/gamma, so they are not this norm's output.
    - `accumulator-floor`: they vanish along 1/gamma, but the float32 accumulation's floor hides
      which direction is the bottom.
    - `forward-floor`: the floors reach the median singular value, so nothing can be said about
      1/gamma (half precision does this).
    - `deeper-direction`: they vanish along 1/gamma and a resolved direction lies deeper still: a
      finding about the model.
    - `rms-alignment`: of `rms_alignment`, a finding.

    When several directions lie below the floor the bottom one is not determined; then the statement
    is that 1/gamma lies among them.
    """
    if norm.kind != "LayerNorm":
        return rms_alignment(columns, moments.d, norm)
    if (columns["cos_gamma_inv"] or 0.0) >= KERNEL_COSINE:
        return []
    vanishes = vanishes_along_kernel(columns)
    if vanishes is None:
        return [
            "accumulator-floor"
            if columns["accumulator_floor"] > columns["forward_floor"]
            else "forward-floor"
        ]
    if not vanishes:
        return ["raw-gram"] if _is_raw_along(moments, norm) else ["wrong-hook"]
    if moments.method == "cov32":
        return ["accumulator-floor"]
    undetermined = columns["cos_gamma_inv"] is None and not columns["null_dimension"]
    return (
        []
        if undetermined or columns["null_cos_gamma_inv"] >= KERNEL_COSINE
        else ["deeper-direction"]
    )


def rms_alignment(columns: Mapping[str, Any], d: int, norm: NormFacts) -> list[str]:
    """`rms-alignment` where an RMSNorm's bottom direction aligns with 1/gamma beyond max(0.10,
    3/sqrt(d)).

    The theory predicts no such alignment. Where it is gone without the axes of the collapsed gains,
    the name says so: both directions then lie along those axes, 1/gamma by its definition and the
    bottom one because nothing varies there; no kernel is needed. Where the bottom direction is not
    determined, the null space, of dimension k, stands for it; chance is sqrt(k/d).
    """
    if norm.has_zero_gain:
        return []
    dimension = max(columns["null_dimension"], 1)
    prefix = "null_" if dimension > 1 else ""
    cosine, rest = columns[f"{prefix}cos_gamma_inv"], columns[f"{prefix}cos_gamma_inv_rest"]
    bound = max(RMS_COSINE, 3 * np.sqrt(dimension / d))
    if cosine is None or cosine <= bound:
        return []
    collapsed = columns["collapsed_gains"]
    if not collapsed or (rest or 0.0) > bound:
        return ["rms-alignment"]
    return [
        "rms-alignment by "
        + ("one collapsed gain" if collapsed == 1 else f"{collapsed} collapsed gains")
    ]


def _is_raw_along(moments: Moments, norm: NormFacts) -> bool:
    """Whether v^T S v equals n (mean . v)^2 on every kernel axis: the mean was never removed."""
    squares = np.array([moments.length_along(axis) ** 2 for axis in norm.kernel.T])
    raw = moments.n * (norm.kernel.T @ moments.mean) ** 2
    return bool(np.allclose(squares, raw, rtol=1e-3))
