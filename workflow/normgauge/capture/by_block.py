"""Moments of a model that is larger than memory: one block at a time, over all sequences.

The loop over blocks is outside, the loop over batches inside. A block is loaded, every batch passes
it under the hooks, its moments are handed on, and it is released. What is held is one block, what
stands around the blocks, the accumulators of one block's sites and the hidden states of one batch
or, where they are kept in memory, of all.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import torch
from torch import nn

from normgauge.anatomy.structure import Anatomy, Site
from normgauge.calibration.batches import Batch
from normgauge.capture.hooks import (
    Receiver,
    accumulator_of,
    body_of,
    expect_enough_samples,
    hooked,
    placed,
)
from normgauge.capture.order import BlockPass, Parts, block_passes, parts_of
from normgauge.capture.outputs import HeldOutputs, Outputs
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
    passes = block_passes(anatomy, sites)
    named = {norm["norm"]: norm for norm in norms}
    progress = Progress(run.steps * len(passes), run.label)
    progress.step(run.steps * outputs.finished)
    workspace = Workspace()
    order = BlockOrder(skeleton, anatomy, run.source, outputs)
    for walk in order.walks(passes):
        with walk.loaded():
            first = "cov64" if run.accumulation == "auto" else run.accumulation
            moments = walk.moments(walk.own.sites, first, run.first_batches, workspace, progress)
            if run.accumulation == "auto":
                roundoff = torch.finfo(skeleton.dtype).eps
                again = [
                    site
                    for site in walk.own.sites
                    if factor_shows_more(moments[site.id], roundoff, named.get(site.norm or ""))
                ]
                if again:
                    moments |= walk.moments(again, "tsqr64", float("inf"), workspace, None)
        yield moments
        del moments


def outputs_by_block(
    skeleton: Skeleton,
    anatomy: Anatomy,
    source: BatchSource,
    sites: Sequence[Site] = (),
    receivers: Mapping[str, Receiver] = MappingProxyType({}),
    after: Callable[[int, Sequence[Site]], None] = lambda _batch, _sites: None,
) -> Iterator[Any]:
    """What the whole model returns for each batch, one block of it in memory at a time.

    The tensors have the bytes of the whole-model pass. receivers: by site id, of the activations at
    `sites`, block after block. after: called with the number of the batch and the sites of the
    block when a batch has passed a block. Raises InputError as `capture_by_block` does.
    """
    order = BlockOrder(skeleton, anatomy, source, HeldOutputs())
    passes = block_passes(anatomy, sites, every=True)
    for walk in order.walks(passes):
        with walk.loaded():
            walk.over(walk.own.sites, receivers, after)
    yield from order.final(passes[-1])


class BlockOrder:
    """A model whose blocks come and go, and what its batches are after each block."""

    def __init__(
        self, skeleton: Skeleton, anatomy: Anatomy, source: BatchSource, outputs: Outputs
    ) -> None:
        self.skeleton, self.outputs = skeleton, outputs
        self.body = body_of(skeleton.model)
        path = next(name for name, module in skeleton.model.named_modules() if module is self.body)
        self.parts = parts_of(anatomy, list(skeleton.model.state_dict(keep_vars=True)), path)
        self.inputs = _Inputs(source, skeleton)
        skeleton.load(self.parts.outer)

    def walks(self, passes: Sequence[BlockPass]) -> Iterator[_Walk]:
        """A walk for each block behind the finished ones; one counts as finished when the next is
        asked for.
        """
        for each in passes[self.outputs.finished :]:
            yield _Walk(self, each)
            self.outputs.finish(each.stacks[-1])
            _return_freed_memory()

    def final(self, last: BlockPass) -> Iterator[Any]:
        """What the model returns for each batch, once all blocks are finished."""
        parts = self.parts
        walk = _Walk(self, replace(last, number=len(last.blocks), terminal=None, sites=()))
        # pictures and sounds may be looked at behind the blocks, so they pass the stem once more
        real = not parts.tables
        with _loaded(self.skeleton, parts.head), _stem(self.skeleton, parts, real):
            for number, batch in enumerate(self.inputs.batches(real)):
                yield walk.returned(number, batch)


def _return_freed_memory() -> None:
    """Give freed memory back to the system, where the C library has a call for it: else what small
    objects leave between large ones grows from block to block.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


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
    """Forward passes in which one block is real, or, behind all blocks, none."""

    def __init__(self, order: BlockOrder, own: BlockPass) -> None:
        self._order, self.own = order, own
        self._skeleton, self._outputs = order.skeleton, order.outputs
        self._call = self._batch = 0
        self._keep = True  # a second walk over the same block gives the same values

    @contextmanager
    def loaded(self) -> Iterator[None]:
        """Within this context the block and what counts before it have values."""
        parts = self._order.parts
        block = parts.blocks[self.own.blocks[-1]]
        with _loaded(self._skeleton, block), _stem(self._skeleton, parts, self.own.first):
            yield

    def moments(
        self,
        sites: Sequence[Site],
        method: str,
        first_batches: float,
        workspace: Workspace,
        progress: Progress | None,
    ) -> dict[str, Moments]:
        """Moments of these sites of the block, by site id."""
        accumulators = {site.id: accumulator_of(site, method, workspace) for site in sites}

        def after(number: int, _sites: Sequence[Site]) -> None:
            if not number:
                expect_enough_samples(accumulators, first_batches)
            if progress:
                progress.step()

        self.over(sites, accumulators, after)
        return {site.id: accumulators.pop(site.id).moments() for site in sites}

    def over(
        self,
        sites: Sequence[Site],
        receivers: Mapping[str, Receiver],
        after: Callable[[int, Sequence[Site]], None],
    ) -> None:
        """Every batch passes the block, its activations at the sites go to the receivers, and then
        `after` is called with its number and the sites.
        """
        model = self._skeleton.model
        with (
            torch.inference_mode(),
            # first the hooks, which go to the real modules, then the switches in their places
            hooked(model, sites, receivers) as state,
            self._switched(),
        ):
            for number, batch in enumerate(self._order.inputs.batches(self.own.number == 0)):
                state.begin(batch.masks, batch.groups)
                self._forward(number, batch)
                state.check_all_fired()
                after(number, sites)
        self._keep = False

    def returned(self, number: int, batch: Batch) -> Any:
        """What the model returns for a batch whose blocks are all finished."""
        self._call, self._batch = 0, number
        with torch.inference_mode(), self._switched():
            found = self._skeleton.model(**batch.inputs)
        if self._call < self.own.number:
            raise self._not_called(self.own.blocks[self._call], self._call)
        return found

    def _forward(self, number: int, batch: Batch) -> None:
        self._call, self._batch = 0, number
        try:
            self._order.body(**batch.inputs)
        except _Enough:
            return
        raise self._not_called(self.own.blocks[-1], self.own.number)

    def _not_called(self, block: str, number: int) -> InputError:
        return InputError(
            f"{block}: was not called as block {number + 1} in a forward pass; wrong anatomy?"
        )

    @contextmanager
    def _switched(self) -> Iterator[None]:
        """A switch in the place of every block, whose hooks stay with the block."""
        model, own = self._skeleton.model, self.own
        real = {name: model.get_submodule(name) for name in self._order.parts.blocks}
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
        if self._call > self.own.number:
            raise _Enough

    def passed(self, name: str, module: nn.Module, args: Any, kwargs: Any) -> Any:
        """What call number `_call` of a block gives: the real value, or that of the latest block of
        its stack.
        """
        own, call = self.own, self._call
        self._call += 1
        if call >= len(own.blocks) or own.blocks[call] != name:
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
