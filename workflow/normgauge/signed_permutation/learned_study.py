"""Learned artifacts of one checkpoint, files in and files out."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from normgauge.anatomy import describe
from normgauge.calibration.batches import Batch
from normgauge.checkpoints.opening import open_checkpoint
from normgauge.provenance import execution_environment
from normgauge.schemas.learned_artifacts import tables
from normgauge.signed_permutation.learned_artifacts import Texts, learned_artifacts
from normgauge.signed_permutation.learned_audit import audit_rows
from normgauge.signed_permutation.learned_transport import learned_rows
from normgauge.signed_permutation.learning import Budget
from normgauge.signed_permutation.text_windows import windows_of

PathLike = str | os.PathLike[str]
PROBES = 8  # windows of prose that gauges are recovered from
AUDITED = 2  # windows of each kind of text that names are taken from


class Learner:
    """A checkpoint beside its manifest and two corpora. `settings`: the section
    `signed_permutation.learned` of the configuration.
    """

    def __init__(
        self,
        folder: PathLike,
        manifest: Mapping[str, Any],
        corpora: tuple[PathLike, PathLike],
        settings: Mapping[str, Any],
        overrides: Mapping[str, Any] | None,
    ) -> None:
        self.manifest = manifest
        self.checkpoint = open_checkpoint(folder, overrides)
        self.anatomy = describe(self.checkpoint.config)
        config, size = self.checkpoint.config, (settings["windows"], settings["length"])
        self.texts = Texts(*(windows_of(Path(folder), config, each, *size) for each in corpora))
        self.budget = Budget(**settings["budget"])

    def carry(self, path: PathLike, kinds: Sequence[str], seeds: Sequence[int]) -> None:
        """Write learned.parquet (schema `learned_artifact`)."""
        artifacts = learned_artifacts(
            self.checkpoint, self.anatomy, self.texts, tuple(kinds), self.budget
        )
        probes = [Batch({"input_ids": each[None]}, {}) for each in self.texts.prose.learned]
        rows = learned_rows(self.checkpoint, self.anatomy, artifacts, probes[:PROBES], seeds)
        self._write(path, "learned_artifact", rows)

    def audit(self, path: PathLike, seeds: Sequence[int], top: int) -> None:
        """Write learned_audit.parquet (schema `learned_audit`)."""
        (dictionary,) = learned_artifacts(
            self.checkpoint, self.anatomy, self.texts, ("dictionary",), self.budget
        )
        windows = torch.cat(
            [each.held_out[:AUDITED] for each in (self.texts.prose, self.texts.code)]
        )
        rows = audit_rows(self.checkpoint, self.anatomy, windows, dictionary, seeds, top)
        self._write(path, "learned_audit", rows)

    def _write(self, path: PathLike, kind: str, rows: Sequence[Mapping[str, Any]]) -> None:
        identity = {key: str(self.manifest[key]) for key in ("model", "revision", "weights_sha256")}
        kinds = {"norm_kind": str(self.anatomy.norm_kind), "placement": str(self.anatomy.placement)}
        tables.write(path, kind, rows, {**identity, **kinds, **execution_environment()})
