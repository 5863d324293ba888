"""Controls of the redundancy counts: changes that look like symmetries, the claim as it is claimed,
and ranks.
"""

from __future__ import annotations

from collections.abc import Iterator

from normgauge.render.controls.reading import Control, Must, Reading, Row, Rows, model_of

STUDY = "redundancy"
SAME = 1e-10  # largest relative deviation of a symmetry, float64
HOLDS = 1e-12  # largest difference at which the claim holds
GAP = 1e3  # floors between what counts and what is zero
LEFT_ALONE = 1e-6  # largest entry of the Jacobian along unit tangents


def _controls(rows: Rows) -> Iterator[Reading]:
    """Changes outside the families of symmetries; how far from them was predicted."""
    for row in rows:
        if not row["symmetric"]:
            yield Reading(model_of(row), row["predicted_effect"], SAME, row["relative_deviation"])


def _symmetries(rows: Rows) -> Iterator[Reading]:
    """Symmetries at random places. A wrong one would do what the least of the same model's controls
    does.
    """
    predicted: dict[str, float] = {}
    for row in rows:
        if not row["symmetric"]:
            predicted[model_of(row)] = min(
                predicted.get(model_of(row), row["predicted_effect"]), row["predicted_effect"]
            )
    for row in rows:
        if row["symmetric"]:
            yield Reading(
                model_of(row), predicted.get(model_of(row)), SAME, row["relative_deviation"]
            )


def _claims(rows: Rows) -> Iterator[Reading]:
    """The claim where norms have gains, or where values move as printed: how far it is from
    commuting was predicted.
    """
    for row in rows:
        if row["predicted_effect"] is not None:
            yield Reading(_block(row), row["predicted_effect"], HOLDS, row["relative_difference"])


def _machinery(rows: Rows) -> Iterator[Reading]:
    """Where the claim holds, the same code must find no difference; a fault in it would do what it
    does elsewhere.
    """
    least = min((row["predicted_effect"] for row in rows if row["predicted_effect"]), default=None)
    for row in rows:
        if row["predicted_effect"] is None:
            yield Reading(_block(row), least, HOLDS, row["max_abs_difference"])


def _block(row: Row) -> str:
    return f"{row['architecture']}, {row['norm_kind']}"


def _ranks(rows: Rows) -> Iterator[Reading]:
    """What counts as zero must lie at the floor; a direction that was miscounted would lie where
    the others do.
    """
    for row in rows:
        yield Reading(
            row["architecture"], row["smallest_nonzero"], GAP * row["floor"], row["largest_zero"]
        )


def _tangents(rows: Rows) -> Iterator[Reading]:
    """The Jacobian along the tangents of the symmetries; a direction that is no symmetry is at
    least as large as the smallest that counts.
    """
    for row in rows:
        yield Reading(row["architecture"], row["smallest_nonzero"], LEFT_ALONE, row["violation"])


def _along(rows: Rows) -> Iterator[Reading]:
    """The Hessian along the families; a direction that is none would curve as those off them do."""
    for row in rows:
        if row["symmetric"]:
            what = f"{row['architecture']}, {row['direction']}"
            yield Reading(what, row["mean_eigenvalue"], LEFT_ALONE, row["orbit"])


def _off(rows: Rows) -> Iterator[Reading]:
    """The Hessian off the families: its mean eigenvalue over the largest is far above rounding."""
    for row in rows:
        if not row["symmetric"]:
            expected = row["mean_eigenvalue"]
            yield Reading(row["architecture"], expected, LEFT_ALONE, row["curvature"])


CONTROLS = (
    Control(
        STUDY,
        "Hessian along the symmetries",
        "redundancy_hessian",
        ("curvature", "orbit", "symmetric"),
        "a direction that is no symmetry",
        Must.NOT_SHOW,
        "over the largest eigenvalue",
        _along,
        {},
        1.0,
    ),
    Control(
        STUDY,
        "Hessian off the symmetries",
        "redundancy_hessian",
        ("curvature", "mean_eigenvalue", "symmetric"),
        "a Hessian that is flat everywhere",
        Must.SHOW,
        "over the largest eigenvalue",
        _off,
        {},
        1.0,
    ),
    Control(
        STUDY,
        "changes that look like symmetries",
        "redundancy_checks",
        ("symmetric", "predicted_effect", "verdict"),
        "a deviation that sees no change, or a symmetry that was left out of the count",
        Must.SHOW,
        "relative to the largest output",
        _controls,
        {},
    ),
    Control(
        STUDY,
        "symmetries at random places",
        "redundancy_checks",
        ("symmetric", "verdict"),
        "a family that is no symmetry",
        Must.NOT_SHOW,
        "relative to the largest output",
        _symmetries,
        {},
    ),
    Control(
        STUDY,
        "claimed rotation where it does not commute",
        "redundancy_falsifier",
        ("predicted_effect", "holds"),
        "a test of the claim that nothing fails",
        Must.SHOW,
        "relative to the largest output",
        _claims,
        {},
    ),
    Control(
        STUDY,
        "claimed rotation where it commutes",
        "redundancy_falsifier",
        ("predicted_effect", "holds"),
        "a test of the claim that everything fails",
        Must.NOT_SHOW,
        "activation",
        _machinery,
        {},
    ),
    Control(
        STUDY,
        "rank of the Jacobian",
        "redundancy_jacobian",
        ("smallest_nonzero", "largest_zero", "floor", "decided"),
        "a rank that rounding decides",
        Must.NOT_SHOW,
        "over the largest singular value",
        _ranks,
        {},
        1.0,
    ),
    Control(
        STUDY,
        "tangents of the symmetries",
        "redundancy_jacobian",
        ("violation", "smallest_nonzero"),
        "a tangent that is no symmetry",
        Must.NOT_SHOW,
        "over the largest entry",
        _tangents,
        {},
        1.0,
    ),
)
