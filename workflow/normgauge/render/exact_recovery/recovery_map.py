"""Which stored weights the activations determine, by population."""

from __future__ import annotations

from matplotlib.figure import Figure

from normgauge.render.declared import Field, counted, table, value, words
from normgauge.render.formats import percent
from normgauge.render.labels import by_checkpoint
from normgauge.render.rows import Row, Rows, grouped, known

_SUMMED = ("values", "determined", "recovered", "flagged", "misses")
_FIELDS = (
    words("population", "population"),
    words("determined by", "argument", flexible=True),
    counted("tensors", "tensors"),
    counted("values", "values"),
    counted("recovered", "recovered"),
    Field("share", lambda row: percent(row["recovered"] / row["values"], 2)),
    counted("flagged", "flagged"),
    Field("un-\ndetermined", lambda row: f"{row['values'] - row['determined']:,}"),
    counted("misses", "misses"),
    value("least\nmargin", "min_margin"),
)


def recovery_map(rows: Rows) -> Figure:
    """Recovered share by population, one section per checkpoint. `rows` are of the schema
    exact_recovery_map.
    """
    sections = {
        name: [
            *(_pooled(group) for group in grouped(members, "population", "argument")),
            _pooled(members) | {"population": "all", "argument": ""},
        ]
        for name, members in by_checkpoint(rows).items()
    }
    notes = [
        "recovered: claimed values whose bits are the stored ones. flagged: not claimed, the "
        "margin is below 4. misses: claimed values "
        "whose bits differ. least margin: distance of the "
        "closest value from a rounding boundary, in standard deviations of its noise.",
    ]
    return table(
        "Stored weights that activations determine, bit for bit",
        _FIELDS,
        sections,
        notes,
        look=lambda row: {"weight": "bold"} if row["population"] == "all" else {},
    )


def _pooled(rows: Rows) -> Row:
    """One population: its tensors, its values, and the least of its margins."""
    return {
        "population": rows[0]["population"],
        "argument": rows[0]["argument"],
        "tensors": len(rows),
        **{name: sum(row[name] for row in rows) for name in _SUMMED},
        "min_margin": min(known(rows, "min_margin"), default=None),
    }
