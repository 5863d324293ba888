"""Artifacts carried along with a gauge."""

from __future__ import annotations

from matplotlib.figure import Figure

from normgauge.render.declared import counted, table, value, verdicts, words
from normgauge.render.rows import Rows
from normgauge.render.signed_permutation.sheet import of_checkpoints

_DEVIATE, _ENERGY = "outputs deviate by", r"$|T_Ga-T_Pa|^2/|a|^2$"


_FIELDS = (
    words("artifact", "artifact"),
    counted("seeds", "seeds"),
    value("transported", "transported_deviation", _DEVIATE),
    value("permutation only", "permutation_deviation", _DEVIATE),
    value("not moved", "raw_deviation", _DEVIATE),
    value("measured", "permutation_error", _ENERGY),
    value("predicted", "predicted_error", _ENERGY),
    verdicts(
        "as it must",
        {
            "transported": "transported",
            "permutation_control": "permutation",
            "raw_control": "not moved",
        },
    ),
)


def carried(rows: Rows) -> Figure:
    """Artifacts carried with a gauge. `rows` are of the schema carried_artifacts."""
    notes = [
        "Drawn artifacts in the middle block, and states of optimizers after three steps on its "
        "parameters, which act by one more step; "
        "float64 outputs against the model's with the artifact before its gauge, relative: the "
        "largest over seeds after transport, the "
        "smallest by the permutation alone and unmoved. As it must: transported within $10^{-10}$, "
        "the two controls $10^{-7}$ or more. "
        "The permutation alone costs four times the energy (of a state: of its averages of "
        "gradients) on negative coordinates, 2 on "
        "average over free signs; where all signs are positive it is the gauge itself, and as a "
        "control it has no power.",
    ]
    return table("Artifacts carried along with a gauge", _FIELDS, of_checkpoints(rows), notes)
