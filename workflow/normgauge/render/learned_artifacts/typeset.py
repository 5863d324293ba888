"""Learned artifacts, and names of coordinates, as typeset tables."""

from __future__ import annotations

from matplotlib.figure import Figure

from normgauge.render.declared import Field, counted, share, table, value, verdicts, words
from normgauge.render.formats import decimals, number, percent
from normgauge.render.rows import Row, Rows
from normgauge.render.signed_permutation.sheet import of_checkpoints

_MEASURE, _KEPT = "loss, or error over variance", "effect kept"
_AGREE = "names that agree"


def named(row: Row) -> str:
    """An artifact, with the strength of a vector that is added more than once."""
    strength = row["strength"]
    return row["artifact"] if strength in (None, 1.0) else f"{row['artifact']}, {strength:g} times"


_WAYS = {"signed": "$B_d$", "permutation": "$S_d$", "raw": "raw"}


def _kept(way: str) -> Field:
    return Field(
        _WAYS[way],
        lambda row: decimals(row[f"{way}_kept"], 2) if row["detectable"] else "not called",
        _KEPT,
    )


_ARTIFACTS = (
    words("artifact", lambda row: f"{named(row)}: {row['space']}", flexible=True),
    counted("seed", "seed"),
    value("without", "without", _MEASURE, digits=3),
    value("reference", "reference", _MEASURE, digits=3),
    *(value(head, f"{way}_value", _MEASURE, digits=3) for way, head in _WAYS.items()),
    *(_kept(way) for way in _WAYS),
    verdicts(
        "as it must",
        {"transported": "$B_d$", "permutation_control": "$S_d$", "raw_control": "raw"},
    ),
)


def learned_artifacts(rows: Rows) -> Figure:
    """Learned artifacts carried by recovered gauges. `rows` are of that schema."""
    notes = [
        "Learned on the checkpoint, used on its copy under a recorded gauge, moved by the gauge "
        "that activations recover ($B_d$), by its permutation alone ($S_d$), and not at all (raw). "
        "steering vector: "
        "difference of means between prose and code, added in the middle block; LoRA adapter: "
        "trained on code, in all blocks, for a gauge of units on the maps around "
        "these alone (nats per held-out token of code). dictionary: TopK "
        "autoencoder of the middle block's output (squared error over variance). An effect "
        "(without minus reference) of 0.1 or less is not called. As it must: the recovered gauge "
        "keeps the effect within a thousandth; the controls lose more than 0.1.",
        *_dictionaries(rows),
    ]
    title = "Table 5. Learned artifacts follow the signed gauge"
    return table(title, _ARTIFACTS, of_checkpoints(rows), notes)


def _dictionaries(rows: Rows) -> list[str]:
    """A note for the dictionary of each checkpoint."""
    learned = {row["model"]: row for row in rows if row["features"] is not None}
    return [
        f"{model}: {row['features']:,} features, {number(row['active_features'])} at once, "
        f"{percent(row['dead_features'], 0)} never fire on what they are learned from."
        for model, row in learned.items()
    ]


_AUDITS = (
    words("claim", "claim", flexible=True),
    words("site", "site", flexible=True),
    Field("names", lambda row: f"{row['top']} of {row['width']:,}"),
    counted("seeds", "seeds"),
    share("chance", "chance", _AGREE),
    share("raw", "raw_overlap", _AGREE),
    share("raw, most", "raw_overlap_max", _AGREE),
    share("mapped", "mapped_overlap", _AGREE),
    share("mapped, least", "mapped_overlap_min", _AGREE),
    share("recovered", "recovered"),
    value("outputs\nmove by", "relative_deviation", digits=1),
)


def learned_audits(rows: Rows) -> Figure:
    """Audit of names by recovered gauges. `rows` are of the schema learned_audits."""
    notes = [
        "Of the highest scores, the numbers that stay (raw) and those that agree once the gauge "
        "that activations recover is applied to them (mapped). contrast direction: the difference "
        "of means between prose and code. dictionary features: of an autoencoder that was carried "
        "and its features renumbered; they are matched by their activations, and most of those "
        "that are not recovered never fire on the probes.",
    ]
    title = "Table 8. Names after a gauge, by recovered gauges"
    return table(title, _AUDITS, of_checkpoints(rows), notes)
