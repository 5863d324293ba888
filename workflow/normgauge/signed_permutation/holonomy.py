"""Whether pairwise gauges between checkpoints fit together: identity, inverse, composition, and
what a cycle brings back.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations

from normgauge.errors import InputError
from normgauge.gauge.groups import Monomial, compose_all

Pairs = Mapping[tuple[str, str], Monomial]


@dataclass(frozen=True)
class Defect:
    """A law that given gauges break: `path` are the checkpoints gone through, `share` the part of
    coordinates that do not come back.
    """

    law: str
    path: tuple[str, ...]
    share: float


def holonomy(pairs: Pairs, cycle: Sequence[str]) -> Monomial:
    """The product of the gauges along a closed path (its last checkpoint leads back to its first).
    InputError where one is missing.
    """
    steps = list(zip(cycle, [*cycle[1:], cycle[0]], strict=True))
    for step in steps:
        if step not in pairs:
            raise InputError(
                f"no gauge from {step[0]} to {step[1]}; match that pair, or leave it out of the "
                "cycle"
            )
    return compose_all([pairs[step] for step in steps])


def moved_share(gauge: Monomial) -> float:
    """The part of coordinates that a gauge does not leave exactly as they are."""
    stays = (gauge.target == Monomial.identity(gauge.size).target) & (gauge.factors == 1)
    return float((~stays).mean())


def defects(pairs: Pairs) -> list[Defect]:
    """Every broken law among the given gauges: identity (i to i), inverse (i to j and back),
    composition (triples). Empty iff they fit.
    """
    names = sorted({name for pair in pairs for name in pair})
    cycles: Iterable[tuple[str, tuple[str, ...]]] = [
        *(("identity", (name,)) for name in names),
        *(("inverse", path) for path in permutations(names, 2) if path[0] < path[1]),
        *(("composition", path) for path in permutations(names, 3) if path[0] == min(path)),
    ]
    found = []
    for law, path in cycles:
        if all(step in pairs for step in zip(path, [*path[1:], path[0]], strict=True)):
            share = moved_share(holonomy(pairs, path))
            if share:
                found.append(Defect(law, path, share))
    return found


def factor(pairs: Pairs, base: str) -> dict[str, Monomial]:
    """A gauge A per checkpoint with pairs[i, j] = A_i^-1 A_j for every given pair and A_base the
    identity.

    Raises InputError, naming the pair, where the holonomy of some cycle is not the identity, so
    that no such gauges exist, and naming the checkpoint that no chain of pairs reaches from `base`.
    """
    sizes = {gauge.size for gauge in pairs.values()}
    if len(sizes) != 1:
        raise InputError(
            f"pairwise gauges of {sorted(sizes)} coordinates; expected one width and at least one "
            "pair"
        )
    found = {base: Monomial.identity(sizes.pop())}
    pending = [base]
    while pending:
        here = pending.pop()
        for (first, second), gauge in pairs.items():
            if first == here and second not in found:
                found[second] = found[here].compose(gauge)
                pending.append(second)
            elif second == here and first not in found:
                found[first] = found[here].compose(gauge.inverse())
                pending.append(first)
    for (first, second), gauge in pairs.items():
        for name in (first, second):
            if name not in found:
                raise InputError(
                    f"no chain of gauges leads from {base} to {name}; match one of its pairs"
                )
        share = moved_share(found[first].compose(gauge).compose(found[second].inverse()))
        if share:
            raise InputError(
                f"gauge from {first} to {second}: {share:.1%} of its coordinates contradict the "
                "other pairs; no atlas exists"
            )
    return found
