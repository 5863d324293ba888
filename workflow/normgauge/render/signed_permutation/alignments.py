"""Natural alignments of checkpoints: their stability, and what cycles of them bring back."""

from __future__ import annotations

from matplotlib.figure import Figure

from normgauge.render.declared import counted, share, table, words
from normgauge.render.rows import Row, Rows, grouped
from normgauge.render.signed_permutation.sheet import how_matched, of_checkpoints
from normgauge.render.text import plain
from normgauge.schemas.signed_permutation import IN_GROUP

_ALIKE = "matched alike by other sequences"
_STABILITY = (
    words("matched with", lambda row: plain(row["name"]), flexible=True),
    words("how", how_matched, flexible=True),
    counted("tokens", "tokens"),
    share("reference", "agreement", _ALIKE),
    share("as many", "split_half", _ALIKE),
    share("a site\nalone", "site_agreement"),
    share("certain", "certain"),
    share("of these\nalike", "certain_agreement"),
    share("sign\ncertain", "sign_certain"),
    share("negative", "negative"),
    share("own\nnumber", "unmoved"),
)


def alignment_stability(rows: Rows) -> Figure:
    """Stability of natural alignments. `rows` are of the schema alignment_stability."""
    budgets = {row["tokens"] for row in rows}

    def is_shown(row: Row) -> bool:
        return (row["pooled"] and row["match"] == IN_GROUP) or row["tokens"] == max(budgets)

    shown = [
        {**row, "name": row["other"] if row["tokens"] == min(budgets) else ""}
        for row in rows
        if is_shown(row)
    ]
    notes = [
        "Shares of coordinates (of sites alone: means over residual sites). The match from one "
        "half of the sequences gives the same "
        f"target as the match from {max(row['reference_tokens'] for row in rows):,} tokens of the "
        "other half, and as the match from as "
        "many; a site alone gives the same as all together. certain: ahead of every rival by more "
        "than the sequences leave open, of these "
        "alike: certain in both halves and given one target and sign. LayerNorm streams have one "
        "sign for all coordinates; where it is "
        "not certain no coordinate is. The controls leave the group; these and sites alone stand "
        "here for the most tokens, in the table "
        "for all. There is no truth here. Published for a 1.5B pair: 6% at 39 tokens, 94% at 27K, "
        "against samples that contain the "
        "smaller ones.",
    ]
    sections = {
        heading: [row for group in grouped(members, "other", "match", "pooled") for row in group]
        for heading, members in of_checkpoints(shown).items()
    }
    return table("Table 13. Stability of natural alignments", _STABILITY, sections, notes)


_CYCLES = (
    words("cycle", lambda row: plain(row["cycle"]) if row["pooled"] else "", flexible=True),
    words("matched by", lambda row: "all sites together" if row["pooled"] else "each site alone"),
    counted("tokens", "tokens"),
    counted("sites", "sites"),
    share("not brought\nback", "moved"),
    share("certain all\nthe way", "certain"),
    share("of these not\nbrought back", "certain_moved"),
)


def cycles(rows: Rows) -> Figure:
    """Holonomy of natural alignments. `rows` are of the schema alignment_cycles."""
    notes = [
        "Three checkpoints, each matched with the next, the last with the first, every match found "
        "on its own: the share of "
        "coordinates that the product of the three does not return to themselves with their sign "
        "(of sites alone: means over residual "
        "sites). It is zero for every cycle if and only if each checkpoint has one chart from "
        "which all matches follow. Matches lie in "
        "the group that the norm admits.",
    ]
    return table("Holonomy of natural alignments", _CYCLES, of_checkpoints(rows), notes)
