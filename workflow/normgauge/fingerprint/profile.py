"""From site rows to one row per residual stream: depth profile, behaviour, norm kind."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from normgauge.fingerprint.kernel import NormFacts

Row = Mapping[str, Any]
POST_NORM = "post-norm"


def ratio_columns(rows: Sequence[Row]) -> dict[str, Row]:
    """The columns that compare a site with its stream's embedding X_0, by site, for rows of one
    stream and one forward dtype.

    ratio_to_embedding compares the smallest active singular values, as the published tables do.
    fixed_rank_ratio compares the same one, the r0-th, r0 = active rank of X_0, as the corollary
    does (arXiv 2606.19491, A.2); where it lies below the floor, fixed_rank_ratio_upper is the floor
    over that of X_0. All null without a value at X_0.
    """
    reference = next((row["sigma_active_min"] for row in rows if row["tap"] == "embedding"), None)
    return {row["site"]: _ratios(row, reference) for row in rows}


def _ratios(row: Row, reference: float | None) -> Row:
    def over(value: float | None) -> float | None:
        return value / reference if reference and value else None

    fixed = over(row["sigma_at_rank"])
    floor = max(row["forward_floor"], row["accumulator_floor"])
    return {
        "ratio_to_embedding": over(row["sigma_active_min"]),
        "fixed_rank_ratio": fixed,
        "fixed_rank_ratio_upper": over(floor) if fixed is None else None,
    }


def behaviour(
    placement: str, profile: Sequence[float | None], upper: Sequence[float | None] | None = None
) -> str:
    """The published classes (arXiv 2606.19491, A.5) of a profile of ratios over X_1..X_L.

    depth-invariant: at least 1 at every block; intermediate-dip: below 1 somewhere, at least 1 at
    the output; depth-decreasing: below 1 at the output. A ratio that is null may still be known to
    be below 1 by its `upper` bound; else what hangs on it is undetermined. The hypothesis needs an
    identity skip, so it does not apply to post-norm encoders.
    """
    if placement == POST_NORM:
        return "not applicable (post-norm)"
    falls = [_falls(*ratio) for ratio in zip(profile, upper or [None] * len(profile), strict=True)]
    if falls and falls[-1]:
        return "depth-decreasing"
    if not falls or falls[-1] is None or (None in falls and True not in falls):
        return "undetermined (below floor)"
    return "intermediate-dip" if True in falls else "depth-invariant"


def _falls(ratio: float | None, upper: float | None) -> bool | None:
    if ratio is not None:
        return ratio < 1
    return True if upper is not None and upper < 1 else None


def norm_kind(norms: Sequence[NormFacts]) -> str:
    """LayerNorm or RMSNorm, by the classes of the norms on the stream."""
    return (
        ", ".join(sorted({norm.kind for norm in norms})) or "undetermined (no norm output captured)"
    )


def norm_kind_from_parameters(norms: Sequence[NormFacts]) -> str:
    """LayerNorm when the stream's norms store biases, else RMSNorm. A LayerNorm without biases
    reads as RMSNorm; activations tell.
    """
    if not norms:
        return "undetermined (no norm output captured)"
    return "LayerNorm" if any(norm.bias is not None for norm in norms) else "RMSNorm"


def norm_kind_from_activations(normed: bool, vanishes: bool | None, zero_gain: bool) -> str:
    """LayerNorm when the norm's output vanishes along 1/gamma. With zero gains both kinds vanish
    there: undetermined.

    normed: whether a norm's output was captured. vanishes: of `vanishes_along_kernel`, None where
        the floors are too high to tell.
    """
    if not normed:
        return "undetermined (no norm output on the stream)"
    if zero_gain:
        return "undetermined (zero gain)"
    if vanishes is None:
        return "undetermined (below floor)"
    return "LayerNorm" if vanishes else "RMSNorm"


def extreme(rows: Sequence[Row], key: str, choose: Any) -> Row | None:
    """The row whose `key` is extreme (choose = min or max) among those where it is not null."""
    present = [row for row in rows if row[key] is not None]
    return choose(present, key=lambda row: row[key]) if present else None
