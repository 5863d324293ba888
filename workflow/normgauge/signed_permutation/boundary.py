"""The boundary of a checkpoint's group: every admissible family leaves the function alone, every
control beyond it must not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from normgauge.anatomy import describe
from normgauge.anatomy.lookup import effective_gain
from normgauge.anatomy.structure import Anatomy, NormKind, SpaceKind
from normgauge.calibration.batches import Batch
from normgauge.checkpoints.opening import Checkpoint, untied
from normgauge.checkpoints.placing import without_ties
from normgauge.checkpoints.readers.mapped import ChangedTensors
from normgauge.errors import InputError
from normgauge.gauge.absorb import absorb_gains, require_absorbable, require_affordable
from normgauge.gauge.admissible import Group, admissible, gauge_spaces, norms_on
from normgauge.gauge.equivalence import deviation_between, equivalence_row, outputs_of
from normgauge.gauge.groups import Monomial, Orthogonal
from normgauge.gauge.model_gauge import Gauge
from normgauge.gauge.null_line import null_line_axes, random_null_line, shifted
from normgauge.gauge.random_gauges import random_gauge
from normgauge.gauge.requirements import require_admissible
from normgauge.gauge.transform import apply_moves, check_tensors, tensor_moves

STORED, DRAWN = "stored", "constants drawn"
"""Where a checkpoint's gains and biases come from: its file, or, where a fresh initialisation left
them constant, a generator.
"""


@dataclass(frozen=True)
class Case:
    """One row of the table: a change of coordinates, and the function that changes the checkpoint.

    `gauge` is what it does to hidden states that are outputs. `change` takes the checkpoint and the
    forward pass's dtype. `predicted` is None of an admissible change; of a control it gives how far
    the change is from the group, relative to the states that it moves.
    """

    group: str
    gauge: Gauge
    change: Callable[[Checkpoint, torch.dtype], Checkpoint]
    predicted: Callable[[Checkpoint], float] | None = None


def equivalence_rows(
    checkpoint: Checkpoint,
    anatomy: Anatomy,
    batches: Sequence[Batch],
    seeds: Sequence[int],
    forward_dtypes: Sequence[str],
    fresh: bool = False,
) -> list[dict[str, Any]]:
    """Rows of schema `equivalence`: per dtype and seed every admissible family, and in float64,
    whose tolerance is sharp, the controls.

    One block of one model is in memory at a time, and the tensors that an absorption or a shift
    changes. `fresh` marks a random initialisation: its constant gains and
    biases, under which even a dense rotation would pass, are drawn first (see
    `with_drawn_constants`).
    """
    if fresh:
        checkpoint = with_drawn_constants(checkpoint, anatomy, seeds[0])
    rows = []
    for forward_dtype in forward_dtypes:
        dtype = getattr(torch, forward_dtype)
        recorded = list(outputs_of(checkpoint, forward_dtype, batches))
        for seed in seeds:
            for case in cases(checkpoint, seed, dtype):
                if case.predicted is None or forward_dtype == "float64":
                    changed = case.change(checkpoint, dtype)
                    pairs = zip(recorded, outputs_of(changed, forward_dtype, batches), strict=True)
                    found = deviation_between(pairs, anatomy, case.gauge)
                    predicted = None if case.predicted is None else case.predicted(checkpoint)
                    rows.append(
                        equivalence_row(
                            case.group,
                            seed,
                            forward_dtype,
                            DRAWN if fresh else STORED,
                            found,
                            predicted,
                        )
                    )
    return rows


def with_drawn_constants(checkpoint: Checkpoint, anatomy: Anatomy, seed: int) -> Checkpoint:
    """The checkpoint with every constant gain drawn uniformly, 1/2 to 3/2 in effect, and every
    constant bias from a tenth of normal.
    """
    generator = torch.Generator().manual_seed(seed)
    offsets = {norm.gain: norm.gain_offset for norm in anatomy.norms if norm.gain}
    biases = {item.bias for item in anatomy.maps} | {norm.bias for norm in anatomy.norms}
    tensors = dict(checkpoint.tensors)
    for name, value in checkpoint.tensors.items():
        if (name not in offsets and name not in biases) or not bool(
            (value == value.reshape(-1)[0]).all()
        ):
            continue
        if name in offsets:
            drawn = 0.5 + torch.rand(value.shape, generator=generator) - offsets[name]
        else:
            drawn = 0.1 * torch.randn(value.shape, generator=generator)
        tensors[name] = drawn.to(value.dtype)
    return replace(checkpoint, tensors=tensors)


def cases(checkpoint: Checkpoint, seed: int, dtype: torch.dtype) -> Iterator[Case]:
    """What is tried on a model: its admissible families as far as its architecture has them and the
    dtype of the forward pass holds them, then the controls.
    """
    anatomy = describe(checkpoint.config)
    spaces = gauge_spaces(anatomy)
    streams = tuple(dict.fromkeys(stack.space for stack in anatomy.stacks))
    units = tuple(
        space
        for space in spaces
        if not space.endswith("attention") and anatomy.space(space).kind == SpaceKind.FFN
    )
    layers = tuple(space for space in spaces if space.endswith("attention"))
    stream = anatomy.primary_stack
    rule, inside = admissible(anatomy, stream.space).group, admissible(anatomy, units[0]).group
    mean_free = anatomy.norm_kind == NormKind.LAYER_NORM
    turn = Gauge({stream.space: Orthogonal.random(stream.width, seed, fixing_ones=mean_free)})
    yield _gauged(f"residual: {rule}", random_gauge(anatomy, seed, streams))
    yield _gauged(f"feed-forward: {inside}", random_gauge(anatomy, seed, units))
    if layers:  # Qwen3.5 has none that a gauge moves
        yield _gauged(
            f"attention: {admissible(anatomy, layers[0]).query_maps}",
            random_gauge(anatomy, seed, layers),
        )
    loose = describe(without_ties(checkpoint.config))
    if _allows(lambda: require_absorbable(loose)) and _allows(
        lambda: require_affordable(loose, checkpoint.tensors, dtype)
    ):
        yield Case(
            "residual: rotation, gains absorbed",
            turn,
            lambda checkpoint, dtype: _turned(checkpoint, turn, dtype),
        )
    if _allows(lambda: null_line_axes(anatomy, stream.space)):
        yield Case(
            "residual: null line",
            Gauge({}),
            lambda checkpoint, dtype: _off_centre(checkpoint, anatomy, seed, dtype),
        )
    if rule != Group.SIGNED_PERMUTATION:
        signs = Gauge({stream.space: Monomial.random(stream.width, seed)})
        yield _gauged(
            "residual: independent signs",
            signs,
            lambda _: sign_distance(signs, rule == Group.COMMON_SIGN),
        )
    yield _gauged(
        "residual: rotation, gains not absorbed",
        turn,
        lambda checkpoint: gain_distance(checkpoint, anatomy, turn),
    )
    if inside in (Group.PERMUTATION, Group.POSITIVE_MONOMIAL):
        units_signs = Gauge(
            {space: Monomial.random(anatomy.space(space).size, seed) for space in units}
        )
        yield _gauged(
            "feed-forward: signs through the activation",
            units_signs,
            lambda _: sign_distance(units_signs, False),
        )


def sign_distance(gauge: Gauge, common_sign: bool) -> float:
    """How far the signs of a gauge are from those of the group, relative to states with equal
    energy on all coordinates: twice the root of the share that has the wrong sign, on the space
    where that is largest.
    """
    shares = [
        float((element.factors < 0).mean())
        for element in gauge.elements.values()
        if isinstance(element, Monomial)
    ]
    return 2 * max(min(share, 1 - share) if common_sign else share for share in shares) ** 0.5


def gain_distance(checkpoint: Checkpoint, anatomy: Anatomy, turn: Gauge) -> float:
    """How far the gains are from passing a rotation Q of the primary stream: the largest |diag(g) Q
    - Q diag(g)| over |g|, Frobenius norms, over its norms; 0 where the gains of each norm are
    constant.
    """
    element = turn.elements[anatomy.primary_stack.space]
    assert isinstance(element, Orthogonal)
    squares = element.matrix**2
    distances = [0.0]
    for norm in norms_on(anatomy, anatomy.primary_stack.space):
        if norm.gain:
            gain = effective_gain(norm, checkpoint.tensors).numpy()
            spread = gain - gain.mean()  # what is constant passes, and would only add its rounding
            distances.append(
                np.sqrt(max(2 * (spread @ spread - spread @ squares @ spread), 0) / (gain @ gain))
            )
    return float(max(distances))


def _gauged(
    group: str, gauge: Gauge, predicted: Callable[[Checkpoint], float] | None = None
) -> Case:
    """The case of a gauge; a control, whose effect is predicted, is applied without asking.

    Tensors are widened one by one, so that scales are not rounded to a narrower stored dtype.
    """

    def change(checkpoint: Checkpoint, dtype: torch.dtype) -> Checkpoint:
        anatomy = describe(checkpoint.config)
        if predicted is None:
            require_admissible(anatomy, gauge, checkpoint.tensors)
        check_tensors(
            anatomy, {name: tuple(value.shape) for name, value in checkpoint.tensors.items()}
        )
        return replace(checkpoint, tensors=_moved(checkpoint.tensors, anatomy, gauge, dtype))

    return Case(group, gauge, change, predicted)


def _moved(
    tensors: Mapping[str, torch.Tensor], anatomy: Anatomy, gauge: Gauge, dtype: torch.dtype
) -> ChangedTensors:
    """The gauged tensors in another dtype, made when they are asked for."""
    moves = tensor_moves(anatomy, gauge)
    return ChangedTensors(tensors, lambda name, value: apply_moves(value.to(dtype), moves[name]))


def _turned(checkpoint: Checkpoint, turn: Gauge, dtype: torch.dtype) -> Checkpoint:
    loose = untied(checkpoint)
    anatomy = describe(loose.config)
    tensors = absorb_gains(loose, anatomy, dtype).tensors
    require_admissible(anatomy, turn, tensors)
    return replace(loose, tensors=_moved(tensors, anatomy, turn, dtype))


def _off_centre(
    checkpoint: Checkpoint, anatomy: Anatomy, seed: int, dtype: torch.dtype
) -> Checkpoint:
    space = anatomy.primary_stack.space
    tensors = {name: value.to(dtype) for name, value in checkpoint.tensors.items()}
    return replace(
        checkpoint, tensors=shifted(anatomy, tensors, space, random_null_line(anatomy, space, seed))
    )


def _allows(require: Callable[[], object]) -> bool:
    """Whether a check passes that raises InputError with the reason where it does not."""
    try:
        require()
    except InputError:
        return False
    return True
