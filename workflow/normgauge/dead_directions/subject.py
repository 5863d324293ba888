"""One checkpoint with its calibration, opened once for several measurements."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from normgauge.anatomy import describe
from normgauge.anatomy.structure import Anatomy
from normgauge.calibration.batches import Batch, batches, count_sequences
from normgauge.checkpoints.building import build_model, reinitialise
from normgauge.checkpoints.opening import open_checkpoint
from normgauge.checkpoints.skeleton import Skeleton, held_skeleton
from normgauge.fingerprint.files import read_identity
from normgauge.fingerprint.memory import Plan, Source, capture_measurements
from normgauge.fingerprint.study import Identity, Measurement

PathLike = str | os.PathLike[str]
Rows = list[dict[str, Any]]


@dataclass(frozen=True)
class Subject:
    """A checkpoint: its files, what it is, and the weights that are run: the stored ones, or with
    `seed` fresh ones.
    """

    folder: Path
    checkpoint: Any
    anatomy: Anatomy
    identity: Identity
    seed: int | None = None

    @classmethod
    def read(
        cls, folder: PathLike, manifest: PathLike, config_overrides: Mapping[str, Any] | None
    ) -> Subject:
        """Raises InputError as `open_checkpoint` and `describe` do."""
        checkpoint = open_checkpoint(Path(folder), config_overrides)
        return cls(Path(folder), checkpoint, describe(checkpoint.config), read_identity(manifest))

    def reinitialised(self, seed: int) -> Subject:
        """The same class and configuration with fresh weights."""
        identity = replace(self.identity, provenance="random initialisation", precision="full")
        return replace(self, seed=seed, identity=identity)

    @property
    def kind(self) -> str:
        """trained, re-initialised, or random initialisation where nothing else is stored."""
        if self.seed is not None:
            return "re-initialised"
        random = self.identity.provenance == "random initialisation"
        return "random initialisation" if random else "trained"

    @property
    def labels(self) -> dict[str, Any]:
        """The columns that say which checkpoint a row is of."""
        return {"model": self.identity.model, "revision": self.identity.revision}

    def build(self, forward_dtype: str) -> torch.nn.Module:
        """The model in eval mode."""
        if self.seed is None:
            return build_model(self.checkpoint, forward_dtype)
        return reinitialise(self.checkpoint, self.seed, forward_dtype)

    def batches(
        self,
        calibration: PathLike,
        batch_size: int,
        groups: int = 0,
        shard: tuple[int, int] = (0, 1),
    ) -> Iterable[Batch]:
        return batches(
            calibration,
            folder=self.folder,
            config=self.checkpoint.config,
            shard=shard,
            batch_size=batch_size,
            groups=groups,
        )

    def measure(
        self,
        calibration: PathLike,
        dtypes: Mapping[str, Sequence[str]],
        batch_size: int,
        groups: int,
        shard: tuple[int, int] = (0, 1),
    ) -> list[Measurement]:
        """Moments of the sites of `dtypes` (forward dtype -> groups) over one calibration, or over
        one part of it.
        """
        index, parts = shard
        whole = count_sequences(calibration)
        sequences = whole * (index + 1) // parts - whole * index // parts
        source = Source(
            lambda: self.batches(calibration, batch_size, groups, shard),
            -(-sequences // batch_size),
            sequences / min(batch_size, sequences),
        )

        def build(dtype: str) -> tuple[Skeleton, Mapping[str, torch.Tensor]]:
            model = self.build(dtype)
            return held_skeleton(model), model.state_dict()

        return capture_measurements(
            build, self.anatomy, source, Plan(dtypes), f"{self.identity.model}, {self.kind}"
        )
