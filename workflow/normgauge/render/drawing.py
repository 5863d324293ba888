"""The one function that draws and saves any table or figure of any study."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from normgauge.errors import InputError
from normgauge.render import figures, gauge, recovery, redundancy, style
from normgauge.render.controls import table as controls
from normgauge.schemas import controls as controls_schemas
from normgauge.schemas import fingerprint as fingerprint_schemas
from normgauge.schemas import gauge as gauge_schemas
from normgauge.schemas import recovery as recovery_schemas
from normgauge.schemas import redundancy as redundancy_schemas

STUDIES = (
    (fingerprint_schemas.tables, figures.DRAWINGS),
    (recovery_schemas.tables, recovery.DRAWINGS),
    (gauge_schemas.tables, gauge.DRAWINGS),
    (redundancy_schemas.tables, redundancy.DRAWINGS),
    (controls_schemas.tables, controls.DRAWINGS),
)
"""The tables of each study, and what draws each of them."""

DRAWN_FROM = {"recovery_checks": "exact_recovery"}
"""The kind of table that a drawing is made of, where it is not its own name."""


def draw(name: str, table: str | os.PathLike[str], outputs: Iterable[str | os.PathLike[str]]) -> None:
    """Draw the target `name` (a key of the DRAWINGS of a study) from its result table into PDF and SVG files.

    InputError when the table has no rows.
    """
    tables, drawings = next((tables, drawings) for tables, drawings in STUDIES if name in drawings)
    rows = tables.read(table, DRAWN_FROM.get(name, name))
    if not rows:
        raise InputError(f"{Path(table)}: no rows to draw; list at least one model for this target in the configuration")
    style.save(drawings[name](rows), outputs)
