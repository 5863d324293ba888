"""Which layers of a checkpoint come from the other one."""

from __future__ import annotations

from matplotlib.figure import Figure

from normgauge.render.declared import Field, table, words
from normgauge.render.formats import count
from normgauge.render.rows import Row, Rows, grouped
from normgauge.render.style import GREY
from normgauge.render.text import plain
from normgauge.render.typeset import Cell, cell

UNCHANGED = "none"


def _source(row: Row) -> Cell:
    return cell(plain(row["source"])) if row["source"] else cell("nowhere", color=GREY)


_FIELDS = (
    words("layer", "layer", flexible=True),
    words("", "kind"),
    Field("comes from", _source, align="left"),
    Field("found", lambda row: count(row["found"])),
    Field("of", lambda row: count(row["total"])),
)


def origins(rows: Rows) -> Figure:
    """Layer by layer, where it comes from. `rows` are of the schema lineage_origins; of several
    seeds the first is shown, and pairs as they are only where nothing hides them.
    """
    sections = {}
    for pair in grouped(rows, "a", "b"):
        last = [row for row in pair if row["attack"] != UNCHANGED]
        shown = [row for row in last if row["attack"] == last[-1]["attack"]] if last else pair
        first = [row for row in shown if row["seed"] == shown[0]["seed"]]
        names = plain(f"{first[0]['b']}, {first[0]['attack']}, from {first[0]['a']}")
        sections[names] = first
    notes = [
        "Units and heads of the layer that lead to the same unit or head of the other checkpoint "
        "by what they read and by what they write, in the frame of the token tables. Nowhere: no "
        "more than chance in any layer, at 0.001 over all pairs of layers."
    ]
    return table("Which layers come from the other checkpoint", _FIELDS, sections, notes)
