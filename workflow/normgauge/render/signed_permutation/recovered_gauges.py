"""Recorded gauges found again: by part and cost, and by the number of probes."""

from __future__ import annotations

from matplotlib.figure import Figure

from normgauge.render.declared import Field, share, table, value, words
from normgauge.render.formats import NOTHING, count, percent
from normgauge.render.labels import by_checkpoint
from normgauge.render.rows import Row, Rows
from normgauge.render.signed_permutation.sheet import how_matched, of_checkpoints
from normgauge.schemas.signed_permutation import GREEDY

_COSTS = {
    "|C|": r"$|C|$",
    "C": r"$C$",
    "±C": r"$\pm C$",
    "canonical correlation": "canonical correlation",
}


def _how(row: Row) -> str:
    return how_matched(row) if row["part"] == "residual" else "in the group"


def _certified(row: Row) -> str:
    """Heads and greedy matches are without a certificate."""
    without = row["part"] == "heads" or row["match"] == GREEDY
    return NOTHING if without else percent(row["certified"])


_FIELDS = (
    words("part", "part"),
    words("matched", _how, flexible=True),
    words("cost", lambda row: _COSTS[row["cost"]]),
    Field("sites\n× seeds", lambda row: f"{row['sites']} × {row['seeds']}"),
    share("mean", "permutation_accuracy", "permutation"),
    share("least", "permutation_accuracy_min", "permutation"),
    share("mean", "sign_accuracy", "sign"),
    share("least", "sign_accuracy_min", "sign"),
    share("flagged", "uncertain"),
    share("least of\nthe others", "certain_accuracy_min"),
    value("scale or\nvalue map", "map_error", "largest error", 1),
    value("query\nmap", "query_error", "largest error", 1),
    Field("certified", _certified),
)


def recovered_gauges(rows: Rows) -> Figure:
    """Recovery of recorded gauges by part and cost. `rows` are of the schema recovered_gauges."""
    tokens = sorted({row["tokens"] for row in rows})
    notes = [
        f"Recorded gauges of the whole model, found again from {' or '.join(map(str, tokens))} "
        "tokens. flagged: constant, tied or "
        "not clearly ahead of a rival; least of the others: smallest share of unflagged "
        "coordinates whose place and sign are right. "
        "Scales and maps are read off the weights. Controls leave the group: without signs a "
        "coordinate whose sign is negative is avoided, "
        "half of them where signs are free; free signs find a copy as well, but between unlike "
        "LayerNorm models they are of no gauge. "
        "Published at 7B: 49.4% to 49.9% and 50.1% without signs, 100% with; greedy 94.7% and "
        "97.5% at d = 4096.",
    ]
    return table("Table 15. Recovery of recorded gauges", _FIELDS, of_checkpoints(rows), notes)


_BUDGET = {
    "place": "permutation_accuracy",
    "sign": "sign_accuracy",
    "certified": "certified",
}


def probe_budget(rows: Rows) -> Figure:
    """Recovery against the number of probes. `rows` are of the schema probe_budget."""
    budgets = sorted({row["tokens"] for row in rows})
    fields = [words("", "name")]
    fields += [
        share(head, f"{key} {budget}", f"{count(budget)} tokens")
        for budget in budgets
        for head, key in _BUDGET.items()
    ]
    headings = {
        "residual stream, all sites together": [row for row in rows if row["pooled"]],
        "residual stream, each site alone": [row for row in rows if not row["pooled"]],
    }
    sections = {
        heading: [_by_budget(name, each, budgets) for name, each in by_checkpoint(members).items()]
        for heading, members in headings.items()
        if members
    }
    seeds = ", ".join(sorted({str(row["seeds"]) for row in rows}))
    notes = [
        f"Means over {seeds} seeds (below: and over sites) of matching inside the group that the "
        "norm admits. What is missed is flagged: "
        "constant or tied coordinates. Published for TinyLlama: 100% from 22 tokens on.",
    ]
    title = "Tables 3 and 11. How many probes a recorded gauge needs"
    return table(title, fields, sections, notes)


def _by_budget(name: str, rows: Rows, budgets: list[int]) -> Row:
    """One line: what was recovered from each number of probes."""
    found = {row["tokens"]: row for row in rows}
    return {"name": name} | {
        f"{key} {budget}": found[budget][key] if budget in found else None
        for budget in budgets
        for key in _BUDGET.values()
    }
