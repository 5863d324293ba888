"""Every control of every study, and what a table may show beside them."""

from __future__ import annotations

from normgauge.render.controls import (
    checkpoint_comparison,
    dead_directions,
    exact_recovery,
    fingerprint,
    learned_artifacts,
    redundancy,
    signed_permutation,
    trajectories,
)
from normgauge.render.controls.reading import Control
from normgauge.schemas import checkpoint_comparison as comparison_schemas
from normgauge.schemas import dead_directions as dead_schemas
from normgauge.schemas import discrete_laws as law_schemas
from normgauge.schemas import exact_recovery as recovery_schemas
from normgauge.schemas import fingerprint as fingerprint_schemas
from normgauge.schemas import learned_artifacts as learned_schemas
from normgauge.schemas import redundancy as redundancy_schemas
from normgauge.schemas import signed_permutation as gauge_schemas
from normgauge.schemas import trajectories as trajectory_schemas

CONTROLS: tuple[Control, ...] = (
    *fingerprint.CONTROLS,
    *dead_directions.CONTROLS,
    *exact_recovery.CONTROLS,
    *signed_permutation.CONTROLS,
    *learned_artifacts.CONTROLS,
    *trajectories.CONTROLS,
    *redundancy.CONTROLS,
    *checkpoint_comparison.CONTROLS,
)
STUDIES = (
    fingerprint_schemas,
    dead_schemas,
    recovery_schemas,
    gauge_schemas,
    learned_schemas,
    law_schemas,
    trajectory_schemas,
    redundancy_schemas,
    comparison_schemas,
)
SCHEMAS = {
    kind: (study.tables, schema)
    for study in STUDIES
    for kind, schema in study.tables.schemas.items()
}
"""By kind of table: the tables of its study, and its schema."""


NO_CONTROLS = {
    "chance_cosine": "what random subspaces or directions read, printed beside the measured value",
    "chance_cosine_high": "the same",
    "blocks_above_chance": "a count of measured values, with chance beside it",
    "sigma_max_largest": "a singular value of the uncentred stream, which floors go by",
    "lambda_min": "an eigenvalue of the uncentred A, which the paper defines so",
    "predicted_ratio_low": "an end of the interval in which a measured ratio must lie, printed "
    "beside it",
    "predicted_ratio": "the same",
    "predicted_ratio_high": "the same",
    "random_predicted": "a prediction, printed beside the measured value",
    "trained_predicted": "the same",
    "low": "a bin of the histogram whose test is a control",
    "log10_null": "the power of a certificate itself; the control of its probabilities is the test "
    "at wrong places",
    "symmetry": "the name of what is tried",
    "dimension": "a count",
}
"""Columns that sound like controls and are none, and why."""


def shown_columns() -> dict[str, set[str]]:
    """By kind of table, the columns that some control is shown in."""
    shown: dict[str, set[str]] = {}
    for control in CONTROLS:
        for kind, columns in {control.table: control.columns, **control.elsewhere}.items():
            shown.setdefault(kind, set()).update(columns)
    return shown
