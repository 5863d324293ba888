"""The one function that draws and saves any table or figure of any study."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from normgauge.errors import InputError
from normgauge.render import style
from normgauge.render.checkpoint_comparison import drawings as checkpoint_comparison
from normgauge.render.controls import drawings as controls
from normgauge.render.dead_directions import drawings as dead_directions
from normgauge.render.dead_directions import experiments
from normgauge.render.declared import Drawing
from normgauge.render.discrete_laws import drawings as discrete_laws
from normgauge.render.exact_recovery import drawings as exact_recovery
from normgauge.render.learned_artifacts import drawings as learned_artifacts
from normgauge.render.ledger import drawings as ledger
from normgauge.render.lineage import drawings as lineage
from normgauge.render.redundancy import drawings as redundancy
from normgauge.render.signed_permutation import drawings as signed_permutation
from normgauge.render.text import plain
from normgauge.render.trajectories import drawings as trajectories
from normgauge.schemas import checkpoint_comparison as comparison_schemas
from normgauge.schemas import controls as controls_schemas
from normgauge.schemas import dead_directions as dead_schemas
from normgauge.schemas import discrete_laws as law_schemas
from normgauge.schemas import exact_recovery as recovery_schemas
from normgauge.schemas import fingerprint as fingerprint_schemas
from normgauge.schemas import learned_artifacts as learned_schemas
from normgauge.schemas import ledger as ledger_schemas
from normgauge.schemas import lineage as lineage_schemas
from normgauge.schemas import redundancy as redundancy_schemas
from normgauge.schemas import signed_permutation as gauge_schemas
from normgauge.schemas import trajectories as trajectory_schemas
from normgauge.tables import Tables, read_metadata

STUDIES: tuple[tuple[Tables, Mapping[str, Drawing]], ...] = (
    (fingerprint_schemas.tables, dead_directions.DRAWINGS),
    (dead_schemas.tables, experiments.DRAWINGS),
    (recovery_schemas.tables, exact_recovery.DRAWINGS),
    (gauge_schemas.tables, signed_permutation.DRAWINGS),
    (learned_schemas.tables, learned_artifacts.DRAWINGS),
    (law_schemas.tables, discrete_laws.DRAWINGS),
    (trajectory_schemas.tables, trajectories.DRAWINGS),
    (redundancy_schemas.tables, redundancy.DRAWINGS),
    (comparison_schemas.tables, checkpoint_comparison.DRAWINGS),
    (lineage_schemas.tables, lineage.DRAWINGS),
    (controls_schemas.tables, controls.DRAWINGS),
    (ledger_schemas.tables, ledger.DRAWINGS),
)
"""The tables of each study, and what draws each of them."""


def draw(
    name: str, table: str | os.PathLike[str], outputs: Iterable[str | os.PathLike[str]]
) -> None:
    """Draw the target `name` (a key of the DRAWINGS of a study) from its result table into PDF and
    SVG files.

    InputError when the table has no rows.
    """
    tables, drawing = next((tables, made[name]) for tables, made in STUDIES if name in made)
    rows = tables.read(table, drawing.table)
    if not rows:
        raise InputError(
            f"{Path(table)}: no rows to draw; list at least one model or pair for this target in "
            "the configuration"
        )
    title = [pair_of(table)] if drawing.of_pair else []
    style.save(drawing(rows, *title), outputs)


def pair_of(table: str | os.PathLike[str]) -> str:
    """The two checkpoints that a table compares, in words."""
    metadata = read_metadata(table)
    return " → ".join(
        plain(f"{metadata[f'model_{side}']} {metadata[f'revision_{side}']}") for side in "ab"
    )
