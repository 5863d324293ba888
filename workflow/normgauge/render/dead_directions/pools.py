"""What the tables of the dead directions share: rows of one stack, and medians over some."""

from __future__ import annotations

from normgauge.render.rows import Row, Rows, unique


def stacks_of(*rows: Rows) -> list[tuple[str, str]]:
    """Stack and forward arithmetic of the rows, each pair once."""
    return unique((row["stack"], row["forward_dtype"]) for each in rows for row in each)


def at_stack(rows: Rows, stack: str, dtype: str) -> list[Row]:
    return [row for row in rows if (row["stack"], row["forward_dtype"]) == (stack, dtype)]


def labelled(trained: Rows, random: Rows) -> list[tuple[str, Row]]:
    """Rows of the checkpoint and of its twins, each with the word for what it is of."""
    return [*(("trained", row) for row in trained), *(("re-initialised", row) for row in random)]
