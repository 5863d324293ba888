"""Random elements of the groups that a model admits, one independent draw per space and seed."""

from __future__ import annotations

import hashlib

import numpy as np

from normgauge.anatomy.structure import (
    Anatomy,
)
from normgauge.gauge.admissible import Admissible, Group, admissible, gauge_spaces, query_form
from normgauge.gauge.groups import AttentionGauge, Element, Monomial, Orthogonal
from normgauge.gauge.model_gauge import HEAD_SPACES, Gauge


def random_element(anatomy: Anatomy, space: str, seed: int) -> Element:
    """A random element of the space's group, independent of those of all other spaces under the
    same seed.

    On the primary stream it is the recorded gauge of the seed (see `Monomial.random`). Scales are
    drawn between 1/2 and 2, general head maps have condition at most 4. Raises InputError for a
    space that no gauge may move.
    """
    rule = admissible(anatomy, space)
    if rule.group == Group.ATTENTION:
        return _random_attention(anatomy, rule, seed)
    if space == anatomy.primary_stack.space:
        element = Monomial.random(rule.size, seed)
    else:
        order = _generator(space, "order", seed).permutation(rule.size)
        element = Monomial(order, _generator(space, "signs", seed).choice((-1.0, 1.0), rule.size))
    scales = np.exp2(_generator(space, "scales", seed).uniform(-1, 1, rule.size))
    factors = {
        Group.PERMUTATION: np.ones(rule.size),
        Group.COMMON_SIGN: np.full(rule.size, element.factors[0]),
        Group.SIGNED_PERMUTATION: element.factors,
        Group.POSITIVE_MONOMIAL: scales,
        Group.MONOMIAL: scales * element.factors,
    }
    return Monomial(element.target, factors[rule.group])


def _generator(space: str, draw: str, seed: int) -> np.random.Generator:
    """The generator of one kind of draw of one space: spaces of one size would otherwise share
    their elements.
    """
    name = int.from_bytes(hashlib.sha256(f"{space}: {draw}".encode()).digest())
    return np.random.default_rng([seed, name])


def _random_attention(anatomy: Anatomy, rule: Admissible, seed: int) -> AttentionGauge:
    prefix = rule.space.removesuffix("attention")
    query, key, value = (anatomy.space(f"{prefix}{kind}") for kind in HEAD_SPACES)
    groups, repeats = key.heads, query.heads // key.heads
    order, within = np.arange(groups), np.tile(np.arange(repeats), (groups, 1))
    if rule.heads_move:
        heads = _generator(rule.space, "order", seed)
        order = heads.permutation(groups)
        within = heads.permuted(within, axis=1)
    pattern = query_form(rule.query_maps, anatomy.rotary_size, query.size // query.heads)
    drawn = [_generator(rule.space, kind, seed) for kind in ("query maps", "value maps")]
    queries = np.stack(
        [pattern(_well_conditioned(query.size // query.heads, drawn[0])) for _ in range(groups)]
    )
    values = np.stack(
        [_well_conditioned(value.size // value.heads, drawn[1]) for _ in range(groups)]
    )
    return AttentionGauge(order, within, queries, values)


def _well_conditioned(size: int, generator: np.random.Generator) -> np.ndarray:
    left, right = (Orthogonal.random(size, int(generator.integers(2**31))).matrix for _ in range(2))
    return left * np.exp2(generator.uniform(-1, 1, size)) @ right


def random_gauge(anatomy: Anatomy, seed: int, spaces: tuple[str, ...] | None = None) -> Gauge:
    """An independent random element of every named space's group (all of `gauge_spaces` when None),
    see `random_element`.
    """
    return Gauge(
        {
            space: random_element(anatomy, space, seed)
            for space in (gauge_spaces(anatomy) if spaces is None else spaces)
        }
    )
