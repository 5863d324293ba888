"""What hides descent, and what it costs the function."""

from __future__ import annotations

from matplotlib.figure import Figure

from normgauge.render.declared import Field, table, value, words
from normgauge.render.formats import count, number
from normgauge.render.rows import Row, Rows, grouped
from normgauge.render.style import GREY
from normgauge.render.text import plain
from normgauge.render.typeset import Cell, cell

RELATED = "related"


def _verdict(row: Row) -> Cell:
    return cell("related") if row["verdict"] == RELATED else cell("unrelated", color=GREY)


def _chance(row: Row) -> str:
    return number(row["count_p"], 2) if row["count_p"] else r"$<10^{-300}$"


_FIELDS = (
    words("done to the second", "attack", flexible=True),
    Field("seed", lambda row: count(row["seed"])),
    value("function change", "function_change"),
    value("units", "units_p", group="exact p"),
    value("stream", "stream_p", group="exact p"),
    Field("agree", lambda row: count(row["agreements"]), group="units"),
    Field("of", lambda row: count(row["units"]), group="units"),
    Field("p", _chance, group="units"),
    Field("by this evidence", _verdict, align="left"),
)


def evasions(rows: Rows) -> Figure:
    """Attack by attack, what each statistic says. `rows` are of the schema lineage_evasions."""
    sections = {
        plain(f"{each[0]['a']} and {each[0]['b']}"): each for each in grouped(rows, "a", "b")
    }
    notes = [
        "function change: the largest change of the outputs over the largest output, random "
        "tokens (receptors for SCEPTR), float32. exact p: of the trace over permutations; a "
        "renumbering of the stream takes the power of both, one of units that of the units. units: "
        "those that are matched "
        "alike by what they read and by what they write; by chance one a layer, "
        f"{rows[0]['layers']} in {plain(rows[0]['b'])}."
    ]
    return table("What hides descent, and what does not", _FIELDS, sections, notes)
