"""Modules that sentence-transformers puts after a model: what of them reads the stream, and so
moves with it.

`modules.json` lists them in order. Means over tokens and the choice of one commute with any linear
map, maxima with permutations alone; a `Dense` reads the stream, and what follows it lies in its own
space.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from normgauge.anatomy.structure import Anatomy
from normgauge.checkpoints.readers.safetensors_reader import check_header
from normgauge.errors import InputError
from normgauge.gauge.groups import Monomial
from normgauge.gauge.model_gauge import Gauge
from normgauge.gauge.transform import Move
from normgauge.transport.arrays import StreamElement, keeps_lengths

MODULES, CONFIG, WEIGHTS = Path("modules.json"), "config.json", "model.safetensors"
LINEAR_MODES = ("cls", "mean", "mean_sqrt_len", "weightedmean", "lasttoken")
INPUTS = (None, "sentence_embedding", "token_embeddings")


@dataclass(frozen=True)
class Pipeline:
    """What a gauge does to the modules after a model.

    tensors: (file, tensor, moves). own: folders whose files fit the moved model as they are. left:
    files that cannot follow, and why.
    """

    tensors: tuple[tuple[Path, str, tuple[Move, ...]], ...] = ()
    own: frozenset[Path] = frozenset()
    left: Mapping[Path, str] = field(default_factory=dict)


class _NotFollowingError(Exception):
    """Why a module cannot follow."""


def pipeline_of(folder: Path, anatomy: Anatomy, gauge: Gauge) -> Pipeline:
    """The modules that a folder's modules.json lists, under a gauge of its model; nothing where
    there is none that can be read.
    """
    modules = _modules(folder / MODULES)
    spaces = {stack.space for stack in anatomy.stacks}
    element = gauge.on_space(anatomy, spaces.pop()) if len(spaces) == 1 else None
    if not modules or (element is None and len(spaces) == 0):
        return Pipeline(own=frozenset(path for _, path in modules))
    own: set[Path] = set()
    copies = 1
    for number, (kind, path) in enumerate(modules):
        try:
            if element is None:
                raise _NotFollowingError("which of the model's streams it reads is not stated")
            if kind == "Dense":
                tensor = (path / WEIGHTS, "linear.weight", _dense(folder / path, element, copies))
                return Pipeline(
                    (tensor,), frozenset({*own, *(later for _, later in modules[number:])})
                )
            copies *= _passed(kind, folder / path, element)
            own.add(path)
        except _NotFollowingError as reason:
            return Pipeline(
                (),
                frozenset(own),
                {MODULES: f"its module {path}: {reason}", path / CONFIG: str(reason)},
            )
    return Pipeline((), frozenset(own))


def _modules(path: Path) -> list[tuple[str, Path]]:
    """(class, folder) of the modules after the model itself, in order."""
    try:
        entries = json.loads(path.read_text(encoding="utf-8"))
        found = [
            (str(entry["type"]).rpartition(".")[2], Path(str(entry["path"]))) for entry in entries
        ]
    except (OSError, ValueError, TypeError, KeyError):
        return []
    return [
        (kind, place)
        for kind, place in found
        if place != Path() and not place.is_absolute() and ".." not in place.parts
    ]


def _passed(kind: str, folder: Path, element: StreamElement) -> int:
    """How many runs of the stream's coordinates a module before the `Dense` puts out."""
    if kind == "Dropout" or (kind == "Normalize" and keeps_lengths(element)):
        return 1
    if kind != "Pooling":
        raise _NotFollowingError(f"{kind} is not known to pass this gauge")
    modes = _pooling_modes(_json(folder / CONFIG))
    positive = isinstance(element, Monomial) and bool((element.factors > 0).all())
    if other := [
        mode for mode in modes if mode not in LINEAR_MODES and not (mode == "max" and positive)
    ]:
        raise _NotFollowingError(f"pooling by {other[0]!r} does not pass this gauge")
    return len(modes)


def _pooling_modes(config: Mapping[str, Any]) -> Sequence[str]:
    named = config.get("pooling_mode")
    if named:
        return named.split("+") if isinstance(named, str) else [str(each) for each in named]
    return [
        key.removeprefix("pooling_mode_").removesuffix("_token").removesuffix("_tokens")
        for key, on in config.items()
        if _mode(key, on)
    ]


def _mode(key: str, on: Any) -> bool:
    return key.startswith("pooling_mode_") and bool(on)


def _dense(folder: Path, element: StreamElement, copies: int) -> tuple[Move, ...]:
    config = _json(folder / CONFIG)
    if config.get("module_input_name") not in INPUTS:
        raise _NotFollowingError(f"it reads {config.get('module_input_name')!r}")
    if not (folder / WEIGHTS).is_file():
        raise _NotFollowingError(f"it has no {WEIGHTS}; save it as safetensors")
    try:
        header = check_header(folder / WEIGHTS)
    except InputError as error:
        raise _NotFollowingError(str(error)) from error
    width = copies * element.size
    shape = header.get("linear.weight", {}).get("shape", [])
    if set(header) - {"linear.weight", "linear.bias"} or len(shape) != 2 or shape[1] != width:
        raise _NotFollowingError(f"expected linear.weight of {width} columns and linear.bias alone")
    runs = (
        [None]
        if copies == 1
        else [
            torch.arange(copy * element.size, (copy + 1) * element.size) for copy in range(copies)
        ]
    )
    return tuple(Move(1, element.dual(), run) for run in runs)


def _json(path: Path) -> Mapping[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise _NotFollowingError(f"its {CONFIG} cannot be read") from error
    if not isinstance(found, dict):
        raise _NotFollowingError(f"its {CONFIG} is no object")
    return found
