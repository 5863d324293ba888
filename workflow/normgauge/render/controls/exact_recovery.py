"""Controls of exact recovery: permuted rows, wrong places, and a window that must hold the
truth.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import sqrt

from normgauge.render.controls.reading import CRITICAL, Control, Must, Reading, Rows, model_of

STUDY = "exact recovery"
CHANCE = 3.0  # standard deviations of a count by chance
KOLMOGOROV = 1.9495  # of sqrt(n) times the distance, exceeded by chance once in a thousand


def _checkpoints(rows: Rows) -> Rows:
    return [row for row in rows if row["population"] == "all"]


def _permuted_rows(rows: Rows) -> Iterator[Reading]:
    """The true pairing, by the same procedure, says how much a falsifier could have found; what a
    coarse grid lets coincide is counted against another column's values, and three standard
    deviations of a count are left to chance.
    """
    for row in _checkpoints(rows):
        values, chance = row["falsifier_values"], row["falsifier_chance"] or 0
        if not values:
            yield Reading(model_of(row), None, 0.0, None)
            continue
        found = 1.0 if row["control_matches"] == values else 0.0
        yield Reading(
            model_of(row),
            found,
            (chance + CHANCE * sqrt(chance)) / values,
            row["falsifier_matches"] / values,
        )


def _wrong_places(rows: Rows) -> Iterator[Reading]:
    """Residuals at wrong places are uniform on [0, 1/2] ulp. Were they those of the right places,
    at most `score`, their distribution would lie 1 - 2 score away from it.
    """
    for model in dict.fromkeys(model_of(row) for row in rows):
        row = next(row for row in rows if model_of(row) == model)
        if row["residuals"]:
            expected = None if row["score"] is None else 1 - 2 * row["score"]
            yield Reading(model, expected, KOLMOGOROV / sqrt(row["residuals"]), row["statistic"])


def _survivors(rows: Rows) -> Iterator[Reading]:
    """Columns with other places on their line; each of these must be excluded."""
    for row in _checkpoints(rows):
        survivors = row["most_survivors"]
        yield Reading(
            model_of(row),
            float(row["certificates"] or 0),
            0.0,
            None if survivors is None else max(survivors - 1.0, 0.0),
        )


def _window(rows: Rows) -> Iterator[Reading]:
    """The stored shift must be among the survivors of every feature that was attacked."""
    for row in _checkpoints(rows):
        attacked = row["attacked"] or 0
        yield Reading(
            model_of(row),
            float(attacked),
            0.0,
            float(attacked - row["attack_inside"]) if attacked else None,
        )


def _routes(rows: Rows) -> Iterator[Reading]:
    """Two arithmetic routes, where two were run."""
    for row in _checkpoints(rows):
        if row["route_differences"] is not None:
            yield Reading(
                model_of(row), float(row["recovered"]), 0.0, float(row["route_differences"])
            )


_FALSIFIER = (
    "values",
    "true_matches",
    "matches",
    "chance_matches",
    "claimed",
    "true_score",
    "permuted_score",
    "residual_ratio",
)

CONTROLS = (
    Control(
        STUDY,
        "permuted rows",
        "exact_recovery",
        ("falsifier_values", "falsifier_matches", "falsifier_chance", "control_matches"),
        "a method that finds the stored values whatever it is given",
        Must.NOT_SHOW,
        "share of values",
        _permuted_rows,
        {"recovery_falsifier": _FALSIFIER},
        CRITICAL,
    ),
    Control(
        STUDY,
        "residuals at wrong places",
        "exact_recovery_null",
        ("residuals", "left_out", "count", "statistic", "p", "score"),
        "wrong places that look like right ones, so that the certificate's probabilities are not "
        "probabilities",
        Must.NOT_SHOW,
        "Kolmogorov-Smirnov distance",
        _wrong_places,
        {
            "recovery_null": ("residuals", "left_out", "count", "statistic", "p"),
            "exact_recovery": ("null_residuals", "null_left_out", "null_statistic", "null_p"),
        },
        CRITICAL,
    ),
    Control(
        STUDY,
        "other places on the line",
        "exact_recovery",
        ("certificates", "most_survivors"),
        "a certificate that excludes nothing",
        Must.NOT_SHOW,
        "places",
        _survivors,
        {"recovery_certificates": ("candidates", "survivors")},
    ),
    Control(
        STUDY,
        "stored shift inside the window",
        "exact_recovery",
        ("attacked", "attack_inside"),
        "an attack on the embedding that searches where the truth is not",
        Must.NOT_SHOW,
        "features",
        _window,
        {"recovery_attack": ("inside",)},
    ),
    Control(
        STUDY,
        "two arithmetic routes",
        "exact_recovery",
        ("route_differences",),
        "bits that depend on the arithmetic",
        Must.NOT_SHOW,
        "values",
        _routes,
        {"recovery_routes": ("both", "different")},
    ),
)
