"""The observation stage: float64 forward passes of the stored weights; inputs and outputs of every
map and norm go to files.

This module reads weights. Nothing on the solver's side imports it.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from transformers.pytorch_utils import Conv1D

from normgauge.anatomy import describe
from normgauge.anatomy.lookup import is_tied
from normgauge.anatomy.structure import Anatomy
from normgauge.calibration.random_tokens import every_token, probes
from normgauge.checkpoints.opening import Checkpoint
from normgauge.checkpoints.skeleton import skeleton
from normgauge.exact_recovery import sliced_product
from normgauge.exact_recovery.cost import COST, folder_megabytes, peak_megabytes
from normgauge.exact_recovery.hooks import AllSeenError, Hooks, Recorder, tables_of
from normgauge.exact_recovery.parts import Part, divided, whole
from normgauge.exact_recovery.relay import Outgoing, incoming
from normgauge.exact_recovery.stragglers import FLOAT64, ROUNDED_ONCE
from normgauge.progress import Progress
from normgauge.provenance import atomic_path


def observe(
    checkpoint: Checkpoint,
    folder: str | os.PathLike[str],
    rows: int,
    seed: int,
    part: Part | None = None,
    before: Path | None = None,
    after: Path | None = None,
    published: bool = False,
) -> None:
    """Fill `folder` (atomically) with the observations of a checkpoint on `rows` random token
    positions, and their description; of a part of it where one is given.

    `before`: the relay of the parts before this one; `after`: where to write the relay for those
    that follow a block. `published`: on the sequences of the published protocol. `cost.json` says
    what it took.
    """
    start = time.perf_counter()
    anatomy, part = describe(checkpoint.config), part or whole()
    blocks = [block for stack in divided(anatomy) for block in stack.blocks]
    frame = skeleton(checkpoint, "float64", torch.device("cpu"))
    model = frame.model
    frame.load(name for name in model.state_dict() if part.runs(name, blocks))
    with atomic_path(folder) as temporary, ExitStack() as stack:
        temporary.mkdir()
        outgoing = _outgoing(anatomy, part) if after else None
        hooks = Hooks(anatomy, model, Recorder(temporary, rows), part, outgoing)
        for handle in hooks.register():
            stack.callback(handle.remove)
        for relayed in incoming(before):
            done = list(anatomy.stack(relayed.stack).blocks)
            if relayed.stack == part.stack:
                done = done[: part.number - 1]
            stack.callback(relayed.replace(model, done, lambda: hooks.batch, hooks.normalised))
        _run(checkpoint.config, model, hooks, rows, seed, published)
        hooks.description(checkpoint).write(temporary)
        if after and outgoing:
            with atomic_path(after) as relay:
                outgoing.write(relay, before)
        cost = {
            "part": part.name,
            "seconds": time.perf_counter() - start,
            "mb": peak_megabytes(),
            "relay_mb": sum(folder_megabytes(relay) for relay in (before, after) if relay),
        }
        (temporary / COST).write_text(json.dumps(cost) + "\n", encoding="utf-8")


def _run(
    config: Any, model: nn.Module, hooks: Hooks, rows: int, seed: int, published: bool
) -> None:
    """The forward passes, and for the sums of embeddings those of every token."""
    progress = Progress(rows, f"observe {hooks.part.name}")
    # else one sequence of full length would cost a square of it for nothing
    learns_positions = len(set(tables_of(hooks.anatomy).values())) > 1
    for inputs in probes(config, rows, seed, learns_positions, published):
        hooks.shape = inputs[
            "decoder_input_ids" if "decoder_input_ids" in inputs else "input_ids"
        ].shape
        with suppress(AllSeenError):  # the rest of the forward pass is not needed
            model(**inputs)
        hooks.batch += 1
        progress.step(min(hooks.shape.numel(), rows - progress.done))
    if hooks.is_sum and hooks.tables and not _read_out_alone(hooks):
        hooks.cover = Recorder(hooks.recorder.folder, sys.maxsize)
        for inputs in every_token(config, seed):
            hooks.shape = inputs["input_ids"].shape
            with suppress(AllSeenError):  # the embedding sum is all that is wanted
                model(**inputs)


def _read_out_alone(hooks: Hooks) -> bool:
    """Whether the one table is tied to the readout, which observes every row of it."""
    return len(set(hooks.tables.values())) == 1 and is_tied(hooks.anatomy, next(iter(hooks.tables)))


def _outgoing(anatomy: Anatomy, part: Part) -> Outgoing | None:
    if part.stack is None:
        return None
    later = {item.norm for item in anatomy.maps if not part.holds(item.module)}
    own = (norm.name for norm in anatomy.norms if part.holds(norm.name))
    return Outgoing(part.stack, tuple(name for name in own if name in later))


def observe_columns(
    model: nn.Module,
    config: Any,
    folder: str | os.PathLike[str],
    rows: int,
    seed: int,
    columns: Mapping[str, list[int]],
    outputs: Sequence[str],
    published: bool = False,
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
                    raise AllSeenError

            stack.callback(model.get_submodule(name).register_forward_hook(record).remove)
        for inputs in probes(config, rows, seed, False, published):
            waiting = set(columns)
            with suppress(AllSeenError):  # the rest of the forward pass is not needed
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
