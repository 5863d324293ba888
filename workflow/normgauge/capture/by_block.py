"""Moments of a model that is larger than memory: one block at a time, over all sequences.

The loop over blocks is outside, the loop over batches inside. A block is loaded, every batch passes
it under the hooks, its moments are handed on, and it is released. What is held is one block, what
stands around the blocks, the accumulators of one block's sites and the hidden states of one batch
or, where they are kept in memory, of all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from normgauge.anatomy.structure import Anatomy, Site
from normgauge.calibration.batches import Batch
from normgauge.capture.hooks import (
    accumulator_of,
    body_of,
    expect_enough_samples,
    hooked,
    placed,
)
from normgauge.capture.order import BlockPass, Parts, block_passes, parts_of
from normgauge.capture.outputs import Outputs
from normgauge.capture.second_pass import NormRow, factor_shows_more
from normgauge.checkpoints.skeleton import Skeleton
from normgauge.errors import InputError
from normgauge.moments import Moments, Workspace
from normgauge.progress import Progress

BatchSource = Callable[[], Iterable[Batch]]


@dataclass(frozen=True)
class Run:
    """How a model is run over its calibration.

    source: gives the batches anew at each call. steps: how many there are. accumulation: `cov32`,
    `cov64`, `tsqr64` or `auto`, as of `capture_model`. first_batches: the size of the whole
    calibration (all shards) in units of the first batch. label: of the line that shows progress.
    """

    source: BatchSource
    steps: int
    accumulation: str
    first_batches: float
    label: str


def capture_by_block(
    skeleton: Skeleton,
    anatomy: Anatomy,
    sites: Sequence[Site],
    run: Run,
    norms: Iterable[NormRow],
    outputs: Outputs,
) -> Iterator[dict[str, Moments]]:
    """The moments of each block's sites, by site id, one block after the other.

    They have the bytes that `capture_model` gives of the whole model. Work goes on behind the
    blocks that `outputs` says are finished; a block counts as finished when the next one is asked
    for, so a caller that has kept its moments by then loses none. Raises InputError as `capture`
    does, and where a block's value cannot be kept or blocks are called in another order than the
    anatomy's.
    """
    model, body = skeleton.model, body_of(skeleton.model)
    path = next(name for name, module in model.named_modules() if module is body)
    parts = parts_of(anatomy, list(model.state_dict(keep_vars=True)), path)
    passes = block_passes(anatomy, sites)
    named = {norm["norm"]: norm for norm in norms}
    inputs = _Inputs(run.source, skeleton)
    progress = Progress(run.steps * len(passes), run.label)
    progress.step(run.steps * outputs.finished)
    skeleton.load(parts.outer)
    workspace = Workspace()
    for each in passes[outputs.finished :]:
        block = parts.blocks[each.blocks[-1]]
        with _loaded(skeleton, block), _stem(skeleton, parts, each.first):
            walk = _Walk(skeleton, body, each, tuple(parts.blocks), inputs, outputs, workspace)
            first = "cov64" if run.accumulation == "auto" else run.accumulation
            moments = walk.moments(each.sites, first, run.first_batches, progress)
            if run.accumulation == "auto":
                roundoff = torch.finfo(skeleton.dtype).eps
                again = [
                    site
                    for site in each.sites
                    if factor_shows_more(moments[site.id], roundoff, named.get(site.norm or ""))
                ]
                if again:
                    moments |= walk.moments(again, "tsqr64", float("inf"), None)
        yield moments
        del moments
        outputs.finish(each.stacks[-1])


@contextmanager
def _loaded(skeleton: Skeleton, names: Sequence[str]) -> Iterator[None]:
    skeleton.load(names)
    try:
        yield
    finally:
        skeleton.release(names)


@contextmanager
def _stem(skeleton: Skeleton, parts: Parts, real: bool) -> Iterator[None]:
    """The modules before the blocks: as they are, or giving zeros of the right shape."""
    model = skeleton.model
    with ExitStack() as stack:
        if real:
            stack.enter_context(_loaded(skeleton, parts.convolutions))
            for name in parts.tables:
                stack.enter_context(skeleton.rows_loaded(name))
        else:
            names = (*parts.tables, *parts.convolutions)
            for module in dict.fromkeys(name.rpartition(".")[0] for name in names):
                stack.enter_context(_shape_only(model.get_submodule(module)))
        yield


@contextmanager
def _shape_only(module: Any) -> Iterator[None]:
    """The module without values gives zeros; its own code says of which shape."""
    forward = module.forward

    def zeros(value: torch.Tensor) -> torch.Tensor:
        made = forward(value.to("meta"))
        return torch.zeros(made.shape, dtype=made.dtype, device=value.device)

    module.forward = zeros
    try:
        yield
    finally:
        module.forward = forward


class _Inputs:
    """The batches of a calibration. Behind the first block all that counts of pictures and sounds
    is their shape, so they are read once and not kept; tokens are.
    """

    def __init__(self, source: BatchSource, skeleton: Skeleton) -> None:
        self._source = source
        self._seen = getattr(skeleton.model, "main_input_name", "")
        self._like = torch.empty(0, dtype=skeleton.dtype, device=skeleton.device)
        self._kept: list[Batch] = []

    def batches(self, whole: bool) -> Iterator[Batch]:
        """The batches, as the model takes them. whole: with the values of pictures and sounds."""
        if whole or not self._kept:
            kept = []
            for batch in self._source():
                kept.append(replace(batch, inputs=self._light(batch.inputs)))
                yield self._placed(batch if whole else kept[-1])
            self._kept = kept
        else:
            yield from map(self._placed, self._kept)

    def _light(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """The picture or the sound without its values; masks and tokens as they are."""
        value = inputs.get(self._seen)
        if not isinstance(value, torch.Tensor) or not value.is_floating_point():
            return dict(inputs)
        return {**inputs, self._seen: torch.zeros((), dtype=value.dtype).expand(value.shape)}

    def _placed(self, batch: Batch) -> Batch:
        inputs = {key: placed(value, self._like) for key, value in batch.inputs.items()}
        return replace(batch, inputs=inputs)


class _Enough(BaseException):
    """Ends a forward pass behind the last site that it is made for."""


class _Walk:
    """Forward passes in which one block is real."""

    def __init__(
        self,
        skeleton: Skeleton,
        body: nn.Module,
        own: BlockPass,
        blocks: Sequence[str],
        inputs: _Inputs,
        outputs: Outputs,
        workspace: Workspace,
    ) -> None:
        self._skeleton, self._body, self._own, self._blocks = skeleton, body, own, blocks
        self._inputs, self._outputs, self._workspace = inputs, outputs, workspace
        self._call = self._batch = 0
        self._keep = True  # a second walk over the same block gives the same values

    def moments(
        self,
        sites: Sequence[Site],
        method: str,
        first_batches: float,
        progress: Progress | None,
    ) -> dict[str, Moments]:
        """Moments of these sites of the block, by site id."""
        accumulators = {site.id: accumulator_of(site, method, self._workspace) for site in sites}
        model = self._skeleton.model
        with (
            torch.inference_mode(),
            # first the hooks, which go to the real modules, then the switches in their places
            hooked(model, sites, accumulators) as state,
            self._switched(),
        ):
            for number, batch in enumerate(self._inputs.batches(self._own.number == 0)):
                state.begin(batch.masks, batch.groups)
                self._forward(number, batch)
                state.check_all_fired()
                if not number:
                    expect_enough_samples(accumulators, first_batches)
                if progress:
                    progress.step()
        self._keep = False
        return {site.id: accumulators.pop(site.id).moments() for site in sites}

    def _forward(self, number: int, batch: Batch) -> None:
        self._call, self._batch = 0, number
        try:
            self._body(**batch.inputs)
        except _Enough:
            return
        raise InputError(
            f"{self._own.blocks[-1]}: was not called as block {self._own.number + 1} in a forward "
            "pass; wrong anatomy?"
        )

    @contextmanager
    def _switched(self) -> Iterator[None]:
        """A switch in the place of every block, whose hooks stay with the block."""
        model, own = self._skeleton.model, self._own
        real = {name: model.get_submodule(name) for name in self._blocks}
        with ExitStack() as stack:
            if own.terminal:
                handle = model.get_submodule(own.terminal).register_forward_hook(self._after)
                stack.callback(handle.remove)
            for name, module in real.items():
                parent, _, slot = name.rpartition(".")
                holder = model.get_submodule(parent)
                stack.callback(setattr, holder, slot, module)
                setattr(holder, slot, _Switch(name, module, self.passed))
            yield

    def _after(self, *_: Any) -> None:
        """Behind the terminal norm, once the block before it has been run."""
        if self._call > self._own.number:
            raise _Enough

    def passed(self, name: str, module: nn.Module, args: Any, kwargs: Any) -> Any:
        """What call number `_call` of a block gives: the real value, or that of the latest block of
        its stack.
        """
        own, call = self._own, self._call
        self._call += 1
        if call > own.number or own.blocks[call] != name:
            raise InputError(
                f"{name}: called as block {call + 1} of a forward pass; wrong anatomy?"
            )
        if call < own.number:
            return self._outputs.get(own.stacks[call], self._batch)
        value = module(*args, **kwargs)
        if self._keep:
            self._outputs.put(own.stacks[call], self._batch, value)
        if not own.terminal:
            raise _Enough
        return value


class _Switch(nn.Module):
    """Stands in a block's place; what a model asks of the block besides calling it, the block
    answers.
    """

    def __init__(
        self, name: str, module: nn.Module, passed: Callable[[str, nn.Module, Any, Any], Any]
    ) -> None:
        super().__init__()
        self.__dict__.update(name=name, block=module, passed=passed)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.passed(self.name, self.block, args, kwargs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["block"], name)
