"""From site rows to one row per residual stream: depth profile, behaviour, norm kind."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from normgauge.fingerprint.kernel import NormFacts

Row = Mapping[str, Any]
POST_NORM = "post-norm"


def ratios(rows: Sequence[Row]) -> dict[str, float | None]:
    """sigma_active_min over the embedding's, by site, for rows of one stream and one forward dtype; null where either is null."""
    reference = next((row["sigma_active_min"] for row in rows if row["tap"] == "embedding"), None)
    return {row["site"]: row["sigma_active_min"] / reference if reference and row["sigma_active_min"] else None for row in rows}


def behaviour(placement: str, profile: Sequence[float | None], ranks: Sequence[int], embedding_rank: int | None) -> str:
    """The published classes (arXiv 2606.19491, A.5) of a profile of ratios over X_1..X_L.

    depth-invariant: at least 1 at every block; intermediate-dip: below 1 somewhere, at least 1 at the output; depth-decreasing: below 1 at
    the output. The hypothesis needs an identity skip, so it does not apply to post-norm encoders. When a block has fewer active
    directions than the embedding, the smallest active value compares different directions: undetermined.
    """
    if placement == POST_NORM:
        return "not applicable (post-norm)"
    if embedding_rank is None or not profile or any(ratio is None for ratio in profile):
        return "undetermined (below floor)"
    if any(rank < embedding_rank for rank in ranks):
        return "undetermined (rank falls below the embedding's)"
    values = [ratio for ratio in profile if ratio is not None]
    if min(values) >= 1:
        return "depth-invariant"
    return "intermediate-dip" if values[-1] >= 1 else "depth-decreasing"


def norm_kind_from_parameters(norms: Sequence[NormFacts]) -> str:
    """LayerNorm when the stream's norms store biases, else RMSNorm. A LayerNorm without biases reads as RMSNorm; activations tell."""
    if not norms:
        return "undetermined (no norm output captured)"
    return "LayerNorm" if any(norm.bias is not None for norm in norms) else "RMSNorm"


def norm_kind_from_activations(normed: bool, vanishes: bool | None, zero_gain: bool) -> str:
    """LayerNorm when the norm's output vanishes along 1/gamma. With zero gains both kinds vanish there: undetermined.

    normed: whether a norm's output was captured. vanishes: of `vanishes_along_kernel`, None where the floors are too high to tell.
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
