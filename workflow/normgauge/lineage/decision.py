"""What the tests of two checkpoints amount to."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from normgauge.errors import InputError
from normgauge.lineage.frame_match import FrameMatch, frame_match
from normgauge.lineage.held_initial import InitialTest
from normgauge.lineage.null import admits_signs, hidden_test, stream_test, units_test
from normgauge.lineage.trace_test import DRAWS, TraceTest
from normgauge.lineage.units import Side, pair_of

LEVEL = 1e-3  # at or below which a p-value counts
INITIAL_LEVEL = 1e-2  # the same of the test with A0 held: 99 fresh initialisations reach no less


class Verdict(StrEnum):
    RELATED = "related"
    UNRELATED = "unrelated by this evidence"


@dataclass(frozen=True)
class Lineage:
    """The tests of A and B. units, stream: exact, on weights; hidden: exact, on activations, None
    where none were taken; match: the robust count; initial: with A0 held, else None.
    """

    units: TraceTest
    stream: TraceTest
    hidden: TraceTest | None
    match: FrameMatch
    initial: InitialTest | None = None

    @property
    def exact_p(self) -> float:
        """The exact tests on permutations together: the least p times their number (Bonferroni).
        That with A0 held stands by itself: its owner asks no other question.
        """
        found = [each.p for each in (self.units, self.stream, self.hidden) if each]
        return min(1.0, len(found) * min(found))

    @property
    def verdict(self) -> Verdict:
        """Related where the exact tests, the count or the held initial weights say so."""
        related = min(self.exact_p, self.match.p) <= LEVEL
        related |= self.initial is not None and self.initial.p <= INITIAL_LEVEL
        return Verdict.RELATED if related else Verdict.UNRELATED

    @property
    def sources(self) -> tuple[str, ...]:
        """Layers in which more units agree than LEVEL allows by chance, a layer by itself and all
        layers counted: where to look, no claim of its own.
        """
        from scipy.stats import poisson

        bound = LEVEL / max(1, len(self.match.layers))
        return tuple(
            each.layer
            for each in self.match.layers
            if poisson.sf(each.agreements - 1, each.expected) <= bound
        )


Hidden = dict[str, np.ndarray]


def lineage(
    a: Side,
    b: Side,
    hidden: tuple[Hidden, Hidden] | None = None,
    seed: int = 0,
    draws: int = DRAWS,
) -> Lineage:
    """All tests of two models of one family, of any depths and widths.

    hidden: what enters the activations of both on the same inputs (see `units.hidden_units`).
    Raises InputError for models that cannot be compared.
    """
    pair = pair_of(a, b)
    found = Lineage(
        units_test(pair, seed, draws),
        stream_test(pair, seed, admits_signs(a), draws),
        None if hidden is None else hidden_test(*hidden, seed, draws),
        frame_match(pair),
    )
    if not (
        found.match.layers or found.units.z or found.stream.z or (found.hidden and found.hidden.z)
    ):
        raise InputError(
            f"{a.anatomy.architecture}: A and B have no layer or table of one shape, and too few "
            "units for the count; nothing tells whether they are related"
        )
    return found
