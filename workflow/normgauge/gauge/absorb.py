"""Gains moved into the maps that read them: the state in which a residual stream admits dense
rotations.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from normgauge.anatomy.lookup import effective_gain, fed_maps, is_tied
from normgauge.anatomy.structure import Anatomy, Norm, Placement
from normgauge.checkpoints.opening import Checkpoint
from normgauge.errors import InputError
from normgauge.gauge.admissible import norms_on
from normgauge.gauge.folding import bypasses, leaves_model, scale_readers

KEPT = 2 / 3  # share of a dtype's digits that absorbing must leave where no tolerance is given


def absorb_gains(
    checkpoint: Checkpoint,
    anatomy: Anatomy,
    dtype: torch.dtype | None = None,
    tolerance: float | None = None,
) -> Checkpoint:
    """The same function with every gain on the primary residual stream equal to one.

    What changes is rounded once, to `dtype`, or to the tensor's own where that is None. The gain g
    of a norm goes into the maps that it feeds (W -> W diag(g)); the bias b of a LayerNorm becomes b
    / g. Raises InputError,
    naming the norm, where that changes the function: norms on the stream itself (post-norm,
    sandwich), hidden states that are the model's output, tied weights (`opening.untied`); and,
    naming the coordinate, where b / g would cost more than `tolerance` of the outputs once the
    stream is rotated (see `absorption_cost`). None allows a third of the digits of the dtype that
    is written.
    """
    require_absorbable(anatomy)
    require_affordable(anatomy, checkpoint.tensors, dtype, tolerance)
    tensors = dict(checkpoint.tensors)
    for norm in _absorbed_norms(anatomy):
        _absorb(anatomy, norm, tensors, dtype)
    return Checkpoint(checkpoint.config, tensors, checkpoint.stored, checkpoint.files)


def require_absorbable(anatomy: Anatomy) -> None:
    """InputError, naming the norm, where the architecture has no maps for a gain on its primary
    stream to go into.
    """
    if anatomy.placement not in (Placement.PRE, Placement.PARALLEL):
        raise InputError(
            f"{anatomy.architecture}: its norms ({anatomy.placement}) write the residual stream, "
            "which has no map to absorb their gains; "
            f"use signed permutations"
        )
    if sum(stack.space == anatomy.primary_stack.space for stack in anatomy.stacks) > 1:
        raise InputError(
            f"{anatomy.architecture}: its encoder and decoder share one residual space, and the "
            "encoder's normed states are an output "
            f"themselves, with no map behind them to absorb their gains; use signed permutations"
        )
    for norm in _absorbed_norms(anatomy):
        _check_readers(anatomy, norm)


def _absorbed_norms(anatomy: Anatomy) -> list[Norm]:
    return [norm for norm in norms_on(anatomy, anatomy.primary_stack.space) if norm.gain]


def _absorb(
    anatomy: Anatomy, norm: Norm, tensors: dict[str, torch.Tensor], dtype: torch.dtype | None
) -> None:
    assert norm.gain is not None
    stored = tensors[norm.gain]
    gain = effective_gain(norm, tensors)
    if norm.bias:
        bias = tensors[norm.bias]
        tensors[norm.bias] = _over_gain(bias.double(), gain).to(dtype or bias.dtype)
    scale_readers(anatomy, norm, tensors, gain, dtype)
    tensors[norm.gain] = torch.full_like(stored, 1 - norm.gain_offset)


def absorption_cost(gain: torch.Tensor, bias: torch.Tensor, dtype: torch.dtype) -> float:
    """What absorbing the gains of a LayerNorm costs, relative to what its readers read, once a
    rotation follows.

    `gain` and `bias`: float64 (d,). The normalised state has root mean square one, and b / g is
    added to it. A rotation spreads the sum over all coordinates, each of which is rounded to
    `dtype`, unit roundoff u; turned back, every reader meets an error of u sqrt(1 + mean((b /
    g)^2)). Infinite for a gain of zero under a bias.
    """
    shift = _over_gain(bias, gain)
    return float(torch.finfo(dtype).eps / 2 * (1 + shift.square().mean()).sqrt())


def _over_gain(bias: torch.Tensor, gain: torch.Tensor) -> torch.Tensor:
    """b / g; zero where both are, since nothing is written there."""
    return torch.where((gain == 0) & (bias == 0), 0.0, bias / gain)


def require_affordable(
    anatomy: Anatomy,
    tensors: Mapping[str, torch.Tensor],
    dtype: torch.dtype | None = None,
    tolerance: float | None = None,
) -> None:
    """InputError, naming norm and coordinate, where absorbing costs more than the tolerance of
    `absorb_gains`.
    """
    for norm in _absorbed_norms(anatomy):
        if norm.gain and norm.bias:
            gain, bias = effective_gain(norm, tensors), tensors[norm.bias]
            _require_affordable(norm, gain, bias.double(), dtype or bias.dtype, tolerance)


def _require_affordable(
    norm: Norm, gain: torch.Tensor, bias: torch.Tensor, dtype: torch.dtype, tolerance: float | None
) -> None:
    allowed = (torch.finfo(dtype).eps / 2) ** KEPT if tolerance is None else tolerance
    cost = absorption_cost(gain, bias, dtype)
    if not cost <= allowed:
        worst = int(_over_gain(bias, gain).abs().argmax())
        raise InputError(
            f"norm {norm.name}: coordinate {worst} has a gain of {gain[worst]:.2g} under a bias of "
            f"{bias[worst]:.2g}; absorbed and then "
            f"rotated, that costs {cost:.2g} of the outputs in "
            f"{str(dtype).removeprefix('torch.')}, more than {allowed:.2g}; keep the "
            f"gains, or absorb them in a wider dtype"
        )


def _check_readers(anatomy: Anatomy, norm: Norm) -> None:
    if not norm.feeds or leaves_model(anatomy, norm):
        raise InputError(
            f"norm {norm.name}: its output leaves {anatomy.architecture}, or is read by no map "
            "alone, so nothing can absorb its gain; "
            f"take the class with its head"
        )
    if bypasses(anatomy, norm):
        raise InputError(
            f"norm {norm.name}: the stream carries on its output, so no map can absorb its gain; "
            "use signed permutations"
        )
    for item in fed_maps(anatomy, norm):
        if is_tied(anatomy, item.weight):
            raise InputError(
                f"norm {norm.name}: it feeds {item.weight}, which is tied to another tensor; untie "
                "the checkpoint first (untied)"
            )
