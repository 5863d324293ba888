"""The symmetries put to the test: the claimed rotation on one block, all of them on checkpoints."""

from __future__ import annotations

from matplotlib.figure import Figure

from normgauge.render.declared import Field, table, value, verdict, words
from normgauge.render.formats import count
from normgauge.render.labels import by_checkpoint
from normgauge.render.rows import Row, Rows, grouped
from normgauge.render.style import DEVIATES, GREY
from normgauge.render.text import plain
from normgauge.render.typeset import Cell, cell


def _holds(row: Row) -> Cell:
    return cell("yes") if row["holds"] else cell("no", color=DEVIATES)


_FALSIFIER = (
    words("block", "architecture", flexible=True),
    words("norm", "norm_kind"),
    words("gain, bias", "gain"),
    words("value map moves by", "value_rule"),
    value("predicted", "predicted_effect"),
    value("largest difference", "max_abs_difference"),
    value("relative", "relative_difference"),
    Field("holds", _holds, align="left"),
)


def falsifier(rows: Rows) -> Figure:
    """The claimed rotation, tried. `rows` are of the schema redundancy_falsifier."""
    sections = {plain(each[0]["test"]): each for each in grouped(rows, "test")}
    text = [
        "One block of width 8, heads of 4, 16 feed-forward units, random weights, 100 sequences of "
        "4 tokens, float64. A rotation g (of "
        "SO(7), fixing the vector of ones, for LayerNorm) is applied to everything but gains and "
        "biases of norms; holds: the largest "
        r"difference is at most $10^{-12}$. predicted: how far gains, biases and value maps are "
        r"from passing g, relative; "
        "— where the claim must hold."
    ]
    return table("The claimed rotation, tried", _FALSIFIER, sections, text)


_CHECKS = (
    words("symmetry, at a random place", "symmetry", flexible=True),
    Field("directions", lambda row: count(row["dimension"] or None)),
    value("predicted", "predicted_effect"),
    value("largest difference", "max_abs_deviation"),
    value("relative", "relative_deviation"),
    verdict("as expected", "verdict"),
)


def checks(rows: Rows) -> Figure:
    """Every symmetry on real checkpoints, and controls. `rows` are of the schema
    redundancy_checks.
    """
    text = [
        "All places of a family moved at once, float64; as expected: a symmetry leaves the outputs "
        "within 1e-10 of themselves, relative. "
        "Grey rows are controls, which must change them by 1e-7 or more; predicted: how far each "
        "is from a symmetry, relative to what it "
        "changes; no power: a control that predicts less than 1e-8."
    ]
    return table(
        "Symmetries on real checkpoints",
        _CHECKS,
        by_checkpoint(rows),
        text,
        look=lambda row: {} if row["symmetric"] else {"color": GREY},
    )
