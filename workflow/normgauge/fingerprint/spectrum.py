"""One site's row of the fingerprint: the spectrum, its floors, and the bottom direction against the predicted ones."""

from __future__ import annotations

from typing import Any

import numpy as np

from normgauge.errors import InputError
from normgauge.fingerprint.kernel import NormFacts, alignment, containment
from normgauge.moments import Moments

ROUNDOFF = {"float64": 2.0**-52, "float32": 2.0**-23, "bfloat16": 2.0**-7, "float16": 2.0**-10}
"""Spacing of 1 in each forward arithmetic. The published floor is sigma_max eps32 with eps32 = 1.2e-7 (arXiv 2606.19491, A.6)."""

MASSIVE = 1e5
"""sigma_max from which a float32 scatter is refused: its floor, 3e-4 sigma_max, hides the bottom (arXiv 2606.19491, A.4)."""


def effective_rank(sigma: np.ndarray) -> float:
    """exp of the Shannon entropy of the singular values normalised to sum 1 (Roy and Vetterli 2007). sigma: (d,), not all zero."""
    share = sigma[sigma > 0] / sigma.sum()
    return float(np.exp(-(share * np.log(share)).sum()))


def check_accumulation(site: str, moments: Moments, sigma_max: float, forced: bool) -> None:
    """Refuse what cannot be read: n <= d, and float32 scatters of massive activations unless forced."""
    if moments.n <= moments.d:
        raise InputError(
            f"site {site}: {moments.n} samples for {moments.d} coordinates leave the covariance rank deficient; raise calibration.sequences"
        )
    if moments.method == "cov32" and sigma_max >= MASSIVE and not forced:
        raise InputError(
            f"site {site}: sigma_max = {sigma_max:.3g} >= {MASSIVE:.0g} puts the float32 accumulator's floor above the bottom of the "
            "spectrum; set capture.accumulation to cov64 or tsqr64, or capture.force_cov32: true to read it anyway"
        )


def spectrum_columns(site: str, moments: Moments, forward_dtype: str, norm: NormFacts | None) -> dict[str, Any]:
    """Columns of schema `fingerprint` that describe the spectrum, centred and raw; without ratio_to_embedding and flags.

    Active directions lie above both floors: the accumulator's and the forward's (raw sigma_max times machine epsilon). sigma_min is
    recorded as computed; sigma_active_min is null when nothing is active. Raises InputError when the activations are constant.
    """
    spectrum, raw_spectrum = moments.spectrum(centred=True), moments.spectrum(centred=False)
    sigma, raw_sigma = spectrum.values, raw_spectrum.values
    if sigma[-1] == 0:
        raise InputError(
            f"site {site}: the activations do not vary over the calibration, so there is no spectrum; check the weights before it"
        )
    forward_floor = float(raw_sigma[-1]) * ROUNDOFF[forward_dtype]
    centred = _one_protocol(moments, sigma, forward_floor)
    raw = _one_protocol(moments, raw_sigma, forward_floor)
    floor = max(forward_floor, moments.accumulator_floor(float(sigma[-1])))
    null_dimension = int((sigma <= floor).sum())
    bottom, raw_bottom = spectrum.bottom(max(null_dimension, 1)), raw_spectrum.bottom(1)
    null = bottom[:, :null_dimension]
    ones = np.full((moments.d, 1), 1 / np.sqrt(moments.d))
    columns = {
        **centred,
        "null_dimension": null_dimension,
        "cos_ones": alignment(bottom[:, 0], ones),
        "cos_gamma_inv": None,
        "null_cos_gamma_inv": None,
        "relative_gamma_inv": None,
        "cos_beta_gamma_inv": None,
        "gamma": None,
        **{f"raw_{key}": value for key, value in raw.items()},
        "raw_cos_ones": alignment(raw_bottom[:, 0], ones),
        "raw_cos_gamma_inv": None,
        "forward_floor": forward_floor,
        "accumulator_floor": moments.accumulator_floor(float(sigma[-1])),
    }
    if norm is not None:
        kernel = norm.kernel
        columns |= {
            "cos_gamma_inv": alignment(bottom[:, 0], kernel),
            "null_cos_gamma_inv": containment(kernel, null),
            "relative_gamma_inv": max(moments.length_along(axis) for axis in kernel.T) / float(sigma[-1]),
            "cos_beta_gamma_inv": None if norm.bias is None else alignment(norm.bias, kernel),
            "gamma": norm.name,
            "raw_cos_gamma_inv": alignment(raw_bottom[:, 0], kernel),
        }
    return columns


def _one_protocol(moments: Moments, sigma: np.ndarray, forward_floor: float) -> dict[str, Any]:
    floor = max(forward_floor, moments.accumulator_floor(float(sigma[-1])))
    active = sigma[sigma > floor]
    return {
        "sigma_min": float(sigma[0]),
        "sigma_active_min": float(active[0]) if active.size else None,
        "sigma_median": float(np.median(sigma)),
        "sigma_max": float(sigma[-1]),
        "active_rank": int(active.size),
        "effective_rank": effective_rank(sigma),
    }


def limits(columns: dict[str, Any], n: int, d: int, norm: NormFacts | None, precision: str) -> list[str]:
    """Flags of a row, from its columns. n: samples, or the different ones among them where they were counted."""
    floor = max(columns["forward_floor"], columns["accumulator_floor"])
    conditions = {
        "n-over-d-below-10": n < 10 * d,
        "sigma-min-below-floor": columns["sigma_min"] <= floor,
        "degenerate-bottom": columns["null_dimension"] > 1,
        "zero-gain": norm is not None and norm.has_zero_gain,
        f"stored-{precision}": precision != "full",
    }
    return [flag for flag, holds in conditions.items() if holds]
