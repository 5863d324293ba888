"""A model of which only those tensors have values that are asked for: it is larger than memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from normgauge.checkpoints.architectures import dtype_named
from normgauge.checkpoints.building import cast_values, matched, ready
from normgauge.checkpoints.opening import Checkpoint
from normgauge.checkpoints.readers.mapped import made_anew


@dataclass(frozen=True)
class Skeleton:
    """model: of the checkpoint's class, its parameters on the meta device, its computed buffers in
    place.

    stored: name in the class -> its tensor in the stored dtype, made anew at each call. checked:
    name, tensor -> the tensor in the forward dtype; InputError where that is not finite.
    """

    model: nn.Module
    stored: Callable[[str], torch.Tensor]
    checked: Callable[[str, torch.Tensor], torch.Tensor]
    dtype: torch.dtype
    device: torch.device

    def load(self, names: Iterable[str]) -> None:
        """Give the named tensors their values."""
        for name in names:
            value = self.checked(name, self.stored(name))
            _assign(self.model, name, value.to(self.device))

    def release(self, names: Iterable[str]) -> None:
        """Take the values of the named tensors away."""
        for name in names:
            path, _, own = name.rpartition(".")
            value = getattr(self.model.get_submodule(path), own)
            _assign(self.model, name, torch.empty_like(value, device="meta"))

    @contextmanager
    def rows_loaded(self, name: str) -> Iterator[None]:
        """Within this context an embedding's table gets those rows that are asked for, when they
        are: memory that nobody writes to is not taken.
        """
        module: Any = self.model.get_submodule(name.rpartition(".")[0])
        stored = self.stored(name)
        values = torch.empty(stored.shape, dtype=self.dtype, device=self.device)
        there = torch.zeros(len(values), dtype=torch.bool, device=self.device)
        forward = module.forward

        def with_rows(ids: torch.Tensor) -> torch.Tensor:
            rows = ids.unique()
            missing = rows[~there[rows]]
            # rows stand in the table only once they are checked
            values[missing] = self.checked(name, stored[missing.cpu()]).to(self.device)
            there[missing] = True
            return forward(ids)

        _assign(self.model, name, values)
        module.forward = with_rows
        try:
            yield
        finally:
            module.forward = forward
            self.release([name])


def skeleton(checkpoint: Checkpoint, forward_dtype: str, device: torch.device) -> Skeleton:
    """The model of class `config.architectures[0]` without values, to be filled from the
    checkpoint.

    What is filled in holds the bytes that `build_model` would have put there, at the same
    alignment: the forward pass is the same to the last bit. Raises the InputErrors of `build_model`
    for names and shapes here, for values when they are read.
    """
    dtype, origin = dtype_named(forward_dtype), checkpoint.files[0].name
    model, complete = matched(checkpoint.config, checkpoint.tensors, dtype, origin)
    for module in model.modules():
        for name, buffer in module.named_buffers(recurse=False):
            module._buffers[name] = buffer.to(device)
    keys = {id(tensor): key for key, tensor in checkpoint.tensors.items()}
    sources = {name: keys[id(tensor)] for name, tensor in complete.items()}

    def stored(name: str) -> torch.Tensor:
        return made_anew(checkpoint.tensors, sources[name])

    def checked(name: str, tensor: torch.Tensor) -> torch.Tensor:
        return cast_values(sources[name], tensor, dtype, origin)

    return Skeleton(ready(model, dtype), stored, checked, dtype, device)


def held_skeleton(model: nn.Module) -> Skeleton:
    """The same over a model that is in memory: its values stay there, and come and go in the model
    alone, which is used up by it.
    """
    values = model.state_dict()
    like = next(model.parameters())
    return Skeleton(model, values.__getitem__, lambda _, tensor: tensor, like.dtype, like.device)


def _assign(model: nn.Module, name: str, value: torch.Tensor) -> None:
    path, _, own = name.rpartition(".")
    module = model.get_submodule(path)
    if own in module._buffers:
        module._buffers[own] = value
    else:
        module._parameters[own] = nn.Parameter(value, requires_grad=False)
