"""What is recorded of a model, or of a part of it, while it runs: inputs and outputs of its maps
and norms, embedding sums, and their description.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle
from transformers.pytorch_utils import Conv1D

from normgauge.anatomy.lookup import holder
from normgauge.anatomy.structure import Anatomy, LinearMap, Role
from normgauge.checkpoints.opening import Checkpoint
from normgauge.exact_recovery.description import (
    Array,
    Description,
    ObservedMap,
    ObservedNorm,
    ObservedTable,
    StoredTensor,
)
from normgauge.exact_recovery.parts import Part, part_of
from normgauge.exact_recovery.relay import Normalised, Outgoing


class Recorder:
    """Appends rows to one file per array, up to `rows` rows each."""

    def __init__(self, folder: Path, rows: int) -> None:
        self.folder, self.rows = folder, rows
        self.counts: dict[str, int] = {}
        self.widths: dict[str, int] = {}

    def add(self, name: str, values: torch.Tensor) -> None:
        """Append the rows of a (..., width) tensor as float64."""
        done = self.counts.get(name, 0)
        flat = values.reshape(-1, values.shape[-1])[: max(0, self.rows - done)]
        with open(self.folder / f"{name}.f64", "ab") as handle:
            flat.to(torch.float64).contiguous().numpy().tofile(handle)
        self.counts[name], self.widths[name] = done + len(flat), flat.shape[1]

    def array(self, name: str) -> Array:
        return Array(name, self.widths[name])


class AllSeenError(Exception):
    """Every wanted module has run in this forward pass."""


def tables_of(anatomy: Anatomy) -> dict[str, str]:
    """The tables whose looked-up rows add up to the primary stack's embedding, with the tensor that
    holds the values of each.
    """
    return {
        tensor.name: holder(anatomy, tensor.name)
        for tensor in anatomy.tensors
        if [axis.role for axis in tensor.axes] == [Role.INDEX, Role.WRITE]
        and tensor.axes[1].segments[0].space == anatomy.primary_stack.space
    }


class Hooks:
    """What is recorded of a part of a model, and the description of it.

    The part's norms are its own and those that feed its maps. outgoing: what keeps the outputs of
    the part's block for the parts after it; the forward pass ends there.
    """

    def __init__(
        self,
        anatomy: Anatomy,
        model: nn.Module,
        recorder: Recorder,
        part: Part,
        outgoing: Outgoing | None = None,
    ) -> None:
        self.anatomy, self.model, self.recorder, self.part = anatomy, model, recorder, part
        self.outgoing, self.batch = outgoing, 0
        unique = {item.module: item for item in anatomy.maps}
        self.maps = [
            item
            for item in unique.values()
            if part.holds(item.module)
            and isinstance(model.get_submodule(item.module), (nn.Linear, Conv1D))
        ]
        feeding = {item.norm for item in self.maps}
        self.norms = [
            norm for norm in anatomy.norms if part.holds(norm.name) or norm.name in feeding
        ]
        self.latest: dict[str, Normalised] = {}
        self.shared: dict[str, bool] = {}
        self.shape = torch.Size()
        stack = anatomy.primary_stack
        self.site = next(site for site in anatomy.sites if site.id == f"{stack.name}/embedding")
        self.tables = {
            name: stored for name, stored in tables_of(anatomy).items() if part.holds(name)
        }
        self.looked_up: dict[str, tuple[torch.Tensor, torch.Tensor]] = {}
        self.is_sum = True
        self.cover: Recorder | None = None

    def register(self) -> Iterator[RemovableHandle]:
        for norm in self.norms:
            yield self.model.get_submodule(norm.name).register_forward_hook(
                partial(self._norm, norm.name)
            )
        for item in self.maps:
            yield self.model.get_submodule(item.module).register_forward_hook(
                partial(self._map, item)
            )
        for name, stored in self.tables.items():
            yield self.model.get_submodule(_module_of(name)).register_forward_hook(
                partial(self._table, stored)
            )
        if self.tables and self.site.norm is None:
            module = self.model.get_submodule(self.site.module)
            yield module.register_forward_pre_hook(self._block, with_kwargs=True)
        if self.outgoing and self.part.inside:
            yield self.model.get_submodule(self.part.inside).register_forward_hook(self._end)

    def normalised(self, name: str, pair: Normalised) -> None:
        """Record input and output of a norm, where it is one of the part's."""
        if any(norm.name == name for norm in self.norms):
            self.recorder.add(f"{name}.inputs", pair[0])
            self.recorder.add(f"{name}.outputs", pair[1])
            self.latest[name] = pair

    def _norm(self, name: str, module: nn.Module, inputs: tuple, output: torch.Tensor) -> None:
        if self.tables and name == self.site.norm:
            self._embedding(inputs[0])
        self.normalised(name, (inputs[0], output))

    def _end(self, module: nn.Module, inputs: tuple, output: Any) -> None:
        assert self.outgoing is not None
        self.outgoing.add(self.batch, output, self.latest)
        raise AllSeenError

    def _map(self, item: LinearMap, module: nn.Module, inputs: tuple, output: torch.Tensor) -> None:
        known = self.latest.get(item.norm) if item.norm else None
        fed = known is not None and known[1] is inputs[0]
        if self.shared.setdefault(item.module, fed) != fed:
            raise RuntimeError(f"{item.module}: fed by {item.norm} at some calls only")
        if not fed:
            self.recorder.add(f"{item.module}.inputs", inputs[0])
        self.recorder.add(f"{item.module}.outputs", output)

    def _table(self, stored: str, module: nn.Module, inputs: tuple, output: torch.Tensor) -> None:
        counts_by_itself = type(module) is not nn.Embedding  # a positional table of its own kind
        index = torch.arange(output.shape[-2]) if counts_by_itself else inputs[0]
        self.looked_up[stored] = (index.expand(self.shape), module.get_parameter("weight"))

    def _block(self, module: nn.Module, inputs: tuple, keywords: dict[str, Any]) -> None:
        self._embedding(inputs[0] if inputs else keywords[self.site.argument])

    def _embedding(self, total: torch.Tensor) -> None:
        """Of the embedding sum and the latest look-up in each table: the indices, and whether it is
        the sum of these rows alone.
        """
        if self.cover:
            self.cover.add("cover", total)
            for stored, (index, _) in self.looked_up.items():
                self.cover.add(f"cover.{stored}.indices", index.reshape(-1, 1))
            raise AllSeenError
        if self.site.norm is None:
            self.recorder.add("embedding", total)
        for stored, (index, _) in self.looked_up.items():
            self.recorder.add(f"{stored}.indices", index.reshape(-1, 1))
        rows = [weight[index] for index, weight in self.looked_up.values()]
        size = torch.stack([row.abs() for row in rows]).sum(0)
        self.is_sum &= bool(((total - torch.stack(rows).sum(0)).abs() <= 1e-12 * size).all())

    def description(self, checkpoint: Checkpoint) -> Description:
        array = self.recorder.array
        fed_by = {name for norm in self.norms for name in (norm.gain, norm.bias)}
        tensors = tuple(
            StoredTensor(
                tensor.name,
                tensor.shape,
                _dtype(checkpoint, holder(self.anatomy, tensor.name)),
                tensor.alias_of,
            )
            for tensor in self.anatomy.tensors
            if self.part.holds(tensor.name) or tensor.name in fed_by
        )
        if self.part.inside is None:
            tensors += tuple(
                StoredTensor(
                    name,
                    tuple(value.shape),
                    str(value.dtype).removeprefix("torch."),
                    None,
                    used=False,
                )
                for name, value in checkpoint.heads().items()
                if value.is_floating_point()
            )
        norms = tuple(
            ObservedNorm(
                norm.name,
                norm.kind,
                norm.eps,
                norm.gain,
                norm.bias,
                norm.gain_offset,
                array(f"{norm.name}.inputs"),
                array(f"{norm.name}.outputs"),
            )
            for norm in self.norms
            if norm.gain and f"{norm.name}.inputs" in self.recorder.counts
        )
        maps = tuple(
            ObservedMap(
                item.module,
                item.weight,
                item.bias,
                item.input_axis == 0,
                item.norm,
                array(
                    f"{item.norm}.outputs" if self.shared[item.module] else f"{item.module}.inputs"
                ),
                array(f"{item.module}.outputs"),
                part_of(self.anatomy, item.module),
            )
            for item in self.maps
            if item.module in self.shared
        )
        if not (self.looked_up and self.is_sum):  # Gemma multiplies the rows it looks up
            return Description(tensors, norms, maps, (), None)
        listed = [name for name in dict.fromkeys(self.tables.values()) if name in self.looked_up]
        covers = self.cover.array if self.cover and self.cover.counts else lambda name: None
        tables = tuple(
            ObservedTable(name, array(f"{name}.indices"), covers(f"cover.{name}.indices"))
            for name in listed
        )
        embedding = array(f"{self.site.norm}.inputs" if self.site.norm else "embedding")
        return Description(tensors, norms, maps, tables, embedding, covers("cover"))


def _module_of(tensor: str) -> str:
    return tensor.rpartition(".")[0]


def _dtype(checkpoint: Checkpoint, name: str) -> str:
    """The grid on which a tensor's values lie: its dtype as opened (quantised values are float32
    numbers).
    """
    # a tied tensor may be stored under its other name
    stored = checkpoint.tensors.get(name, next(iter(checkpoint.tensors.values())))
    return str(stored.dtype).removeprefix("torch.")
