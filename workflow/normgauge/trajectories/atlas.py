"""The runs of one entry seen together: chains from their base, matches between their ends."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from pathlib import Path

from normgauge.anatomy import describe
from normgauge.checkpoints.building import build_model
from normgauge.checkpoints.fine_tuned import FineTunedSource
from normgauge.checkpoints.opening import open_checkpoint
from normgauge.errors import InputError
from normgauge.gauge.groups import Monomial
from normgauge.gauge.model_gauge import Gauge, read_gauge
from normgauge.trajectories.links import BASE, Chain, Link, Scope, chain, chain_of, read_links
from normgauge.trajectories.recorded import truth_of
from normgauge.trajectories.runs import Start, probes_of
from normgauge.trajectories.watching import Probes, Seen

PathLike = str | os.PathLike[str]


@dataclass(frozen=True, eq=False)
class Run:
    """One run: its links, its recorded gauge, and what two sets of probes show of its end."""

    name: str
    corpus: str
    seed: int
    links: Sequence[Link]
    gauge: Gauge | None
    end: Seen
    end_held_out: Seen

    def truth(self, scope: Scope) -> Monomial:
        """From the base's coordinates to the run's."""
        size = next(link.gauge.size for link in self.links if link.scope == scope)
        return truth_of(self.gauge, scope.space, size)

    def transported(self, scope: Scope, tokens: int, stride: int) -> Chain:
        """From the base to the end, by the composition of local matches."""
        return chain_of(self.links, scope, tokens, stride)


class Atlas:
    """All runs of one entry of the model table, with their base.

    `model`: its id; `source`: the entry's; `budgets`: samples behind a match.
    """

    def __init__(self, model: str, source: FineTunedSource, start: Start, folder: PathLike) -> None:
        if not source.match_every or start.base is None:
            raise InputError(
                f"models.{model}: its runs are not matched on the way; add match_every"
            )
        self.model, self.source, self.budgets = model, source, tuple(start.budgets)
        base = open_checkpoint(start.base, start.overrides)
        anatomy = describe(base.config)
        self.probes = probes_of(start, base, anatomy)
        held_out = probes_of(start, base, anatomy, skip=start.sequences)
        network = build_model(base, "float32")
        self.base, self.base_held_out = self.probes.of(network), held_out.of(network)
        self.held_out: Probes = held_out
        self.runs = [self._run(name, Path(folder) / name) for name in source.runs]

    def _run(self, name: str, folder: Path) -> Run:
        corpus, seed = self.source.runs[name]
        end = build_model(open_checkpoint(folder / f"step{self.source.steps}"), "float32")
        gauge = None if self.source.gauge is None else read_gauge(folder / "gauge.parquet")
        links = read_links(folder / "links.parquet")
        return Run(name, corpus, seed, links, gauge, self.probes.of(end), self.held_out.of(end))

    @property
    def strides(self) -> tuple[int, ...]:
        return self.source.match_every

    @cached_property
    def scopes(self) -> list[Scope]:
        return list(self.probes.scopes)

    def endpoint(self, run: Run, scope: Scope, tokens: int, held_out: bool = False) -> Chain:
        """From the base to the end in one match."""
        if held_out:
            return self._matched(self.held_out, scope, tokens, self.base_held_out, run.end_held_out)
        return self._matched(self.probes, scope, tokens, self.base, run.end)

    def direct(self, first: Run, second: Run, scope: Scope, tokens: int) -> Chain:
        """From the end of one run to that of another in one match."""
        return self._matched(self.probes, scope, tokens, first.end, second.end)

    def _matched(
        self, probes: Probes, scope: Scope, tokens: int, source: Seen, target: Seen
    ) -> Chain:
        found = probes.match(scope, source, target, tokens)
        steps = (self.source.steps, BASE, self.source.steps)
        return chain([Link.of(scope, tokens, steps, found)])

    def pairs(self) -> Iterator[tuple[str, Run, Run]]:
        """Pairs of runs that differ in their seed alone, or in their text alone, and which."""
        for first, second in combinations(self.runs, 2):
            if first.corpus == second.corpus:
                yield "cross-seed", first, second
            elif first.seed == second.seed:
                yield "cross-text", first, second

    def triples(self) -> Iterator[tuple[str, tuple[Run, Run, Run]]]:
        """Triples of runs that differ in their seed alone, or in their text alone."""
        for runs in combinations(self.runs, 3):
            if len({run.corpus for run in runs}) == 1:
                yield "cross-seed", runs
            elif len({run.seed for run in runs}) == 1:
                yield "cross-text", runs
