"""Rows of tables 3 and 4: each sublayer's mechanism, pooled over the blocks of a stream."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import permutations
from typing import Any

import numpy

from normgauge.jackknife import standard_error
from normgauge.render.rows import Row, Rows, grouped, known

_EXACT, _DRAWS = 7, 9999
_STREAM = ("model", "revision", "kind", "stack", "forward_dtype")


def table3(rows: Rows) -> list[Row]:
    """Gain concentration and principal angles of each kind of sublayer against the depth profile.
    `rows` are of the schema mechanism; only those with a delta count.
    """
    measured = [row for row in rows if row["delta_variance"] is not None]
    return [
        _table3_row(members)
        for members in grouped(measured, *_STREAM, "sublayer")
        if members[0]["kind"] == "trained"
    ]


def _table3_row(rows: Rows) -> Row:
    first = rows[0]
    gains, name = _concentrations(rows)
    ratios = [row["ratio"] for row in rows]
    worst = _extreme(rows, "ratio", min)
    aligned = _extreme(rows, "mean_cosine", max)
    cancelled = _extreme(rows, "correlation", min)
    cosines = [row["mean_cosine"] for row in rows]
    return {
        **{key: first[key] for key in ("model", "revision", "family", "placement", "norm_kind")},
        **{key: first[key] for key in ("stack", "sublayer", "blocks", "n", "d")},
        **{key: first[key] for key in ("forward_dtype", "accumulation")},
        "min_ratio": worst["ratio"] if worst else None,
        "min_ratio_se": _error(rows, "ratio", worst, lambda values: float(numpy.min(values))),
        "min_ratio_block": worst["block"] if worst else None,
        "share_at_least_one": _share(ratios),
        "gain_norm": name,
        "gain_concentration_median": float(numpy.median(gains)),
        "gain_concentration_largest": max(gains),
        "gains_collapsed": sum(row[f"{_prefix(name)}_collapsed"] for row in rows),
        **_correlated("rho_gain", gains, ratios),
        "directions": first["directions"],
        "max_mean_cosine": aligned["mean_cosine"] if aligned else None,
        "max_mean_cosine_se": aligned["mean_cosine_se"] if aligned else None,
        "max_mean_cosine_block": aligned["block"] if aligned else None,
        "chance_cosine": first["chance_cosine"],
        "chance_cosine_high": first["chance_cosine_high"],
        "blocks_above_chance": sum(
            row["mean_cosine"] > row["chance_cosine_high"] for row in rows if row["mean_cosine"]
        ),
        **_correlated("rho_cosine", cosines, ratios),
        "rho_cosine_se": _rho_error(rows, cosines, ratios),
        "least_correlation": cancelled["correlation"] if cancelled else None,
        "least_correlation_block": cancelled["block"] if cancelled else None,
        "median_delta_share": _median(
            row["delta_variance"] / row["variance"] for row in rows if row["variance"]
        ),
        "blocks_lowered": _count(rows, "lowers"),
    }


def _prefix(name: str) -> str:
    return {"before": "norm", "after": "post_norm"}[name]


def _concentrations(rows: Rows) -> tuple[list[float], str]:
    """Of the norm after the sublayer where there is one, as published, else of that before it."""
    name = "after" if rows[0]["post_norm_concentration"] is not None else "before"
    return [row[f"{_prefix(name)}_concentration"] for row in rows], name


def _extreme(rows: Rows, key: str, choose: Callable[..., Any]) -> Row | None:
    present = [row for row in rows if row[key] is not None]
    return choose(present, key=lambda row: row[key]) if present else None


def _share(ratios: Sequence[float | None]) -> float | None:
    present = [ratio for ratio in ratios if ratio is not None]
    whole = len(present) == len(ratios) and present
    return sum(ratio >= 1 for ratio in present) / len(present) if whole else None


def _median(values: Any) -> float | None:
    collected = list(values)
    return float(numpy.median(collected)) if collected else None


def _count(rows: Rows, key: str) -> int | None:
    values = known(rows, key)
    return sum(values) if values else None


def spearman(first: Sequence[float], second: Sequence[float]) -> float | None:
    """Rank correlation; None where either does not vary."""
    ranks = numpy.stack([_ranks(values) for values in (first, second)])
    if (numpy.ptp(ranks, axis=1) == 0).any():
        return None
    return float(numpy.corrcoef(ranks)[0, 1])


def _ranks(values: Sequence[float]) -> numpy.ndarray:
    """Average ranks of equal values."""
    array = numpy.asarray(values, dtype=float)
    return (array[:, None] > array).sum(1) + ((array[:, None] == array).sum(1) - 1) / 2


def permutation_p(first: Sequence[float], second: Sequence[float]) -> float | None:
    """Two-sided p of the rank correlation over permutations: all of them up to seven values, else
    9,999 seeded ones with the observed one among them.
    """
    observed = spearman(first, second)
    if observed is None:
        return None
    count = len(first)
    if count <= _EXACT:
        orders = [numpy.array(order) for order in permutations(range(count))]
        extra = 0
    else:
        generator = numpy.random.default_rng(0)
        orders = [generator.permutation(count) for _ in range(_DRAWS)]
        extra = 1
    ranks = [_ranks(values) - (count - 1) / 2 for values in (first, second)]
    length = numpy.linalg.norm(ranks[0]) * numpy.linalg.norm(ranks[1])
    drawn = numpy.array([ranks[0] @ ranks[1][order] for order in orders]) / length
    beyond = int((numpy.abs(drawn) >= abs(observed) - 1e-12).sum())
    return (beyond + extra) / (len(orders) + extra)


def _correlated(
    name: str, values: Sequence[float | None], ratios: Sequence[float | None]
) -> dict[str, float | None]:
    """Rank correlation with the log ratio, whose ranks are the ratio's, and its p; null below three
    blocks.
    """
    pairs = [
        (value, ratio)
        for value, ratio in zip(values, ratios, strict=True)
        if value is not None and ratio is not None
    ]
    if len(pairs) < 3:
        return {name: None, f"{name}_p": None}
    first, second = zip(*pairs, strict=True)
    return {name: spearman(first, second), f"{name}_p": permutation_p(first, second)}


def _replicates(rows: Rows, name: str) -> numpy.ndarray | None:
    """(blocks, groups), None where a block has none."""
    found = [dict(row["replicates"] or ()).get(name) for row in rows]
    return None if None in found else numpy.array(found)


def _error(
    rows: Rows, name: str, extreme: Mapping[str, Any] | None, pool: Callable[[Any], float]
) -> float | None:
    replicates = _replicates(rows, name)
    if replicates is None or extreme is None:
        return None
    left = [pool(column) for column in replicates.T]
    return standard_error(extreme[name], left, rows[0]["group_samples"] or [])


def _rho_error(
    rows: Rows, cosines: Sequence[float | None], ratios: Sequence[float | None]
) -> float | None:
    """Jackknife of the rank correlation itself: all blocks are of the same sequences."""
    parts = [_replicates(rows, name) for name in ("mean_cosine", "ratio")]
    if any(part is None for part in parts) or None in cosines or None in ratios or len(rows) < 3:
        return None
    left = [spearman(*columns) for columns in zip(parts[0].T, parts[1].T, strict=True)]  # type: ignore[union-attr]
    if None in left:
        return None
    value = spearman([float(x or 0) for x in cosines], [float(x or 0) for x in ratios])
    return standard_error(value, [float(x or 0) for x in left], rows[0]["group_samples"] or [])


def table4(rows: Rows) -> list[Row]:
    """Norm placement against the depth profile, and which sublayer lowers it: one row per stream.
    `rows` are of the schema mechanism.
    """
    return [_table4_row(members) for members in grouped(rows, *_STREAM)]


def _table4_row(rows: Rows) -> Row:
    first = rows[0]
    blocks = [members[0] for members in grouped(rows, "block")]
    ratios = [row["ratio"] for row in blocks]
    worst = _extreme(blocks, "ratio", min)
    below = [ratio < 1 for ratio in ratios if ratio is not None]
    falls = any(row["ratio"] and row["ratio"] + 2 * (row["ratio_se"] or 0) < 1 for row in blocks)
    return {
        **{key: first[key] for key in ("model", "revision", "kind", "family", "placement")},
        **{key: first[key] for key in ("stack", "blocks", "n", "d")},
        **{key: first[key] for key in ("forward_dtype", "accumulation")},
        "min_ratio": worst["ratio"] if worst else None,
        "min_ratio_se": worst["ratio_se"] if worst else None,
        "blocks_below_one": sum(below) if len(below) == len(ratios) else None,
        "output_ratio": blocks[-1]["ratio"],
        "output_ratio_se": blocks[-1]["ratio_se"],
        "attention_locus": _count(
            [row for row in rows if row["sublayer"] == "attention"], "lowers"
        ),
        "mlp_locus": _count([row for row in rows if row["sublayer"] == "mlp"], "lowers"),
        "verdict": _verdict(falls, any(below), len(below) == len(ratios)),
    }


def _verdict(falls: bool, below: bool, known: bool) -> str:
    """A fall of two standard errors fails; a smaller one is within error."""
    if falls:
        return "fail"
    if not known:
        return "undetermined"
    return "within error" if below else "pass"


def argmin_gamma(
    streams: Sequence[tuple[Mapping[str, Any], Rows]],
) -> list[Row]:
    """|cos(u_bot, e_argmin gamma)| over the sites of each stream.

    streams: a row of the schema stacks, and the rows of the schema fingerprint of its sites in the
    same arithmetic. A cell is a site whose bottom direction is determined.
    """
    return [_argmin_row(stack, rows) for stack, rows in streams if rows]


def _argmin_row(stack: Mapping[str, Any], rows: Rows) -> Row:
    cells = [row for row in rows if row["cos_min_gain"] is not None]
    cosines = [row["cos_min_gain"] for row in cells]
    largest = _extreme(cells, "cos_min_gain", max)
    d, count = rows[0]["d"], len(cells)
    chance = math.sqrt(2 / (math.pi * d))
    deviation = math.sqrt((1 - 2 / math.pi) / d)
    replicates = _replicates(cells, "cos_min_gain") if cells else None
    mean = float(numpy.mean(cosines)) if cosines else None
    return {
        **{key: stack[key] for key in ("model", "revision", "stack", "norm_kind")},
        **{key: rows[0][key] for key in ("forward_dtype", "d", "n")},
        "cells": count,
        "undetermined": len(rows) - count,
        "mean_cosine": mean,
        "mean_cosine_se": None
        if replicates is None
        else standard_error(mean, list(replicates.mean(0)), cells[0]["group_samples"] or []),
        "median_cosine": _median(cosines),
        "largest_cosine": largest["cos_min_gain"] if largest else None,
        "largest_site": largest["site"] if largest else None,
        "chance_cosine": chance,
        "chance_cosine_high": chance + 1.645 * deviation / math.sqrt(max(count, 1)),
        "collapsed_gains": sum(
            members[0]["collapsed_gains"] or 0 for members in grouped(cells, "gamma")
        ),
        "mean_cosine_inverse": float(numpy.mean(known(cells, "cos_gamma_inv")))
        if known(cells, "cos_gamma_inv")
        else None,
    }
