"""Tables of signed permutations, from the measurements of the checkpoints alone."""

from __future__ import annotations

from statistics import mean

from normgauge.render.of_checkpoints import OfCheckpoints
from normgauge.render.rows import Row, Rows, grouped, known
from normgauge.schemas.signed_permutation import ALL_SITES, IN_GROUP, tables
from normgauge.schemas.verdicts import summarised


def cost_of(row: Row) -> str:
    """What a matching maximised, from its method: C, |C|, ±C, or canonical correlation."""
    solver, _, cost = row["method"].partition(" on ")
    return cost or solver


def is_pooled(row: Row) -> bool:
    """Whether all sites of the stream were matched together."""
    return row["site"] == ALL_SITES


def recovered_gauges(rows: Rows) -> list[Row]:
    """Every way of matching, each part at its largest budget."""
    parts = grouped(rows, "part")
    return _recovered(
        [
            row
            for part in parts
            for row in part
            if row["tokens"] == max(each["tokens"] for each in part)
        ]
    )


def probe_budget(rows: Rows) -> list[Row]:
    """The residual stream matched in its group at every budget, by all sites together and by each
    alone.
    """
    return _recovered(
        [row for row in rows if row["part"] == "residual" and row["match"] == IN_GROUP]
    )


def _recovered(rows: Rows) -> list[Row]:
    """Rows of the recovery summaries: over sites and seeds, by part, way of matching and budget."""
    found = []
    marked = [{**row, "cost": cost_of(row), "pooled": is_pooled(row)} for row in rows]
    for group in grouped(marked, "part", "match", "cost", "pooled", "tokens"):
        signs = known(group, "sign_accuracy")
        found.append(
            {
                **{
                    key: group[0][key]
                    for key in ("part", "match", "cost", "pooled", "tokens", "width")
                },
                "sites": _sites(group),
                "seeds": len({row["seed"] for row in group}),
                "permutation_accuracy": mean(row["permutation_accuracy"] for row in group),
                "permutation_accuracy_min": min(row["permutation_accuracy"] for row in group),
                "sign_accuracy": mean(signs) if signs else None,
                "sign_accuracy_min": min(signs, default=None),
                "negative": _mean_known(group, "negative"),
                "uncertain": mean(row["uncertain"] for row in group),
                "certain_accuracy_min": min(known(group, "certain_accuracy"), default=None),
                **{
                    key: max(known(group, key), default=None)
                    for key in ("map_error", "query_error", "condition")
                },
                "certified": mean(row["certified"] for row in group),
            }
        )
    return found


def _sites(group: Rows) -> int:
    """Sites that the rows are about: those averaged before the match, or those matched alone."""
    return group[0]["sites"] if is_pooled(group[0]) else len({row["site"] for row in group})


def alignment_stability(rows: Rows) -> list[Row]:
    """Agreement with the match of the other half of the sequences: by all sites together, and means
    over the sites alone.
    """
    found = []
    for group in grouped(
        [{**row, "pooled": is_pooled(row)} for row in rows], "other", "match", "pooled", "tokens"
    ):
        shares = ("agreement", "split_half", "certain", "sign_certain", "negative", "unmoved")
        found.append(
            {
                **{
                    key: group[0][key]
                    for key in ("other", "match", "pooled", "width", "tokens", "reference_tokens")
                },
                "sites": _sites(group),
                **{key: mean(row[key] for row in group) for key in shares},
                **{
                    key: _mean_known(group, key)
                    for key in ("site_agreement", "certain_agreement", "effective_tokens")
                },
            }
        )
    return found


def _mean_known(rows: Rows, key: str) -> float | None:
    found = known(rows, key)
    return mean(found) if found else None


def cycles(rows: Rows) -> list[Row]:
    """What cycles of matches bring back: by all sites together, and means over the sites alone."""
    return [
        {
            **{key: group[0][key] for key in ("cycle", "pooled", "width", "tokens")},
            "sites": _sites(group),
            **{key: mean(row[key] for row in group) for key in ("moved", "certain")},
            "certain_moved": _mean_known(group, "certain_moved"),
        }
        for group in grouped([{**row, "pooled": is_pooled(row)} for row in rows], "cycle", "pooled")
    ]


def name_audit(rows: Rows) -> list[Row]:
    """Overlaps of named coordinates over seeds, by kind of claim."""
    return [
        {
            **{key: group[0][key] for key in ("claim", "site", "top", "width", "chance")},
            "seeds": len(group),
            "raw_overlap": mean(row["raw_overlap"] for row in group),
            "raw_overlap_max": max(row["raw_overlap"] for row in group),
            "mapped_overlap": mean(row["mapped_overlap"] for row in group),
            "mapped_overlap_min": min(row["mapped_overlap"] for row in group),
            "relative_deviation": max(row["relative_deviation"] for row in group),
        }
        for group in grouped(rows, "claim")
    ]


def carried(rows: Rows) -> list[Row]:
    """Artifacts over seeds: the worst after transport, the least wrong of the controls."""
    return [
        {
            "artifact": group[0]["artifact"],
            "seeds": len(group),
            "transported_deviation": max(row["transported_deviation"] for row in group),
            "permutation_deviation": min(row["permutation_deviation"] for row in group),
            "raw_deviation": min(row["raw_deviation"] for row in group),
            "permutation_error": mean(row["permutation_error"] for row in group),
            "predicted_error": mean(row["predicted_error"] for row in group),
            "raw_error": mean(row["raw_error"] for row in group),
            **{
                key: str(summarised(row[key] for row in group))
                for key in ("transported", "permutation_control", "raw_control")
            },
        }
        for group in grouped(rows, "artifact")
    ]


BUILDERS = {
    "group_boundary": OfCheckpoints(tables, "equivalence", "equivalence", lambda rows: rows),
    "recovered_gauges": OfCheckpoints(tables, "recovery", "gauge_recovery", recovered_gauges),
    "probe_budget": OfCheckpoints(tables, "recovery", "gauge_recovery", probe_budget),
    "alignment_stability": OfCheckpoints(
        tables, "alignment", "gauge_alignment", alignment_stability
    ),
    "alignment_cycles": OfCheckpoints(tables, "holonomy", "gauge_holonomy", cycles),
    "name_audit": OfCheckpoints(tables, "audit", "gauge_audit", name_audit),
    "carried_artifacts": OfCheckpoints(tables, "transport", "gauge_transport", carried),
}
