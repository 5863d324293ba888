"""The discrete part of a rotation, the minimal example, holonomy, and gauges inside a block."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy.linalg import expm

from normgauge.calibration.batches import Batch
from normgauge.checkpoints.building import build_model
from normgauge.errors import InputError
from normgauge.gauge.admissible import Group, admissible, random_element
from normgauge.gauge.correlation import correlate, correlate_sites, run_site_activations
from normgauge.gauge.groups import Monomial, Orthogonal
from normgauge.gauge.hidden_units import HeadCorrelation, match_heads, match_units
from normgauge.gauge.holonomy import Defect, defects, factor, holonomy, moved_share
from normgauge.gauge.matching import Cost, match, recovery_row
from normgauge.gauge.minimal_example import TURN, midpoint_losses, midpoint_map
from normgauge.gauge.model_gauge import Gauge
from normgauge.gauge.scaffold import RADIUS, discrete_part
from normgauge.gauge.transform import transformed
from unit.gauge_models import tiny

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
    assert nearest <= np.linalg.norm(rotation.matrix - Monomial.random(size, other).matrix()) + 1e-6  # lapjvs works in float32


def test_the_radius_cannot_be_larger():
    angle = np.pi / 4
    turn = np.array([[np.cos(angle), np.sin(angle)], [-np.sin(angle), np.cos(angle)]])
    assert np.linalg.norm(turn - np.eye(2), axis=1) == pytest.approx(RADIUS)
    assert not discrete_part(Orthogonal(turn)).certified


# ---------------------------------------------------------------- the minimal example


def test_permutation_only_alignment_is_worse_than_none():
    np.testing.assert_allclose(midpoint_map(Monomial.identity(2)), np.eye(2) / 2)
    np.testing.assert_allclose(midpoint_map(TURN.permutation()) @ midpoint_map(TURN.permutation()), midpoint_map(TURN.permutation()))
    np.testing.assert_allclose(midpoint_map(TURN), np.eye(2))
    x = np.random.default_rng(0).standard_normal((200_000, 2))
    energy = np.square(x).sum(1).mean()
    losses = midpoint_losses(x)
    assert losses["unaligned"] == pytest.approx(energy / 4)
    assert losses["permutation"] == pytest.approx(energy / 2, rel=0.01)
    assert losses["signed permutation"] == 0


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
    assert defects({("a", "a"): Monomial([1, 0, 2], [1, 1, 1])}) == [Defect("identity", ("a",), 2 / 3)]


def test_paths_that_are_not_given_are_refused():
    step = {("a", "b"): Monomial.identity(2)}
    with pytest.raises(InputError, match="no gauge from b to a"):
        holonomy(step, ("a", "b"))
    with pytest.raises(InputError, match="leads from a to c"):
        factor({**step, ("c", "d"): Monomial.identity(2)}, "a")
    with pytest.raises(InputError, match="one width"):
        factor({**step, ("b", "c"): Monomial.identity(3)}, "a")


# ---------------------------------------------------------------- inside a block


def two_models(case, architecture, space):
    """A model, its copy moved by a random element of one space, that element, and the batches to compare them on."""
    checkpoint, anatomy = tiny(case, architecture)
    truth = random_element(anatomy, space, 42)
    models = [build_model(each, "float32") for each in (checkpoint, transformed(checkpoint, anatomy, Gauge({space: truth})))]
    generator = torch.Generator().manual_seed(9)
    stack = anatomy.primary_stack.name
    batches = [Batch({"input_ids": torch.randint(2, 17, (6, 9), generator=generator)}, {stack: None}) for _ in range(10)]
    return anatomy, models, truth, batches


@pytest.mark.parametrize(
    ("case", "architecture"),
    [("llama", "LlamaForCausalLM"), ("gpt2", "GPT2LMHeadModel"), ("bert", "BertModel"), ("gemma2", "Gemma2ForCausalLM")],
)
def test_planted_feed_forward_gauges_are_recovered(case, architecture):
    stack = tiny(case, architecture)[1].primary_stack.name
    space = f"{stack}/block.2/ffn"
    anatomy, models, truth, batches = two_models(case, architecture, space)
    site = next(site for site in anatomy.sites if site.id == f"{stack}/block.2/mlp_down_input")
    correlation = correlate_sites(*models, [site], batches)[site.id]
    group = admissible(anatomy, space).group
    found = match_units(correlation, group)
    assert np.array_equal(found.gauge.target, truth.target)
    np.testing.assert_allclose(found.gauge.factors, truth.factors, rtol=1e-3)
    assert found.certified
    if case == "llama":
        signed = recovery_row(site.id, 42, match(correlation, Cost.SIGNED), truth.compose(Monomial.identity(truth.size)))
        assert signed["permutation_accuracy"] < 0.9


def test_units_without_signs_are_not_matched_by_a_negative_correlation():
    """Correlations (0.6, 0.8) and (-0.8, 0.6): by absolute values the units change places, one with a sign that the group has not."""
    source = torch.linalg.qr(torch.randn(400, 2, generator=torch.Generator().manual_seed(1), dtype=torch.float64))[0]
    source = source - source.mean(0)
    target = source @ torch.tensor([[0.6, 0.8], [-0.8, 0.6]], dtype=torch.float64)
    correlation = correlate(source, target)
    assert match_units(correlation, Group.PERMUTATION).gauge == Monomial.identity(2)
    signed = match_units(correlation, Group.MONOMIAL).gauge
    assert signed.target.tolist() == [1, 0]
    assert np.sign(signed.factors).tolist() == [1, -1]


@pytest.mark.parametrize(
    ("case", "architecture"), [("llama", "LlamaForCausalLM"), ("qwen3", "Qwen3ForCausalLM"), ("gpt2", "GPT2LMHeadModel")]
)
def test_planted_head_gauges_are_recovered(case, architecture):
    layer = "decoder/block.2/attention"
    anatomy, models, truth, batches = two_models(case, architecture, layer)
    site = next(site for site in anatomy.sites if site.id == "decoder/block.2/attention_output_input")
    heads = truth.groups * truth.repeats
    correlation = HeadCorrelation(heads, site.width // heads)
    for first, second in zip(*[run_site_activations(model, [site], batches) for model in models], strict=True):
        correlation.update(first[site.id], second[site.id])
    found = match_heads(correlation, truth.groups)
    assert np.array_equal(found.gauge.group_order, truth.group_order)
    assert np.array_equal(found.gauge.head_order, truth.head_order)
    np.testing.assert_allclose(found.gauge.value_maps, truth.value_maps, atol=1e-3)
    assert found.margins.min() > 0.05
    with pytest.raises(InputError, match=r"expected \d+ heads"):
        correlation.update(torch.ones(3, 5), torch.ones(3, 5))
    with pytest.raises(InputError, match="more than"):
        match_heads(HeadCorrelation(2, 3), 1)


def test_dead_units_are_flagged():
    anatomy, models, truth, batches = two_models("t5", "T5ForConditionalGeneration", "encoder/block.1/ffn")
    site = next(site for site in anatomy.sites if site.id == "encoder/block.1/mlp_down_input")
    with_decoder = [
        dataclasses.replace(batch, inputs={**batch.inputs, "decoder_input_ids": batch.inputs["input_ids"][:, :2]}) for batch in batches
    ]
    with torch.no_grad():
        for model in models:
            model.get_submodule(site.module).weight.zero_()
    correlation = correlate_sites(*models, [site], with_decoder)[site.id]
    assert match_units(correlation, admissible(anatomy, "encoder/block.1/ffn").group).gauge.size == truth.size
    silent = [torch.zeros(40, 5), torch.zeros(40, 5)]
    from normgauge.gauge.correlation import CrossCorrelation

    nothing = CrossCorrelation(5)
    nothing.update(*silent)
    found = match_units(nothing, admissible(anatomy, "encoder/block.1/ffn").group)
    assert found.uncertain.all()
    assert not found.certified
