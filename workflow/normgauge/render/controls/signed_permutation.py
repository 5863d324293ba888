"""Controls of signed permutations: changes outside the group, artifacts moved wrongly, names by
chance.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from math import sqrt

from normgauge.render.controls.reading import CRITICAL, Control, Must, Reading, Rows, model_of
from normgauge.schemas.discrete_laws import DRAWN
from normgauge.schemas.signed_permutation import FREE_SIGNS, GREEDY, IN_GROUP, NO_SIGNS

STUDY = "signed permutations"
SHOWN = 1e-7  # relative deviation, float64, by which a control must change the outputs
SAME = 1e-10  # the largest that counts as the same function
CHANCE = 3.0  # standard deviations of an overlap by chance


def _outside(rows: Rows) -> Iterator[Reading]:
    """Changes outside the group: their distance from it was predicted."""
    for row in rows:
        if not row["admissible"]:
            yield Reading(
                model_of(row),
                row["predicted_effect"],
                row["tolerance"],
                row["relative_deviation"],
                row["verdict"],
            )


def _inside(rows: Rows) -> Iterator[Reading]:
    """Changes inside the group. A fault would do what the least of the controls does that were
    predicted on the same model.
    """
    predicted: dict[str, float] = {}
    for row in rows:
        if not row["admissible"]:
            effect = row["predicted_effect"]
            predicted[model_of(row)] = min(predicted.get(model_of(row), effect), effect)
    for row in rows:
        if row["admissible"] and row["forward_dtype"] == "float64":
            yield Reading(
                model_of(row),
                predicted.get(model_of(row)),
                row["tolerance"],
                row["relative_deviation"],
            )


def _carried(way: str, error: str, rows: Rows) -> Iterator[Reading]:
    """Artifacts moved by the permutation alone, or not at all: the relative error of their content
    was predicted.
    """
    for row in rows:
        yield Reading(
            model_of(row), row[error] ** 0.5, SAME, row[f"{way}_deviation"], row[f"{way}_control"]
        )


def _transported(rows: Rows) -> Iterator[Reading]:
    """Artifacts moved by the gauge act as before; moved wrongly they would act as the two
    controls.
    """
    for row in rows:
        expected = max(row["predicted_error"], row["raw_error"]) ** 0.5
        yield Reading(
            model_of(row), expected, SAME, row["transported_deviation"], row["transported"]
        )


def _wrong_match(label: str, rows: Rows) -> Iterator[Reading]:
    """Coordinates that a match outside the group misses of a recorded gauge, beside what the match
    inside it misses.

    Without signs those of negative sign cannot be found. Free signs, and greedy choices, may miss
    anything or nothing.
    """
    streams = [row for row in rows if row["part"] == "residual" and row["pooled"]]
    inside = {
        (model_of(row), row["tokens"]): row["permutation_accuracy"]
        for row in streams
        if row["match"] == IN_GROUP
    }
    for row in streams:
        if row["match"] == label:
            found = inside[model_of(row), row["tokens"]]
            expected = row["negative"] if label == NO_SIGNS else None
            yield Reading(
                model_of(row),
                expected,
                1 - found + 1 / row["width"],
                found - row["permutation_accuracy"],
            )


def names_by_chance(rows: Rows) -> Iterator[Reading]:
    """Names that stay the same beyond chance. Were coordinates not moved, all would; an overlap by
    chance is hypergeometric.
    """
    for row in rows:
        yield Reading(
            model_of(row),
            1 - row["chance"],
            CHANCE * _spread(row["top"], row["width"]),
            abs(row["raw_overlap"] - row["chance"]),
        )


def _spread(top: int, width: int) -> float:
    """Standard deviation of the share that two random sets of `top` of `width` have in common."""
    share = top / width
    return (1 - share) / sqrt(max(width - 1, 1))


def _drawn(rows: Rows) -> Iterator[Reading]:
    """Rows of a rotation that is near no signed permutation; they would be as certain as those of
    the best pair if large entries came by themselves.
    """
    certain = [row["certain"] for row in rows if row["first"] != DRAWN]
    for row in rows:
        if row["first"] == DRAWN:
            yield Reading(DRAWN, max(certain, default=None), CHANCE / row["width"], row["certain"])


def _unsigned(rows: Rows) -> Iterator[Reading]:
    """What moves by G errs without the signs of half the coordinates by 2, or where all are
    negative by 4.
    """
    for row in rows:
        if row["rule"].replace("|G|", "").count("G"):
            yield Reading(row["owner"], 2.0, 1.0, row["without_signs"])


CONTROLS = (
    Control(
        STUDY,
        "changes outside the group",
        "group_boundary",
        ("admissible", "predicted_effect", "tolerance", "verdict"),
        "an equivalence test that sees no change, or a group that is larger than derived",
        Must.SHOW,
        "relative to the largest output",
        _outside,
        {"equivalence": ("admissible", "predicted_effect", "tolerance", "verdict")},
    ),
    Control(
        STUDY,
        "elements of the group",
        "group_boundary",
        ("admissible", "verdict"),
        "a tensor with a wrong role, axis or space",
        Must.NOT_SHOW,
        "relative to the largest output",
        _inside,
        {},
    ),
    *(
        Control(
            STUDY,
            f"artifacts {what}",
            "carried_artifacts",
            (f"{way}_control", f"{way}_deviation", error),
            fault,
            Must.SHOW,
            "relative to the largest output",
            partial(_carried, way, error),
            {"gauge_transport": (f"{way}_control", f"{way}_deviation", error)},
        )
        for way, error, what, fault in (
            (
                "permutation",
                "predicted_error",
                "moved by the permutation alone",
                "signs that artifacts need not follow",
            ),
            ("raw", "raw_error", "not moved", "artifacts that do nothing to the model"),
        )
    ),
    Control(
        STUDY,
        "artifacts moved by the gauge",
        "carried_artifacts",
        ("transported", "transported_deviation", "permutation_error"),
        "an artifact moved by another element than its model",
        Must.NOT_SHOW,
        "relative to the largest output",
        _transported,
        {"gauge_transport": ("transported", "transported_deviation", "permutation_error")},
    ),
    *(
        Control(
            STUDY,
            f"streams matched, {label.removeprefix('control: ')}",
            "recovered_gauges",
            ("match", "negative"),
            fault,
            Must.SHOW,
            "share of coordinates missed",
            partial(_wrong_match, label),
            dict.fromkeys(
                (
                    "gauge_recovery",
                    "probe_budget",
                    "alignment_stability",
                    "gauge_alignment",
                    "natural_alignment",
                ),
                ("match",),
            ),
            CRITICAL,
        )
        for label, fault in (
            (NO_SIGNS, "a recovery that needs no signs"),
            (FREE_SIGNS, "a recovery that is as good outside the group"),
            (GREEDY, "a recovery that needs no assignment"),
        )
    ),
    Control(
        STUDY,
        "names of coordinates after a gauge",
        "name_audit",
        ("chance", "raw_overlap"),
        "coordinates that were not moved, or claims that name the same ones in every model",
        Must.NOT_SHOW,
        "share of names, beyond chance",
        names_by_chance,
        {"gauge_audit": ("chance", "raw_overlap")},
        CRITICAL,
    ),
    Control(
        STUDY,
        "a rotation drawn at random",
        "scaffold",
        ("first", "second", "certain"),
        "large entries in every row of any rotation",
        Must.NOT_SHOW,
        "share of rows",
        _drawn,
        {},
        CRITICAL,
    ),
    Control(
        STUDY,
        "tensors moved by the permutation alone",
        "transport_rules",
        ("rule", "without_signs"),
        "rules that do not depend on signs",
        Must.SHOW,
        "squared error over squared length",
        _unsigned,
        {},
        CRITICAL,
    ),
)
