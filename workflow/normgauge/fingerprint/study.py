"""From the moments of one checkpoint to its rows: fingerprint, schur, stacks. Pure; the files are
in `files`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from normgauge.anatomy.structure import Site
from normgauge.errors import InputError
from normgauge.fingerprint.jackknife import (
    ratio_uncertainty,
    schur_uncertainty,
    spectrum_uncertainty,
    stack_uncertainty,
)
from normgauge.fingerprint.kernel import NormFacts
from normgauge.fingerprint.profile import (
    behaviour,
    extreme,
    norm_kind,
    norm_kind_from_activations,
    norm_kind_from_parameters,
    ratio_columns,
)
from normgauge.fingerprint.protocol import protocol_check, vanishes_along_kernel
from normgauge.fingerprint.rounding import ROUNDOFF
from normgauge.fingerprint.schur import schur_columns, schur_faults
from normgauge.fingerprint.spectrum import check_accumulation, limits, spectrum_columns
from normgauge.moments import Moments

Rows = list[dict[str, Any]]
PLACE = (
    "site",
    "stack",
    "block",
    "tap",
    "norm",
    "n",
    "distinct_rows",
    "d",
    "forward_dtype",
    "accumulation",
)


@dataclass(frozen=True)
class Measurement:
    """All moments of one checkpoint under one forward dtype: what the rows are computed from."""

    forward_dtype: str
    moments: Mapping[str, Moments]
    sites: Mapping[str, Site]
    norms: Mapping[str, NormFacts]

    def terminal_norm(self, stack: str) -> str | None:
        """The norm at the end of a stream, where that site was captured and there is one."""
        return next(
            (
                site.norm
                for site in self.sites.values()
                if site.stack == stack and site.tap == "terminal_norm"
            ),
            None,
        )


@dataclass(frozen=True)
class Identity:
    """What a row says about the checkpoint beyond its numbers."""

    model: str
    revision: str
    family: str
    provenance: str
    precision: str
    objective: str | None
    placement: str
    blocks: Mapping[str, int]
    primary: str


def _place(site: Site, moments: Moments, forward_dtype: str) -> dict[str, Any]:
    place = (site.id, site.stack, site.block, site.tap, site.norm)
    values = (*place, moments.n, moments.distinct_rows, moments.d, forward_dtype, moments.method)
    return dict(zip(PLACE, values, strict=True))


def fingerprint_rows(
    measurement: Measurement, identity: Identity, force_cov32: bool = False
) -> Rows:
    """Rows of schema `fingerprint` for the residual, tap and terminal sites of one measurement.

    Raises InputError as `fingerprint_row`.
    """
    rows: Rows = []
    for site in sorted(measurement.sites.values(), key=lambda site: site.tap != "embedding"):
        if site.group not in ("schur", "deltas"):
            moments = measurement.moments[site.id]
            rows.append(fingerprint_row(measurement, site, moments, rows, identity, force_cov32))
    return compared(rows, identity)


def fingerprint_row(
    measurement: Measurement,
    site: Site,
    moments: Moments,
    rows: Iterable[Mapping[str, Any]],
    identity: Identity,
    force_cov32: bool = False,
) -> dict[str, Any]:
    """The row of one site, without what compares it with others.

    moments: of the site; those of `measurement` are not read. rows: of the sites before it, that of
    its stream's embedding among them. 1/gamma is the site's own norm's where the activation is a
    norm's output, else the terminal norm's of its stream (a property of training rather than of the
    architecture: arXiv 2606.19491, A.5). Raises InputError for n <= d and for float32 scatters of
    massive activations.
    """
    name = site.norm or measurement.terminal_norm(site.stack)
    norm = measurement.norms[name] if name else None
    rank = next(
        (row["active_rank"] for row in rows if _is_embedding(row) and row["stack"] == site.stack),
        None,
    )
    columns = spectrum_columns(site.id, moments, measurement.forward_dtype, norm, rank)
    if site.tap == "embedding":
        rank = columns["active_rank"]
        columns["sigma_at_rank"] = columns["sigma_active_min"]
    check_accumulation(site.id, moments, columns["sigma_max"], force_cov32)
    flags = limits(columns, moments.least_samples, moments.d, norm, identity.precision)
    if site.norm and norm:
        flags += [f"protocol:{fault}" for fault in protocol_check(columns, moments, norm)]
    uncertain = spectrum_uncertainty(moments, columns, norm, rank, own=site.norm is not None)
    return {
        **_place(site, moments, measurement.forward_dtype),
        **columns,
        "flags": flags,
        **uncertain,
    }


def compared(rows: Rows, identity: Identity) -> Rows:
    """The rows of all sites with what compares each with its stream's embedding, by depth."""
    for stack in identity.blocks:
        members = [row for row in rows if row["stack"] == stack]
        ratios = ratio_columns(members)
        embedding = next((row for row in members if _is_embedding(row)), None)
        for row in members:
            row.update(ratios[row["site"]])
            row.update(ratio_uncertainty(row, embedding))
    return by_depth(rows)


def _is_embedding(row: Mapping[str, Any]) -> bool:
    return row["tap"] == "embedding"


def schur_rows(measurement: Measurement, identity: Identity, force_cov32: bool = False) -> Rows:
    """Rows of schema `schur` for the Schur sites of one measurement. Raises InputError as
    `fingerprint_row`.
    """
    return by_depth(
        [
            schur_row(measurement, site, measurement.moments[site.id], identity, force_cov32)
            for site in measurement.sites.values()
            if site.group == "schur"
        ]
    )


def schur_row(
    measurement: Measurement,
    site: Site,
    moments: Moments,
    identity: Identity,
    force_cov32: bool = False,
) -> dict[str, Any]:
    """The row of one Schur site from its moments; those of `measurement` are not read."""
    norm = measurement.norms[site.norm] if site.norm else None
    columns = schur_columns(moments, measurement.forward_dtype, norm)
    check_accumulation(
        site.id, moments, (moments.n * max(columns["lambda_max"], 0.0)) ** 0.5, force_cov32
    )
    conditions = {
        "n-over-d-below-10": moments.least_samples < 10 * moments.d,
        "zero-gain": norm is not None and norm.has_zero_gain,
        f"stored-{identity.precision}": identity.precision != "full",
    }
    flags = [flag for flag, holds in conditions.items() if holds]
    flags += [f"protocol:{fault}" for fault in schur_faults(columns)]
    return {
        **_place(site, moments, measurement.forward_dtype),
        **columns,
        "flags": flags,
        **schur_uncertainty(moments, columns, norm),
    }


def by_depth(rows: Rows) -> Rows:
    return sorted(rows, key=_depth)


def _depth(row: Mapping[str, Any]) -> tuple[Any, ...]:
    return row["stack"], row["block"], row["tap"], row["forward_dtype"]


def stack_rows(
    rows: Rows, schur: Rows, measurements: Iterable[Measurement], identity: Identity
) -> Rows:
    """Rows of schema `stacks`, one per residual stream, from the fingerprint and Schur rows of all
    forward dtypes.
    """
    norms = {name: norm for measurement in measurements for name, norm in measurement.norms.items()}

    def of(stack: str, every: Rows) -> Rows:
        return [row for row in every if row["stack"] == stack]

    return [
        _stack_row(of(stack, rows), of(stack, schur), stack, norms, identity)
        for stack in identity.blocks
    ]


def _stack_row(
    rows: Rows, schur: Rows, stack: str, norms: Mapping[str, NormFacts], identity: Identity
) -> dict[str, Any]:
    embedding = next((row for row in rows if row["tap"] == "embedding"), None)
    if embedding is None:
        raise InputError(
            f"{identity.model}, stream {stack}: the group `residual` was not captured; add it to "
            "capture.forward_dtypes"
        )
    body = [
        row
        for row in rows
        if row["tap"] == "output" and row["forward_dtype"] == embedding["forward_dtype"]
    ]
    post = _post_norm_row(rows)
    width, n = embedding["d"], embedding["n"]
    terminal = _terminal_row(rows, embedding)
    flagged = [(row["site"], flag) for row in (*rows, *schur) for flag in row["flags"]]
    row = {
        "model": identity.model,
        "revision": identity.revision,
        "stack": stack,
        "primary": stack == identity.primary,
        "family": identity.family,
        "provenance": identity.provenance,
        "precision": identity.precision,
        "objective": identity.objective,
        "placement": identity.placement,
        **_norm_kind_columns(
            [norms[name] for name in {row["norm"] for row in rows if row["norm"]}], post, norms
        ),
        "blocks": identity.blocks[stack],
        "width": width,
        "n": n,
        "n_over_d": n / width,
        "distinct_over_d": embedding["distinct_rows"] / width
        if embedding["distinct_rows"]
        else None,
        "forward_dtype": embedding["forward_dtype"],
        "accumulation": embedding["accumulation"],
        **_profile_columns(body, embedding, identity.placement),
        "post_norm_ratio": _value(terminal, "ratio_to_embedding"),
        "first_block_post_norm_ratio": _quotient(terminal, body[0] if body else None),
        **_post_norm_columns(post),
        "random_direction_null": width**-0.5,
        "protocol": sorted(
            {f"{site}: {flag}" for site, flag in flagged if flag.startswith("protocol:")}
        ),
        "flags": sorted(
            {flag for row in rows for flag in row["flags"] if not flag.startswith("protocol:")}
        ),
    }
    return row | stack_uncertainty(row, body, post, terminal)


def _norm_kind_columns(
    own: Sequence[NormFacts], post: Mapping[str, Any] | None, norms: Mapping[str, NormFacts]
) -> dict[str, Any]:
    """The kind of a stream's norms by class, by stored parameters, and by the activations after the
    last of them.
    """
    by_class, by_parameters = norm_kind(own), norm_kind_from_parameters(own)
    zero_gain = post is not None and norms[post["norm"]].has_zero_gain
    by_activations = norm_kind_from_activations(
        post is not None, vanishes_along_kernel(post) if post else None, zero_gain
    )
    return {
        "norm_kind": by_class,
        "norm_kind_parameters": by_parameters,
        "norm_kind_activations": by_activations,
        "norm_kinds_agree": by_class == by_parameters == by_activations,
    }


def _profile_columns(body: Rows, embedding: Mapping[str, Any], placement: str) -> dict[str, Any]:
    """The smallest active singular value along the depth, and its ratios to the embedding's: as
    published, and at fixed rank.
    """
    published = [row["ratio_to_embedding"] for row in body]
    fixed = [row["fixed_rank_ratio"] for row in body]
    low, lowest = extreme(body, "ratio_to_embedding", min), extreme(body, "fixed_rank_ratio", min)
    return {
        "body_sigma_low": _value(extreme(body, "sigma_active_min", min), "sigma_active_min"),
        "body_sigma_high": _value(extreme(body, "sigma_active_min", max), "sigma_active_min"),
        "behaviour": behaviour(placement, fixed, [row["fixed_rank_ratio_upper"] for row in body]),
        "behaviour_smallest_active": behaviour(placement, published),
        "min_ratio": _value(low, "ratio_to_embedding"),
        "min_ratio_block": _value(low, "block"),
        "max_ratio": _value(extreme(body, "ratio_to_embedding", max), "ratio_to_embedding"),
        "output_ratio": published[-1] if published else None,
        "first_block_max_ratio": _quotient(
            extreme(body, "sigma_active_min", max), body[0] if body else None
        ),
        "body_ratio": _quotient(
            extreme(body, "sigma_active_min", max), extreme(body, "sigma_active_min", min)
        ),
        "fixed_rank": embedding["active_rank"],
        "fixed_rank_min_ratio": _value(lowest, "fixed_rank_ratio"),
        "fixed_rank_min_ratio_block": _value(lowest, "block"),
        "fixed_rank_max_ratio": _value(extreme(body, "fixed_rank_ratio", max), "fixed_rank_ratio"),
        "fixed_rank_output_ratio": fixed[-1] if fixed else None,
        "fixed_rank_below_floor": fixed.count(None),
    }


def _post_norm_columns(post: Mapping[str, Any] | None) -> dict[str, Any]:
    """The bottom direction after the last norm; where several directions lie below the floor, their
    span in its place.
    """
    return {
        "post_norm_forward_dtype": _value(post, "forward_dtype"),
        "post_norm_cos_gamma_inv": _bottom_or_null(post, "cos_gamma_inv"),
        "post_norm_null_dimension": _value(post, "null_dimension"),
        "post_norm_bottom_sine": _value(post, "bottom_sine"),
        "post_norm_cos_ones": _bottom_or_null(post, "cos_ones"),
        "post_norm_cos_min_gain": _value(post, "cos_min_gain"),
        "post_norm_min_gain_share": _value(post, "min_gain_share"),
        "post_norm_cos_gamma_inv_rest": _bottom_or_null(post, "cos_gamma_inv_rest"),
        "post_norm_raw_cos_gamma_inv": _bottom_or_null(post, "cos_gamma_inv", "raw_"),
        "post_norm_cos_beta_gamma_inv": _value(post, "cos_beta_gamma_inv"),
    }


def _quotient(row: Mapping[str, Any] | None, reference: Mapping[str, Any] | None) -> float | None:
    """The smallest active singular value of one site over that of another; None where either has
    none.
    """
    value, below = _value(row, "sigma_active_min"), _value(reference, "sigma_active_min")
    return value / below if value is not None and below else None


def _value(row: Mapping[str, Any] | None, key: str) -> Any:
    return None if row is None else row[key]


def _bottom_or_null(row: Mapping[str, Any] | None, cosine: str, protocol: str = "") -> float | None:
    """A cosine of the bottom vector; with several directions at or below the floor, of the span of
    these.
    """
    if row is None:
        return None
    null = "null_" if row[f"{protocol}null_dimension"] > 1 else ""
    return row[f"{protocol}{null}{cosine}"]


def _post_norm_row(rows: Rows) -> dict[str, Any] | None:
    """The terminal norm's row, else the last block output that is a norm's output; of the most
    accurate forward captured.
    """
    terminal = [row for row in rows if row["tap"] == "terminal_norm"]
    last = max(row["block"] for row in rows)
    candidates = terminal or [
        row for row in rows if row["tap"] == "output" and row["block"] == last and row["norm"]
    ]
    return min(candidates, key=lambda row: ROUNDOFF[row["forward_dtype"]], default=None)


def _terminal_row(rows: Rows, embedding: Mapping[str, Any]) -> dict[str, Any] | None:
    """The terminal norm's row in the embedding's arithmetic: ratios compare like with like."""
    return next(
        (
            row
            for row in rows
            if row["tap"] == "terminal_norm" and row["forward_dtype"] == embedding["forward_dtype"]
        ),
        None,
    )


def measure(
    measurements: Sequence[Measurement], identity: Identity, force_cov32: bool = False
) -> tuple[Rows, Rows, Rows]:
    """(fingerprint, schur, stacks) rows of one checkpoint over all its forward dtypes."""
    fingerprint = [
        row
        for measurement in measurements
        for row in fingerprint_rows(measurement, identity, force_cov32)
    ]
    schur = [
        row
        for measurement in measurements
        for row in schur_rows(measurement, identity, force_cov32)
    ]
    return fingerprint, schur, stack_rows(fingerprint, schur, measurements, identity)
