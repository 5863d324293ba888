"""The table of controls, from the tables of the studies alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from normgauge.render.controls.reading import rows_of
from normgauge.render.controls.registry import CONTROLS, SCHEMAS
from normgauge.render.rows import Row, Rows
from normgauge.tables import read_metadata


def controls(inputs: Mapping[str, Sequence[Path]]) -> Rows:
    """The rows of the table `controls`. `inputs`: files by kind of table; kinds without files are
    left out.
    """
    found = {
        kind: [row for path in paths for row in read_rows(kind, path)]
        for kind, paths in inputs.items()
    }
    return [row for control in CONTROLS for row in rows_of(control, found.get(control.table, ()))]


def read_rows(kind: str, path: Path) -> Iterator[Row]:
    """Rows of a study's table; where they do not name their models, as `model` and `revision` or as
    `pair`, its metadata does.
    """
    metadata = read_metadata(path)
    owner: dict[str, Any] = {key: metadata[key] for key in ("model", "revision") if key in metadata}
    if "model_a" in metadata:
        owner = {
            "pair": " to ".join(
                f"{metadata[f'model_{side}']}@{metadata[f'revision_{side}']}" for side in "ab"
            )
        }
    for row in SCHEMAS[kind][0].read(path, kind):
        yield {**owner, **row}


BUILDERS = {"controls": controls}
