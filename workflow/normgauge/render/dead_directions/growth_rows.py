"""Rows of the table trained_vs_random: growth of the smallest active singular value along the
depth, in checkpoints and in their re-initialised twins.
"""

from __future__ import annotations

from collections.abc import Sequence

from normgauge.published.cells import (
    Published,
    compare,
    published_columns,
    published_n,
    published_values,
)
from normgauge.render import pooled
from normgauge.render.dead_directions.pools import at_stack, stacks_of
from normgauge.render.rows import Row, Rows
from normgauge.render.subjects import Subject


def trained_vs_random(subjects: Sequence[Subject], published: Sequence[Published]) -> list[Row]:
    """Growth of the smallest active singular value in trained checkpoints against their
    re-initialised twins.

    One row per stack and forward arithmetic; a model known only at random initialisation fills the
    random half.
    """
    rows = []
    for subject in subjects:
        for stack, dtype in stacks_of(subject.stacks, subject.random_stacks):
            own, twins = (
                at_stack(subject.stacks, stack, dtype),
                at_stack(subject.random_stacks, stack, dtype),
            )
            if own or subject.is_random:
                rows.append(_trained_vs_random_row(subject, own, twins, published))
    return rows


GROWTH = {
    "max_ratio": "max_ratio",
    "min_ratio": "min_ratio",
    "first_block_max_ratio": "first_block_max_ratio",
    "body_ratio": "body_ratio",
    "fixed_rank_max_ratio": "fixed_rank_max_ratio",
    "fixed_rank_min_ratio": "fixed_rank_min_ratio",
    "post_norm_ratio": "post_norm_ratio",
    "first_block_post_norm_ratio": "first_block_post_norm_ratio",
    "cos_gamma_inv": "post_norm_cos_gamma_inv",
}
"""Column of the trained-vs-random table, without its half -> column of `stacks`."""


READINGS = {
    "max_ratio": {"X_0": "max_ratio", "X_1": "first_block_max_ratio", "body": "body_ratio"},
    "post_norm_ratio": {"X_0": "post_norm_ratio", "X_1": "first_block_post_norm_ratio"},
}
"""What a published ratio may refer to: the embedding X_0, as the paper's text says, the output X_1
of the first block, or the smallest value of the body. A published number is compared with X_0; the
others are named where they reproduce it.
"""


def _trained_vs_random_row(
    subject: Subject, own: Rows, twins: Rows, published: Sequence[Published]
) -> Row:
    stack = (*own, *twins)[0]
    row: Row = {
        **subject.identity(stack["stack"]),
        **{name: stack[name] for name in ("blocks", "width", "n", "forward_dtype", "accumulation")},
        "random_seeds": len({twin["seed"] for twin in twins}),
        "notes": sorted({flag for each in (*own, *twins) for flag in each["flags"]}),
    }
    for name, column in GROWTH.items():
        row |= {
            f"trained_{name}": own[0][column] if own else None,
            f"trained_{name}_se": own[0][f"{column}_se"] if own else None,
        }
        row |= {
            f"random_{name}": pooled.median(twins, column),
            f"random_{name}_se": pooled.median_error(twins, column),
        }
        row[f"random_{name}_seed_low"], row[f"random_{name}_seed_high"] = pooled.over_seeds(
            twins, column
        )
    columns = published_columns("trained_vs_random")
    model = subject.model if stack["primary"] else None
    row |= published_values(published, "trained_vs_random", model, columns)
    row["published_n"] = published_n(published, "trained_vs_random", model)
    deviations: list[str] = []
    for part in ("trained", "random"):
        row[f"{part}_status"], differing = _half_status(row, part, model, published)
        deviations += [column for column in differing if column not in deviations]
    return row | {
        "deviations": deviations,
        "reproduced_by": _reproducing_readings(row, model, published),
    }


def _half_status(
    row: Row, part: str, model: str | None, published: Sequence[Published]
) -> tuple[str, list[str]]:
    """Status of the trained or the random half against its published numbers, and the columns that
    deviate.
    """
    columns = [f"{part}_{name}" for name in READINGS]
    if all(row[f"published_{column}"] is None for column in columns):
        return "not published", []
    if all(row[column] is None for column in columns):
        return "not measured", []
    return compare(published, "trained_vs_random", model or "", row, [*columns, "blocks"])


def _reproducing_readings(row: Row, model: str | None, published: Sequence[Published]) -> list[str]:
    """`column: reading` for each published ratio and each reading of it within the tolerance."""
    records = {
        record.column: record
        for record in published
        if (record.table, record.model) == ("trained_vs_random", model)
    }
    found = []
    for column, readings in (
        (f"{part}_{name}", READINGS[name]) for part in ("trained", "random") for name in READINGS
    ):
        part, record = column.partition("_")[0], records.get(column)
        for reading, ours in readings.items():
            value = row[f"{part}_{ours}"]
            if record is not None and value is not None and record.matches(value, row["n"]):
                found.append(f"{column}: {reading}")
    return found
