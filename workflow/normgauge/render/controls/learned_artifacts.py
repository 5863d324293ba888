"""Controls of learned artifacts: moved by the permutation alone or not at all; names by chance."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from normgauge.render.controls.reading import CRITICAL, Control, Must, Reading, Rows, model_of
from normgauge.render.controls.signed_permutation import STUDY, names_by_chance


def _lost(way: str, rows: Rows) -> Iterator[Reading]:
    """What an artifact loses of its effect when it is moved wrongly: its content is off by a
    predicted share, and effects of 0.1 or less are not called.
    """
    for row in rows:
        measured = row[f"{way}_kept"]
        yield Reading(
            model_of(row),
            row[f"{way}_error"] ** 0.5 if row["detectable"] else None,
            row["tolerance"],
            None if measured is None else abs(1 - measured),
            row[f"{way}_control"],
        )


def _kept(rows: Rows) -> Iterator[Reading]:
    """What the recovered gauge loses; moved wrongly the content would be off as the controls'."""
    for row in rows:
        kept = row["signed_kept"]
        yield Reading(
            model_of(row),
            max(row["permutation_error"], row["raw_error"]) ** 0.5 if row["detectable"] else None,
            row["tolerance"],
            None if kept is None else abs(1 - kept),
            row["transported"],
        )


CONTROLS = (
    *(
        Control(
            STUDY,
            f"learned artifacts {what}",
            "learned_artifacts",
            (f"{way}_control", f"{way}_value", f"{way}_kept", f"{way}_error"),
            fault,
            Must.SHOW,
            "share of the effect",
            partial(_lost, way),
            {"learned_artifact": (f"{way}_control", f"{way}_value", f"{way}_kept", f"{way}_error")},
        )
        for way, what, fault in (
            (
                "permutation",
                "moved by the permutation alone",
                "an effect that does not depend on signs",
            ),
            ("raw", "not moved", "an effect that does not depend on coordinates"),
        )
    ),
    Control(
        STUDY,
        "learned artifacts moved by the recovered gauge",
        "learned_artifacts",
        ("transported", "signed_kept", "permutation_error"),
        "a gauge that is recovered wrongly, or an artifact moved by another element",
        Must.NOT_SHOW,
        "share of the effect",
        _kept,
        {"learned_artifact": ("transported", "signed_kept", "permutation_error")},
    ),
    Control(
        STUDY,
        "names after a gauge, by recovered gauges",
        "learned_audits",
        ("chance", "raw_overlap"),
        "coordinates or features that were not moved, or claims that name the same in every model",
        Must.NOT_SHOW,
        "share of names, beyond chance",
        names_by_chance,
        {"learned_audit": ("chance", "raw_overlap")},
        CRITICAL,
    ),
)
