"""From the moments of one checkpoint to its rows: fingerprint, schur, stacks. Pure; the files are in `files`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from normgauge.anatomy.structure import Site
from normgauge.errors import InputError
from normgauge.fingerprint.kernel import NormFacts
from normgauge.fingerprint.profile import behaviour, extreme, norm_kind_from_activations, norm_kind_from_parameters, ratios
from normgauge.fingerprint.protocol import protocol_check, vanishes_along_kernel
from normgauge.fingerprint.schur import schur_columns
from normgauge.fingerprint.spectrum import ROUNDOFF, check_accumulation, limits, spectrum_columns
from normgauge.moments import Moments

Rows = list[dict[str, Any]]
PLACE = ("site", "stack", "block", "tap", "norm", "n", "distinct_rows", "d", "forward_dtype", "accumulation")


@dataclass(frozen=True)
class Measurement:
    """All moments of one checkpoint under one forward dtype: what the rows are computed from."""

    forward_dtype: str
    moments: Mapping[str, Moments]
    sites: Mapping[str, Site]
    norms: Mapping[str, NormFacts]

    def terminal_norm(self, stack: str) -> str | None:
        """The norm at the end of a stream, where that site was captured and there is one."""
        return next((site.norm for site in self.sites.values() if site.stack == stack and site.tap == "terminal_norm"), None)


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


def fingerprint_rows(measurement: Measurement, identity: Identity, force_cov32: bool = False) -> Rows:
    """Rows of schema `fingerprint` for the residual, tap and terminal sites of one measurement.

    1/gamma is the site's own norm's where the activation is a norm's output, else the terminal norm's of its stream (a property of training
    rather than of the architecture: arXiv 2606.19491, A.5). Raises InputError for n <= d and for float32 scatters of massive activations.
    """
    rows = []
    for site in measurement.sites.values():
        if site.group == "schur":
            continue
        moments = measurement.moments[site.id]
        name = site.norm or measurement.terminal_norm(site.stack)
        norm = measurement.norms[name] if name else None
        columns = spectrum_columns(site.id, moments, measurement.forward_dtype, norm)
        check_accumulation(site.id, moments, columns["sigma_max"], force_cov32)
        flags = limits(columns, moments.least_samples, moments.d, norm, identity.precision)
        if site.norm and norm:
            flags += [f"protocol:{fault}" for fault in protocol_check(columns, moments, norm)]
        rows.append({**_place(site, moments, measurement.forward_dtype), **columns, "ratio_to_embedding": None, "flags": flags})
    for stack in identity.blocks:
        members = [row for row in rows if row["stack"] == stack]
        profile = ratios(members)
        for row in members:
            row["ratio_to_embedding"] = profile[row["site"]]
    return sorted(rows, key=_depth)


def schur_rows(measurement: Measurement, identity: Identity, force_cov32: bool = False) -> Rows:
    """Rows of schema `schur` for the Schur sites of one measurement. Raises InputError as `fingerprint_rows`."""
    rows = []
    for site in measurement.sites.values():
        if site.group != "schur":
            continue
        moments = measurement.moments[site.id]
        norm = measurement.norms[site.norm] if site.norm else None
        columns = schur_columns(moments, measurement.forward_dtype, norm)
        check_accumulation(site.id, moments, (moments.n * max(columns["lambda_max"], 0.0)) ** 0.5, force_cov32)
        conditions = {
            "n-over-d-below-10": moments.least_samples < 10 * moments.d,
            "zero-gain": norm is not None and norm.has_zero_gain,
            f"stored-{identity.precision}": identity.precision != "full",
        }
        flags = [flag for flag, holds in conditions.items() if holds]
        rows.append({**_place(site, moments, measurement.forward_dtype), **columns, "flags": flags})
    return sorted(rows, key=_depth)


def _depth(row: Mapping[str, Any]) -> tuple[Any, ...]:
    return row["stack"], row["block"], row["tap"], row["forward_dtype"]


def stack_rows(rows: Rows, measurements: Iterable[Measurement], identity: Identity) -> Rows:
    """Rows of schema `stacks`, one per residual stream, from the fingerprint rows of all forward dtypes."""
    norms = {name: norm for measurement in measurements for name, norm in measurement.norms.items()}
    return [_stack_row([row for row in rows if row["stack"] == stack], stack, norms, identity) for stack in identity.blocks]


def _stack_row(rows: Rows, stack: str, norms: Mapping[str, NormFacts], identity: Identity) -> dict[str, Any]:
    embedding = next((row for row in rows if row["tap"] == "embedding"), None)
    if embedding is None:
        raise InputError(f"{identity.model}, stream {stack}: the group `residual` was not captured; add it to capture.forward_dtypes")
    body = [row for row in rows if row["tap"] == "output" and row["forward_dtype"] == embedding["forward_dtype"]]
    post = _post_norm_row(rows)
    norm = norms[post["norm"]] if post else None
    streams = {row["norm"] for row in rows if row["norm"]}
    by_parameters = norm_kind_from_parameters([norms[name] for name in streams])
    by_activations = norm_kind_from_activations(
        post is not None, vanishes_along_kernel(post) if post else None, bool(norm and norm.has_zero_gain)
    )
    profile = [row["ratio_to_embedding"] for row in body]
    low = extreme(body, "ratio_to_embedding", min)
    width, n = embedding["d"], embedding["n"]
    return {
        "model": identity.model,
        "revision": identity.revision,
        "stack": stack,
        "primary": stack == identity.primary,
        "family": identity.family,
        "provenance": identity.provenance,
        "precision": identity.precision,
        "objective": identity.objective,
        "placement": identity.placement,
        "norm_kind_parameters": by_parameters,
        "norm_kind_activations": by_activations,
        "norm_kinds_agree": by_parameters == by_activations,
        "blocks": identity.blocks[stack],
        "width": width,
        "n": n,
        "n_over_d": n / width,
        "distinct_over_d": embedding["distinct_rows"] / width if embedding["distinct_rows"] else None,
        "forward_dtype": embedding["forward_dtype"],
        "accumulation": embedding["accumulation"],
        "body_sigma_low": _value(extreme(body, "sigma_active_min", min), "sigma_active_min"),
        "body_sigma_high": _value(extreme(body, "sigma_active_min", max), "sigma_active_min"),
        "behaviour": behaviour(
            identity.placement,
            profile,
            [row["active_rank"] for row in body],
            embedding["active_rank"] if embedding["sigma_active_min"] else None,
        ),
        "min_ratio": _value(low, "ratio_to_embedding"),
        "min_ratio_block": _value(low, "block"),
        "max_ratio": _value(extreme(body, "ratio_to_embedding", max), "ratio_to_embedding"),
        "output_ratio": profile[-1] if profile else None,
        "post_norm_ratio": _same_dtype_ratio(rows, embedding),
        "post_norm_forward_dtype": _value(post, "forward_dtype"),
        "post_norm_cos_gamma_inv": _determined_cosine(post),
        "post_norm_null_dimension": _value(post, "null_dimension"),
        "post_norm_cos_ones": _value(post, "cos_ones"),
        "post_norm_raw_cos_gamma_inv": _value(post, "raw_cos_gamma_inv"),
        "post_norm_cos_beta_gamma_inv": _value(post, "cos_beta_gamma_inv"),
        "random_direction_null": width**-0.5,
        "protocol": sorted({f"{row['site']}: {flag}" for row in rows for flag in row["flags"] if flag.startswith("protocol:")}),
        "flags": sorted({flag for row in rows for flag in row["flags"] if not flag.startswith("protocol:")}),
    }


def _value(row: Mapping[str, Any] | None, key: str) -> Any:
    return None if row is None else row[key]


def _determined_cosine(row: Mapping[str, Any] | None) -> float | None:
    """cos_gamma_inv, unless several directions lie below the floor: then u_bot is any of them, and 1/gamma is compared with all."""
    if row is None:
        return None
    return row["cos_gamma_inv"] if row["null_dimension"] <= 1 else row["null_cos_gamma_inv"]


def _post_norm_row(rows: Rows) -> dict[str, Any] | None:
    """The terminal norm's row, else the last block output that is a norm's output; of the most accurate forward captured."""
    terminal = [row for row in rows if row["tap"] == "terminal_norm"]
    last = max(row["block"] for row in rows)
    candidates = terminal or [row for row in rows if row["tap"] == "output" and row["block"] == last and row["norm"]]
    return min(candidates, key=lambda row: ROUNDOFF[row["forward_dtype"]], default=None)


def _same_dtype_ratio(rows: Rows, embedding: Mapping[str, Any]) -> float | None:
    matching = [row for row in rows if row["tap"] == "terminal_norm" and row["forward_dtype"] == embedding["forward_dtype"]]
    return matching[0]["ratio_to_embedding"] if matching else None


def measure(measurements: Sequence[Measurement], identity: Identity, force_cov32: bool = False) -> tuple[Rows, Rows, Rows]:
    """(fingerprint, schur, stacks) rows of one checkpoint over all its forward dtypes."""
    fingerprint = [row for measurement in measurements for row in fingerprint_rows(measurement, identity, force_cov32)]
    schur = [row for measurement in measurements for row in schur_rows(measurement, identity, force_cov32)]
    return fingerprint, schur, stack_rows(fingerprint, measurements, identity)
