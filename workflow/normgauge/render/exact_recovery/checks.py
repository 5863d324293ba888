"""What was checked of each checkpoint, with the power of each check beside it."""

from __future__ import annotations

from matplotlib.figure import Figure

from normgauge.render.declared import Field, counted, table, value, words
from normgauge.render.formats import NOTHING, count
from normgauge.render.labels import Names
from normgauge.render.rows import Row, Rows

_LINE, _WRONG, _FALSIFIER, _STRAGGLERS, _GAUGE = (
    "columns on a line",
    "wrong places",
    "falsifier",
    "stragglers",
    "embedding gauge",
)


def _true_rows(row: Row) -> str:
    given, asked = row["control_matches"], row["falsifier_values"]
    return count(given) if given == asked else f"{count(given)} of {count(asked)}"


def _some(head: str, key: str, group: str) -> Field:
    """A count, with a dash where there was nothing to check."""
    return Field(head, lambda row: count(row[key] or None), group)


def _gauge(head: str, key: str) -> Field:
    """A count of the attack on the embedding gauge; a dash where there was none."""
    return Field(head, lambda row: count(row[key]) if row["attacked"] else NOTHING, _GAUGE)


_FIELDS = (
    words("checkpoint", "name", flexible=True),
    _some("certified", "certificates", _LINE),
    _some("most\nsurvivors", "most_survivors", _LINE),
    _some("residuals", "null_residuals", _WRONG),
    value("distance", "null_statistic", _WRONG),
    value("p", "null_p", _WRONG),
    Field("true rows", _true_rows, _FALSIFIER),
    counted("permuted", "falsifier_matches", _FALSIFIER),
    counted("chance", "falsifier_chance", _FALSIFIER),
    counted("all", "stragglers", _STRAGGLERS),
    counted("closed", "closed", _STRAGGLERS),
    counted("plain", "closed_float64", _STRAGGLERS),
    _gauge("features", "attacked"),
    _gauge("median\nsurvivors", "attack_survivors"),
    _gauge("reached", "attack_reached"),
)


def checks(rows: Rows) -> Figure:
    """What was checked of each checkpoint, with the power of each check beside it. `rows` are of
    the schema exact_recovery.
    """
    rows = [row for row in rows if row["population"] == "all"]
    names = Names(rows, ("revision",))
    notes = [
        "certified: columns for which every other place on the gauge line was excluded. wrong "
        "places: rounding residuals there, their "
        "Kolmogorov-Smirnov distance from the uniform distribution and its p-value. falsifier: "
        "values that one procedure without any test "
        "of acceptance gives as stored, of those that the true rows decide (true rows: all, or it "
        "has no power); with rows permuted; and "
        "how many of the latter equal those of the next column (chance). stragglers: columns that "
        "the joint fit leaves undecided; closed "
        "by fresh sequences observed as configured; plain: closed by the outputs of the float64 "
        "forward pass in the same sequences. "
        "embedding gauge: shifts between tables that keep every row on the grid, of all there are; "
        "reached: features with one such shift, "
        "the stored one.",
        "Published for GPT-2: one column with one survivor of 13,645,404 candidates; no value with "
        "rows permuted; eight stragglers, all "
        "closed by plain outputs of 27 chunks; embedding gauge reached for 820,496 of 39,383,808 "
        "values, which is 16 of 768 features.",
    ]
    return table(
        "Exact recovery: what was checked, and the power of each check",
        _FIELDS,
        {"": [{**row, "name": names.of(row)} for row in rows]},
        notes,
    )
