"""Tables whose rows come from one measurement of each checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from normgauge.render.rows import Rows
from normgauge.tables import Tables, read_metadata

IDENTITY = ("model", "revision", "norm_kind", "placement")


@dataclass(frozen=True)
class OfCheckpoints:
    """A table from one measurement of each checkpoint: the study's schemas, what its files are
    called, the kind of table that they hold, and what makes rows of one checkpoint from it.
    """

    tables: Tables
    measured: str
    kind: str
    build: Callable[[Rows], Rows]

    def __call__(self, inputs: Mapping[str, Sequence[Path]]) -> Rows:
        rows = []
        for path in inputs[self.measured]:
            metadata = read_metadata(path)
            identity = {key: metadata[key] for key in IDENTITY}
            rows += [{**identity, **row} for row in self.build(self.tables.read(path, self.kind))]
        return rows
