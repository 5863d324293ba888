"""All schemas by the names of their tables."""

from __future__ import annotations

import pyarrow as pa

from normgauge.schemas import (
    checkpoint_comparison,
    controls,
    dead_directions,
    discrete_laws,
    exact_recovery,
    fingerprint,
    inputs,
    learned_artifacts,
    ledger,
    lineage,
    redundancy,
    signed_permutation,
    trajectories,
)

STUDIES = (
    inputs,
    fingerprint,
    dead_directions,
    exact_recovery,
    signed_permutation,
    learned_artifacts,
    discrete_laws,
    trajectories,
    redundancy,
    checkpoint_comparison,
    lineage,
    controls,
    ledger,
)
SCHEMAS: dict[str, pa.Schema] = {
    kind: schema for study in STUDIES for kind, schema in study.tables.schemas.items()
}
