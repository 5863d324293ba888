"""Rows of table 1: the Schur delta at the query/key/value input, pooled over blocks and seeds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy

from normgauge.published.cells import Published, compare, published_columns, published_values
from normgauge.render import pooled
from normgauge.render.dead_directions.pools import at_stack, stacks_of
from normgauge.render.rows import Row, Rows
from normgauge.render.subjects import Subject

SCHUR_TAP = "query_key_value_input"
STATISTICS = ("median", "first_quartile", "third_quartile")


def table1(subjects: Sequence[Subject], published: Sequence[Published]) -> list[Row]:
    """Schur delta at the query/key/value input, pooled over blocks (and seeds), one row per stack
    and forward arithmetic.
    """
    rows = []
    for subject in subjects:
        trained = [row for row in subject.schur if row["tap"] == SCHUR_TAP]
        random = [row for row in subject.random_schur if row["tap"] == SCHUR_TAP]
        for stack, dtype in stacks_of(trained, random):
            rows.append(
                _table1_row(
                    subject,
                    stack,
                    dtype,
                    at_stack(trained, stack, dtype),
                    at_stack(random, stack, dtype),
                    published,
                )
            )
    return rows


def _table1_row(
    subject: Subject,
    stack: str,
    dtype: str,
    trained: Rows,
    random: Rows,
    published: Sequence[Published],
) -> Row:
    first = (*trained, *random)[0]
    row: Row = {
        **subject.identity(stack),
        "width": first["d"],
        "n": first["n"],
        "forward_dtype": dtype,
        "accumulation": first["accumulation"],
        "random_seeds": len({each["seed"] for each in random}),
        **_delta_statistics("random", random),
        **_delta_statistics("trained", trained),
        **_directional_beat(trained),
    }
    resolved = [
        each | {"delta": known_delta(each)}
        for each in random
        if each["delta_recovered"] is not None
    ]
    row["random_median_seed_low"], row["random_median_seed_high"] = pooled.over_seeds(
        resolved, "delta"
    )
    model = subject.model if subject.stack(stack)["primary"] else None
    row |= published_values(published, "table1", model, published_columns("table1"))
    deviations: list[str] = []
    for part in ("random", "trained"):
        columns = [
            f"{part}_{statistic}" for statistic in ("median", "first_quartile", "third_quartile")
        ]
        if not any(row.get(f"published_{column}") is not None for column in columns):
            status = "not published"
        elif mostly_below_floor(row, part):
            status = "below floor"
        elif row[f"{part}_median"] is None:
            status = "not measured"
        else:
            status, differing = compare(
                published, "table1", subject.model, row, [*columns, "width"]
            )
            if row[f"{part}_lower_bound"] and all(
                _may_still_reach(row, column) for column in differing
            ):
                status, differing = ("lower bound" if differing else status), []
            deviations += [column for column in differing if column not in deviations]
        row[f"{part}_status"] = status
    return row | {"deviations": deviations}


def _may_still_reach(row: Row, column: str) -> bool:
    """Whether a value that is a lower bound lies below the published one, so that it does not speak
    against it.
    """
    published = row.get(f"published_{column}")
    return published is not None and row[column] < published


def known_delta(row: Row) -> float:
    """delta of a schur row, or its lower bound where no more is known."""
    return float(row["delta_recovered"] if row["delta_lower"] is None else row["delta_lower"])


def _delta_statistics(part: str, rows: Rows) -> Row:
    """Median and quartiles of delta where it is defined, the share below floor, the eigenvalue
    scale beside its floor, and the prediction.

    A lower bound counts as its value: the median is then one as well, unless all bounds lie above
        it, where the true values would too.
    """
    defined = [
        row | {"delta": known_delta(row)} for row in rows if row["delta_recovered"] is not None
    ]
    low, median, high = _percentiles(row["delta"] for row in defined)
    bounds = [row["delta_lower"] for row in defined if row["delta_lower"] is not None]
    ratio = pooled.median(defined, "predicted_ratio")
    return {
        f"{part}_values": len(defined),
        f"{part}_median": median,
        f"{part}_median_se": pooled.median_error(defined, "delta"),
        f"{part}_lower_bound": median is not None and any(bound <= median for bound in bounds),
        f"{part}_predicted": None if ratio is None else 1 - ratio,
        f"{part}_predicted_se": pooled.median_error(defined, "predicted_ratio"),
        f"{part}_mahalanobis_squared": pooled.median(defined, "mahalanobis_squared"),
        f"{part}_mahalanobis_squared_se": pooled.median_error(defined, "mahalanobis_squared"),
        f"{part}_bottom_cos_gamma_inv": pooled.median(defined, "bottom_cos_gamma_inv"),
        f"{part}_bottom_cos_gamma_inv_se": pooled.median_error(defined, "bottom_cos_gamma_inv"),
        f"{part}_first_quartile": low,
        f"{part}_third_quartile": high,
        f"{part}_below_floor": _mean(float(row["below_floor"]) for row in defined),
        f"{part}_quadratic_form": pooled.median(defined, "quadratic_form"),
        f"{part}_floor": pooled.median(defined, "floor"),
    }


def _directional_beat(rows: Rows) -> Row:
    """(beta . u)^2, and how much less varies along u than along the best axis: the published
    directional beat over the axis-aligned default, of rows whose u^T A u lies above its floor.
    """
    beats = [
        row["axis_minimum"] / row["quadratic_form"]
        for row in rows
        if row["quadratic_form"] and row["quadratic_form"] > row["floor"]
    ]
    return {
        "trained_bias_form": pooled.median(rows, "predicted_quadratic_form"),
        "trained_directional_beat": float(numpy.median(beats)) if beats else None,
        "trained_directional_beat_low": min(beats, default=None),
        "trained_directional_beat_high": max(beats, default=None),
    }


def mostly_below_floor(row: Mapping[str, Any], part: str) -> bool:
    """Whether the median of this part ("random", "trained") of a table-1 row rests on noise: half
    of its values or more are below floor.
    """
    share = row[f"{part}_below_floor"]
    return share is not None and share >= 0.5


def _percentiles(values: Iterable[float]) -> tuple[float | None, float | None, float | None]:
    collected = list(values)
    if not collected:
        return None, None, None
    low, median, high = numpy.percentile(collected, (25, 50, 75))
    return float(low), float(median), float(high)


def _mean(values: Iterable[float]) -> float | None:
    collected = list(values)
    return float(numpy.mean(collected)) if collected else None
