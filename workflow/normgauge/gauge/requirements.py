"""Gauges that change a model's function are refused, by the space and the reason."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch

from normgauge.anatomy.structure import (
    Anatomy,
    NormKind,
)
from normgauge.errors import InputError
from normgauge.gauge.admissible import (
    Admissible,
    Group,
    admissible,
    norms_on,
    query_form,
    scale_tensors,
)
from normgauge.gauge.groups import AttentionGauge, Monomial, Orthogonal
from normgauge.gauge.model_gauge import Gauge

# largest relative entry of a head map outside the pattern that the positions allow
COMMUTES = 1e-12


def require_admissible(anatomy: Anatomy, gauge: Gauge, tensors: Mapping[str, torch.Tensor]) -> None:
    """Refuse a gauge that changes the model's function.

    `tensors` by the names of the class; only gains are read, and only for dense elements. Raises
    InputError naming the space and the reason.
    """
    require_fitting(anatomy, gauge)
    for name, element in gauge.elements.items():
        if isinstance(element, Orthogonal):
            _require_dense(anatomy, admissible(anatomy, name), element, tensors)


def require_fitting(anatomy: Anatomy, gauge: Gauge) -> None:
    """The same as far as it shows without the model's tensors, which an artifact's file does not
    hold: all but a dense element's gains.
    """
    for name, element in gauge.elements.items():
        rule = admissible(anatomy, name)
        found = element.query.size if isinstance(element, AttentionGauge) else element.size
        if found != rule.size:
            raise InputError(
                f"gauge of {name}: {found} coordinates, the model has {rule.size}; use the gauge "
                "of this model"
            )
        if isinstance(element, AttentionGauge) != (rule.group == Group.ATTENTION):
            raise InputError(
                f"gauge of {name}: a {type(element).__name__} cannot act there; expected "
                f"{rule.group}"
            )
        if isinstance(element, Monomial):
            _require_monomial(rule, element)
        elif isinstance(element, AttentionGauge):
            _require_heads(anatomy, rule, element)


def _require_monomial(rule: Admissible, element: Monomial) -> None:
    factors = element.factors
    allowed = {
        Group.PERMUTATION: (factors == 1).all(),
        Group.COMMON_SIGN: element.is_signed_permutation and (factors == factors[0]).all(),
        Group.SIGNED_PERMUTATION: element.is_signed_permutation,
        Group.POSITIVE_MONOMIAL: (factors > 0).all(),
        Group.MONOMIAL: True,
    }
    if not allowed[rule.group]:
        raise InputError(
            f"gauge of {rule.space}: its factors leave the group, {rule.group}, because "
            f"{rule.reason}; use such a gauge"
        )


def _require_dense(
    anatomy: Anatomy, rule: Admissible, element: Orthogonal, tensors: Mapping[str, torch.Tensor]
) -> None:
    for item in anatomy.maps:
        if item.writes == rule.space and item.activation:
            raise InputError(
                f"gauge of {rule.space}: a dense rotation does not pass {item.activation} of "
                f"{item.name}; use {rule.group}"
            )
    for scale in scale_tensors(anatomy, rule.space):
        if not _constant(tensors[scale]):
            raise InputError(
                f"gauge of {rule.space}: a dense rotation does not pass the scale {scale}; use "
                f"{rule.group}"
            )
    for norm in norms_on(anatomy, rule.space):
        if norm.gain and not _constant(tensors[norm.gain]):
            raise InputError(
                f"gauge of {rule.space}: a dense rotation does not pass the gain of {norm.name}; "
                "absorb the gains first (absorb_gains)"
            )
        if norm.kind == NormKind.LAYER_NORM and not element.fixes_ones:
            raise InputError(
                f"gauge of {rule.space}: LayerNorm {norm.name} subtracts the mean over "
                "coordinates; "
                f"use a rotation that fixes the vector of ones"
            )


def _constant(gain: torch.Tensor) -> bool:
    return bool((gain == gain.reshape(-1)[0]).all())


def _require_heads(anatomy: Anatomy, rule: Admissible, element: AttentionGauge) -> None:
    key = anatomy.space(f"{rule.space.removesuffix('attention')}key")
    value = anatomy.space(f"{rule.space.removesuffix('attention')}value")
    if element.groups != key.heads or element.value.size != value.size:
        raise InputError(
            f"gauge of {rule.space}: {element.groups} groups and {element.value.size} value "
            f"coordinates, the model has {key.heads} and "
            f"{value.size}; use the gauge of this model"
        )
    still = (element.group_order == np.arange(element.groups)).all() and (
        element.head_order == np.arange(element.repeats)
    ).all()
    if not rule.heads_move and not still:
        raise InputError(
            f"gauge of {rule.space}: heads change places, but {rule.reason}; keep their order"
        )
    size = element.query_maps.shape[-1]
    pattern = query_form(rule.query_maps, anatomy.rotary_size, size)
    for matrix in element.query_maps:
        outside = np.abs(matrix - pattern(matrix)).max()
        if outside > COMMUTES * np.abs(matrix).max():
            raise InputError(
                f"gauge of {rule.space}: its query maps must be {rule.query_maps}, because "
                f"{rule.reason}; use such maps"
            )
