"""Tensors whose values need not be in memory, and a way to have one of them and give the memory
back.

What is read of a mapped tensor counts as the process's memory for as long as the map is there. A
tensor that is mapped anew has a map of its own, which goes with it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from safetensors import safe_open


class TensorsOnDemand(dict[str, torch.Tensor]):
    """Tensors by name; `anew` makes one whose memory goes with it."""

    def anew(self, name: str) -> torch.Tensor:
        raise NotImplementedError


class MappedTensors(TensorsOnDemand):
    """Tensors by name. `places`: of each, the safetensors file that it is a map of, and its name
    there.

    A change makes a plain dictionary of it (`dict(...)`, `|`), so places and values agree.
    """

    def __init__(
        self, tensors: Mapping[str, torch.Tensor], places: Mapping[str, tuple[Path, str]]
    ) -> None:
        super().__init__(tensors)
        self.places = dict(places)

    def renamed(self, sources: Mapping[str, str]) -> MappedTensors:
        """The tensors `sources[name]` under other names."""
        return MappedTensors(
            {name: self[source] for name, source in sources.items()},
            {name: self.places[source] for name, source in sources.items()},
        )

    def anew(self, name: str) -> torch.Tensor:
        path, stored_name = self.places[name]
        with safe_open(path, framework="pt") as file:
            tensor: torch.Tensor = file.get_tensor(stored_name)
        return tensor


class ChangedTensors(TensorsOnDemand):
    """What `change(name, value)`, which keeps the shape, makes of other tensors: placeholders
    without memory, values by `anew`.
    """

    def __init__(
        self,
        tensors: Mapping[str, torch.Tensor],
        change: Callable[[str, torch.Tensor], torch.Tensor],
    ) -> None:
        super().__init__(
            {name: torch.empty_like(value, device="meta") for name, value in tensors.items()}
        )
        self._tensors, self._change = tensors, change

    def anew(self, name: str) -> torch.Tensor:
        return self._change(name, made_anew(self._tensors, name))


def made_anew(tensors: Mapping[str, torch.Tensor], name: str) -> torch.Tensor:
    """The named tensor in memory of its own that goes with it: the same values at the same
    alignment.

    One of a file that cannot be mapped is the one at hand, which is in memory in any case.
    """
    return tensors.anew(name) if isinstance(tensors, TensorsOnDemand) else tensors[name]
