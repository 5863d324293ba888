"""Random elements of the discrete groups, under which the canonical form does not change."""

from __future__ import annotations

import hashlib

import numpy as np

from normgauge.anatomy.structure import Anatomy
from normgauge.gauge.admissible import Group, QueryMaps, admissible, gauge_spaces
from normgauge.gauge.groups import AttentionGauge, Element, Monomial
from normgauge.gauge.model_gauge import HEAD_SPACES, Gauge

QUARTER_TURNS = ((1, 0), (0, 1), (-1, 0), (0, -1))  # cosine and sine
WITH_SIGNS = (Group.SIGNED_PERMUTATION, Group.MONOMIAL)


def random_discrete_gauge(anatomy: Anatomy, seed: int, signs: bool = True) -> Gauge:
    """An independent random element of every space's discrete group, none of which rounds a value.

    Streams, units: permutations with the signs that they admit. Attention: groups, heads within
    them, signed permutations of the value coordinates and of query coordinates that do not turn,
    quarter turns of rotary pairs (half turns behind query and key norms). Without `signs`
    permutations alone.
    """
    return Gauge({name: _element(anatomy, name, seed, signs) for name in gauge_spaces(anatomy)})


def _element(anatomy: Anatomy, name: str, seed: int, signs: bool) -> Element:
    key = int.from_bytes(hashlib.sha256(f"discrete {name}".encode()).digest()[:8])
    generator = np.random.default_rng([seed, key])
    rule = admissible(anatomy, name)
    if rule.group == Group.ATTENTION:
        return _attention(anatomy, name, generator, signs)
    factors = np.ones(rule.size)
    if signs and rule.group in WITH_SIGNS:
        factors = generator.choice((-1.0, 1.0), rule.size)
    elif signs and rule.group == Group.COMMON_SIGN:
        factors *= generator.choice((-1.0, 1.0))
    return Monomial(generator.permutation(rule.size), factors)


def _attention(
    anatomy: Anatomy, name: str, generator: np.random.Generator, signs: bool
) -> AttentionGauge:
    rule = admissible(anatomy, name)
    query, key, value = (
        anatomy.space(f"{name.removesuffix('attention')}{kind}") for kind in HEAD_SPACES
    )
    groups, repeats = key.heads, query.heads // key.heads
    order, heads = np.arange(groups), np.tile(np.arange(repeats), (groups, 1))
    if rule.heads_move:
        order, heads = generator.permutation(groups), generator.permuted(heads, axis=1)
    rotary = 0 if rule.query_maps == QueryMaps.GENERAL else anatomy.rotary_size
    size = query.size // query.heads
    queries = np.zeros((groups, size, size))
    for matrix in queries:
        half = rotary // 2
        step = 2 if rule.query_maps == QueryMaps.SIGNS else 1
        for pair in range(half):
            turn = step * generator.integers(4 // step) if signs else 0
            cosine, sine = QUARTER_TURNS[turn]
            matrix[pair, pair] = matrix[pair + half, pair + half] = cosine
            matrix[pair, pair + half], matrix[pair + half, pair] = sine, -sine
        matrix[rotary:, rotary:] = _signed(
            size - rotary, generator, signs, rule.query_maps != QueryMaps.SIGNS
        )
    values = np.stack([_signed(value.size // value.heads, generator, signs) for _ in range(groups)])
    return AttentionGauge(order, heads, queries, values)


def _signed(
    size: int, generator: np.random.Generator, signs: bool, moves: bool = True
) -> np.ndarray:
    target = generator.permutation(size) if moves else np.arange(size)
    matrix = np.zeros((size, size))
    matrix[np.arange(size), target] = generator.choice((-1.0, 1.0), size) if signs else 1.0
    return matrix
