"""Claimed and corrected counts of redundant directions."""

from __future__ import annotations

from matplotlib.figure import Figure

from normgauge.render.declared import Field, counted, share, table, words
from normgauge.render.formats import NOTHING, count, percent
from normgauge.render.rows import Row, Rows
from normgauge.render.style import DEVIATES
from normgauge.render.text import plain
from normgauge.render.typeset import Cell, cell

_SOURCES = {
    "shape": "Published shapes",
    "checkpoint": "Checkpoints",
    "small model": "Small models at random weights, Jacobian measured",
}


def _published(row: Row) -> str | Cell:
    text = NOTHING if row["published_share"] is None else f"{100 * row['published_share']:.1f}%"
    if row["status"] in ("reproduced", "not published"):
        return text
    return cell(text if text == NOTHING else f"{text} (deviates)", color=DEVIATES)


def _nullity(row: Row) -> str | Cell:
    text = count(row["jacobian_nullity"])
    return cell(f"{text} (not explained)", color=DEVIATES) if row["agrees"] is False else text


_FIELDS = (
    words("architecture", "architecture", flexible=True),
    words("norm", "norm_kind"),
    words("tied", lambda row: "yes" if row["tied"] else "no"),
    counted("parameters", "parameters"),
    counted("directions", "claimed", "claimed"),
    share("share", "claimed_share", "claimed", 2),
    Field("published", _published, "claimed"),
    counted("directions", "corrected", "corrected"),
    share("share", "corrected_share", "corrected", 2),
    Field("Jacobian's\nnullity", _nullity),
)


def counts(rows: Rows) -> Figure:
    """Claimed and corrected counts, one row per architecture. `rows` are of the schema
    redundancy_counts.
    """
    sections = {
        heading: [row for row in rows if row["source"] == source]
        for source, heading in _SOURCES.items()
    }
    title = "Directions in which the parameters move and the function does not"
    shown = {heading: members for heading, members in sections.items() if members}
    return table(title, _FIELDS, shown, _notes(rows))


def _notes(rows: Rows) -> list[str]:
    """What the columns are, and what is particular to some of the rows."""
    unused = ", ".join(
        f"{plain(row['architecture'])} ({row['unused']})" for row in rows if row["unused"]
    )
    text = [
        r"claimed: $2\,n_t n_h d_h^2+(d-1)(d-2)/2$. corrected: the sum of the dimensions of the "
        r"symmetries that hold. Nullity: "
        "parameters minus the rank of the derivative of all outputs by all parameters, float64, "
        "random inputs."
    ]
    if unused:
        text.append(f"The nullity includes parameters that no output depends on: {unused}.")
    stated = [row for row in rows if row["claimed_share_stated"] is not None]
    text += [
        f"{plain(row['architecture'])}: over the stated {row['stated_parameters']:,} parameters "
        "the claimed share is "
        f"{percent(row['claimed_share_stated'], 2)} ({row['status']})."
        for row in stated
    ]
    return text
