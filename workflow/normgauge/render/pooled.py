"""Numbers pooled from several rows, with their two uncertainties: over sequences and over seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy

from normgauge.jackknife import standard_error

Row = Mapping[str, Any]


def median(rows: Sequence[Row], column: str) -> float | None:
    """Over the rows where the column is not null; None without any."""
    known = [row[column] for row in rows if row[column] is not None]
    return float(numpy.median(known)) if known else None


def median_error(rows: Sequence[Row], column: str, statistic: str | None = None) -> float | None:
    """Standard error over sequences of `median`: the jackknife of the median itself.

    All rows are of the same sequences, so without a group of them every row changes together. None
    where a row's own value has no replicates. statistic: their name, that of the column by default.
    """
    known = [row for row in rows if row[column] is not None]
    replicates = [dict(row["replicates"] or ()).get(statistic or column) for row in known]
    samples = [row["group_samples"] for row in known]
    if not known or None in replicates or any(each != samples[0] for each in samples):
        return None
    return standard_error(
        median(known, column), numpy.median(numpy.array(replicates), axis=0), samples[0]
    )


def over_seeds(rows: Sequence[Row], column: str) -> tuple[float | None, float | None]:
    """The smallest and the largest over seeds of the median over each seed's rows; None without
    seeds.
    """
    seeds: dict[int, list[Row]] = {}
    for row in rows:
        if "seed" in row:
            seeds.setdefault(row["seed"], []).append(row)
    medians = [
        value for members in seeds.values() if (value := median(members, column)) is not None
    ]
    return (min(medians), max(medians)) if medians else (None, None)
