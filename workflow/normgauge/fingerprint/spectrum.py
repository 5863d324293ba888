"""One site's row of the fingerprint: the spectrum, its floors, and the bottom direction against the
predicted ones.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from normgauge.errors import InputError
from normgauge.fingerprint.kernel import NormFacts, SmallGains, alignment, containment
from normgauge.fingerprint.rounding import ROUNDOFF, Rounding
from normgauge.moments import Moments
from normgauge.moments.algebra import Spectrum

MASSIVE = 1e5
"""sigma_max from which a float32 scatter is refused: its floor, 3e-4 sigma_max, hides the bottom
(arXiv 2606.19491, A.4).
"""

RAW = (
    "sigma_min",
    "sigma_active_min",
    "sigma_median",
    "sigma_max",
    "active_rank",
    "effective_rank",
    "null_dimension",
    "cos_ones",
    "cos_gamma_inv",
    "null_cos_gamma_inv",
)
"""The columns that the uncentred activations have as well."""


def effective_rank(sigma: np.ndarray) -> float:
    """exp of the Shannon entropy of the singular values normalised to sum 1 (Roy and Vetterli
    2007). sigma: (d,), not all zero.
    """
    share = sigma[sigma > 0] / sigma.sum()
    return float(np.exp(-(share * np.log(share)).sum()))


def check_accumulation(site: str, moments: Moments, sigma_max: float, forced: bool) -> None:
    """Refuse what cannot be read: n <= d, and float32 scatters of massive activations unless
    forced.
    """
    if moments.n <= moments.d:
        raise InputError(
            f"site {site}: {moments.n} samples for {moments.d} coordinates leave the covariance "
            "rank deficient; raise calibration.sequences"
        )
    if moments.method == "cov32" and sigma_max >= MASSIVE and not forced:
        raise InputError(
            f"site {site}: sigma_max = {sigma_max:.3g} >= {MASSIVE:.0g} puts the float32 "
            "accumulator's floor above the bottom of the "
            "spectrum; set capture.accumulation to cov64 or tsqr64, or capture.force_cov32: true "
            "to read it anyway"
        )


def spectrum_columns(
    site: str, moments: Moments, forward_dtype: str, norm: NormFacts | None, rank: int | None = None
) -> dict[str, Any]:
    """Columns of schema `fingerprint` that describe the spectrum, centred and raw; without ratios
    and flags.

    Active directions lie above both floors: the accumulator's and the forward's (raw sigma_max
    times machine epsilon). sigma_min is recorded as computed; sigma_active_min is null when nothing
    is active. Statistics of the
    bottom vector are null where it is not determined: where several directions lie at or below the
    floor, or the next one so close that rounding may have turned the vector at will. rank: active
    rank of the stream's embedding, for sigma_at_rank. Raises InputError when the activations are
    constant.
    """
    spectrum, raw_spectrum = moments.spectrum(centred=True), moments.spectrum(centred=False)
    if spectrum.values[-1] == 0:
        raise InputError(
            f"site {site}: the activations do not vary over the calibration, so there is no "
            "spectrum; check the weights before it"
        )
    forward_floor = float(raw_spectrum.values[-1]) * ROUNDOFF[forward_dtype]
    centred = _one_protocol(moments, spectrum, forward_floor, norm)
    raw = _one_protocol(moments, raw_spectrum, forward_floor, norm)
    accumulator_floor = moments.accumulator_floor(float(spectrum.values[-1]))
    kernel = None if norm is None else norm.kernel
    longest = None if kernel is None else max(moments.length_along(axis) for axis in kernel.T)
    return {
        **centred,
        "sigma_at_rank": _sigma_at_rank(
            spectrum.values, rank, max(forward_floor, accumulator_floor)
        ),
        "relative_gamma_inv": None if longest is None else longest / float(spectrum.values[-1]),
        "cos_beta_gamma_inv": None
        if norm is None or norm.bias is None
        else alignment(norm.bias, norm.kernel),
        "gamma": None if norm is None else norm.name,
        **_gain_columns(norm),
        **{f"raw_{key}": raw[key] for key in RAW},
        "forward_floor": forward_floor,
        "accumulator_floor": accumulator_floor,
    }


def _one_protocol(
    moments: Moments, spectrum: Spectrum, forward_floor: float, norm: NormFacts | None
) -> dict[str, Any]:
    """Columns of the centred or the raw spectrum."""
    sigma = spectrum.values
    accumulator_floor = moments.accumulator_floor(float(sigma[-1]))
    rounding = Rounding.of(moments, forward_floor, accumulator_floor)
    active = sigma[sigma > max(forward_floor, accumulator_floor)]
    null_dimension = sigma.size - active.size
    sine = rounding.turn(sigma) if null_dimension < 2 else 1.0
    bottom = spectrum.bottom(max(null_dimension, 1))
    return {
        "sigma_min": float(sigma[0]),
        "sigma_active_min": float(active[0]) if active.size else None,
        "sigma_median": float(np.median(sigma)),
        "sigma_max": float(sigma[-1]),
        "active_rank": int(active.size),
        "effective_rank": effective_rank(sigma),
        "null_dimension": null_dimension,
        "bottom_sine": sine,
        **_bottom_columns(bottom[:, 0], sine, norm),
        **_null_columns(bottom[:, :null_dimension], norm),
    }


def _bottom_columns(bottom: np.ndarray, sine: float, norm: NormFacts | None) -> dict[str, Any]:
    """Cosines of the bottom vector (d,), null where `sine` says that it is not determined."""
    cosines: dict[str, Any] = dict.fromkeys(
        ("cos_ones", "cos_gamma_inv", "cos_min_gain", "cos_gamma_inv_rest")
    )
    if sine >= 1:
        return cosines
    cosines["cos_ones"] = alignment(bottom, _ones(bottom.size))
    if norm is not None:
        gains = SmallGains.of(norm)
        kept = gains.kept * bottom
        cosines["cos_gamma_inv"] = alignment(bottom, norm.kernel)
        cosines["cos_min_gain"] = alignment(bottom, gains.axis)
        if gains.rest is not None and np.linalg.norm(kept) > sine:
            cosines["cos_gamma_inv_rest"] = alignment(kept, gains.rest)
    return cosines


def _null_columns(null: np.ndarray, norm: NormFacts | None) -> dict[str, Any]:
    """Lengths of the predicted directions' projections onto the null space (d, k), which is
    determined.
    """
    rest = None if norm is None else SmallGains.of(norm).rest
    return {
        "null_cos_ones": containment(_ones(null.shape[0]), null),
        "null_cos_gamma_inv": None if norm is None else containment(norm.kernel, null),
        "null_cos_gamma_inv_rest": None if rest is None else containment(rest, null),
    }


def _gain_columns(norm: NormFacts | None) -> dict[str, Any]:
    if norm is None:
        return {"min_gain_share": None, "collapsed_gains": None}
    gains = SmallGains.of(norm)
    return {"min_gain_share": gains.share, "collapsed_gains": gains.collapsed}


def _sigma_at_rank(sigma: np.ndarray, rank: int | None, floor: float) -> float | None:
    """The rank-th largest singular value; None without one, and at or below the floor."""
    value = float(sigma[-rank]) if rank and rank <= sigma.size else 0.0
    return value if value > floor else None


def _ones(d: int) -> np.ndarray:
    return np.full((d, 1), d**-0.5)


def limits(
    columns: dict[str, Any], n: int, d: int, norm: NormFacts | None, precision: str
) -> list[str]:
    """Flags of a row, from its columns. n: samples, or the different ones among them where they
    were counted.
    """
    floor = max(columns["forward_floor"], columns["accumulator_floor"])
    conditions = {
        "n-over-d-below-10": n < 10 * d,
        "sigma-min-below-floor": columns["sigma_min"] <= floor,
        "degenerate-bottom": columns["bottom_sine"] >= 1,
        "zero-gain": norm is not None and norm.has_zero_gain,
        f"stored-{precision}": precision != "full",
    }
    return [flag for flag, holds in conditions.items() if holds]
