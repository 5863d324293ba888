"""Tables of learned artifacts, from the measurements of the checkpoints alone."""

from __future__ import annotations

from statistics import mean

from normgauge.render.of_checkpoints import OfCheckpoints
from normgauge.render.rows import Row, Rows, grouped
from normgauge.schemas.learned_artifacts import tables


def audits(rows: Rows) -> list[Row]:
    """Overlaps of names over seeds, by kind of claim."""
    return [
        {
            **{key: group[0][key] for key in ("claim", "site", "top", "width", "chance")},
            "seeds": len(group),
            "raw_overlap": mean(row["raw_overlap"] for row in group),
            "raw_overlap_max": max(row["raw_overlap"] for row in group),
            "mapped_overlap": mean(row["mapped_overlap"] for row in group),
            "mapped_overlap_min": min(row["mapped_overlap"] for row in group),
            "recovered": mean(row["recovered"] for row in group),
            "relative_deviation": max(row["relative_deviation"] for row in group),
        }
        for group in grouped(rows, "claim")
    ]


BUILDERS = {
    "learned_artifacts": OfCheckpoints(tables, "learned", "learned_artifact", lambda rows: rows),
    "learned_audits": OfCheckpoints(tables, "learned_audit", "learned_audit", audits),
}
