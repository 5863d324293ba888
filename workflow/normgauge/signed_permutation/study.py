"""The study's measurements of one checkpoint, files in and files out."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any

from normgauge.anatomy import describe
from normgauge.anatomy.structure import Anatomy
from normgauge.calibration.batches import Batch, batches
from normgauge.checkpoints.opening import Checkpoint, open_checkpoint
from normgauge.gauge.probes import require_same_tokens, shortened
from normgauge.provenance import execution_environment
from normgauge.schemas.signed_permutation import tables
from normgauge.signed_permutation.artifact_transport import transport_rows
from normgauge.signed_permutation.boundary import equivalence_rows
from normgauge.signed_permutation.name_audit import audit_rows
from normgauge.signed_permutation.natural_alignment import (
    alignment_rows,
    common_group,
    holonomy_rows,
    stream_activations,
)
from normgauge.signed_permutation.recorded_gauges import recovery_rows

PathLike = str | os.PathLike[str]
FRESH = "random initialisation"


class Measured:
    """One checkpoint beside its manifest and calibration: what every measurement starts from."""

    def __init__(
        self,
        folder: PathLike,
        manifest: Mapping[str, Any],
        calibration: PathLike,
        overrides: Mapping[str, Any] | None,
    ) -> None:
        self.folder, self.manifest, self.calibration = folder, manifest, calibration
        self.checkpoint: Checkpoint = open_checkpoint(folder, overrides)
        self.anatomy: Anatomy = describe(self.checkpoint.config)

    def batches(self, sequences: int | None = None, length: int | None = None) -> list[Batch]:
        """Batches of one sequence each: the first `sequences` (all when None), each cut to `length`
        positions.
        """
        found = islice(
            batches(
                self.calibration, folder=self.folder, config=self.checkpoint.config, batch_size=1
            ),
            sequences,
        )
        return list(found) if length is None else shortened(found, length)

    def write(self, path: PathLike, kind: str, rows: Sequence[Mapping[str, Any]]) -> None:
        """Rows with the checkpoint's identity and the executing arithmetic in the metadata."""
        identity = {key: str(self.manifest[key]) for key in ("model", "revision", "weights_sha256")}
        kinds = {"norm_kind": str(self.anatomy.norm_kind), "placement": str(self.anatomy.placement)}
        tables.write(path, kind, rows, {**identity, **kinds, **execution_environment()})


def measure_equivalence(
    measured: Measured,
    output: PathLike,
    seeds: Sequence[int],
    forward_dtypes: Sequence[str],
    sequences: int,
    length: int,
) -> None:
    """Write equivalence.parquet."""
    fresh = measured.manifest["provenance"] == FRESH
    probes = measured.batches(sequences, length)
    rows = equivalence_rows(
        measured.checkpoint, measured.anatomy, probes, seeds, forward_dtypes, fresh
    )
    measured.write(output, "equivalence", rows)


def measure_recovery(
    measured: Measured, output: PathLike, seeds: Sequence[int], budgets: Sequence[int]
) -> None:
    """Write recovery.parquet."""
    rows = recovery_rows(measured.checkpoint, measured.anatomy, measured.batches(), seeds, budgets)
    measured.write(output, "gauge_recovery", rows)


def measure_names(
    measured: Measured,
    audit: PathLike,
    transport: PathLike,
    seeds: Mapping[str, Sequence[int]],
    top: int,
    sequences: int,
    length: int,
) -> None:
    """Write audit.parquet and transport.parquet; `seeds` by audit and transport."""
    probes = measured.batches(sequences, length)
    audited = audit_rows(measured.checkpoint, measured.anatomy, probes, seeds["audit"], top)
    carried = transport_rows(measured.checkpoint, measured.anatomy, probes, seeds["transport"])
    measured.write(audit, "gauge_audit", audited)
    measured.write(transport, "gauge_transport", carried)


def measure_alignment(
    measured: Measured,
    alignment: PathLike,
    holonomy: PathLike,
    others: Mapping[str, tuple[PathLike, Mapping[str, Any] | None]],
    budgets: Sequence[int],
) -> None:
    """Write alignment.parquet and holonomy.parquet; `others` by name: checkpoint folder and config
    overrides.
    """
    for folder, _ in others.values():
        require_same_tokens(measured.folder, folder)
    checkpoints = {
        f"{measured.manifest['model']}@{measured.manifest['revision']}": measured.checkpoint
    }
    checkpoints |= {
        name: open_checkpoint(folder, overrides) for name, (folder, overrides) in others.items()
    }
    group = common_group(checkpoints)
    streams = stream_activations(checkpoints, measured.batches())
    measured.write(alignment, "gauge_alignment", alignment_rows(streams, budgets, group))
    measured.write(holonomy, "gauge_holonomy", holonomy_rows(streams, group))
