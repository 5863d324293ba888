"""What is printed when coordinates have changed: of a model, of an artifact, of names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from normgauge.verbs.output import LINES, table

if TYPE_CHECKING:
    from normgauge.anatomy.structure import Anatomy
    from normgauge.calibration.direct import Inputs
    from normgauge.gauge.model_matching import ModelMatching


def align_summary(found: ModelMatching, inputs: Inputs, rounded: int, output: str) -> list[str]:
    """What of B was brought into A's coordinates, and what is not certain."""
    from normgauge.gauge.matching_report import doubts, parts

    head = (
        "All of B was matched with certainty."
        if found.certain
        else "Not all of B was matched with certainty: the likeliest match was taken where it is "
        "doubtful (status 1)."
    )
    lines = [f"{head} Matched on {inputs.words}.", *(f"  {line}" for line in parts(found))]
    said = doubts(found)
    room = LINES - len(lines) - 3
    lines += [f"  {line}" for line in said[:room]]
    if len(said) > room:
        lines.append(f"  and {len(said) - room} more doubtful spaces; --json lists all")
    exact = "nothing was rounded" if not rounded else f"{rounded} tensors were rounded, once each"
    return [*lines, f"B in A's coordinates is in {output}; {exact}."]


def audit_summary(anatomy: Anatomy, rows: Sequence[Mapping[str, Any]], inputs: str) -> list[str]:
    """Which names stay when coordinates change and the function does not."""
    first = rows[0]
    lines = [
        f"{anatomy.architecture}: a random gauge renamed its coordinates; outputs move by "
        f"{first['relative_deviation']:.2g} (float32).",
        f"Inputs: {inputs}. Each claim names {first['top']} coordinates before and after.",
        kept_names_line(rows),
        "",
    ]
    cells = [
        (
            row["claim"],
            row["site"],
            f"{row['raw_overlap']:.0%}",
            f"{row['chance']:.1%}",
            f"{row['mapped_overlap']:.0%}",
        )
        for row in rows
    ]
    return [
        *lines,
        *table(("claim", "site", "names that stay", "chance", "found again by the gauge"), cells),
    ]


def kept_names_line(rows: Sequence[Mapping[str, Any]]) -> str:
    """Whether any claim names the same numbers more often than three standard deviations above
    chance.
    """
    kept = [
        row["claim"]
        for row in rows
        if row["raw_overlap"] > row["chance"] + 3 * chance_deviation(row)
    ]
    if kept:
        return f"More names than by chance stay for: {', '.join(kept)}."
    return (
        "No claim keeps more names than by chance: they belong to the basis of this copy, not "
        "to the function."
    )


def chance_deviation(row: Mapping[str, Any]) -> float:
    """Standard deviation of the share of `top` names that stay when `width` coordinates are
    permuted (hypergeometric).
    """
    top, width, chance = row["top"], row["width"], row["chance"]
    return (chance * (1 - chance) * (width - top) / (top * (width - 1))) ** 0.5


def carry_summary(kind: str, output: str, doubts: Sequence[str], way: str) -> list[str]:
    """What was carried where, and what of the gauge is doubtful."""
    lines = [
        f"Carried: {kind}, {way}. Written to {output}, with a record of the model that it now fits."
    ]
    if doubts:
        room = LINES - 4
        lines += [
            "Not all of the gauge is certain (status 1):",
            *(f"  {line}" for line in doubts[:room]),
        ]
        lines += (
            [f"  and {len(doubts) - room} more; --json lists all"] if len(doubts) > room else []
        )
    return lines
