"""Names of coordinates before and after a gauge."""

from __future__ import annotations

from matplotlib.figure import Figure

from normgauge.render.declared import Field, counted, share, table, value, words
from normgauge.render.rows import Rows
from normgauge.render.signed_permutation.sheet import of_checkpoints

_AGREE = "names that agree"
_FIELDS = (
    words("claim", "claim", flexible=True),
    words("site", "site", flexible=True),
    Field("names", lambda row: f"{row['top']} of {row['width']}"),
    counted("seeds", "seeds"),
    share("chance", "chance", _AGREE),
    share("raw", "raw_overlap", _AGREE),
    share("raw, most", "raw_overlap_max", _AGREE),
    share("mapped", "mapped_overlap", _AGREE),
    share("mapped, least", "mapped_overlap_min", _AGREE),
    value("outputs\nmove by", "relative_deviation", digits=1),
)


def name_audit(rows: Rows) -> Figure:
    """Audit of coordinate names. `rows` are of the schema name_audit."""
    notes = [
        "The coordinates that score highest, in the model and in its copy under a recorded gauge "
        "(float32): by their numbers "
        "(raw), and after "
        "the gauge is applied to the names (mapped). attribution: gradient times activation, of "
        "the likeliest class's log-probability "
        "(without a head: of the last state's squared length). difference of means: between two "
        "sets of inputs, as for a "
        "steering direction.",
    ]
    title = "Table 8. Coordinate names are not the model's"
    return table(title, _FIELDS, of_checkpoints(rows), notes)
