"""The observation stage: float64 forward passes of the stored weights; inputs and outputs of every
map and norm go to files.

This module reads weights. Nothing on the solver's side imports it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.hooks import RemovableHandle
from transformers.pytorch_utils import Conv1D

from normgauge.anatomy import describe
from normgauge.anatomy.lookup import holder
from normgauge.anatomy.structure import Anatomy, LinearMap, Role
from normgauge.calibration.random_tokens import every_token, probes
from normgauge.checkpoints.building import build_model
from normgauge.checkpoints.opening import Checkpoint
from normgauge.exact_recovery import sliced_product
from normgauge.exact_recovery.description import (
    Array,
    Description,
    ObservedMap,
    ObservedNorm,
    ObservedTable,
    StoredTensor,
)
from normgauge.exact_recovery.stragglers import FLOAT64, ROUNDED_ONCE
from normgauge.progress import Progress
from normgauge.provenance import atomic_path


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


def observe(checkpoint: Checkpoint, folder: str | os.PathLike[str], rows: int, seed: int) -> None:
    """Fill `folder` (atomically) with the observations of a checkpoint on `rows` random token
    positions, and their description.
    """
    anatomy = describe(checkpoint.config)
    model = build_model(checkpoint, "float64")
    with atomic_path(folder) as temporary, ExitStack() as stack:
        temporary.mkdir()
        recorder = Recorder(temporary, rows)
        hooks = Hooks(anatomy, model, recorder)
        for handle in hooks.register():
            stack.callback(handle.remove)
        progress = Progress(rows, "observe")
        # else one sequence of full length would cost a square of it for nothing
        learns_positions = len(set(hooks.tables.values())) > 1
        for inputs in probes(checkpoint.config, rows, seed, cover=learns_positions):
            hooks.shape = inputs[
                "decoder_input_ids" if "decoder_input_ids" in inputs else "input_ids"
            ].shape
            model(**inputs)
            progress.step(min(hooks.shape.numel(), rows - progress.done))
        if hooks.is_sum and len(set(hooks.tables.values())) > 1:
            hooks.cover = Recorder(temporary, sys.maxsize)
            for inputs in every_token(checkpoint.config, seed):
                hooks.shape = inputs["input_ids"].shape
                with suppress(_AllSeenError):  # the embedding sum is all that is wanted
                    model(**inputs)
        hooks.description(checkpoint).write(temporary)


def observe_columns(
    model: nn.Module,
    config: Any,
    folder: str | os.PathLike[str],
    rows: int,
    seed: int,
    columns: Mapping[str, list[int]],
    outputs: Sequence[str],
) -> None:
    """Fresh observations of some output columns of some maps, by module: arrays `{module}.inputs`
    and `{module}.{kind}` for each kind of `outputs` (of `stragglers.OUTPUTS`).
    """
    with atomic_path(folder) as temporary, ExitStack() as stack:
        temporary.mkdir()
        recorder = Recorder(temporary, rows)
        waiting: set[str] = set()
        for name, wanted in columns.items():

            def record(
                module: nn.Module,
                inputs: tuple,
                output: torch.Tensor,
                name: str = name,
                wanted: list[int] = wanted,
            ) -> None:
                recorder.add(f"{name}.inputs", inputs[0])
                if FLOAT64 in outputs:
                    recorder.add(f"{name}.{FLOAT64}", output[..., wanted])
                if ROUNDED_ONCE in outputs:
                    recorder.add(f"{name}.{ROUNDED_ONCE}", _rounded_once(module, inputs[0], wanted))
                waiting.discard(name)
                if not waiting:
                    raise _AllSeenError

            stack.callback(model.get_submodule(name).register_forward_hook(record).remove)
        for inputs in probes(config, rows, seed, cover=False):
            waiting = set(columns)
            with suppress(_AllSeenError):  # the rest of the forward pass is not needed
                model(**inputs)


def _rounded_once(module: nn.Module, inputs: torch.Tensor, columns: list[int]) -> torch.Tensor:
    """(rows, len(columns)) outputs of a linear module, each the float64 nearest to its exact value
    up to about 2^-60 of its terms.
    """
    weight: Any = module.weight if isinstance(module, Conv1D) else module.weight.T
    bias: Any = torch.zeros(weight.shape[1]) if module.bias is None else module.bias
    rows = inputs.reshape(-1, inputs.shape[-1]).numpy()
    constant = np.tile(-bias[columns].double().numpy(), (len(rows), 1))
    return torch.from_numpy(-sliced_product.residual(constant, rows, weight[:, columns].numpy()))


class _AllSeenError(Exception):
    """Every wanted module has run in this forward pass."""


class Hooks:
    """What is recorded of one model, and the description of it."""

    def __init__(self, anatomy: Anatomy, model: nn.Module, recorder: Recorder) -> None:
        self.anatomy, self.model, self.recorder = anatomy, model, recorder
        unique = {item.module: item for item in anatomy.maps}
        self.maps = [
            item
            for item in unique.values()
            if isinstance(model.get_submodule(item.module), (nn.Linear, Conv1D))
        ]
        self.latest: dict[str, torch.Tensor] = {}
        self.shared: dict[str, bool] = {}
        self.shape = torch.Size()
        stack = anatomy.primary_stack
        self.site = next(site for site in anatomy.sites if site.id == f"{stack.name}/embedding")
        self.tables = {
            tensor.name: holder(anatomy, tensor.name)
            for tensor in anatomy.tensors
            if [axis.role for axis in tensor.axes] == [Role.INDEX, Role.WRITE]
            and tensor.axes[1].segments[0].space == stack.space
        }
        self.looked_up: dict[str, tuple[torch.Tensor, torch.Tensor]] = {}
        self.is_sum = True
        self.cover: Recorder | None = None

    def register(self) -> Iterator[RemovableHandle]:
        for norm in self.anatomy.norms:
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

    def _norm(self, name: str, module: nn.Module, inputs: tuple, output: torch.Tensor) -> None:
        if self.tables and name == self.site.norm:
            self._embedding(inputs[0])
        self.recorder.add(f"{name}.inputs", inputs[0])
        self.recorder.add(f"{name}.outputs", output)
        self.latest[name] = output

    def _map(self, item: LinearMap, module: nn.Module, inputs: tuple, output: torch.Tensor) -> None:
        fed = item.norm is not None and self.latest.get(item.norm) is inputs[0]
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
            raise _AllSeenError
        if self.site.norm is None:
            self.recorder.add("embedding", total)
        for stored, (index, _) in self.looked_up.items():
            self.recorder.add(f"{stored}.indices", index.reshape(-1, 1))
        rows = [weight[index] for index, weight in self.looked_up.values()]
        size = torch.stack([row.abs() for row in rows]).sum(0)
        self.is_sum &= bool(((total - torch.stack(rows).sum(0)).abs() <= 1e-12 * size).all())

    def description(self, checkpoint: Checkpoint) -> Description:
        array = self.recorder.array
        tensors = tuple(
            StoredTensor(
                tensor.name,
                tensor.shape,
                _dtype(checkpoint, holder(self.anatomy, tensor.name)),
                tensor.alias_of,
            )
            for tensor in self.anatomy.tensors
        )
        tensors += tuple(
            StoredTensor(
                name, tuple(value.shape), str(value.dtype).removeprefix("torch."), None, used=False
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
            for norm in self.anatomy.norms
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
