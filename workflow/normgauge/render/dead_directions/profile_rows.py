"""Rows of figures 3 and 6: what is measured along the depth, block by block."""

from __future__ import annotations

from collections.abc import Sequence

from normgauge.render.dead_directions.pools import labelled
from normgauge.render.rows import Row
from normgauge.render.subjects import Subject

PROFILE_TAPS = ("embedding", "output")


def figure3(subjects: Sequence[Subject]) -> list[Row]:
    """Depth profile of the smallest active singular value: a row per stack, block, forward
    arithmetic and seed.
    """
    rows = []
    for subject in subjects:
        for kind, row in labelled(subject.fingerprint, subject.random_fingerprint):
            if row["tap"] in PROFILE_TAPS:
                rows.append(
                    {
                        **subject.identity(row["stack"]),
                        "kind": kind,
                        "seed": row.get("seed"),
                        "relative_depth": row["block"] / subject.stack(row["stack"])["blocks"],
                        "floor": max(row["forward_floor"], row["accumulator_floor"]),
                        **{
                            name: row[name]
                            for name in (
                                "block",
                                "n",
                                "forward_dtype",
                                "accumulation",
                                "sigma_active_min",
                                "sigma_active_min_se",
                                "ratio_to_embedding",
                                "ratio_to_embedding_se",
                                "fixed_rank_ratio",
                                "fixed_rank_ratio_se",
                            )
                        },
                    }
                )
    return rows


def figure6(subjects: Sequence[Subject]) -> list[Row]:
    """Schur values by block: a row per Schur site, forward arithmetic and seed."""
    copied = (
        "block",
        "tap",
        "n",
        "forward_dtype",
        "accumulation",
        "lambda_min",
        "lambda_min_se",
        "quadratic_form",
        "axis_minimum",
        "quadratic_form_se",
        "delta_recovered",
        "delta_lower",
        "predicted_quadratic_form",
        "mahalanobis_squared",
        "predicted_ratio",
        "delta_se",
        "predicted_ratio_se",
        "predicted_ratio_low",
        "bottom_cos_gamma_inv",
        "floor",
        "below_floor",
    )
    return [
        {
            **subject.identity(row["stack"]),
            "kind": kind,
            "seed": row.get("seed"),
            **{name: row[name] for name in copied},
        }
        for subject in subjects
        for kind, row in labelled(subject.schur, subject.random_schur)
    ]
