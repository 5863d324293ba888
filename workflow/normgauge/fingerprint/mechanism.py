"""Why the smallest singular value of the stream rises or falls: each sublayer against what it adds.

A block adds deltas to the stream. Its smallest singular value falls at a sublayer when the delta
cancels the stream along a bottom direction, which the corollary excludes by hypothesis (arXiv
2606.19491, Remark 59). The paper tries two mechanisms (A.6): gains of the norm after the sublayer
that concentrate on few coordinates, and bottom directions of the stream that lie in the delta's top
directions. Both are columns here, and beside them the cancellation itself: with u the bottom
direction of the block's input, Var(u x') = Var(u x) + Var(u delta) + 2 Cov(u x, u delta).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from scipy.linalg import eigh

from normgauge.anatomy.structure import Site
from normgauge.fingerprint.jackknife import bottoms_without, group_samples
from normgauge.fingerprint.kernel import COLLAPSED, NormFacts
from normgauge.fingerprint.study import Identity, Measurement, Rows
from normgauge.jackknife import standard_error
from normgauge.moments import Moments
from normgauge.moments.algebra import one_thread

Row = Mapping[str, Any]
DIRECTIONS = 8
"""Bottom directions of the stream and top ones of a delta that are compared (A.6: bottom-k, k =
8).
"""
ORDER = (
    ("attention", "after_attention", "query_key_value_input"),
    ("cross_attention", "after_cross_attention", None),
    ("mlp", "output", "mlp_up_input"),
)
"""A sublayer, the tap of the stream after it, and the Schur site that its norm feeds."""
RANDOM = "random initialisation"
_DRAWS = 200


@dataclass(frozen=True)
class Sublayer:
    """A sublayer of one block: sites of the stream before and after it and of what it adds, where
    they were captured, and the norms before and after the sublayer, where known.
    """

    name: str
    before: Site | None
    after: Site | None
    delta: Site | None
    norm: str | None


def mechanism_rows(
    measurements: Sequence[Measurement], identity: Identity, fingerprint: Rows
) -> Rows:
    """Rows of schema `mechanism`: one per sublayer of each stream that has identity skips, in the
    arithmetic in which the stream was captured.

    fingerprint: rows of the same measurements. Empty for post-norm models, which have no skip past
    their norms.
    """
    if identity.placement == "post-norm":
        return []
    sites = [site for each in measurements for site in each.sites.values()]
    fed = {(site.stack, site.block, site.tap): site.norm for site in sites if site.norm}
    return [
        _row(measurement, identity, sublayer, block, stack, rows)
        for measurement in measurements
        for stack, blocks in identity.blocks.items()
        if any(
            site.tap == "embedding" and site.stack == stack for site in measurement.sites.values()
        )
        for rows in [_of(fingerprint, measurement, stack)]
        for block in range(1, blocks + 1)
        for sublayer in _sublayers(measurement, stack, block, fed)
    ]


def _of(fingerprint: Rows, measurement: Measurement, stack: str) -> dict[str, Row]:
    return {
        row["site"]: row
        for row in fingerprint
        if (row["stack"], row["forward_dtype"]) == (stack, measurement.forward_dtype)
    }


def _sublayers(
    measurement: Measurement, stack: str, block: int, fed: Mapping[tuple[str, int, str], str]
) -> Iterable[Sublayer]:
    """In the order of the block. Without taps (parallel sublayers) nothing stands between input and
    output.
    """
    found = {
        (site.block, site.tap): site for site in measurement.sites.values() if site.stack == stack
    }
    present = [
        entry
        for entry in ORDER
        if (block, f"{entry[0]}_delta") in found or (block, entry[1]) in found
    ]
    parallel = (block, "after_attention") not in found
    before = found.get((block - 1, "output"), found.get((0, "embedding")))
    for name, tap, schur in present:
        after = None if parallel else found.get((block, tap))
        norm = fed.get((stack, block, schur)) if schur else None
        if not norm and before is not None and before.tap.startswith("after"):
            norm = before.module  # a tap is read where it enters the next norm
        yield Sublayer(
            name, None if parallel else before, after, found.get((block, f"{name}_delta")), norm
        )
        before = after


def _row(
    measurement: Measurement,
    identity: Identity,
    sublayer: Sublayer,
    block: int,
    stack: str,
    rows: Mapping[str, Row],
) -> dict[str, Any]:
    start = f"{stack}/embedding" if block == 1 else f"{stack}/block.{block - 1}/output"
    end = rows[f"{stack}/block.{block}/output"]
    before, after = (
        None if site is None else rows[site.id] for site in (sublayer.before, sublayer.after)
    )
    stream = measurement.moments[start]
    post = None if sublayer.delta is None else sublayer.delta.norm
    norms = measurement.norms
    return {
        "model": identity.model,
        "revision": identity.revision,
        "kind": "random initialisation" if identity.provenance == RANDOM else "trained",
        "family": identity.family,
        "placement": identity.placement,
        "stack": stack,
        "blocks": identity.blocks[stack],
        "block": block,
        "sublayer": sublayer.name,
        "norm_kind": norms[sublayer.norm].kind if sublayer.norm else None,
        "n": stream.n,
        "d": stream.d,
        "forward_dtype": measurement.forward_dtype,
        "accumulation": stream.method,
        "ratio": end["fixed_rank_ratio"],
        "ratio_se": end["fixed_rank_ratio_se"],
        "ratio_to_embedding": end["ratio_to_embedding"],
        "ratio_before": _ratio(before),
        "ratio_after": _ratio(after),
        "lowers": _lowers(before, after),
        "effective_rank_before": before["effective_rank"] if before else None,
        "effective_rank_after": after["effective_rank"] if after else None,
        **_gain_columns("norm", norms.get(sublayer.norm or "")),
        **_gain_columns("post_norm", norms.get(post or "")),
        **_alignment_columns(measurement, stream, sublayer, rows[start], end),
    }


def _ratio(row: Row | None) -> float | None:
    """To the embedding, whose own ratio is 1."""
    if row is None:
        return None
    return 1.0 if row["tap"] == "embedding" else row["fixed_rank_ratio"]


def _lowers(before: Row | None, after: Row | None) -> bool | None:
    """Whether the smallest singular value is lower after the sublayer; None where either is not
    known.
    """
    first, second = _ratio(before), _ratio(after)
    return None if first is None or second is None else bool(second < first)


def _gain_columns(prefix: str, norm: NormFacts | None) -> dict[str, Any]:
    """The published concentration, max |gamma| / mean |gamma|, the smallest over the mean, and
    collapsed gains.
    """
    if norm is None:
        return dict.fromkeys(
            (f"{prefix}_concentration", f"{prefix}_least_share", f"{prefix}_collapsed")
        )
    sizes = np.abs(norm.gain)
    return {
        f"{prefix}_concentration": float(sizes.max() / sizes.mean()),
        f"{prefix}_least_share": float(sizes.min() / sizes.mean()),
        f"{prefix}_collapsed": int((sizes < COLLAPSED * sizes.mean()).sum()),
    }


def _alignment_columns(
    measurement: Measurement, stream: Moments, sublayer: Sublayer, start: Row, end: Row
) -> dict[str, Any]:
    """Principal cosines and the cancellation along the bottom direction; null without the delta or
    where the stream's bottom lies below the floor.
    """
    names = (
        *("directions", "mean_cosine", "mean_cosine_se", "largest_cosine", "rms_cosine"),
        *("chance_cosine", "chance_cosine_high", "delta_share", "variance", "delta_variance"),
        *("covariance", "correlation", "group_samples"),
    )
    empty = dict.fromkeys(names) | {"replicates": []}
    count = min(DIRECTIONS, stream.d // 4)
    if sublayer.delta is None or start["active_rank"] < 2 * count:
        return empty
    delta = measurement.moments[sublayer.delta.id]
    null = start["null_dimension"]
    bottom = stream.spectrum().bottom(null + count)[:, null:]
    top, share = top_directions(delta, count)
    cosines = principal_cosines(bottom, top)
    chance, high = chance_cosines(stream.d, count)
    samples = group_samples(stream)
    left = bottoms_without(stream, True, null, start["sigma_active_min"], count) if samples else []
    means = [float(principal_cosines(each.vectors, top).mean()) for each in left]
    error = standard_error(float(cosines.mean()), means, samples)
    ratios = dict(end["replicates"]).get("fixed_rank_ratio")
    replicates = [("mean_cosine", means)] if error is not None else []
    replicates += [("ratio", ratios)] if ratios else []
    return empty | {
        "directions": count,
        "mean_cosine": float(cosines.mean()),
        "mean_cosine_se": error,
        "largest_cosine": float(cosines[0]),
        "rms_cosine": float(np.sqrt((cosines**2).mean())),
        "chance_cosine": chance,
        "chance_cosine_high": high,
        "delta_share": share,
        **_cancellation(measurement, sublayer, delta, bottom[:, 0], start),
        "group_samples": samples or None,
        "replicates": replicates,
    }


def _cancellation(
    measurement: Measurement, sublayer: Sublayer, delta: Moments, u: np.ndarray, start: Row
) -> dict[str, Any]:
    """Variances along u before the sublayer, of what it adds, and the covariance of the two from
    that after it.

    The covariance is what the three second moments leave; null where the delta's variance is no
    more than the floor of the stream.
    """
    if sublayer.before is None or sublayer.after is None:
        return {"delta_variance": _variance(delta, u)}
    before, after = (
        _variance(measurement.moments[site.id], u) for site in (sublayer.before, sublayer.after)
    )
    added = _variance(delta, u)
    floor = max(start["forward_floor"], start["accumulator_floor"]) ** 2 / delta.n
    if added <= floor:
        return {"variance": before, "delta_variance": added}
    covariance = (after - before - added) / 2
    return {
        "variance": before,
        "delta_variance": added,
        "covariance": covariance,
        "correlation": float(np.clip(covariance / np.sqrt(before * added), -1.0, 1.0)),
    }


def _variance(moments: Moments, direction: np.ndarray) -> float:
    return float(moments.length_along(direction) ** 2 / moments.n)


def top_directions(moments: Moments, count: int) -> tuple[np.ndarray, float]:
    """(d, count) orthonormal directions of the largest variance, and their share of it."""
    scatter = moments.scatter()
    d = moments.d
    with one_thread():
        values, vectors = eigh(scatter, subset_by_index=[d - count, d - 1])
    return vectors, float(values.sum() / np.trace(scatter))


def principal_cosines(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Cosines of the principal angles of two subspaces, descending (Björck and Golub 1973); the
    columns of each (d, k) are orthonormal.
    """
    return np.minimum(np.linalg.svd(first.T @ second, compute_uv=False), 1.0)


@cache
def chance_cosines(d: int, count: int) -> tuple[float, float]:
    """Mean principal cosine of two random subspaces of `count` of d dimensions: its mean and its 95
    % quantile over 200 seeded draws.
    """
    generator = np.random.default_rng(0)
    drawn = []
    for _ in range(_DRAWS):
        basis = np.linalg.qr(generator.standard_normal((d, count)))[0]
        drawn.append(float(np.linalg.svd(basis[:count], compute_uv=False).mean()))
    return float(np.mean(drawn)), float(np.quantile(drawn, 0.95))
