"""The discrete part of a rotation, the minimal example, and holonomy."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy.linalg import expm

from normgauge.errors import InputError
from normgauge.gauge.groups import Monomial, Orthogonal
from normgauge.schemas.discrete_laws import PERMUTED, SIGNED, UNALIGNED
from normgauge.signed_permutation.holonomy import Defect, defects, factor, holonomy, moved_share
from normgauge.signed_permutation.minimal_example import TURN, example_rows, loss_of, mixed_map
from normgauge.signed_permutation.scaffold import RADIUS, discrete_part, procrustes

laws = settings(max_examples=40, deadline=None)
SEEDS = st.integers(0, 2**20)


# ---------------------------------------------------------------- the scaffold


@laws
@given(st.integers(2, 12), SEEDS, st.floats(0.01, 3))
def test_the_discrete_part_is_found_within_the_radius(size, seed, reach):
    generator = np.random.default_rng(seed)
    skew = generator.standard_normal((size, size))
    rest = expm(reach * (skew - skew.T) / np.linalg.norm(skew - skew.T, 2))
    far = np.linalg.norm(rest - np.eye(size), axis=1).max()
    gauge = Monomial.random(size, seed)
    found = discrete_part(Orthogonal(gauge.matrix() @ rest))
    if far < RADIUS:
        assert found.gauge == gauge
        assert found.certified
        np.testing.assert_allclose(found.rest.matrix, rest, atol=1e-12)
    elif found.certified:  # then it is still the only one within the radius
        assert np.linalg.norm(found.rest.matrix - np.eye(size), axis=1).max() < RADIUS


@laws
@given(st.integers(2, 6), SEEDS, SEEDS)
def test_no_signed_permutation_is_nearer(size, seed, other):
    rotation = Orthogonal.random(size, seed)
    nearest = np.linalg.norm(rotation.matrix - discrete_part(rotation).gauge.matrix())
    # lapjvs works in float32
    assert nearest <= np.linalg.norm(rotation.matrix - Monomial.random(size, other).matrix()) + 1e-6


def test_the_radius_cannot_be_larger():
    angle = np.pi / 4
    turn = np.array([[np.cos(angle), np.sin(angle)], [-np.sin(angle), np.cos(angle)]])
    assert np.linalg.norm(turn - np.eye(2), axis=1) == pytest.approx(RADIUS)
    assert not discrete_part(Orthogonal(turn)).certified


@laws
@given(st.integers(2, 12), SEEDS)
def test_the_rotation_between_activations_is_found(size, seed):
    generator = np.random.default_rng(seed)
    rotation, rows = Orthogonal.random(size, seed), generator.standard_normal((4 * size, size))
    found = procrustes(rows, rows @ rotation.matrix)
    np.testing.assert_allclose(found.matrix, rotation.matrix, atol=1e-9)
    with pytest.raises(InputError, match="the same samples"):
        procrustes(rows, rows[1:])


# ---------------------------------------------------------------- the minimal example


def test_permutation_only_alignment_is_worse_than_none():
    np.testing.assert_allclose(mixed_map(Monomial.identity(2)), np.eye(2) / 2)
    half = mixed_map(TURN.permutation())
    np.testing.assert_allclose(half @ half, half)
    np.testing.assert_allclose(mixed_map(TURN), np.eye(2))
    rows = {(row["way"], row["share"]): row for row in example_rows()}
    middle = {way: rows[way, 0.5]["loss"] for way in (UNALIGNED, PERMUTED, SIGNED)}
    assert middle == pytest.approx({UNALIGNED: 0.25, PERMUTED: 0.5, SIGNED: 0.0})
    assert all(
        rows[way, share]["loss"] < 1e-30 for way in (UNALIGNED, PERMUTED) for share in (0, 1)
    )
    # the loss is that of samples whose coordinates have equal variances
    x = np.random.default_rng(0).standard_normal((200_000, 2))
    for row in rows.values():
        error = np.square(x - x @ np.reshape(row["map"], (2, 2))).sum() / np.square(x).sum()
        assert row["loss"] == pytest.approx(error, abs=0.01)
    assert loss_of(np.zeros((2, 2))) == 1


# ---------------------------------------------------------------- holonomy


@st.composite
def atlases(draw):
    size, names = draw(st.integers(2, 6)), "abcd"[: draw(st.integers(2, 4))]
    charts = {name: Monomial.random(size, draw(SEEDS)) for name in names}
    return charts, {(i, j): charts[i].inverse().compose(charts[j]) for i in names for j in names}


@laws
@given(atlases())
def test_gauges_from_charts_have_no_holonomy_and_factor_again(atlas):
    charts, pairs = atlas
    assert defects(pairs) == []
    assert moved_share(holonomy(pairs, tuple(charts))) == 0
    found = factor(pairs, "b")
    assert found["b"] == Monomial.identity(found["b"].size)
    for (first, second), gauge in pairs.items():
        assert found[first].inverse().compose(found[second]) == gauge
    tree = {pair: gauge for pair, gauge in pairs.items() if pair[0] == "a" and pair[1] != "a"}
    assert set(factor(tree, "a")) == set(charts)  # a tree always factors


@laws
@given(atlases(), SEEDS)
def test_one_wrong_gauge_is_seen(atlas, seed):
    charts, pairs = atlas
    size = charts["a"].size
    wrong = pairs["a", "b"].compose(Monomial.random(size, seed))
    assume(wrong != pairs["a", "b"])
    broken = {**pairs, ("a", "b"): wrong}
    assert any(defect.law == "inverse" and defect.path == ("a", "b") for defect in defects(broken))
    assert len(charts) < 3 or any(defect.law == "composition" for defect in defects(broken))
    with pytest.raises(InputError, match="contradict the other pairs"):
        factor(broken, "a")
    assert defects({("a", "a"): Monomial([1, 0, 2], [1, 1, 1])}) == [
        Defect("identity", ("a",), 2 / 3)
    ]


def test_paths_that_are_not_given_are_refused():
    step = {("a", "b"): Monomial.identity(2)}
    with pytest.raises(InputError, match="no gauge from b to a"):
        holonomy(step, ("a", "b"))
    with pytest.raises(InputError, match="leads from a to c"):
        factor({**step, ("c", "d"): Monomial.identity(2)}, "a")
    with pytest.raises(InputError, match="one width"):
        factor({**step, ("b", "c"): Monomial.identity(3)}, "a")
