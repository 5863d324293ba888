"""Rows of table 2: the residual-stream fingerprint of each stack, and of its twins pooled."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import numpy
import pyarrow as pa

from normgauge.published.cells import (
    GROWS_WITH_SAMPLES,
    Published,
    compare,
    published_columns,
    published_n,
    published_values,
)
from normgauge.render import pooled
from normgauge.render.dead_directions.pools import at_stack, stacks_of
from normgauge.render.rows import Row, Rows
from normgauge.render.subjects import RANDOM, Subject
from normgauge.schemas.fingerprint import tables
from normgauge.tables import BOOL, FLOAT, STRING, STRINGS


def table2(subjects: Sequence[Subject], published: Sequence[Published]) -> list[Row]:
    """Residual-stream fingerprint: a row per stack of each checkpoint, followed by one that pools
    its re-initialised twins.
    """
    rows = []
    for subject in subjects:
        names = stacks_of(subject.stacks, subject.random_stacks)
        for stack, dtype in names:
            for own in at_stack(subject.stacks, stack, dtype):
                rows.append(_table2_row(subject, "trained", 0, own, published) | _seed_ranges(()))
            twins = at_stack(subject.random_stacks, stack, dtype)
            if twins:
                kind = RANDOM if subject.is_random else "re-initialised"
                seeds = len({row["seed"] for row in twins})
                rows.append(
                    _table2_row(subject, kind, seeds, _pool_stacks(twins), published)
                    | _seed_ranges(twins)
                )
    return rows


def _seed_ranges(twins: Rows) -> Row:
    """The smallest and the largest over seeds of the numbers that table 2 prints."""
    columns = ("body_sigma_low", "body_sigma_high", "post_norm_cos_gamma_inv", "post_norm_cos_ones")
    ends = {column: pooled.over_seeds(twins, column) for column in columns}
    return {
        f"{column}_seed_{end}": value
        for column, pair in ends.items()
        for end, value in zip(("low", "high"), pair, strict=True)
    }


def _table2_row(
    subject: Subject, kind: str, seeds: int, stack: Row, published: Sequence[Published]
) -> Row:
    own = {name: value for name, value in stack.items() if name in tables.schemas["table2"].names}
    row = {
        **own,
        "model": subject.model,
        "revision": subject.revision,
        "kind": kind,
        "seeds": seeds,
    }
    row |= {"stored_as": subject.stored_as, "inputs": subject.inputs}
    columns = published_columns("table2")
    model = subject.model if kind == "trained" and stack["primary"] else None
    row |= published_values(published, "table2", model, columns)
    row |= _per_root_n(row, published, model)
    status, deviations = compare(published, "table2", model or "", row, columns)
    return row | {"status": status, "deviations": deviations}


def _per_root_n(row: Row, published: Sequence[Published], model: str | None) -> Row:
    """The singular values of a table-2 row over sqrt(n), ours and the published ones with their own
    n.
    """
    samples = published_n(published, "table2", model)
    return {"published_n": samples} | {
        f"{prefix}{column}_per_sqrt_n": _over_root(row[f"{prefix}{column}"], n)
        for prefix, n in (("", row["n"]), ("published_", samples))
        for column in GROWS_WITH_SAMPLES
    }


def _over_root(value: float | None, n: int | None) -> float | None:
    return None if value is None or n is None else value / math.sqrt(n)


def _pool_stacks(rows: Rows) -> Row:
    """One row of the stacks schema from several seeds: medians of numbers with the errors of these,
    words with their counts where seeds differ, the union of lists.

    An integer stays only where all seeds agree, a truth only where it holds for all.
    """
    fields = [
        field
        for field in tables.schemas["stacks"]
        if field.name not in {"group_samples", "replicates"}
    ]
    found = {
        field.name: _pool_values(field.type, [row[field.name] for row in rows]) for field in fields
    }
    errors = [name for name in found if name.endswith("_se")]
    return found | {name: pooled.median_error(rows, name.removesuffix("_se")) for name in errors}


def _pool_values(kind: pa.DataType, values: Sequence[Any]) -> Any:
    if kind == FLOAT:
        return _median(values)
    if kind == STRINGS:
        return sorted({item for value in values for item in value})
    if kind == BOOL:
        return all(values)
    counts = Counter(values)
    if len(counts) == 1:
        return values[0]
    if kind == STRING:
        return ", ".join(
            f"{word} ({count}/{len(values)})"
            for word, count in sorted(counts.items(), key=lambda item: (-item[1], str(item[0])))
        )
    return None


def _median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(numpy.median(known)) if known else None
