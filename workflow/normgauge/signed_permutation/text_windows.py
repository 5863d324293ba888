"""Windows of a corpus in a language model's own tokens, parted into those that it learns from and
those that it is measured on.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import torch

from normgauge.calibration.interfaces import Interface, interface_of
from normgauge.calibration.settings import Settings
from normgauge.calibration.token_ids import token_ids, token_source
from normgauge.errors import InputError
from normgauge.schemas.inputs import tables
from normgauge.tables import read_metadata

HELD_OUT_EVERY = 4  # of the windows, every fourth is kept for measuring
CHARACTERS = 200_000  # of each corpus, whole documents from its beginning
PathLike = str | os.PathLike[str]


@dataclass(frozen=True, eq=False)
class Windows:
    """int64 (windows, length) each."""

    learned: torch.Tensor
    held_out: torch.Tensor


def windows_of(
    folder: PathLike, config: Any, corpus: PathLike, count: int, length: int, seed: int = 0
) -> Windows:
    """`count` windows of a corpus for the checkpoint in `folder`. Raises InputError for a model
    that is no decoder alone, and for a corpus that is too short.
    """
    if interface_of(config) is not Interface.DECODER:
        raise InputError(
            f"learned artifacts: a {config.model_type} model is no decoder alone; name a causal "
            "language model"
        )
    documents, size = [], 0
    for row in tables.read(corpus, "corpus"):
        if size < CHARACTERS:
            documents.append(row)
            size += len(row["text"] or "")
    source = token_source(Interface.DECODER, documents, folder, None)
    entry = {"calibration": read_metadata(corpus)["corpus"]}
    ids = token_ids(source, entry, config, Settings(count, length, seed), ())
    rows = torch.from_numpy(ids).long()
    measured = torch.arange(1, len(rows) + 1) % HELD_OUT_EVERY == 0
    return Windows(rows[~measured], rows[measured])
