"""Controls of trajectories: states that do not follow their model, gauges that are not undone, a
rule that would read nothing.
"""

from __future__ import annotations

from collections.abc import Iterator

from normgauge.render.controls.reading import CRITICAL, Control, Must, Reading, Rows
from normgauge.schemas.trajectories import MOVED, SCRAMBLED, SIGNED, UNALIGNED

STUDY = "trajectories"
SAME = (
    1e-6  # of the logits' squared length: what float32 makes of equal runs after a few dozen steps
)
ROUNDINGS = 10.0  # floors that a barrier without any rise may have


def _resumed(rows: Rows) -> Iterator[Reading]:
    """The state that follows its model; a wrong one would do what the least of the wrong ones
    does.
    """
    after = [row for row in rows if row["resumed"]]
    for row in after:
        if row["state"] == MOVED:
            same = (row["optimizer"], row["seed"], row["resumed"])
            wrong = [
                other["relative_error"]
                for other in after
                if other["state"] != MOVED
                and (other["optimizer"], other["seed"], other["resumed"]) == same
                and other["model"] == row["model"]
            ]
            name = f"{row['model']}@{row['revision']}, {row['optimizer']}"
            yield Reading(name, min(wrong, default=None), SAME, row["relative_error"])


def _undone(rows: Rows) -> Iterator[Reading]:
    """A model merged with itself in other coordinates: once they are undone nothing rises; were
    they not, the loss would rise as it does unaligned.
    """
    for row in rows:
        if row["kind"] == SCRAMBLED and row["first"] == row["second"] and row["way"] == SIGNED:
            expected = next(
                other["barrier"]
                for other in rows
                if other["way"] == UNALIGNED
                and all(other[key] == row[key] for key in ("first", "second", "seed", "moved"))
            )
            yield Reading(row["first"], expected, ROUNDINGS * row["floor"], row["barrier"])


def _predicted(rows: Rows) -> Iterator[Reading]:
    """The rule of trust on runs that it was not fitted on; one that reads nothing says the mean."""
    for row in rows:
        if row["judged"] == "other runs":
            usual = row["error_of_mean"]
            yield Reading("all runs", usual, usual / CRITICAL, row["error"])


CONTROLS = (
    Control(
        STUDY,
        "training resumed with the state moved along",
        "resumed_training",
        ("state", "relative_error", "loss", "reference_loss"),
        "a state that moves by another element than its model",
        Must.NOT_SHOW,
        "squared error of the logits, relative",
        _resumed,
        {},
    ),
    Control(
        STUDY,
        "a model merged with itself in other coordinates",
        "merge_barriers",
        ("way", "barrier"),
        "a gauge that is not found, or signs that are left out",
        Must.NOT_SHOW,
        "nat/token",
        _undone,
        {},
    ),
    Control(
        STUDY,
        "chains of runs that the rule of trust has not seen",
        "transport_trust",
        ("error", "error_of_mean", "trusted"),
        "a rule that does not read the matches",
        Must.NOT_SHOW,
        "share of coordinates",
        _predicted,
        dict.fromkeys(("trajectory_transport", "trajectory_pairs"), ("predicted",)),
        CRITICAL,
    ),
)
