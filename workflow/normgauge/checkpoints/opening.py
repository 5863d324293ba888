"""Opening a checkpoint folder: the tensors under the names of the transformers class."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from os import PathLike, fspath
from pathlib import Path
from typing import Any

import torch

from normgauge.anatomy import describe
from normgauge.anatomy.structure import Anatomy
from normgauge.checkpoints.configuration import reader_of, stated_config
from normgauge.checkpoints.placing import (
    Placement,
    Reason,
    copies_of,
    heads_anatomy,
    place,
    without_ties,
)
from normgauge.checkpoints.readers import Weights
from normgauge.checkpoints.readers.mapped import MappedTensors
from normgauge.errors import InputError


@dataclass(frozen=True)
class Unused:
    """A stored tensor that the class does not use. `stored`: the dtype in the file."""

    tensor: torch.Tensor
    stored: str
    reason: Reason


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint as stored.

    `config`: a transformers config or SceptrConfig. `tensors`: by the names of the class
    `config.architectures[0]`, in the stored dtype (quantised values dequantised to fp32); a tied
    tensor may be there once. `stored`: the dtype in the file by the same names, e.g. F16 or
    Q4_1. `files`: the weight files. `unused`: the stored tensors that the class does not use, by
        the names that they would have in it.
    """

    config: Any
    tensors: Mapping[str, torch.Tensor]
    stored: Mapping[str, str]
    files: tuple[Path, ...]
    unused: Mapping[str, Unused] = field(default_factory=dict)

    def heads(self) -> Mapping[str, torch.Tensor]:
        """Those unused tensors that are no buffers which the class computes."""
        return {
            name: unused.tensor
            for name, unused in self.unused.items()
            if unused.reason != Reason.COMPUTED
        }

    def anatomy_with_heads(self) -> Anatomy:
        """The anatomy, with those heads whose axes another class of the family states."""
        return heads_anatomy(
            self.config, {name: tuple(tensor.shape) for name, tensor in self.heads().items()}
        )


def open_checkpoint(
    folder: str | PathLike[str], config_overrides: Mapping[str, Any] | None = None
) -> Checkpoint:
    """Open the weights in a folder; `config_overrides` are keys laid over its config.json.

    Readers in order of preference: safetensors, GGUF, CTranslate2, torch files. Containers are
    checked before their payload is touched. What the files do not say (a class found by the
    tensors, tensors that are not used) is said on stderr, once. Raises InputError for a folder
    without weights, a malformed container or config, an unknown family, and as `placing.place`.
    """
    config = stated_config(folder, config_overrides)
    weights = reader_of(Path(folder)).read(Path(folder))
    shapes = {name: tuple(tensor.shape) for name, tensor in weights.tensors.items()}

    def same(first: str, second: str) -> bool:
        one, other = weights.tensors[first], weights.tensors[second]
        return one.data_ptr() == other.data_ptr() or torch.equal(one, other)

    placement = place(config, shapes, weights.files[0].name, same)
    say(folder, placement.notes)
    return _named(placement, weights)


def untied(checkpoint: Checkpoint) -> Checkpoint:
    """The same model with every tied tensor stored on its own, as far as its class allows; the
    config says so.
    """
    tied = describe(checkpoint.config)
    config = without_ties(checkpoint.config)
    apart = {
        tensor.name: tied.tensor(tensor.name).alias_of
        for tensor in describe(config).tensors
        if tensor.alias_of is None
    }
    tensors, stored = dict(checkpoint.tensors), dict(checkpoint.stored)
    for name, other in copies_of(
        {name: source for name, source in apart.items() if source}, checkpoint.tensors.keys()
    ).items():
        tensors[name], stored[name] = tensors[other].clone(), stored[other]
    return replace(checkpoint, config=config, tensors=tensors, stored=stored)


def say(folder: str | PathLike[str], notes: tuple[str, ...]) -> None:
    """Print the notes of a placement on stderr, each once per process."""
    for note in notes:
        _say_once(f"{fspath(folder)}: {note}")


@cache
def _say_once(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _named(placement: Placement, weights: Weights) -> Checkpoint:
    """The tensors under the names of the class, and those that it does not use."""
    sources = {target: source for source, target in placement.names.items()}
    for name, other in placement.copies.items():
        sources[name] = sources[other]
    for source in placement.names:
        if not weights.tensors[source].is_floating_point():
            raise InputError(
                f"{weights.files[0].name}: tensor {source} is stored as {weights.stored[source]}; "
                "expected floating-point weights"
            )
    tensors: Mapping[str, torch.Tensor] = (
        weights.tensors.renamed(sources)
        if isinstance(weights.tensors, MappedTensors)
        else {name: weights.tensors[source] for name, source in sources.items()}
    )
    stored = {name: weights.stored[source] for name, source in sources.items()}
    unused = {
        name: Unused(weights.tensors[source], weights.stored[source], reason)
        for source, (name, reason) in placement.unused.items()
    }
    return Checkpoint(placement.config, tensors, stored, weights.files, unused)
