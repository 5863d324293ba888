"""Natural alignment: two trained models of one shape, matched with no gauge recorded, and how far
the match depends on the probes.

There is no truth to compare with. A match is judged by what another one says that shares no
sequence with it, and the matches among three models by what their cycle brings back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any

import numpy as np

from normgauge.anatomy import describe
from normgauge.anatomy.structure import Anatomy
from normgauge.calibration.batches import Batch
from normgauge.checkpoints.building import build_model
from normgauge.checkpoints.opening import Checkpoint
from normgauge.errors import InputError
from normgauge.gauge.activations import Activations, halves, observe_sites
from normgauge.gauge.admissible import Group, admissible
from normgauge.gauge.matching import Matching
from normgauge.gauge.site_matching import PairedSite, match_sites, paired
from normgauge.schemas.signed_permutation import ALL_SITES, FREE_SIGNS, IN_GROUP, NO_SIGNS
from normgauge.signed_permutation.holonomy import holonomy, moved_share

Streams = Mapping[str, Mapping[str, Activations]]
"""By model and residual site, activations on the same samples."""
NESTED = (Group.PERMUTATION, Group.COMMON_SIGN, Group.SIGNED_PERMUTATION)
"""Groups of streams, each inside the next."""


def stream_shapes(anatomy: Anatomy) -> list[tuple[str, int, int]]:
    """(name, width, blocks) of every residual stream: what two models must share to be matched."""
    return [(stack.name, stack.width, len(stack.blocks)) for stack in anatomy.stacks]


def stream_activations(checkpoints: Mapping[str, Checkpoint], batches: Sequence[Batch]) -> Streams:
    """Activations of several models, by name, at every residual site of the primary stack.

    Raises InputError, before any forward pass, for a model of another shape than the first.
    """
    anatomies = {name: describe(checkpoint.config) for name, checkpoint in checkpoints.items()}
    shapes = {name: stream_shapes(anatomy) for name, anatomy in anatomies.items()}
    expected = next(iter(shapes.values()))
    for name, found in shapes.items():
        if found != expected:
            raise InputError(
                f"{name}: residual streams (name, width, blocks) {found}, expected {expected}; "
                "align models of one shape"
            )
    activations = {}
    for name, checkpoint in checkpoints.items():
        stack = anatomies[name].primary_stack.name
        sites = [site for site in anatomies[name].sites_in(("residual",)) if site.stack == stack]
        activations[name] = observe_sites(build_model(checkpoint, "float32"), sites, batches)
    return activations


def common_group(checkpoints: Mapping[str, Checkpoint]) -> Group:
    """The group that the primary streams of all the models admit: the smallest, since they are
    nested.
    """
    anatomies = [describe(checkpoint.config) for checkpoint in checkpoints.values()]
    groups = {admissible(anatomy, anatomy.primary_stack.space).group for anatomy in anatomies}
    return min(groups, key=NESTED.index)


def controls_of(group: Group) -> dict[str, Group]:
    """The wrong groups that a space of this group is matched in as a control, by label."""
    labels = {FREE_SIGNS: Group.SIGNED_PERMUTATION, NO_SIGNS: Group.PERMUTATION}
    return {label: wrong for label, wrong in labels.items() if wrong != group}


def alignment_rows(streams: Streams, budgets: Sequence[int], group: Group) -> list[dict[str, Any]]:
    """Rows of schema `gauge_alignment`: the first model with each other one, by all sites together
    and by each, at every budget of samples.

    The sequences are split into halves. A match from the first samples of one half is compared with
    the match from the other half's first samples, as many and as the largest budget has. Raises
    InputError where a half has fewer than the largest budget.
    """
    (_, first), *others = streams.items()
    sets = halves(next(iter(first.values())).lengths)
    rows = []
    for name, second in others:
        found = [_matches(first, second, chosen, budgets, group) for chosen in sets]
        for (budget, site, match), matching in found[0].items():
            reference = found[1][max(budgets), site, match]
            alone = (
                [
                    found[0][budget, each, match]
                    for each in first
                    if (budget, each, match) in found[0]
                ]
                if site == ALL_SITES
                else []
            )
            rows.append(
                {
                    "other": name,
                    "site": site,
                    "sites": len(first) if site == ALL_SITES else 1,
                    "match": match,
                    **agreement(matching, reference),
                    "split_half": _share(_same(matching, found[1][budget, site, match])),
                    "site_agreement": float(
                        np.mean([_share(_same(each, matching)) for each in alone])
                    )
                    if alone
                    else None,
                }
            )
    return rows


def _matches(
    first: Mapping[str, Activations],
    second: Mapping[str, Activations],
    chosen: Sequence[int],
    budgets: Sequence[int],
    group: Group,
) -> dict[tuple[int, str, str], Matching]:
    """Matches from some sequences, by budget, site and label; the controls by all sites together
    alone.
    """
    halved = {
        site: (first[site].of_sequences(chosen), second[site].of_sequences(chosen))
        for site in first
    }
    for site, (source, _) in halved.items():
        if len(source.rows) < max(budgets):
            raise InputError(
                f"site {site}: {len(source.rows)} samples in half of the probes, {max(budgets)} "
                "asked for; give more probes"
            )
    found = {}
    for budget in sorted(budgets):
        sites = {
            site: PairedSite(source.first(budget), target.first(budget))
            for site, (source, target) in halved.items()
        }
        found[budget, ALL_SITES, IN_GROUP] = match_sites(list(sites.values()), group)
        for site, each in sites.items():
            found[budget, site, IN_GROUP] = match_sites([each], group)
        for label, wrong in controls_of(group).items():
            found[budget, ALL_SITES, label] = match_sites(list(sites.values()), wrong)
    return found


def holonomy_rows(streams: Streams, group: Group) -> list[dict[str, Any]]:
    """Rows of schema `gauge_holonomy`: per cycle of three models, by all sites together and by
    each, the share of coordinates that three matches, each found on its own, do not bring back to
    themselves with their sign. Were the matches identities of coordinates, it would be zero.
    """
    rows = []
    for cycle in combinations(streams, 3):
        steps = list(zip(cycle, [*cycle[1:], cycle[0]], strict=True))
        sites = {step: paired(*(streams[name] for name in step)) for step in steps}
        names = list(streams[cycle[0]])
        for site in (ALL_SITES, *names):
            used = names if site == ALL_SITES else [site]
            found = {
                step: match_sites([sites[step][each] for each in used], group) for step in steps
            }
            product = holonomy({step: each.gauge for step, each in found.items()}, cycle)
            certain, here = np.ones(product.size, dtype=bool), np.arange(product.size)
            # a coordinate counts when every match that it goes through is certain
            for step in steps:
                certain &= ~found[step].uncertain[here]
                here = found[step].gauge.target[here]
            back = (product.target == np.arange(product.size)) & (product.factors == 1)
            rows.append(
                {
                    "cycle": " - ".join(cycle),
                    "site": site,
                    "sites": len(used),
                    "width": product.size,
                    "tokens": found[steps[0]].samples,
                    "moved": moved_share(product),
                    "certain": float(certain.mean()),
                    "certain_moved": float((~back)[certain].mean()) if certain.any() else None,
                }
            )
    return rows


def agreement(found: Matching, reference: Matching) -> dict[str, Any]:
    """How much of a match another one, from other sequences, repeats; of the coordinates that both
    are certain of as well.
    """
    same = _same(found, reference)
    signed = same & (found.gauge.factors == reference.gauge.factors)
    both = ~found.uncertain & ~reference.uncertain
    return {
        "width": found.gauge.size,
        "tokens": found.samples,
        "reference_tokens": reference.samples,
        "agreement": _share(same),
        "signed_agreement": _share(signed),
        "certain": _share(~found.uncertain),
        "sign_certain": found.sign_certain,
        "certain_agreement": _share(signed[both]) if both.any() else None,
        "effective_tokens": float(np.median(found.effective)),
        "negative": _share(found.gauge.factors < 0),
        "unmoved": _share(found.gauge.target == np.arange(found.gauge.size)),
        "method": found.method,
        "certified": found.certified,
    }


def _same(first: Matching, second: Matching) -> np.ndarray:
    return first.gauge.target == second.gauge.target


def _share(mask: np.ndarray) -> float:
    return float(mask.mean())
