"""How a checkpoint is run over its calibration, and what of its activations is kept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class CaptureSettings:
    """What the section `capture` of the configuration says of one model.

    forward_dtypes: forward dtype -> site groups. schur_sites: names of the sites with a Schur
    ratio; all of them where it is None. jackknife_groups: groups of sequences of the whole
    calibration whose moments are kept apart. gpus: 1 to run the forward passes on a GPU.
    """

    forward_dtypes: Mapping[str, Sequence[str]]
    accumulation: str
    batch_size: int
    schur_sites: Sequence[str] | None = None
    jackknife_groups: int = 0
    gpus: int = 0
