"""Controls of the experiments around the fingerprint: kernels that inspection predicts, artifacts
kept out of a direction that is not dead, and a symmetry that one optimiser breaks.
"""

from __future__ import annotations

from collections.abc import Iterator

from normgauge.render.controls.reading import Control, Must, Reading, Rows

STUDY = "dead directions"
CONTAINED = 1e-9  # one minus the least principal cosine at which a prediction lies in a null space


def _predicted_kernel(rows: Rows) -> Iterator[Reading]:
    """A kernel as predicted; one without the gains would lie outside by this much."""
    for row in rows:
        if row["containment"] is not None:
            wrong = 0.0 if row["as_predicted"] else 1.0 - row["containment"] or 1.0
            yield Reading(
                f"{row['norm']}, {row['sample']}", 1 - row["other_containment"], CONTAINED, wrong
            )


def _constrained(rows: Rows) -> Iterator[Reading]:
    """Without its part along a dead direction, the constant kept, an adapter does not change;
    without another direction it does.
    """
    adapters = [row for row in rows if row["error"] is None]
    for row in adapters:
        if row["constraint"].endswith("kept"):
            other = next(
                each["change"]
                for each in adapters
                if (each["model"], each["revision"]) == (row["model"], row["revision"])
                and each["constraint"].startswith("random")
            )
            yield Reading(f"{row['model']}@{row['revision']}", other, row["floor"], row["change"])


def _conserved_shift(rows: Rows) -> Iterator[Reading]:
    """Gradient descent under cross-entropy keeps the shift common to all classes; Adam, the fault,
    does not.
    """
    shares = {(row["optimiser"], row["loss"]): row for row in rows}
    kept, moved = shares.get(("SGD", "cross-entropy")), shares.get(("Adam", "cross-entropy"))
    if kept and moved:
        yield Reading("softmax layer", moved["shift_share"], kept["floor"], kept["shift_share"])


CONTROLS = (
    Control(
        STUDY,
        "kernel predicted by inspection",
        "norm_zoo",
        (
            "predicted_dimension",
            "containment",
            "other_containment",
            "as_predicted",
        ),
        "a predicted kernel that leaves the gains out",
        Must.NOT_SHOW,
        "1 - |cos|",
        _predicted_kernel,
        {},
    ),
    Control(
        STUDY,
        "artifact without a dead direction",
        "constrained_artifacts",
        ("constraint", "change"),
        "a direction along which the norm's output varies",
        Must.NOT_SHOW,
        "share of the output",
        _constrained,
        {},
    ),
    Control(
        STUDY,
        "shift common to all classes",
        "table6",
        ("shift_share", "floor"),
        "an optimiser that does not keep it",
        Must.NOT_SHOW,
        "share of the movement",
        _conserved_shift,
        {},
    ),
)
