"""The tables that are the files of one experiment one below the other, and those of the
mechanism.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from normgauge.render.dead_directions.mechanism_rows import argmin_gamma, table3, table4
from normgauge.render.rows import Row, Rows
from normgauge.schemas import fingerprint
from normgauge.schemas.dead_directions import tables

Inputs = Mapping[str, Sequence[Path]]


@dataclass(frozen=True)
class Gathered:
    """The rows of all files of one kind, in the order of the files."""

    kind: str

    def __call__(self, inputs: Inputs) -> Rows:
        return [row for path in inputs[self.kind] for row in tables.read(path, self.kind)]


@dataclass(frozen=True)
class OfMechanism:
    """A table of the rows of the schema mechanism, from the files of its own name."""

    table: str
    build: Callable[[Rows], list[Row]]

    def __call__(self, inputs: Inputs) -> Rows:
        rows = [row for path in inputs[self.table] for row in tables.read(path, "mechanism")]
        return self.build(rows)


def argmin_table(inputs: Inputs) -> Rows:
    """From the files `fingerprint` and `stacks` of checkpoints."""
    paths = inputs["argmin_gamma"]
    streams = []
    for stacks in (path for path in paths if path.stem == "stacks"):
        rows = fingerprint.tables.read(stacks.with_stem("fingerprint"), "fingerprint")
        for stack in fingerprint.tables.read(stacks, "stacks"):
            if stack["provenance"] != "random initialisation":  # gains there are all equal
                streams.append((stack, [row for row in rows if _of(row, stack)]))
    return argmin_gamma(streams)


def _of(row: Row, stack: Row) -> bool:
    return all(row[key] == stack[key] for key in ("stack", "forward_dtype"))


@dataclass(frozen=True)
class OfTrajectories:
    """The rows of the schema trajectory, from the files of the table's own name."""

    table: str

    def __call__(self, inputs: Inputs) -> Rows:
        return [row for path in inputs[self.table] for row in tables.read(path, "trajectory")]


BUILDERS: dict[str, Callable[[Inputs], Rows]] = {
    "table3": OfMechanism("table3", table3),
    "table4": OfMechanism("table4", table4),
    "argmin_gamma": argmin_table,
    "figure2": OfTrajectories("figure2"),
    "figure5": OfTrajectories("figure5"),
    **{
        name: Gathered(name)
        for name in (
            *("table5", "table6", "figure7", "estimators", "sample_budget", "precision"),
            *("norm_zoo", "constrained_artifacts"),
        )
    },
}
"""What makes each table from files."""
