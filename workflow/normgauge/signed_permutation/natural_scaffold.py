"""The discrete part of the rotation that leads from the activations of one run to another's."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from normgauge.gauge.activations import Activations
from normgauge.gauge.admissible import Group
from normgauge.gauge.groups import Monomial, Orthogonal
from normgauge.gauge.site_matching import PairedSite, match_sites
from normgauge.schemas.discrete_laws import DRAWN
from normgauge.signed_permutation.scaffold import Scaffold, discrete_part, procrustes

Seen = Mapping[str, Activations]


def scaffold_rows(
    source: Seen, target: Seen, truth: Monomial | None = None
) -> Iterator[dict[str, Any]]:
    """Rows of schema `scaffold` without the pair's names: what two checkpoints show at each site of
    their stream, and the recorded gauge that leads from one to the other, if there is one.
    """
    for site, own in source.items():
        other = target[site]
        first, second = (
            rows - rows.mean(0) for rows in (each.rows.double().numpy() for each in (own, other))
        )
        found = discrete_part(procrustes(first, second))
        matched = match_sites([PairedSite(own, other)], Group.SIGNED_PERMUTATION).gauge
        energy = np.square(second).sum()
        yield {
            "site": site,
            "tokens": len(first),
            "error": float(np.square(first @ rotation(found) - second).sum() / energy),
            "discrete_error": float(
                np.square(first @ found.gauge.matrix() - second).sum() / energy
            ),
            **described(found),
            **_recorded(found, truth),
            "matched": float(_same(matched, found.gauge).mean()),
        }


def drawn_row(width: int, seed: int) -> dict[str, Any]:
    """The same of a rotation drawn at random, which has no discrete part to find."""
    found = discrete_part(Orthogonal.random(width, seed))
    nothing = dict.fromkeys(("places", "signed_places", "certain_places", "matched"))
    row = {"first": DRAWN, "second": DRAWN, "site": DRAWN, "tokens": 0}
    return {**row, "error": 0.0, "discrete_error": 0.0, **described(found), **nothing}


def rotation(found: Scaffold) -> np.ndarray:
    """Q = G R again."""
    return found.gauge.matrix() @ found.rest.matrix


def described(found: Scaffold) -> dict[str, Any]:
    """How far the rest of a rotation is from the identity, row by row."""
    rest = found.rest.matrix
    distances = np.linalg.norm(rest - np.eye(len(rest)), axis=1)
    entries = np.diag(rest)
    return {
        "width": len(rest),
        "distance": float(distances.max()),
        "distance_median": float(np.median(distances)),
        "certain": float(certain(found).mean()),
        "certified": found.certified,
        "entries": np.sort(entries)[::-1].tolist(),
    }


def certain(found: Scaffold) -> np.ndarray:
    """bool (d,): rows of Q with an entry above the root of one half."""
    chosen = np.diag(found.rest.matrix)[found.gauge.target]
    return np.square(chosen) > 0.5


def _recorded(found: Scaffold, truth: Monomial | None) -> dict[str, float | None]:
    if truth is None:
        return dict.fromkeys(("places", "signed_places", "certain_places"))
    right, sure = _same(found.gauge, truth), certain(found)
    return {
        "places": float((found.gauge.target == truth.target).mean()),
        "signed_places": float(right.mean()),
        "certain_places": float(right[sure].mean()) if sure.any() else None,
    }


def _same(first: Monomial, second: Monomial) -> np.ndarray:
    """bool (d,): coordinates that two elements send to one place with one sign."""
    same_sign: np.ndarray = np.sign(first.factors) == np.sign(second.factors)
    return (first.target == second.target) & same_sign
