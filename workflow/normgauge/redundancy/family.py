"""A family of symmetries: what it is, and what all of them share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from normgauge.anatomy.structure import Anatomy
from normgauge.gauge.groups import AttentionGauge, Monomial, Orthogonal
from normgauge.gauge.model_gauge import Gauge
from normgauge.gauge.transform import transform
from normgauge.redundancy.readers import Mutable, Tensors


class Kind(StrEnum):
    """The families, by what moves."""

    QUERY_KEY = "query and key maps"
    VALUE_OUTPUT = "value and output maps"
    FEED_FORWARD = "feed-forward scales"
    ROTATION = "rotation of the residual stream"
    GAIN = "norm gain against its maps"
    BIAS = "norm bias against biases"
    KERNEL = "1/gain added behind LayerNorm"
    NULL_LINE = "ones added before LayerNorm"
    KEY_BIAS = "key bias"
    VALUE_BIAS = "value bias against output bias"
    LOST_VALUE = "values that the output map loses"
    CONSTANT = "constants between addends"
    HEAD_GAIN = "query gain against key gain"
    SCORE_BIAS = "score bias of a head"


@dataclass(frozen=True, eq=False)
class Symmetry:
    """One family. `place`: the space, norm, map or layer. `act(tensors, coordinates)`: the moved
    tensors; `tensors` are the stored ones in float64 (`readers.stored`), `coordinates` float64
    (dimension,).
    """

    kind: Kind
    place: str
    dimension: int
    act: Callable[[Tensors, np.ndarray], Mutable]


def gauged(
    anatomy: Anatomy, tensors: Tensors, name: str, element: AttentionGauge | Monomial | Orthogonal
) -> Mutable:
    """The tensors after one element of the group of one space or attention layer."""
    return dict(transform(anatomy, tensors, Gauge({name: element})))


def dimensions(found: Sequence[Symmetry]) -> Mapping[Kind, int]:
    """Directions by family, in the order of `Kind`; families that the model does not have are left
    out.
    """
    totals = {kind: sum(each.dimension for each in found if each.kind == kind) for kind in Kind}
    return {kind: total for kind, total in totals.items() if total}
