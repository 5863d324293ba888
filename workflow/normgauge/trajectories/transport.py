"""How well coordinates are followed along runs of training, and between them: composed local
matches against one match of the ends.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from normgauge.gauge.groups import Monomial
from normgauge.schemas.trajectories import ENDPOINT, HELD_OUT, TRANSPORT
from normgauge.trajectories.atlas import Atlas, Run
from normgauge.trajectories.links import BASE, Chain, Scope, right
from normgauge.trajectories.trust import Trust, fit

FIRST = 0  # the run of each entry that the rule of trust is fitted on
TRUSTED = 0.9  # predicted share from which a chain is trusted


def fitted_trust(atlases: Sequence[Atlas]) -> Trust:
    """The rule of trust, from the links of the first run of each entry, whose truth is recorded."""
    return fit(
        (link.lead, right(link.gauge, run.truth(link.scope) if link.start == BASE else _same(link)))
        for atlas in atlases
        for run in atlas.runs[FIRST : FIRST + 1]
        for link in run.links
    )


def _same(link: Any) -> Monomial:
    return Monomial.identity(link.gauge.size)


def within_rows(atlas: Atlas, trust: Trust) -> Iterator[dict[str, Any]]:
    """Rows of schema `trajectory_transport`: from the base to the end of each run, by chains of
    every stride, by one match, and by one match on held-out probes.
    """
    for number, run in enumerate(atlas.runs):
        for scope in atlas.scopes:
            truth = run.truth(scope)
            for tokens in atlas.budgets:
                ways: list[tuple[str, int | None, Chain]] = [
                    (TRANSPORT, stride, run.transported(scope, tokens, stride))
                    for stride in atlas.strides
                ]
                ways.append((ENDPOINT, None, atlas.endpoint(run, scope, tokens)))
                ways.append((HELD_OUT, None, atlas.endpoint(run, scope, tokens, held_out=True)))
                for way, stride, found in ways:
                    yield {
                        **_run_names(atlas, run),
                        "fitted": number == FIRST,
                        **_scope_names(scope, tokens),
                        "way": way,
                        "stride": stride,
                        "links": len(found),
                        **_accuracy(found, truth),
                        "predicted": trust.predicted(found),
                    }


def pair_rows(atlas: Atlas, trust: Trust) -> Iterator[dict[str, Any]]:
    """Rows of schema `trajectory_pairs`: between the ends of two runs, in one match or by way of
    the base, each half by the finest chain or by one match.
    """
    stride = min(atlas.strides)
    for kind, first, second in atlas.pairs():
        for scope in atlas.scopes:
            truth = first.truth(scope).inverse().compose(second.truth(scope))
            for tokens in atlas.budgets:
                chains = [run.transported(scope, tokens, stride) for run in (first, second)]
                ends = [atlas.endpoint(run, scope, tokens) for run in (first, second)]
                ways = {
                    ENDPOINT: atlas.direct(first, second, scope, tokens),
                    "endpoint via base": ends[0].back().then(ends[1]),
                    "transport, then endpoint": chains[0].back().then(ends[1]),
                    "endpoint, then transport": ends[0].back().then(chains[1]),
                    "transport via base": chains[0].back().then(chains[1]),
                }
                for way, found in ways.items():
                    yield {
                        "model": atlas.model,
                        "learning_rate": atlas.source.settings["learning_rate"],
                        "steps": atlas.source.steps,
                        "pair": kind,
                        "first": first.name,
                        "second": second.name,
                        **_scope_names(scope, tokens),
                        "way": way,
                        "links": len(found),
                        **_accuracy(found, truth),
                        "predicted": trust.predicted(found),
                    }


def cycle_rows(atlas: Atlas) -> Iterator[dict[str, Any]]:
    """Rows of schema `trajectory_cycles`: what is not brought back around the base and two ends,
    and around three ends; each match found on its own. Zero everywhere iff there is an atlas.
    """
    stride, tokens = min(atlas.strides), max(atlas.budgets)
    for scope in atlas.scopes:
        found: dict[tuple[str, str], Chain] = {}
        for kind, first, second in atlas.pairs():
            direct = atlas.direct(first, second, scope, tokens)
            found[first.name, second.name] = direct
            out, back = (run.transported(scope, tokens, stride) for run in (first, second))
            cycle = out.then(direct).then(back.back())
            yield _cycle(atlas, kind, ("base", first.name, second.name), scope, tokens, cycle)
        for kind, runs in atlas.triples():
            names = [run.name for run in runs]
            cycle = found[names[0], names[1]].then(found[names[1], names[2]])
            cycle = cycle.then(found[names[0], names[2]].back())
            yield _cycle(atlas, kind, names, scope, tokens, cycle)


def _cycle(
    atlas: Atlas, kind: str, names: Iterable[str], scope: Scope, tokens: int, cycle: Chain
) -> dict[str, Any]:
    back = right(cycle.gauge, Monomial.identity(cycle.gauge.size))
    return {
        "model": atlas.model,
        "learning_rate": atlas.source.settings["learning_rate"],
        "pair": kind,
        "cycle": " - ".join(names),
        **_scope_names(scope, tokens),
        "links": len(cycle),
        "width": len(back),
        "moved": float((~back).mean()),
        "certain": float(cycle.certain.mean()),
        "certain_moved": float((~back)[cycle.certain].mean()) if cycle.certain.any() else None,
        "moving": np.flatnonzero(~back).tolist(),
        "moving_certain": np.flatnonzero(~back & cycle.certain).tolist(),
    }


def trust_rows(trust: Trust, rows: Sequence[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Rows of schema `transport_trust`: the rule and how it does on chains of the runs that it was
    fitted on, and of the others; beside it the mean of the former as the only prediction.
    """
    chains = [row for row in rows if row["way"] == TRANSPORT]
    usual = float(np.mean([row["signed_accuracy"] for row in chains if row["fitted"]]))
    for judged, fitted in (("fitted runs", True), ("other runs", False)):
        chosen = [row for row in chains if row["fitted"] == fitted]
        if not chosen:
            continue
        actual = np.array([row["signed_accuracy"] for row in chosen])
        predicted = np.array([row["predicted"] for row in chosen])
        trusted = predicted >= TRUSTED
        yield {
            "judged": judged,
            "intercept": trust.intercept,
            "slope": trust.slope,
            "level": trust.level,
            "matches": trust.matches,
            "chains": len(chosen),
            "error": float(np.abs(predicted - actual).mean()),
            "error_of_mean": float(np.abs(usual - actual).mean()),
            "trusted": int(trusted.sum()),
            "trusted_accuracy_min": float(actual[trusted].min()) if trusted.any() else None,
            "trusted_accuracy": float(actual[trusted].mean()) if trusted.any() else None,
            "untrusted_accuracy": float(actual[~trusted].mean()) if (~trusted).any() else None,
            "broken": int((actual < TRUSTED).sum()),
            "broken_trusted": int(((actual < TRUSTED) & trusted).sum()),
            "whole_untrusted": int(((actual >= TRUSTED) & ~trusted).sum()),
        }


def _run_names(atlas: Atlas, run: Run) -> dict[str, Any]:
    return {
        "model": atlas.model,
        "learning_rate": atlas.source.settings["learning_rate"],
        "steps": atlas.source.steps,
        "run": run.name,
        "corpus": run.corpus,
        "seed": run.seed,
    }


def _scope_names(scope: Scope, tokens: int) -> dict[str, Any]:
    return {"space": scope.space, "sites": scope.sites, "tokens": tokens}


def _accuracy(found: Chain, truth: Monomial) -> dict[str, Any]:
    signed = right(found.gauge, truth)
    return {
        "accuracy": float((found.gauge.target == truth.target).mean()),
        "signed_accuracy": float(signed.mean()),
        "certain": float(found.certain.mean()),
        "certain_accuracy": float(signed[found.certain].mean()) if found.certain.any() else None,
    }
