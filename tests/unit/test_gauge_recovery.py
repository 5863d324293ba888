"""Correlation and matching: equal to one pass, exact on recorded gauges, honest about ties,
constants and small samples.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linear_sum_assignment

from normgauge.calibration.batches import Batch
from normgauge.checkpoints.building import build_model
from normgauge.errors import InputError
from normgauge.gauge.activations import observe_sites
from normgauge.gauge.admissible import Group, admissible
from normgauge.gauge.correlation import CrossCorrelation
from normgauge.gauge.groups import Monomial
from normgauge.gauge.matching import Assigned, assign, assign_in, greedy, match, match_matrix
from normgauge.gauge.model_gauge import Gauge
from normgauge.gauge.random_gauges import random_gauge
from normgauge.gauge.site_matching import PairedSite, match_sites, paired
from normgauge.gauge.transform import transformed
from normgauge.schemas.signed_permutation import tables
from normgauge.signed_permutation.recorded_gauges import recovery_row
from unit.gauge_models import inputs_of, tiny

laws = settings(max_examples=30, deadline=None)
SEEDS = st.integers(0, 2**20)


def activations(samples: int, size: int, seed: int = 0) -> torch.Tensor:
    """Correlated coordinates with unlike means and scales, float32."""
    generator = np.random.default_rng(seed)
    mixed = generator.standard_normal((samples, size)) @ (
        np.eye(size) + 0.3 * generator.standard_normal((size, size)) / np.sqrt(size)
    )
    return torch.from_numpy(
        10 * generator.standard_normal(size) + np.exp(generator.standard_normal(size)) * mixed
    ).float()


def correlated(source: torch.Tensor, target: torch.Tensor, chunks: int = 1) -> CrossCorrelation:
    found = CrossCorrelation(source.shape[1])
    for first, second in zip(source.tensor_split(chunks), target.tensor_split(chunks), strict=True):
        found.update(first, second)
    return found


@laws
@given(st.integers(1, 5), SEEDS)
def test_streaming_equals_one_pass_and_numpy(chunks, seed):
    source, target = activations(40, 5, seed).double(), activations(40, 5, seed + 1).double()
    expected = np.corrcoef(source.numpy(), target.numpy(), rowvar=False)[:5, 5:]
    np.testing.assert_allclose(correlated(source, target, chunks).matrix(), expected, atol=1e-12)


@laws
@given(st.integers(2, 24), SEEDS, st.integers(40, 200))
def test_a_recorded_gauge_is_recovered_and_certified(size, seed, samples):
    truth = Monomial.random(size, seed)
    source = activations(samples, size, seed)
    found = match(correlated(source, truth.apply(source)))
    assert found.gauge == truth
    assert found.certified
    assert found.method == "row argmax on |C|"
    assert found.margins.min() > 0
    assert not found.uncertain.any()
    row = recovery_row("x", seed, found, truth)
    assert (row["permutation_accuracy"], row["sign_accuracy"]) == (1.0, 1.0)


@laws
@given(SEEDS)
def test_exact_recovery_is_equivariant(seed):
    """Gauging either side moves the answer by that gauge; here in float64, where no rounding can
    break a tie.
    """
    source = activations(60, 7, seed).double()
    target = source + 0.5 * torch.from_numpy(
        np.random.default_rng(seed).standard_normal(source.shape)
    )
    before, after = Monomial.random(7, seed), Monomial.random(7, seed + 1)
    plain = match(correlated(source, target)).gauge
    moved = match(correlated(before.apply(source), after.apply(target))).gauge
    assert moved == before.inverse().compose(plain).compose(after)


def test_the_signed_cost_fails_on_the_negative_half():
    truth = Monomial.random(400, 42)
    source = torch.randn(2000, 400, generator=torch.Generator().manual_seed(1))
    correlation = correlated(source, truth.apply(source))
    signed = recovery_row("x", 42, match(correlation, Group.PERMUTATION), truth)
    positive = float((truth.factors > 0).mean())
    assert signed["permutation_accuracy"] == pytest.approx(positive, abs=0.02)
    assert 0.4 < signed["sign_accuracy"] < 0.6
    assert not signed["certified"]
    assert recovery_row("x", 42, match(correlation), truth)["permutation_accuracy"] == 1.0


@laws
@given(st.integers(2, 12), SEEDS)
def test_every_assignment_is_as_good_as_scipys(size, seed):
    score = np.random.default_rng(seed).random((size, size)).astype(np.float32)
    target, method, certified = assign(score)
    rows, columns = linear_sum_assignment(score, maximize=True)
    assert score[np.arange(size), target].sum() == pytest.approx(
        score[rows, columns].sum(), rel=1e-6
    )
    assert sorted(target) == list(range(size))
    assert certified == (method == "row argmax")


def test_wide_spaces_are_assigned_exactly():
    """At 8192 coordinates, where two rows want one column: the greedy match gives up more than it
    must.
    """
    score = np.zeros((8192, 8192), dtype=np.float32)
    np.fill_diagonal(score, 1)
    score[:2, :2] = [[0.9, 1.0], [0.2, 1.1]]
    target, method, _ = assign(score)
    assert np.array_equal(target, np.arange(8192))
    assert method == "lapjvs"


@laws
@given(st.integers(2, 12), SEEDS, st.integers(1, 12))
def test_greedy_is_a_bijection_and_right_where_the_rows_agree(size, seed, candidates):
    generator = np.random.default_rng(seed)
    score = generator.random((size, size))
    assert sorted(greedy(score, candidates)) == list(range(size))
    truth = generator.permutation(size)
    score[np.arange(size), truth] += 1
    assert np.array_equal(greedy(score, candidates), truth)


def test_tied_constant_and_close_coordinates_are_flagged_and_nothing_else():
    source = activations(300, 8)
    source[:, 3] = source[:, 5]  # two coordinates that no sample tells apart
    source[:, 6] = 2.5
    found = match(correlated(source, source))
    assert np.flatnonzero(found.uncertain).tolist() == [3, 5, 6]
    assert not found.certified
    assert found.margins[6] <= 0
    few = match(
        correlated(
            source[:6], source[:6] + torch.randn(6, 8, generator=torch.Generator().manual_seed(2))
        )
    )
    assert few.uncertain.any()  # six samples decide nothing about noise


@laws
@given(st.integers(2, 9), SEEDS)
def test_a_match_lies_in_its_group_and_nothing_in_the_group_scores_more(size, seed):
    """A LayerNorm stream has one sign: the better of two assignments, whatever single entries would
    prefer.
    """
    values = np.random.default_rng(seed).standard_normal((size, size))
    rows, totals = np.arange(size), {}
    for sign in (1.0, -1.0):
        target = linear_sum_assignment(sign * values, maximize=True)[1]
        totals[sign] = sign * values[rows, target].sum()
    common = assign_in(Group.COMMON_SIGN, values)
    assert np.unique(common.gauge.factors).size == 1
    assert total_of(common) == pytest.approx(max(totals.values()), abs=1e-6)
    assert common.gauge.factors[0] == max(totals, key=lambda sign: totals[sign])
    opposite = -common.score[rows, common.opposite].sum()
    assert opposite == pytest.approx(min(totals.values()), abs=1e-6) or total_of(
        common
    ) >= opposite > min(totals.values())
    permutation = assign_in(Group.PERMUTATION, values)
    assert (permutation.gauge.factors == 1).all()
    assert total_of(permutation) == pytest.approx(totals[1.0], abs=1e-6)
    free = assign_in(Group.SIGNED_PERMUTATION, values)
    assert np.array_equal(free.gauge.factors, np.sign(values[rows, free.target]))
    assert total_of(free) >= total_of(common) - 1e-6


def total_of(found: Assigned) -> float:
    return float(found.score[found.matched].sum())


def test_the_optimum_of_a_common_sign_is_proven_only_where_both_signs_are_bounded():
    # rows alone would rather have the minus sign
    tempting = np.array([[0.5, -0.9, 0.0], [0.0, -0.9, 0.5], [0.0, 0.5, 0.0]])
    found = assign_in(Group.COMMON_SIGN, tempting)
    assert (found.target.tolist(), found.gauge.factors.tolist(), found.certified) == (
        [0, 2, 1],
        [1, 1, 1],
        False,
    )
    clear = np.array([[0.9, 0.1], [0.1, 0.95]])
    assert assign_in(Group.COMMON_SIGN, clear).certified
    assert assign_in(Group.COMMON_SIGN, -clear).gauge.factors.tolist() == [-1, -1]


def test_a_common_sign_that_samples_do_not_tell_leaves_nothing_certain():
    """Half of the coordinates agree in sign, half do not: two training runs, not a gauge."""
    source = torch.randn(4000, 10, generator=torch.Generator().manual_seed(1))
    signs = torch.tensor([1.0, -1.0]).repeat(5)
    found = match(correlated(source, signs * source), Group.COMMON_SIGN)
    assert not found.sign_certain
    assert found.uncertain.all()
    assert not match(correlated(source, signs * source), Group.SIGNED_PERMUTATION).uncertain.any()


def test_unrelated_models_are_uncertain():
    found = match(correlated(activations(200, 30, 1), activations(200, 30, 2)))
    assert found.uncertain.mean() > 0.9


@pytest.mark.parametrize(
    ("source", "target", "message"),
    [
        (torch.ones(5, 3), torch.ones(4, 3), "same samples of 3 coordinates"),
        (torch.ones(5, 2), torch.ones(5, 2), "same samples of 3 coordinates"),
        (
            torch.ones(5, 3),
            torch.tensor([[1.0, float("nan"), 1.0]] * 5),
            r"target model hold NaN or infinity \(coordinate 1\)",
        ),
        (torch.full((5, 3), float("inf")), torch.ones(5, 3), "source model hold NaN"),
    ],
)
def test_activations_that_do_not_pair_are_refused(source, target, message):
    with pytest.raises(InputError, match=message):
        CrossCorrelation(3).update(source, target)


def test_too_few_samples_and_spoilt_matrices_are_refused():
    with pytest.raises(InputError, match="at least 4"):
        match(correlated(activations(3, 2), activations(3, 2)))
    with pytest.raises(InputError, match="square matrix of finite numbers"):
        match_matrix(np.array([[np.nan]]), 9, np.zeros(1, bool), np.zeros(1, bool))
    found = match(correlated(activations(9, 2), activations(9, 2)))
    with pytest.raises(InputError, match="recorded gauge has 3"):
        recovery_row("x", 1, found, Monomial.identity(3))


@pytest.mark.parametrize(
    ("case", "architecture"),
    [
        ("llama", "LlamaForCausalLM"),
        ("gemma3", "Gemma3ForCausalLM"),
        ("gpt2", "GPT2LMHeadModel"),
        ("bert", "BertModel"),
    ],
)
def test_the_gauge_of_a_model_is_recovered_at_every_site(case, architecture, tmp_path):
    checkpoint, anatomy = tiny(case, architecture)
    space = anatomy.primary_stack.space
    truth = random_gauge(anatomy, 42, (space,))
    sites = anatomy.sites_in(("residual", "terminal"))
    models = [
        build_model(each, "float32")
        for each in (checkpoint, transformed(checkpoint, anatomy, truth))
    ]
    inputs = inputs_of(case, architecture)
    stack = anatomy.primary_stack.name
    rng = torch.Generator().manual_seed(9)
    batches = [
        Batch(
            {"input_ids": torch.randint(2, 17, inputs["input_ids"].shape, generator=rng)},
            {stack: None},
        )
        for _ in range(4)
    ]
    source, target = (observe_sites(model, sites, batches) for model in models)
    group = admissible(anatomy, space).group
    found = {name: match_sites([PairedSite(source[name], target[name])], group) for name in source}
    rows = [
        recovery_row(name, 42, matching, truth.elements[space]) for name, matching in found.items()
    ]
    assert [row["site"] for row in rows] == [site.id for site in sites]
    assert (
        {row["permutation_accuracy"] for row in rows}
        == {row["sign_accuracy"] for row in rows}
        == {1.0}
    )
    assert all(row["certified"] for row in rows)
    assert {row["tokens"] for row in rows} == {4 * 27}
    tables.write(tmp_path / "recovery.parquet", "gauge_recovery", rows, {})
    together = match_sites(list(paired(source, target).values()), group)
    assert together.gauge == truth.elements[space]
    assert not together.uncertain.any()
    other = observe_sites(
        build_model(transformed(checkpoint, anatomy, Gauge({})), "float32"), sites, batches
    )
    same = match_sites(list(paired(source, other).values()), group)
    assert same.gauge == Monomial.identity(anatomy.primary_stack.width)
