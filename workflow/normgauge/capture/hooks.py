"""Hooks at the sites of an anatomy. Activations go from the hook straight into the accumulator and
are never kept.
"""

from __future__ import annotations

import inspect
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import groupby
from typing import Any, Protocol

import torch

from normgauge.anatomy.structure import Site
from normgauge.calibration.batches import Batch
from normgauge.errors import InputError
from normgauge.moments import Accumulator, GroupedAccumulator, Moments, Workspace
from normgauge.progress import Progress

TABULATED_GROUPS = ("residual", "terminal")
TABULATED_TAPS = ("query_key_value_input",)
"""Groups and taps of the sites that tables and figures show, with their uncertainty over
sequences.
"""


def capture(
    model: torch.nn.Module,
    sites: Sequence[Site],
    batches: Iterable[Batch],
    accumulation: str,
    progress: Progress | None = None,
    first_batches: float = float("inf"),
) -> dict[str, Moments]:
    """Moments of every site over all batches, by site id.

    model: module of the class that the sites' module paths refer to, in eval mode; floating inputs
        are cast to its dtype.
    accumulation: `cov32`, `cov64` or `tsqr64`. (`auto` is a second pass over some sites: see
        `capture_model`.)
    first_batches: the size of the whole calibration in units of the first batch.
    Memory does not depend on the number of batches: per site one (d + 1)^2 matrix, and half a
    matrix per group of sequences at the sites that tables show. Raises InputError when a site never
    fires, when activations are not finite, or (after the first batch, before the long work) when a
    site will see fewer samples than it has coordinates.
    """
    workspace = Workspace()
    accumulators = {site.id: accumulator_of(site, accumulation, workspace) for site in sites}
    body = body_of(model)
    parameter, started = next(model.parameters()), False
    with torch.inference_mode(), hooked(model, sites, accumulators) as state:
        for batch in batches:
            state.begin(batch.masks, batch.groups)
            body(**{key: placed(value, parameter) for key, value in batch.inputs.items()})
            state.check_all_fired()
            if not started:
                expect_enough_samples(accumulators, first_batches)
                started = True
            if progress:
                progress.step()
    return {site.id: accumulators[site.id].moments() for site in sites}


def accumulator_of(
    site: Site, accumulation: str, workspace: Workspace
) -> Accumulator | GroupedAccumulator:
    """With groups at the sites that tables show; samples are compared at X_0 and block 1's
    input.
    """
    if site.group in TABULATED_GROUPS or site.tap in TABULATED_TAPS:
        first = site.tap == "embedding" or (site.block == 1 and site.tap in TABULATED_TAPS)
        return GroupedAccumulator(accumulation, site.width, workspace, distinct=first)
    return Accumulator(accumulation, site.width, workspace)


def body_of(model: torch.nn.Module) -> torch.nn.Module:
    """The model without its head, where transformers separates them: every site lies in it, and a
    head over a vocabulary may cost more.

    DINOv3 has its blocks under the name that transformers takes for the model's own: what does not
    take the model's input is not the model.
    """
    body = getattr(model, "base_model", model)
    entered = getattr(model, "main_input_name", None)
    return body if entered in inspect.signature(body.forward).parameters else model


def expect_enough_samples(
    accumulators: Mapping[str, Accumulator | GroupedAccumulator], first_batches: float
) -> None:
    """Refuse fewer samples than coordinates: the bottom of the spectrum would be the sample's, not
    the model's.
    """
    for site, accumulator in accumulators.items():
        expected = accumulator.n * first_batches
        if expected <= accumulator.d:
            raise InputError(
                f"site {site}: {expected:.0f} samples for {accumulator.d} coordinates leave the "
                "covariance rank deficient; "
                "raise calibration.sequences or calibration.length, or leave the site's group out "
                "of capture"
            )


def placed(value: Any, parameter: torch.Tensor) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    return value.to(parameter.device, parameter.dtype if value.is_floating_point() else None)


class Receiver(Protocol):
    """What takes the activations of one site, (rows, width) per call of its module.

    A `GroupedAccumulator` takes those of each group of sequences by itself.
    """

    def update(self, rows: torch.Tensor, /) -> None: ...


class _State:
    """What the hooks share during one forward pass: masks, groups of sequences, and how often each
    module has been called.
    """

    def __init__(self, sites: Sequence[Site], accumulators: Mapping[str, Receiver]) -> None:
        self.sites, self.accumulators = sites, accumulators
        self.masks: Mapping[str, torch.Tensor | None] = {}
        self.groups: tuple[int, ...] = ()
        self.calls: dict[tuple[str, str], int] = defaultdict(int)

    def begin(self, masks: Mapping[str, torch.Tensor | None], groups: tuple[int, ...] = ()) -> None:
        self.masks, self.groups = masks, groups
        self.calls.clear()

    def receive(self, module: str, hook: str, sites: Sequence[Site], value: Any) -> None:
        call = self.calls[module, hook]
        self.calls[module, hook] += 1
        for site in sites:
            if site.call == call:
                self._add(site, value[0] if isinstance(value, tuple) else value)

    def _add(self, site: Site, activations: torch.Tensor) -> None:
        if activations.shape[-1] != site.width:
            raise InputError(
                f"site {site.id}: expected width {site.width}, the module {site.module} gave "
                f"{tuple(activations.shape)}"
            )
        receiver = self.accumulators[site.id]
        if site.factor != 1:
            activations = activations * site.factor
        rows = activations.reshape(-1, site.width)
        mask = self.masks.get(site.stack)
        kept = None if mask is None else mask.reshape(-1).to(rows.device)
        try:
            if isinstance(receiver, GroupedAccumulator) and self.groups:
                for group, span in self._spans(len(rows)):
                    receiver.update(rows[span] if kept is None else rows[span][kept[span]], group)
            else:
                receiver.update(rows if kept is None else rows[kept])
        except InputError as error:
            raise InputError(f"site {site.id}: {error}") from error

    def _spans(self, rows: int) -> Iterator[tuple[int, slice]]:
        """Neighbouring sequences of one group, as (group, the slice of their rows)."""
        length, rest = divmod(rows, len(self.groups))
        if rest:
            raise ValueError(f"{rows} rows of {len(self.groups)} sequences")
        start = 0
        for group, members in groupby(self.groups):
            stop = start + length * len(list(members))
            yield group, slice(start, stop)
            start = stop

    def check_all_fired(self) -> None:
        for site in self.sites:
            if self.calls[site.module, site.hook] <= site.call:
                raise InputError(
                    f"site {site.id}: module {site.module} was not called {site.call + 1} times in "
                    "a forward pass; wrong anatomy?"
                )


@contextmanager
def hooked(
    model: torch.nn.Module, sites: Sequence[Site], accumulators: Mapping[str, Receiver]
) -> Iterator[_State]:
    """Within this context every forward pass, after `begin(masks)`, hands each site's activations
    to its receiver.
    """
    state = _State(sites, accumulators)
    groups: dict[tuple[str, str], list[Site]] = defaultdict(list)
    for site in sites:
        groups[site.module, site.hook].append(site)
    handles = [
        _register(model, module, hook, members, state) for (module, hook), members in groups.items()
    ]
    try:
        yield state
    finally:
        for handle in handles:
            handle.remove()


def _register(
    model: torch.nn.Module, name: str, hook: str, sites: list[Site], state: _State
) -> Any:
    try:
        module = model.get_submodule(name)
    except AttributeError:
        raise InputError(f"site {sites[0].id}: the model has no module {name}") from None
    if hook == "output":
        return module.register_forward_hook(
            lambda _module, _inputs, output: state.receive(name, hook, sites, output)
        )
    argument = sites[0].argument

    def before(
        _module: torch.nn.Module, positional: tuple[Any, ...], keywords: dict[str, Any]
    ) -> None:
        state.receive(name, hook, sites, positional[0] if positional else keywords[argument])

    return module.register_forward_pre_hook(before, with_kwargs=True)
