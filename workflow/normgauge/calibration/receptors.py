"""T-cell receptor chains in germline configuration, from the IMGT sequences and functionality that
tidytcells carries.

A chain is written as its three complementarity-determining regions. CDR1 and CDR2 are the V gene's
own. CDR3 (the junction, from the conserved cysteine to the conserved phenylalanine or tryptophan,
both included) is that cysteine, what follows it in the V gene, and
the J gene up to its F/W-G-x-G motif: nothing trimmed, nothing inserted, no D gene. Real junctions
are trimmed and padded at random, so these chains are valid input but not a sample of a repertoire.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

Sequences = Mapping[str, Mapping[str, str]]
Functionality = Mapping[str, Mapping[str, str]]

J_MOTIF = re.compile("[FW]G.G")


def germline_chains(
    sequences: Sequences, functionality: Functionality, chain: str
) -> list[tuple[str, str]]:
    """Every V x J pair of a chain as (name, "CDR1 CDR2 CDR3"), sorted by name.

    `sequences`: allele -> region -> amino acids; `functionality`: gene -> allele number -> "F",
    "ORF" or "P"; `chain`: "A" or "B". A gene counts when it has a functional allele whose regions
    are all known; its first such allele is used.
    """
    heads = _first_alleles(sequences, functionality, f"TR{chain}V", _v_regions)
    tails = _first_alleles(sequences, functionality, f"TR{chain}J", _j_region)
    return sorted(
        (f"{v_allele}/{j_allele}", f"{first} {second} {start}{tail}")
        for v_allele, (first, second, start) in heads.items()
        for j_allele, (tail,) in tails.items()
    )


def _first_alleles(sequences, functionality, prefix, regions) -> dict[str, tuple[str, ...]]:
    found = {}
    for gene in sorted(functionality):
        if not gene.startswith(prefix):
            continue
        for number in sorted(functionality[gene]):
            allele = f"{gene}*{number}"
            if functionality[gene][number] == "F" and (
                parts := regions(sequences.get(allele) or {})
            ):
                found[allele] = parts
                break
    return found


def _v_regions(regions: Mapping[str, str]) -> tuple[str, ...] | None:
    """CDR1, CDR2 and the V gene's part of CDR3, which begins with the last residue of FR3, the
    conserved cysteine.
    """
    needed = ("CDR1-IMGT", "CDR2-IMGT", "FR3-IMGT", "V-REGION")
    if not all(regions.get(name) for name in needed):
        return None
    first, second, framework, whole = (regions[name] for name in needed)
    end = whole.rfind(framework)
    if end < 0 or not framework.endswith("C"):
        return None
    return first, second, whole[end + len(framework) - 1 :]


def _j_region(regions: Mapping[str, str]) -> tuple[str, ...] | None:
    """The J gene's part of CDR3, up to and including the F or W of its F/W-G-x-G motif."""
    motif = J_MOTIF.search(regions.get("J-REGION", ""))
    return (regions["J-REGION"][: motif.start() + 1],) if motif else None
