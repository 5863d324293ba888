"""Every stored value of a gauged copy against the gauge's own: how far off, in ulp, and where
first.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from normgauge.anatomy import describe
from normgauge.anatomy.lookup import stored_name
from normgauge.anatomy.structure import Anatomy
from normgauge.checkpoints.opening import Checkpoint
from normgauge.checkpoints.placing import heads_anatomy
from normgauge.gauge.groups import AttentionGauge, HeadMap, Monomial, Orthogonal
from normgauge.gauge.model_gauge import Gauge
from normgauge.gauge.requirements import require_admissible
from normgauge.gauge.rounding import ulp
from normgauge.gauge.transform import Move, apply_moves, check_tensors, tensor_moves

FAITHFUL = 1.0  # ulp: a value rounded to either neighbour of the exact one errs by less
UNIT = 2.0**-53  # unit roundoff of float64, in which gauges are applied


@dataclass(frozen=True)
class StoredError:
    """One tensor of the copy. `largest`: its largest error, in ulp. `beyond`: values that err by
    more than FAITHFUL ulp and float64 arithmetic explain.
    """

    tensor: str
    largest: float
    beyond: int


def stored_errors(source: Checkpoint, target: Checkpoint, gauge: Gauge) -> list[StoredError]:
    """Each tensor of the target against the source's after the gauge, both widened to float64.

    Errors count in ulp of the coarser of the two dtypes; where that is the source's, the target is
    brought back by the inverse. Tensors are in the order of the anatomy, then those that both store
    and
    their class does not use: heads whose axes are known move, the others must not have changed.
    Raises InputError for a gauge that is not admissible on the source.
    """
    require_admissible(describe(source.config), gauge, source.tensors)
    heads = {
        name: tuple(tensor.shape)
        for name, tensor in source.heads().items()
        if name in target.heads() and tensor.is_floating_point()
    }
    anatomies = [heads_anatomy(each.config, heads) for each in (source, target)]
    known = heads.keys() & {tensor.name for tensor in anatomies[0].tensors}
    source, target = (_with_heads(each, known) for each in (source, target))
    for checkpoint, anatomy in zip((source, target), anatomies, strict=True):
        check_tensors(
            anatomy, {name: tuple(value.shape) for name, value in checkpoint.tensors.items()}
        )
    ways = [tensor_moves(anatomies[1], each) for each in (gauge, gauge.inverse())]
    errors = []
    for tensor in anatomies[1].tensors:
        if tensor.alias_of is None:
            first, second = (
                stored_tensor(each, anatomy, tensor.name)[1]
                for each, anatomy in zip((source, target), anatomies, strict=True)
            )
            back = torch.finfo(first.dtype).eps > torch.finfo(second.dtype).eps
            pair = (second, first) if back else (first, second)
            errors.append(_error(tensor.name, *pair, ways[back][tensor.name]))
    return errors + [
        _error(name, source.heads()[name], target.heads()[name], ())
        for name in sorted(heads.keys() - known)
    ]


def _with_heads(checkpoint: Checkpoint, names: Collection[str]) -> Checkpoint:
    """The checkpoint with these unused tensors among those of its class."""
    heads = checkpoint.heads()
    return replace(
        checkpoint, tensors={**checkpoint.tensors, **{name: heads[name] for name in sorted(names)}}
    )


def stored_tensor(checkpoint: Checkpoint, anatomy: Anatomy, name: str) -> tuple[str, torch.Tensor]:
    """The name under which a tensor, or one that it is tied to, is stored, and its value."""
    stored = stored_name(anatomy, name, checkpoint.tensors)
    return stored, checkpoint.tensors[stored]


def condition(gauge: Gauge) -> float:
    """The largest condition of its maps: by how much more than one rounding an inverse may bring
    back.
    """
    maps = [
        each
        for element in gauge.elements.values()
        if isinstance(element, AttentionGauge)
        for each in (element.query, element.value)
    ]
    return max((_shape(each)[2] for each in maps), default=1.0)


def _error(
    name: str, before: torch.Tensor, after: torch.Tensor, moves: Sequence[Move]
) -> StoredError:
    expected = apply_moves(before.double(), moves)
    error = (after.double() - expected).abs()
    unit = ulp(expected, after.dtype)
    dense, relative = _arithmetic(before.double(), moves)
    beyond = ~(error <= FAITHFUL * unit + dense + relative * expected.abs())
    return StoredError(
        name, float((error / unit).max().nan_to_num(float("inf"))), int(beyond.sum())
    )


def _arithmetic(value: torch.Tensor, moves: Sequence[Move]) -> tuple[float, float]:
    """Bounds of what float64 rounds in the moves: of every entry, and relative to an entry.

    A product with an n x n matrix M errs by n u |M| |x| per entry and row x, and by as much again
    for each unit of M's condition, because M itself may come from an inverse (Higham 2002, 3.5 and
    14.1).
    """
    dense = relative = 0.0
    for move in moves:
        if isinstance(move.element, Monomial) or move.element.exact:
            relative += 0.0 if move.element.exact else 4 * UNIT
            continue
        size, length, condition = _shape(move.element)
        rows = value.movedim(move.axis, -1).reshape(-1, value.shape[move.axis])
        dense = length * (
            dense + (size + condition) * UNIT * float(torch.linalg.vector_norm(rows, dim=1).max())
        )
    return dense, relative


def _shape(element: Orthogonal | HeadMap) -> tuple[int, float, float]:
    """Terms of its sums, its spectral norm and its condition."""
    if isinstance(element, Orthogonal):
        return element.size, 1.0, 1.0
    lengths = np.linalg.svd(element.matrices, compute_uv=False)
    return (
        element.matrices.shape[1],
        float(lengths[:, 0].max()),
        float((lengths[:, 0] / lengths[:, -1]).max()),
    )
