"""The one function that writes any table of results."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from normgauge.render.checkpoint_comparison import tables as checkpoint_comparison
from normgauge.render.controls import tables as controls
from normgauge.render.dead_directions import experiment_rows
from normgauge.render.dead_directions import tables as dead_directions
from normgauge.render.learned_artifacts import tables as learned_artifacts
from normgauge.render.rows import Rows
from normgauge.render.signed_permutation import tables as signed_permutation
from normgauge.schemas import checkpoint_comparison as comparison_schemas
from normgauge.schemas import controls as controls_schemas
from normgauge.schemas import dead_directions as dead_schemas
from normgauge.schemas import fingerprint as fingerprint_schemas
from normgauge.schemas import learned_artifacts as learned_schemas
from normgauge.schemas import signed_permutation as gauge_schemas
from normgauge.tables import Tables

Inputs = Mapping[str, Sequence[Path]]
Builder = Callable[[Inputs], Rows]

STUDIES: tuple[tuple[Tables, Mapping[str, Builder]], ...] = (
    (fingerprint_schemas.tables, dead_directions.BUILDERS),
    (dead_schemas.tables, experiment_rows.BUILDERS),
    (gauge_schemas.tables, signed_permutation.BUILDERS),
    (learned_schemas.tables, learned_artifacts.BUILDERS),
    (comparison_schemas.tables, checkpoint_comparison.BUILDERS),
    (controls_schemas.tables, controls.BUILDERS),
)
"""The schemas of each study, and what makes each of its tables from files."""


def write_table(name: str, inputs: Inputs, parquet: Path, csv: Path) -> None:
    """Make the table `name` (a key of the BUILDERS of a study) and write it as parquet and CSV.

    inputs: files by what they are; checkpoints and pairs stand in the table in their order.
    InputError when a needed file is missing or is not what its name says.
    """
    tables, builders = next((tables, made) for tables, made in STUDIES if name in made)
    rows = builders[name](inputs)
    tables.write(parquet, name, rows, {})
    tables.write_csv(csv, name, rows)
