"""Uncertainty over sequences: statistics without each group of sequences, and the jackknife of
them.

The unit that may be taken as independent is a group of neighbouring sequences, not a token. Each
function here turns columns of a row into `<column>_se` and keeps the replicates, so that what is
pooled from several rows later (a median over blocks) can be treated likewise.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from normgauge.fingerprint.kernel import NormFacts, SmallGains, alignment
from normgauge.fingerprint.mahalanobis import MeanLength
from normgauge.fingerprint.rounding import Rounding
from normgauge.jackknife import standard_error
from normgauge.moments import Moments, leave_one_out
from normgauge.moments.algebra import unpack
from normgauge.moments.bottom import Bottom, bottom_of, lifted

SPECTRUM = (
    "sigma_active_min",
    "sigma_at_rank",
    "cos_gamma_inv",
    "cos_ones",
    "cos_min_gain",
    "cos_gamma_inv_rest",
    "raw_cos_gamma_inv",
)
RATIOS = {"ratio_to_embedding": "sigma_active_min", "fixed_rank_ratio": "sigma_at_rank"}
SCHUR = (
    "lambda_min",
    "quadratic_form",
    "delta",
    "bottom_cos_gamma_inv",
    "mahalanobis_squared",
    "predicted_ratio",
)


def _largest_over_first(values: np.ndarray, axis: int) -> np.ndarray:
    return np.max(values, axis=axis) / values[0]


def _largest_over_smallest(values: np.ndarray, axis: int) -> np.ndarray:
    return np.max(values, axis=axis) / np.min(values, axis=axis)


def _last_over_first(values: np.ndarray, axis: int) -> np.ndarray:
    return values[-1] / values[0]


STACK: dict[str, tuple[str, Callable[..., Any]]] = {
    "body_sigma_low": ("sigma_active_min", np.min),
    "body_sigma_high": ("sigma_active_min", np.max),
    "min_ratio": ("ratio_to_embedding", np.min),
    "max_ratio": ("ratio_to_embedding", np.max),
    "first_block_max_ratio": ("sigma_active_min", _largest_over_first),
    "body_ratio": ("sigma_active_min", _largest_over_smallest),
    "fixed_rank_min_ratio": ("fixed_rank_ratio", np.min),
    "fixed_rank_max_ratio": ("fixed_rank_ratio", np.max),
}
LAST = {"output_ratio": "ratio_to_embedding", "fixed_rank_output_ratio": "fixed_rank_ratio"}
POST_NORM = ("cos_gamma_inv", "cos_ones", "cos_min_gain", "cos_gamma_inv_rest", "raw_cos_gamma_inv")
"""The statistics that have an uncertainty, by where they come from: a site of the stream, its
ratios, a Schur site, all block outputs of a stream, the last of them, and the site after its last
norm.
"""

Row = Mapping[str, Any]
Replicates = dict[str, list[float]]


def group_samples(moments: Moments) -> list[int]:
    """Samples of each group, in the order of their numbers; empty where no jackknife can be made of
    them.

    That is with fewer than two groups, or where without one no more samples than coordinates are
    left.
    """
    samples = [moments.groups[number].n for number in sorted(moments.groups)]
    return samples if len(samples) > 1 and moments.n - max(samples) > moments.d else []


def uncertainty_columns(
    row: Row,
    names: Sequence[str],
    replicates: Replicates,
    samples: list[int],
    resolutions: Mapping[str, float],
) -> dict[str, Any]:
    """`<name>_se` for each name, and the replicates behind those that are not null."""
    errors = {
        name: standard_error(
            row[name], replicates.get(name, ()), samples, resolutions.get(name, 0.0)
        )
        for name in names
    }
    kept = [(name, replicates[name]) for name in sorted(names) if errors[name] is not None]
    return {
        **{f"{name}_se": error for name, error in errors.items()},
        "group_samples": samples or None,
        "replicates": kept,
    }


def spectrum_uncertainty(
    moments: Moments, columns: Row, norm: NormFacts | None, rank: int | None, own: bool
) -> dict[str, Any]:
    """Uncertainty columns of a site of the stream.

    columns: of `spectrum_columns`. rank: active rank of the stream's embedding. own: whether the
    samples are `norm`'s output. The smallest active value keeps its index, since what lies below
    the floor stays there without a part of the samples. A cosine has an uncertainty where the
    bottom vector is active.
    """
    samples = group_samples(moments)
    replicates: Replicates = {}
    resolutions: dict[str, float] = {}
    sigma, null_dimension = columns["sigma_active_min"], columns["null_dimension"]
    rounding = _accumulation(moments, columns["sigma_max"])
    if samples and sigma:
        place = moments.d - rank - null_dimension if rank and columns["sigma_at_rank"] else 0
        bottoms = bottoms_without(moments, True, null_dimension, sigma, max(place, 1) + 1)
        for name, index in (("sigma_active_min", 0), ("sigma_at_rank", place)):
            replicates[name] = [float(bottom.values[index]) for bottom in bottoms]
            resolutions[name] = _moved(rounding, columns[name] or sigma)
        if not null_dimension:
            _add_cosines(replicates, resolutions, bottoms, rounding, _directions(moments.d, norm))
    if samples and own and norm is not None and not columns["raw_null_dimension"]:
        bottoms = bottoms_without(moments, False, 0, columns["raw_sigma_active_min"], 2)
        rounding = _accumulation(moments, columns["raw_sigma_max"])
        _add_cosines(
            replicates,
            resolutions,
            bottoms,
            rounding,
            {"raw_cos_gamma_inv": _cosine_with(norm.kernel)},
        )
    return uncertainty_columns(columns, SPECTRUM, replicates, samples, resolutions)


def schur_uncertainty(moments: Moments, columns: Row, norm: NormFacts | None) -> dict[str, Any]:
    """Uncertainty columns of a Schur site, of what lies above the floor. columns: of
    `schur_columns`.

    The replicates of `delta` are those of the quotient, so that what moves both of its parts
    cancels.
    """
    samples = group_samples(moments)
    replicates: Replicates = {}
    resolutions: dict[str, float] = {}
    lowest, form, floor = (columns[name] for name in ("lambda_min", "quadratic_form", "floor"))
    if samples and lowest > floor:
        rounding = _accumulation(moments, (moments.n * columns["lambda_max"]) ** 0.5)
        bottom = (moments.n * lowest) ** 0.5
        bottoms = bottoms_without(moments, False, 0, bottom, 2)
        replicates["lambda_min"] = [float(each.values[0] ** 2 / moments.n) for each in bottoms]
        resolutions["lambda_min"] = resolutions["quadratic_form"] = (
            2 * bottom * _moved(rounding, bottom) / moments.n
        )
        if norm is not None:
            _add_cosines(
                replicates,
                resolutions,
                bottoms,
                rounding,
                {"bottom_cos_gamma_inv": _cosine_with(norm.kernel)},
            )
    if samples and norm is not None and form > floor:
        replicates["quadratic_form"] = _forms_without(moments, norm.kernel)
        if "lambda_min" in replicates:
            pairs = zip(replicates["lambda_min"], replicates["quadratic_form"], strict=True)
            replicates["delta"] = [1 - least / along for least, along in pairs]
            resolutions["delta"] = resolutions["lambda_min"] / form
    if (
        samples
        and norm is not None
        and columns["predicted_ratio"]
        and not columns["mahalanobis_unresolved"]
    ):
        rounding = _accumulation(moments, columns["lambda_max"] ** 0.5)
        lengths = _lengths_without(moments, norm.kernel, rounding)
        replicates["mahalanobis_squared"] = [length.squared for length in lengths]
        replicates["predicted_ratio"] = [1 / (1 + length.squared) for length in lengths]
        error = max(length.error for length in lengths)
        resolutions |= {
            "mahalanobis_squared": error,
            "predicted_ratio": error * columns["predicted_ratio"] ** 2,
        }
    return uncertainty_columns(columns, SCHUR, replicates, samples, resolutions)


def ratio_uncertainty(row: Row, embedding: Row | None) -> dict[str, Any]:
    """The uncertainty columns of a site with those of its ratios to the embedding: the jackknife of
    the quotient.
    """
    own, reference = dict(row["replicates"]), dict(embedding["replicates"]) if embedding else {}
    base = reference.get("sigma_active_min")
    errors: dict[str, float | None] = {}
    for ratio, name in RATIOS.items():
        quotients = (
            [value / below for value, below in zip(own[name], base, strict=True)]
            if base and name in own
            else []
        )
        errors[f"{ratio}_se"] = standard_error(row[ratio], quotients, row["group_samples"] or [])
        if errors[f"{ratio}_se"] is not None:
            own[ratio] = quotients
    return {**errors, "replicates": sorted(own.items())}


def stack_uncertainty(
    values: Row, body: Sequence[Row], post: Row | None, terminal: Row | None
) -> dict[str, Any]:
    """Uncertainty columns of a stream from those of its sites: extremes over blocks are taken anew
    without each group.

    values: of the stream's row. body: rows of X_1..X_L. post: the row behind the post-norm cosines.
    terminal: that behind the ratio after the terminal norm.
    """
    sources: dict[str, tuple[Sequence[Row], str, Callable[..., Any]]] = {
        name: (body, *how) for name, how in STACK.items()
    }
    sources |= {name: (body[-1:], column, np.max) for name, column in LAST.items()}
    sources["post_norm_ratio"] = ([terminal] if terminal else [], "ratio_to_embedding", np.max)
    ends = [*body[:1], terminal] if terminal else []
    sources["first_block_post_norm_ratio"] = (ends, "sigma_active_min", _last_over_first)
    sources |= {f"post_norm_{name}": ([post] if post else [], name, np.max) for name in POST_NORM}
    replicates: Replicates = {}
    for name, (rows, column, choose) in sources.items():
        found = [dict(row["replicates"]).get(column) for row in rows if row[column] is not None]
        if found and None not in found:
            replicates[name] = choose(np.array(found), axis=0).tolist()
    samples: list[int] = next((row["group_samples"] for row in body if row["group_samples"]), [])
    return uncertainty_columns(values, list(sources), replicates, samples, {})


def bottoms_without(
    moments: Moments, centred: bool, null_dimension: int, smallest: float, count: int
) -> list[Bottom]:
    """The `count` values above `null_dimension` others without each group, of as many samples as
    there are in all.

    smallest: the first of them with all groups. Fewer samples have no larger one, so a kernel that
    is given twice that is passed over. Values grow with the root of the number of samples and are
    scaled.
    """
    kernel = (
        moments.spectrum(centred).bottom(null_dimension)
        if null_dimension
        else np.empty((moments.d, 0))
    )
    bottoms = []
    for left in leave_one_out(moments):
        bottom = bottom_of(
            lifted(left, kernel, 2 * smallest) if null_dimension else left, centred, count
        )
        bottoms.append(replace(bottom, values=bottom.values * np.sqrt(moments.n / left.n)))
    return bottoms


def _directions(d: int, norm: NormFacts | None) -> dict[str, Callable[[np.ndarray], float]]:
    """How each cosine of a bottom vector (d,) is taken: as `spectrum_columns` does."""
    found = {"cos_ones": _cosine_with(np.full((d, 1), d**-0.5))}
    if norm is not None:
        gains = SmallGains.of(norm)
        found |= {
            "cos_gamma_inv": _cosine_with(norm.kernel),
            "cos_min_gain": _cosine_with(gains.axis),
        }
        if gains.rest is not None:
            rest = gains.rest
            found["cos_gamma_inv_rest"] = lambda vector: alignment(gains.kept * vector, rest)
    return found


def _cosine_with(basis: np.ndarray) -> Callable[[np.ndarray], float]:
    return lambda vector: alignment(vector, basis)


def _add_cosines(
    replicates: Replicates,
    resolutions: dict[str, float],
    bottoms: Sequence[Bottom],
    rounding: Rounding,
    directions: Mapping[str, Callable[[np.ndarray], float]],
) -> None:
    """The cosines of each bottom vector, and how far rounding may move them: by the angle that it
    may turn the vector.
    """
    turn = max(rounding.turn(bottom.values) for bottom in bottoms)
    for name, cosine in directions.items():
        cosines = [cosine(bottom.vectors[:, 0]) for bottom in bottoms]
        sine = max(1 - min(cosines) ** 2, 0.0) ** 0.5
        replicates[name] = cosines
        resolutions[name] = (sine + turn) * turn + bottoms[0].vectors.shape[0] * float(
            np.finfo(float).eps
        )


def _accumulation(moments: Moments, largest: float) -> Rounding:
    """The rounding that differs between replicates: the accumulation's. That of the forward pass is
    in all of them alike.
    """
    return Rounding.of(moments, 0.0, moments.accumulator_floor(largest))


def _moved(rounding: Rounding, sigma: float) -> float:
    """How far rounding may move the singular value sigma."""
    return (rounding.largest(sigma**2) - sigma**2) / (2 * sigma)


def _forms_without(moments: Moments, kernel: np.ndarray) -> list[float]:
    """u^T A u without each group, the smallest over the kernel's axes: sums over samples, from
    which the group's is taken.
    """
    whole = _sums_along(moments, kernel)
    parts = (unpack(moments.groups[number]) for number in sorted(moments.groups))
    return [
        float(((whole - _sums_along(part, kernel)) / (moments.n - part.n)).min()) for part in parts
    ]


def _lengths_without(moments: Moments, kernel: np.ndarray, rounding: Rounding) -> list[MeanLength]:
    """T^2 without each group, where every direction off the kernel is resolved."""
    lengths = []
    for left in leave_one_out(moments):
        mean = left.mean - kernel @ (kernel.T @ left.mean)
        solution = left.filled(kernel).whitened(mean)
        lengths.append(
            MeanLength(float(mean @ solution), float(np.linalg.norm(solution)), 0.0, 0, rounding)
        )
    return lengths


def _sums_along(moments: Moments, kernel: np.ndarray) -> np.ndarray:
    return np.array([moments.length_along(axis, centred=False) ** 2 for axis in kernel.T])
