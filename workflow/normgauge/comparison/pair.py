"""Two checkpoints as one pair: opened lazily, checked against each other, and read tensor by tensor in one gauge."""

from __future__ import annotations

import copy
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from transformers.models.auto.modeling_auto import MODEL_MAPPING

from normgauge.anatomy import describe
from normgauge.anatomy.structure import Anatomy, Tensor
from normgauge.calibration.tokenisation import find_tokenizer, load_tokenizer
from normgauge.checkpoints.configuration import open_config
from normgauge.checkpoints.opening import Checkpoint, open_checkpoint
from normgauge.comparison.precision import BITS, mantissa_bits, rounding_variance
from normgauge.errors import InputError
from normgauge.provenance import sha256_file

ROWS = 1 << 14  # rows of a table that are in memory at once
SILENT = ("architectures", "transformers_version", "torch_dtype", "dtype", "_name_or_path", "id2label", "label2id", "num_labels")
"""Keys of a config that say nothing about the part of the model which both checkpoints share."""


class Step(Protocol):
    """A change of one tensor: a move of a gauge or the scaling of a norm's gain."""

    def apply(self, value: torch.Tensor) -> torch.Tensor: ...


@dataclass(frozen=True, eq=False)
class Side:
    """One checkpoint of a pair, read in float64 after `steps`, the changes by tensor name that bring it into the pair's gauge.

    `tensors`, `stored` and `anatomy` are by the names of the class. `scale_errors`: by tensor name the axis along which a
    step scales by gains as stored, and the relative variance of those factors, float64 (n,). `bits`:
    mantissa bits that each stored tensor uses, as they become known.
    """

    label: str
    anatomy: Anatomy
    config: Any
    tensors: Mapping[str, torch.Tensor]
    stored: Mapping[str, str]
    files: tuple[Path, ...]
    steps: Mapping[str, Sequence[Step]] = field(default_factory=dict)
    scale_errors: Mapping[str, tuple[int, np.ndarray]] = field(default_factory=dict)
    bits: dict[str, int] = field(default_factory=dict)

    def held(self, name: str) -> str:
        """The name under which the values of a tensor are stored: its own, or that of a tensor it is tied to."""
        if name in self.tensors:
            return name
        alias = self.anatomy.tensor(name).alias_of
        if alias and alias in self.tensors:
            return alias
        return next(tensor.name for tensor in self.anatomy.tensors if tensor.alias_of == name and tensor.name in self.tensors)

    def tensor(self, name: str) -> np.ndarray:
        """The whole tensor, float64, in the pair's gauge."""
        value = self.tensors[self.held(name)].double()
        for step in self.steps.get(name, ()):
            value = step.apply(value)
        return value.numpy()

    def rows(self, name: str) -> Iterator[np.ndarray]:
        """A table in runs of its first axis, float64, in the pair's gauge; its first axis is looked up, so no step acts on it."""
        stored = self.tensors[self.held(name)]
        for first in range(0, len(stored), ROWS):
            value = stored[first : first + ROWS].double()
            for step in self.steps.get(name, ()):
                value = step.apply(value)
            yield value.numpy()

    def selected(self, name: str, rows: Sequence[int]) -> np.ndarray:
        """Some rows of a table, float64, in the pair's gauge."""
        value = self.tensors[self.held(name)][list(rows)].double()
        for step in self.steps.get(name, ()):
            value = step.apply(value)
        return value.numpy()

    def floor(self, name: str) -> np.ndarray:
        """Variance, in the pair's gauge, of the storage rounding error of each value of a tensor, float64.

        The side's steps may permute and scale values (residual stream, norm folds), not mix them: errors stay independent then.
        """
        return self._floor(name, slice(None))

    def floor_rows(self, name: str) -> Iterator[np.ndarray]:
        """The same in the runs of `rows`."""
        for first in range(0, len(self.tensors[self.held(name)]), ROWS):
            yield self._floor(name, slice(first, first + ROWS))

    def _floor(self, name: str, rows: slice) -> np.ndarray:
        value = self.tensors[self.held(name)]
        part = value[rows] if value.ndim else value
        deviation = torch.from_numpy(np.sqrt(rounding_variance(part.double().numpy(), self.grid_bits(name), value.dtype)))
        for step in self.steps.get(name, ()):
            deviation = step.apply(deviation) - step.apply(torch.zeros_like(deviation))  # without the offset of a gain
        variance = deviation.square().numpy()
        if name in self.scale_errors:
            axis, relative = self.scale_errors[name]
            moved = part.double()
            for step in self.steps.get(name, ()):
                moved = step.apply(moved)
            variance += moved.square().numpy() * np.expand_dims(relative, 1 - axis)
        return variance

    def grid_bits(self, name: str) -> int:
        """Mantissa bits of the grid on which a tensor's values really lie: what they use, bfloat16's 7 when such values are stored as
        float32. A tensor that uses fewer than any dtype has, as ones do, says nothing: there it is what all tensors of its dtype use."""
        own = self._used_bits(self.held(name))
        if own >= min(BITS.values()):
            return own
        dtype = self.tensors[self.held(name)].dtype
        return max(self._used_bits(other) for other, value in self.tensors.items() if value.dtype == dtype)

    def _used_bits(self, held: str) -> int:
        if held not in self.bits:
            self.bits[held] = mantissa_bits(self.tensors[held])
        return self.bits[held]

    def with_steps(self, steps: Mapping[str, Sequence[Step]]) -> Side:
        """The same side with these steps after its own."""
        names = self.steps.keys() | steps.keys()
        return replace(self, steps={name: (*self.steps.get(name, ()), *steps.get(name, ())) for name in names})


@dataclass(frozen=True, eq=False)
class Pair:
    """Checkpoints A and B of one class. `unmatched`: tensors outside the shared part that one side alone stores, with the side's label."""

    a: Side
    b: Side
    unmatched: Mapping[str, str] = field(default_factory=dict)

    @property
    def anatomy(self) -> Anatomy:
        return self.a.anatomy

    def swapped(self) -> Pair:
        other = {"A": "B", "B": "A"}
        return Pair(replace(self.b, label="A"), replace(self.a, label="B"), {name: other[side] for name, side in self.unmatched.items()})

    def tensors(self) -> list[Tensor]:
        """The tensors that are compared: those of the class, each once."""
        return [tensor for tensor in self.anatomy.tensors if tensor.alias_of is None]


def open_pair(
    folders: tuple[str | os.PathLike[str], str | os.PathLike[str]],
    overrides: tuple[Mapping[str, Any] | None, Mapping[str, Any] | None] = (None, None),
) -> Pair:
    """Two checkpoint folders as a pair; weights stay in their memory maps until they are read.

    Where the two classes differ, the bare model that they share is compared. Raises InputError for identical files, for configs,
    vocabularies, tensor sets, shapes that differ (named), for values that are not finite, and as `open_checkpoint` does.
    """
    configs = [open_config(folder, override) for folder, override in zip(folders, overrides, strict=True)]
    _check_configs(configs)
    bare = {}
    if configs[0].architectures != configs[1].architectures:
        shared: Any = MODEL_MAPPING[type(configs[0])]
        bare = {"architectures": [shared.__name__]}
    opened = [open_checkpoint(folder, {**(override or {}), **bare}) for folder, override in zip(folders, overrides, strict=True)]
    _check_files(opened)
    _check_vocabularies(folders)
    return make_pair(*opened)


def make_pair(first: Checkpoint, second: Checkpoint) -> Pair:
    """The pair of two opened checkpoints of one class. Raises InputError as `open_pair` does for tensors and their values."""
    anatomy = describe(first.config)
    listed = {tensor.name for tensor in anatomy.tensors}
    sides: list[Side] = []
    unmatched: dict[str, str] = {}
    for label, checkpoint in (("A", first), ("B", second)):
        unmatched |= {name: label for name in checkpoint.tensors if name not in listed}
        tensors = {name: value for name, value in checkpoint.tensors.items() if name in listed}
        sides.append(Side(label, anatomy, checkpoint.config, tensors, checkpoint.stored, checkpoint.files))
    _check_tensors(sides[0], sides[1])
    return Pair(sides[0], sides[1], unmatched)


def _check_configs(configs: Sequence[Any]) -> None:
    first, second = ({key: value for key, value in copy.deepcopy(config).to_dict().items() if key not in SILENT} for config in configs)
    for key in sorted(first.keys() | second.keys(), key=lambda key: (key != "model_type", key)):
        if _shapes(key, first.get(key)) != _shapes(key, second.get(key)):
            raise InputError(
                f"config.json: {key} is {first.get(key)!r} in A and {second.get(key)!r} in B; expected two checkpoints of one architecture"
            )


def _shapes(key: str, value: Any) -> Any:
    """The part of a config's value that both sides must share: dropout, token ids and caches do not change what the weights mean."""
    ignored = ("dropout", "_token_id", "_token_ids", "use_cache", "problem_type", "finetuning_task", "output_", "return_dict", "do_sample")
    return None if any(part in key for part in ignored) or not isinstance(value, int | float | str | list | dict) else value


def _check_files(opened: Sequence[Checkpoint]) -> None:
    first, second = (sorted(sha256_file(path) for path in checkpoint.files) for checkpoint in opened)
    if first == second:
        raise InputError(f"A and B are identical: {opened[0].files[0].name} has the same sha256 in both; give two different checkpoints")


def _check_vocabularies(folders: Sequence[str | os.PathLike[str]]) -> None:
    """Tokens by id, where both folders say; how a text is cut, padded or truncated does not matter."""
    if any(find_tokenizer(folder) is None for folder in folders):
        return
    first, second = (load_tokenizer(folder).tokenizer.get_vocab() for folder in folders)
    if first == second:
        return
    token = min(first.keys() | second.keys(), key=lambda token: (first.get(token) == second.get(token), first.get(token, 0), token))
    places = [vocabulary.get(token, "none") for vocabulary in (first, second)]
    raise InputError(
        f"vocabularies: token {token!r} has the id {places[0]} in A and {places[1]} in B; expected one "
        f"vocabulary, since rows of the embeddings are compared by id"
    )


def _check_tensors(first: Side, second: Side) -> None:
    for tensor in first.anatomy.tensors:
        held = []
        for side in (first, second):
            try:
                held.append(side.tensors[side.held(tensor.name)])
            except StopIteration:
                raise InputError(
                    f"{side.files[0].name} of {side.label}: tensor {tensor.name} of {first.anatomy.architecture} is missing; "
                    f"expected both checkpoints to store it"
                ) from None
        for side, value in zip((first, second), held, strict=True):
            if tuple(value.shape) != tensor.shape:
                raise InputError(
                    f"{side.files[0].name} of {side.label}: tensor {tensor.name} has shape {list(value.shape)}, "
                    f"{first.anatomy.architecture} expects {list(tensor.shape)}; mend the config"
                )
            if value.dtype not in BITS:
                raise InputError(
                    f"{side.files[0].name} of {side.label}: tensor {tensor.name} is {value.dtype}; store the weights unquantised"
                )
            for part in value.split(ROWS):
                if not part.isfinite().all():
                    raise InputError(
                        f"{side.files[0].name} of {side.label}: tensor {tensor.name} holds values that are NaN or infinite; "
                        f"the checkpoint is unusable"
                    )
