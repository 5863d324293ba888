"""Controls of the fingerprint: wrong hooks, raw Gram matrices, and directions that are no
kernel.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from math import sqrt

from normgauge.render.controls.reading import CRITICAL, Control, Must, Reading, Row, Rows, model_of

STUDY = "dead directions"
# floors above which a protocol check counts a difference as real (docs/dead_directions.md)
MARGIN = 32
ALIGNED = 1e-4  # one minus the least cosine that counts as alignment with 1/gamma
RMS_ALIGNED = 0.10  # the published bound of the cosine behind an RMSNorm


def _kernel_hook(rows: Rows) -> Iterator[Reading]:
    """At a LayerNorm's output nothing may vary along 1/gamma; along a direction that is no kernel
    sigma_median does.
    """
    for row in rows:
        if row["norm"] is not None and row["cos_beta_gamma_inv"] is not None:
            floor = MARGIN * max(row["forward_floor"], row["accumulator_floor"])
            yield Reading(
                _seeded(row),
                row["sigma_median"],
                floor,
                row["relative_gamma_inv"] * row["sigma_max"],
            )


def _schur_hook(rows: Rows) -> Iterator[Reading]:
    """u^T A u is (beta . u)^2 behind a LayerNorm; elsewhere a direction reads what coordinates
    do.
    """
    for row in rows:
        if (expected := row["predicted_quadratic_form"]) is not None:
            allowed = MARGIN * (2 * sqrt(expected * row["floor"]) + row["floor"])
            yield Reading(
                _seeded(row), row["axis_minimum"], allowed, abs(row["quadratic_form"] - expected)
            )


def _raw_gram(rows: Rows) -> Iterator[Reading]:
    """Without centring the mean stays: u^T A u of the uncentred A is (beta . u)^2, of the
    covariance zero.
    """
    for row in rows:
        if row["predicted_quadratic_form"] is not None:
            yield Reading(
                _seeded(row), row["predicted_quadratic_form"], row["floor"], row["quadratic_form"]
            )


def _unrelated_direction(rows: Rows) -> Iterator[Reading]:
    """Behind a LayerNorm the bottom direction is 1/gamma; an unrelated one has a cosine of sqrt(k /
    d) at most times a few.
    """
    for row in rows:
        if row["norm_kind"] == "LayerNorm":
            cosine = row["post_norm_cos_gamma_inv"]
            yield Reading(
                _kind(row), 1 - _chance(row), ALIGNED, None if cosine is None else 1 - cosine
            )


def _kernel_without_norm(rows: Rows) -> Iterator[Reading]:
    """Behind an RMSNorm no direction is distinguished: a kernel there would have the cosine one.
    Collapsed gains are left out.
    """
    for row in rows:
        if row["norm_kind"] == "RMSNorm":
            cosine, rest = row["post_norm_cos_gamma_inv"], row["post_norm_cos_gamma_inv_rest"]
            bound = max(RMS_ALIGNED, 3 * _chance(row))
            yield Reading(
                _kind(row),
                1.0,
                bound,
                cosine if rest is None or cosine is None else min(cosine, rest),
            )


def _chance(row: Row) -> float:
    return row["random_direction_null"] * sqrt(max(row["post_norm_null_dimension"] or 1, 1))


def _seeded(row: Row) -> str:
    return model_of(row) + (", re-initialised" if "seed" in row else "")


def _kind(row: Row) -> str:
    return model_of(row) + ("" if row["kind"] == "trained" else f", {row['kind']}")


_RAW = (
    *(
        "sigma_min",
        "sigma_active_min",
        "sigma_median",
        "sigma_max",
        "active_rank",
        "effective_rank",
        "null_dimension",
    ),
    *("cos_gamma_inv", "null_cos_gamma_inv", "cos_ones"),
)
_RAW_ELSEWHERE = {
    **dict.fromkeys(
        ("fingerprint", "reinitialised_fingerprint"), tuple(f"raw_{name}" for name in _RAW)
    ),
    **dict.fromkeys(
        ("stacks", "summary", "reinitialised_stacks", "table2"), ("post_norm_raw_cos_gamma_inv",)
    ),
}
"""The uncentred counterparts of columns, by the tables that print them."""
_SCHUR = ("predicted_quadratic_form", "quadratic_form", "floor")


def _both(control: Control) -> Iterable[Control]:
    """The control on checkpoints, and on their re-initialised twins."""
    yield control
    yield replace(control, table=f"reinitialised_{control.table}")


CONTROLS = (
    *_both(
        Control(
            STUDY,
            "hook at a norm's output",
            "fingerprint",
            ("relative_gamma_inv", "cos_beta_gamma_inv"),
            "activations of another place than the LayerNorm's output",
            Must.NOT_SHOW,
            "activation",
            _kernel_hook,
            {},
        )
    ),
    *_both(
        Control(
            STUDY,
            "hook at the input of linear maps",
            "schur",
            (*_SCHUR, "axis_minimum"),
            "activations of another place than the LayerNorm's output",
            Must.NOT_SHOW,
            "activation squared",
            _schur_hook,
            {"figure6": _SCHUR},
        )
    ),
    *_both(
        Control(
            STUDY,
            "uncentred Gram matrix",
            "schur",
            _SCHUR,
            "moments that were not centred: they read this in place of zero along 1/gamma",
            Must.SHOW,
            "activation squared",
            _raw_gram,
            {
                "table1": (
                    "random_quadratic_form",
                    "random_floor",
                    "trained_quadratic_form",
                    "trained_floor",
                ),
                **_RAW_ELSEWHERE,
            },
        )
    ),
    Control(
        STUDY,
        "unrelated bottom direction",
        "table2",
        ("random_direction_null", "post_norm_cos_gamma_inv"),
        "a bottom direction that is not the kernel of the LayerNorm",
        Must.NOT_SHOW,
        "1 - |cos|",
        _unrelated_direction,
        dict.fromkeys(("stacks", "summary", "reinitialised_stacks"), ("random_direction_null",)),
    ),
    Control(
        STUDY,
        "kernel behind an RMSNorm",
        "table2",
        ("random_direction_null", "post_norm_cos_gamma_inv", "post_norm_cos_gamma_inv_rest"),
        "a kernel along 1/gamma where the norm does not subtract the mean",
        Must.NOT_SHOW,
        "|cos|",
        _kernel_without_norm,
        {},
        CRITICAL,
    ),
)
