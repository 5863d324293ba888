"""Whose gauge a file holds: the class and the weights of the model that it moves, kept beside
it.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from normgauge.anatomy import describe
from normgauge.anatomy.lookup import stored_name
from normgauge.anatomy.structure import Anatomy
from normgauge.checkpoints.configuration import reader_of
from normgauge.checkpoints.opening import open_checkpoint
from normgauge.checkpoints.readers import safetensors_reader
from normgauge.gauge.rounding import ulp
from normgauge.tables import read_metadata
from normgauge.transport.folders import CHUNK, stored_folder

# random sums of a sketch; a distance read from them has a relative standard error of 1/sqrt(128)
SUMS = 64
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)  # SplitMix64 (Steele, Lea and Flood, 2014)
_MIXERS = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB), (31, 1))


@dataclass(frozen=True)
class Identity:
    """A model's class and weights.

    `sha256`: over its distinct parameters alone, each with its name in the class, dtype, shape and
    bytes. How the file names, splits or ties them, and what else lies beside them, does not count.
    `sketch`: float64 (64,), sums of the parameters with random signs; the squared distance of two
    sketches is that of the models on average (Charikar, Chen and Farach-Colton, 2002).
    """

    architecture: str
    sha256: str
    sketch: np.ndarray

    def distance(self, other: Identity) -> float:
        """Estimate of the Euclidean distance of the parameters, with a standard error of 9 %."""
        return float(np.linalg.norm(self.sketch - other.sketch))


def identity_of(folder: str | os.PathLike[str]) -> Identity:
    """The identity of the checkpoint in a folder; safetensors are read in runs of rows.

    Raises InputError as `open_checkpoint`, and for a parameter that is not stored.
    """
    config, stored = _opened(Path(folder))
    anatomy = describe(config)
    lines, sketch = [], np.zeros(SUMS)
    for name, runs in _parameters(anatomy, stored):
        digest, offset = hashlib.sha256(), 0
        key = np.uint64(int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "little"))
        dtype = None
        for run in runs:
            digest.update(run.contiguous().view(-1).view(torch.uint8).numpy().data)
            sketch += _sums(run, offset, key)
            offset, dtype = offset + run.numel(), run.dtype
        shape = list(anatomy.tensor(name).shape)
        lines.append(f"{name} {dtype} {shape} {digest.hexdigest()}\n")
    return Identity(
        anatomy.architecture, hashlib.sha256("".join(sorted(lines)).encode()).hexdigest(), sketch
    )


def _opened(folder: Path) -> tuple[Any, dict[str, Callable[[], Iterator[torch.Tensor]]]]:
    """The config, and each stored tensor of the class in runs, by name."""
    if reader_of(folder) is safetensors_reader:
        opened = stored_folder(folder)
        return opened.config, {
            name: partial(stored.rows, inside, CHUNK)
            for name, (stored, inside) in opened.places.items()
        }
    checkpoint = open_checkpoint(folder)
    return checkpoint.config, {
        name: partial(iter, (tensor,)) for name, tensor in checkpoint.tensors.items()
    }


def _parameters(
    anatomy: Anatomy, stored: Mapping[str, Callable[[], Iterator[torch.Tensor]]]
) -> Iterator[tuple[str, Iterator[torch.Tensor]]]:
    """The distinct parameters by the names of the class, each in runs."""
    for tensor in anatomy.tensors:
        if tensor.alias_of is None:
            yield tensor.name, stored[stored_name(anatomy, tensor.name, stored)]()


def _sums(run: torch.Tensor, offset: int, key: np.uint64) -> np.ndarray:
    """float64 (64,): entries number i, counted from `offset`, with a sign drawn from i and the key,
    summed by i modulo 64.
    """
    number = np.arange(offset, offset + run.numel(), dtype=np.uint64)
    word = number * _GOLDEN + key
    for shift, factor in _MIXERS:
        word = (word ^ (word >> np.uint64(shift))) * np.uint64(factor)
    signed = np.where(word & np.uint64(1), -1.0, 1.0) * run.double().reshape(-1).numpy()
    return np.bincount((number % SUMS).astype(np.int64), weights=signed, minlength=SUMS)


@dataclass(frozen=True)
class Origin:
    """What a gauge's file says of its models. `source`: the model that it moves. `target_sha256`:
    of the model that it was recovered from, None where it was drawn.
    """

    source: Identity
    target_sha256: str | None = None

    def metadata(self) -> dict[str, str]:
        """As strings, for the file's metadata."""
        target = {} if self.target_sha256 is None else {"target_sha256": self.target_sha256}
        sketch = json.dumps(self.source.sketch.tolist())
        return {
            "architecture": self.source.architecture,
            "source_sha256": self.source.sha256,
            "source_sketch": sketch,
        } | target


def read_origin(path: str | os.PathLike[str]) -> Origin | None:
    """The origin that a gauge's file names; None where it names none or a damaged one."""
    found: Mapping[str, str] = read_metadata(path)
    try:
        sketch = np.array(json.loads(found["source_sketch"]), dtype=np.float64)
        source = Identity(str(found["architecture"]), str(found["source_sha256"]), sketch)
    except (KeyError, ValueError, TypeError):
        return None
    return Origin(source, found.get("target_sha256")) if sketch.shape == (SUMS,) else None


def brought_back_ulp(
    folder: str | os.PathLike[str], found: Identity, origin: Origin, rounded: Sequence[str]
) -> float:
    """How far the model in a folder, which an inverse has brought back, is from the gauge's source:
    in ulp, the root mean square error of the tensors that were rounded over that of their ulp.
    Infinite for another class.
    """
    if found.architecture != origin.source.architecture:
        return float("inf")
    energy = 0.0
    for name, (stored, inside) in stored_folder(folder).places.items():
        if name in rounded:
            energy += sum(
                float(ulp(run, run.dtype).square().sum()) for run in stored.rows(inside, CHUNK)
            )
    distance = found.distance(origin.source)
    return distance / energy**0.5 if energy else float("inf")
