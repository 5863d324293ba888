"""Inside and outside the group: deviation of the outputs under every change of coordinates."""

from __future__ import annotations

from matplotlib.figure import Figure

from normgauge.render import style
from normgauge.render.declared import table, value, verdict, words
from normgauge.render.labels import by_checkpoint
from normgauge.render.page import AXIS, EDGE, FULL, Page
from normgauge.render.rows import Row, Rows, grouped
from normgauge.render.signed_permutation.deviations import (
    deviation_handles,
    plot_deviations,
    prepare_deviations,
    worst,
)
from normgauge.render.signed_permutation.sheet import of_checkpoints
from normgauge.render.text import plain
from normgauge.schemas.verdicts import Verdict, summarised

_WITHOUT_POWER = (
    r"in float64; no power: the control predicts an effect below $10^{-8}$ and tells nothing. "
)

_FIELDS = (
    words("change of coordinates", "group", flexible=True),
    words("in the\ngroup", lambda row: "yes" if row["admissible"] else "no"),
    value("float64\nrelative", "float64"),
    value("float32\nlargest, logits", "float32_largest"),
    value("float32\nrelative", "float32"),
)
_MUST = verdict("as it must", "verdict")


def group_boundary(rows: Rows) -> Figure:
    """Deviation of the outputs under every change of coordinates. `rows` are of the schema
    group_boundary.
    """
    all_passed = all(row["verdict"] == Verdict.PASSED for row in rows)
    sections = {
        heading: [_over_seeds(group) for group in grouped(members, "group")]
        for heading, members in of_checkpoints(rows).items()
    }
    drawn = any(row["parameters"] != "stored" for row in rows)
    notes = [
        "Largest difference of the outputs, absolute and over the largest output of its kind; the "
        "worst of the seeds. In the "
        "group: the same "
        r"function, float64 within $10^{-10}$ and float32 within $10^{-3}$. Controls outside it "
        r"must deviate by $10^{-7}$ or more "
        + ("in float64: all lines are as they must be. " if all_passed else _WITHOUT_POWER)
        + r"Published for other models, float32: $\leq 1.3\times10^{-4}$.",
        *(
            [
                "Random initialisations: gains and biases that were constant are drawn, since "
                "constant gains admit rotations."
            ]
            if drawn
            else []
        ),
    ]
    return table(
        "Tables 2 and 14. What a transformer does not notice, and what it does",
        _FIELDS if all_passed else (*_FIELDS, _MUST),
        sections,
        notes,
    )


def _over_seeds(group: Rows) -> Row:
    """One change of coordinates: the largest deviation if it is of the group, the smallest if it is
    a control.
    """
    inside = group[0]["admissible"]
    return {
        "group": group[0]["group"],
        "admissible": inside,
        "float64": worst(group, "float64", "relative_deviation", inside),
        "float32_largest": worst(group, "float32", "max_abs_deviation", inside),
        "float32": worst(group, "float32", "relative_deviation", inside),
        "verdict": summarised(row["verdict"] for row in group),
    }


def group_boundary_figure(rows: Rows) -> Figure:
    """Relative deviations on a logarithmic axis, a line per change of coordinates. `rows` are of
    the schema group_boundary.
    """
    blocks = [(name, grouped(each, "group")) for name, each in by_checkpoint(rows).items()]
    lines = sum(len(groups) + 1 for _, groups in blocks)
    left, step = 212.0, 10.5
    without = any(row["verdict"] == Verdict.NO_POWER for row in rows)
    note = (
        r"Largest relative deviation of the outputs over seeds (controls: the smallest). Dashed "
        r"lines: what counts as the same function in "
        r"float64, and the thousandfold that a control must exceed. Values of 0 stand at the left "
        r"edge." + (" Crosses: controls without power." if without else "")
    )
    handles = deviation_handles()
    page = Page("Figure 1. Inside and outside the group", step * lines + AXIS, note, handles, 3)
    axes = page.axes(left, 0, FULL - left - 8, step * lines)
    axes.set(ylim=(lines - 0.5, -0.5), yticks=[])
    prepare_deviations(axes)
    place = 0
    for name, groups in blocks:
        page.text(EDGE, step * (place + 0.75), name, weight="bold")
        for row, group in enumerate(groups, place + 1):
            text = plain(group[0]["group"])
            page.text(EDGE + 7, step * (row + 0.75), text, size=style.NOTE)
            plot_deviations(axes, row, group)
        place += len(groups) + 1
    return page.figure
