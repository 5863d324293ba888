"""What was measured on one checkpoint, read from its result folder together with its re-initialised
twins.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from normgauge.errors import InputError
from normgauge.schemas.fingerprint import tables
from normgauge.tables import read_metadata

Row = dict[str, Any]
Rows = Sequence[Row]

RANDOM = "random initialisation"


@dataclass(frozen=True)
class Subject:
    """One row group of a table: a checkpoint's own rows and, with a `seed` column, those of its
    re-initialised twins.

    `stacks`, `fingerprint` and `schur` are empty for a model known only at random initialisation.
    """

    model: str
    revision: str
    stored_as: str
    inputs: str
    stacks: Rows = ()
    fingerprint: Rows = ()
    schur: Rows = ()
    random_stacks: Rows = ()
    random_fingerprint: Rows = ()
    random_schur: Rows = ()

    @property
    def is_random(self) -> bool:
        return not self.stacks

    def stack(self, name: str) -> Row:
        """The stack's row that names its norm, placement and precision (equal in the checkpoint and
        in its twins).
        """
        return next(row for row in (*self.stacks, *self.random_stacks) if row["stack"] == name)

    def identity(self, stack: str) -> Row:
        row = self.stack(stack)
        return {
            "model": self.model,
            "revision": self.revision,
            "stack": stack,
            "norm_kind": row["norm_kind"],
            "placement": row["placement"],
            "provenance": row["provenance"],
            "precision": row["precision"],
            "stored_as": self.stored_as,
            "inputs": self.inputs,
        }


def read_subjects(
    inputs: Iterable[str | os.PathLike[str]], kinds: Sequence[str], twins: bool = True
) -> list[Subject]:
    """Subjects from the files of any number of result folders, in the order of their first file.

    `kinds` are the measurements needed besides `stacks`: fingerprint, schur. Every folder must
    bring checkpoint.json, stacks.parquet, those measurements, and, with `twins` and unless it is
    a random initialisation, the same under reinitialised/. InputError names the file that is
    missing.
    """
    folders: dict[Path, dict[str, Path]] = {}
    for path in map(Path, inputs):
        twin = path.parent.name == "reinitialised"
        folders.setdefault(path.parent.parent if twin else path.parent, {})[
            f"reinitialised_{path.stem}" if twin else path.stem
        ] = path
    measured = [
        _measured(folder, files, ("stacks", *kinds), twins) for folder, files in folders.items()
    ]
    initialised: dict[str, list[Subject]] = {}
    for subject in measured:
        if subject.is_random:
            initialised.setdefault(subject.model, []).append(subject)
    pooled = {model: _pool_revisions(subjects) for model, subjects in initialised.items()}
    subjects = []
    for subject in measured:
        if not subject.is_random:
            subjects.append(subject)
        elif subject.model in pooled:
            subjects.append(pooled.pop(subject.model))
    return subjects


def _measured(
    folder: Path, files: Mapping[str, Path], kinds: Sequence[str], twins: bool
) -> Subject:
    manifest = json.loads(_require(folder, files, "checkpoint").read_text(encoding="utf-8"))
    stored = manifest["stored_dtypes"]
    labels: dict[str, Any] = {
        "model": manifest["model"],
        "revision": manifest["revision"],
        "stored_as": max(sorted(stored), key=stored.__getitem__),
        "inputs": _inputs(manifest, read_metadata(_require(folder, files, "stacks"))),
    }
    own: dict[str, Any] = {kind: tables.read(_require(folder, files, kind), kind) for kind in kinds}
    if manifest["provenance"] == RANDOM:
        seed = int(manifest["revision"].removeprefix("seed"))
        initialised: dict[str, Any] = {
            f"random_{kind}": [{"seed": seed, **row} for row in rows] for kind, rows in own.items()
        }
        return Subject(**labels, **initialised)
    for kind in kinds if twins else ():
        twin = f"reinitialised_{kind}"
        own[f"random_{kind}"] = tables.read(_require(folder, files, twin), twin)
    return Subject(**labels, **own)


def _inputs(manifest: Mapping[str, Any], measured: Mapping[str, str]) -> str:
    """What the model read: the corpus, and behind which token where the calibration says so."""
    heard = "noise as audio, " if manifest["modality"] == "audio" else ""
    begun = f", behind token {ids}" if (ids := measured.get("calibration_bos_ids")) else ""
    return f"{heard}{manifest['calibration']}{begun}"


def _require(folder: Path, files: Mapping[str, Path], kind: str) -> Path:
    if kind not in files:
        name = (
            "checkpoint.json"
            if kind == "checkpoint"
            else f"{kind.replace('reinitialised_', 'reinitialised/')}.parquet"
        )
        raise InputError(f"{folder / name}: not among the inputs of the table; add it to them")
    return files[kind]


def _pool_revisions(subjects: Sequence[Subject]) -> Subject:
    first = subjects[0]
    return Subject(
        model=first.model,
        revision="+".join(subject.revision for subject in subjects),
        stored_as=first.stored_as,
        inputs=first.inputs,
        random_stacks=[row for subject in subjects for row in subject.random_stacks],
        random_fingerprint=[row for subject in subjects for row in subject.random_fingerprint],
        random_schur=[row for subject in subjects for row in subject.random_schur],
    )
