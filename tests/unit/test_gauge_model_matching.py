"""Whole models: a gauge planted in every space comes back, what cannot be known is flagged, what is
found is admissible.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from normgauge.anatomy.structure import SpaceKind
from normgauge.calibration.batches import Batch
from normgauge.checkpoints.building import build_model
from normgauge.errors import InputError
from normgauge.gauge import matched_sites
from normgauge.gauge.admissible import Group, admissible, gauge_spaces
from normgauge.gauge.equivalence import deviation
from normgauge.gauge.groups import AttentionGauge, Monomial
from normgauge.gauge.matching_report import record, report
from normgauge.gauge.model_gauge import Gauge
from normgauge.gauge.model_matching import Part, match_models
from normgauge.gauge.product_maps import distance, fit_map, fit_turns
from normgauge.gauge.random_gauges import random_element
from normgauge.gauge.requirements import require_admissible
from normgauge.gauge.transform import transformed
from unit.gauge_models import config_of, inputs_of, random_checkpoint, tiny

FAMILIES = [
    ("gpt2", "GPT2LMHeadModel"),
    ("bert", "BertForMaskedLM"),
    ("bert", "BertForSequenceClassification"),  # a pooled space without sites
    ("llama", "LlamaForCausalLM"),  # grouped queries, scales of units
    # two streams, cross-attention, a convolution between
    ("whisper", "WhisperForConditionalGeneration"),
    ("t5", "T5ForConditionalGeneration"),  # heads that stay
    ("qwen3", "Qwen3ForCausalLM"),  # query and key norms
    ("gemma3", "Gemma3ForCausalLM"),
    ("albert", "AlbertForMaskedLM"),  # blocks that share a layer
    ("gpt_neox", "GPTNeoXForCausalLM"),
]
LLAMA = ("llama", "LlamaForCausalLM")


def probes(case, architecture, count=6):
    """Random inputs of the shapes that the class takes."""
    generator = torch.Generator().manual_seed(9)

    def drawn(value):
        if value.is_floating_point():
            return torch.randn(value.shape, generator=generator, dtype=value.dtype)
        return torch.randint(2, 17, value.shape, generator=generator)

    inputs = inputs_of(case, architecture)
    return [Batch({name: drawn(value) for name, value in inputs.items()}, {}) for _ in range(count)]


def whole_gauge(anatomy, seed=42):
    """An element of every space, each drawn on its own."""
    return Gauge(
        {
            name: random_element(anatomy, name, seed + number)
            for number, name in enumerate(gauge_spaces(anatomy))
        }
    )


def same_function(first, second, anatomy, gauge, batches):
    models = [
        build_model(
            replace(each, tensors={n: v.double() for n, v in each.tensors.items()}), "float64"
        )
        for each in (first, second)
    ]
    return deviation(*models, anatomy, gauge, [batch.inputs for batch in batches]).relative


@pytest.mark.parametrize(("case", "architecture"), FAMILIES)
def test_a_gauge_planted_in_every_space_is_recovered(case, architecture):
    checkpoint, anatomy = tiny(case, architecture)
    truth = whole_gauge(anatomy)
    target = transformed(checkpoint, anatomy, truth)
    batches = probes(case, architecture)
    found = match_models(checkpoint, target, batches)
    assert found.certain, report(found)
    assert found.gauge.elements.keys() == truth.elements.keys()
    for name, element in truth.elements.items():
        other = found.gauge.elements[name]
        if isinstance(element, Monomial):
            assert np.array_equal(other.target, element.target), name
            np.testing.assert_allclose(other.factors, element.factors, rtol=1e-6, err_msg=name)
        else:
            assert np.array_equal(other.group_order, element.group_order), name
            assert np.array_equal(other.head_order, element.head_order), name
            np.testing.assert_allclose(
                other.value_maps, element.value_maps, atol=1e-5, err_msg=name
            )
            np.testing.assert_allclose(
                other.query_maps, element.query_maps, atol=1e-5, err_msg=name
            )
    moved = transformed(checkpoint, anatomy, found.gauge)  # which refuses what is not admissible
    assert found.change.after < 5e-8 < 0.5 < found.change.before
    # a float32 rounding, as far as the model amplifies it
    assert same_function(moved, target, anatomy, Gauge({}), batches[:1]) < 1e-4


def test_a_model_matched_with_itself_stays_to_the_bit():
    checkpoint, _ = tiny(*LLAMA)
    found = match_models(checkpoint, checkpoint, probes(*LLAMA))
    for name, element in found.gauge.elements.items():
        assert element == (
            Monomial.identity(element.size) if isinstance(element, Monomial) else still(element)
        ), name
    assert found.change.after == found.change.before == 0


def still(element: AttentionGauge) -> AttentionGauge:
    return AttentionGauge.identity(
        element.groups, element.repeats, element.query_maps.shape[-1], element.value_maps.shape[-1]
    )


def test_maps_that_are_permutations_with_powers_of_two_come_back_to_the_bit():
    checkpoint, anatomy = tiny("gpt2", "GPT2LMHeadModel")
    generator = np.random.default_rng(1)

    def monomials(groups, size):
        maps = [
            np.eye(size)[generator.permutation(size)]
            * generator.choice((-2.0, -1.0, 0.5, 1.0), size)
            for _ in range(groups)
        ]
        return np.stack(maps)

    heads = anatomy.space("decoder/block.1/query").heads
    size = 12 // heads
    layer = AttentionGauge(
        np.arange(heads)[::-1],
        np.zeros((heads, 1), dtype=int),
        monomials(heads, size),
        monomials(heads, size),
    )
    truth = Gauge(
        {
            "residual": Monomial(np.roll(np.arange(12), 5), -np.ones(12)),
            "decoder/block.1/attention": layer,
        }
    )
    target = transformed(checkpoint, anatomy, truth)
    found = match_models(checkpoint, target, probes("gpt2", "GPT2LMHeadModel"))
    assert found.gauge.elements["residual"] == truth.elements["residual"]
    assert found.gauge.elements["decoder/block.1/attention"] == layer
    assert found.change.after == 0


@pytest.mark.parametrize(
    ("case", "architecture"),
    [
        ("gpt2", "GPT2LMHeadModel"),
        ("bert", "BertForMaskedLM"),
        LLAMA,
        ("t5", "T5ForConditionalGeneration"),
        ("qwen3", "Qwen3ForCausalLM"),
    ],
)
def test_strangers_get_an_admissible_gauge_and_are_not_certain(case, architecture):
    checkpoint, anatomy = tiny(case, architecture)
    stranger, _ = random_checkpoint(config_of(case, architecture), seed=6)
    batches = probes(case, architecture)
    found = match_models(checkpoint, stranger, batches)
    assert not found.certain
    require_admissible(anatomy, found.gauge, checkpoint.tensors)
    for stack in anatomy.stacks:
        factors = found.gauge.elements[stack.space].factors
        assert (
            admissible(anatomy, stack.space).group == Group.SIGNED_PERMUTATION
            or np.unique(factors).size == 1
        )
    assert (
        same_function(
            checkpoint,
            transformed(checkpoint, anatomy, found.gauge),
            anatomy,
            found.gauge,
            batches[:1],
        )
        < 1e-3
    )
    said = report(found)
    assert any(line.startswith("residual stream: ") and "uncertain" in line for line in said)
    assert said[-1].startswith("not looked for: ")
    assert record(found)["uncertain"]


def test_what_leaves_no_trace_is_not_determined_and_nothing_else():
    """A unit without weights, a head without values, and a coordinate of another head that is
    neither written nor read.
    """
    checkpoint, anatomy = tiny(*LLAMA)
    tensors = {name: value.clone() for name, value in checkpoint.tensors.items()}
    layer = "model.layers.0"
    for name in ("gate_proj", "up_proj"):
        tensors[f"{layer}.mlp.{name}.weight"][3] = 0
    tensors[f"{layer}.mlp.down_proj.weight"][:, 3] = 0
    first, second = (tensors[f"model.layers.{block}.self_attn.v_proj.weight"] for block in (0, 1))
    size = (
        anatomy.space("decoder/block.1/value").size // anatomy.space("decoder/block.1/value").heads
    )
    repeats = (
        anatomy.space("decoder/block.1/query").heads // anatomy.space("decoder/block.1/value").heads
    )
    output = [tensors[f"model.layers.{block}.self_attn.o_proj.weight"] for block in (0, 1)]
    first[:size] = 0
    output[0][:, : size * repeats] = 0
    second[0] = 0
    for head in range(repeats):
        output[1][:, head * size] = 0
    poor = replace(checkpoint, tensors=tensors)
    target = transformed(poor, anatomy, whole_gauge(anatomy))
    batches = probes(*LLAMA)
    found = match_models(poor, target, batches)
    missing = {
        (each.space, each.part): np.flatnonzero(each.undetermined).tolist()
        for each in found.spaces
        if each.undetermined.any()
    }
    assert missing == {
        ("decoder/block.1/ffn", Part.UNITS): [3],
        ("decoder/block.1/attention", Part.HEADS): list(range(repeats)),
        ("decoder/block.1/attention", Part.VALUES): [0],
        ("decoder/block.2/attention", Part.VALUES): [0],
    }
    doubtful = [each.space for each in found.spaces if each.uncertain.any()]
    # its other maps belong to heads that are not known
    assert set(doubtful) <= {"decoder/block.1/attention"}
    assert not found.certain
    assert (
        same_function(
            transformed(poor, anatomy, found.gauge), target, anatomy, Gauge({}), batches[:1]
        )
        < 1e-4
    )


def test_one_zero_row_of_a_value_map_is_no_obstacle():
    """The output projection still tells where its coordinate goes."""
    checkpoint, anatomy = tiny("gpt2", "GPT2LMHeadModel")
    tensors = {name: value.clone() for name, value in checkpoint.tensors.items()}
    for name in ("weight", "bias"):
        tensors[f"transformer.h.0.attn.c_attn.{name}"][..., 24] = 0
    poor = replace(checkpoint, tensors=tensors)
    truth = whole_gauge(anatomy)
    found = match_models(poor, transformed(poor, anatomy, truth), probes("gpt2", "GPT2LMHeadModel"))
    assert found.certain
    layer = "decoder/block.1/attention"
    np.testing.assert_allclose(
        found.gauge.elements[layer].value_maps, truth.elements[layer].value_maps, atol=1e-5
    )


def test_spaces_are_matched_in_runs_that_fit_into_memory(monkeypatch):
    checkpoint, anatomy = tiny(*LLAMA)
    target = transformed(checkpoint, anatomy, whole_gauge(anatomy))
    whole = match_models(checkpoint, target, probes(*LLAMA))
    monkeypatch.setattr(matched_sites, "HELD", 1)
    runs = matched_sites.in_memory(
        {name: matched_sites.sites_of(anatomy, name) for name in gauge_spaces(anatomy)},
        probes(*LLAMA, 1),
    )
    assert runs == [[name] for name in gauge_spaces(anatomy)]
    assert match_models(checkpoint, target, probes(*LLAMA)).gauge == whole.gauge


def test_some_spaces_alone():
    checkpoint, anatomy = tiny(*LLAMA)
    truth = Gauge({"residual": random_element(anatomy, "residual", 3)})
    found = match_models(
        checkpoint, transformed(checkpoint, anatomy, truth), probes(*LLAMA), ["residual"]
    )
    assert found.gauge == truth
    assert [each.part for each in found.spaces] == [Part.STREAM]


def test_models_of_other_shapes_are_refused():
    checkpoint, _ = tiny(*LLAMA)
    with pytest.raises(InputError, match="checkpoints of one class"):
        match_models(checkpoint, tiny("gemma", "GemmaForCausalLM")[0], probes(*LLAMA))
    wider, _ = random_checkpoint(config_of(*LLAMA, intermediate_size=24))
    with pytest.raises(
        InputError,
        match=r"tensor model.layers.0.mlp.gate_proj.weight: \[24, 12\] in one model, \[20, 12\] in "
        r"the other",
    ):
        match_models(checkpoint, wider, probes(*LLAMA))


def test_every_space_of_every_family_has_evidence():
    """Sites for what is in the blocks, rows that write it for the rest."""
    for case, architecture in FAMILIES:
        _, anatomy = tiny(case, architecture)
        for name in gauge_spaces(anatomy):
            outside = not name.endswith("attention") and anatomy.space(name).kind == SpaceKind.OTHER
            assert bool(matched_sites.sites_of(anatomy, name)) != outside, (architecture, name)


# ---------------------------------------------------------------- maps from weights


def factors(generator, rows=30, size=5, columns=20):
    return generator.standard_normal((rows, size)), generator.standard_normal((size, columns))


def moved(source, matrix):
    return source[0] @ matrix, np.linalg.solve(matrix, source[1])


@pytest.mark.parametrize("seed", range(5))
def test_the_map_between_two_factorisations(seed):
    generator = np.random.default_rng(seed)
    source, truth = factors(generator), generator.standard_normal((5, 5))
    found = fit_map(source, moved(source, truth), 1e-7)
    np.testing.assert_allclose(found.matrix, truth, atol=1e-12 * np.linalg.cond(truth))
    assert found.determined
    assert found.distance < 1e-12 * np.linalg.cond(truth)


@pytest.mark.parametrize("seed", range(5))
def test_between_unlike_factors_the_map_is_no_worse_than_the_identity_and_well_conditioned(seed):
    generator = np.random.default_rng(seed)
    source, target = factors(generator), factors(generator)
    found = fit_map(source, target, 1e-7)
    assert found.distance <= distance(np.eye(5), source, target)
    assert np.linalg.cond(found.matrix) < 100


def test_what_neither_factor_holds_is_not_determined_and_the_map_is_invertible():
    generator = np.random.default_rng(1)
    source, truth = factors(generator), generator.standard_normal((5, 5))
    source[0][:, 2] = 0
    assert fit_map(source, moved(source, truth), 1e-7).determined  # the second factor has it
    source[1][2] = 0
    found = fit_map(source, moved(source, truth), 1e-7)
    assert not found.determined
    assert found.distance < 1e-12
    nothing = np.zeros((30, 5)), np.zeros((5, 20))
    assert np.array_equal(fit_map(nothing, nothing, 1e-7).matrix, np.eye(5))
    assert not fit_map(nothing, nothing, 1e-7).determined


@pytest.mark.parametrize("factor", [0.5 + 2j, -1.5j, 1.0, -2.0])
def test_turns_of_rotary_pairs(factor):
    generator = np.random.default_rng(2)
    source = factors(generator, size=7)
    truth = np.eye(7)
    turn = complex(factor)
    truth[np.ix_([1, 3], [1, 3])] = [[turn.real, turn.imag], [-turn.imag, turn.real]]
    truth[4:, 4:] = generator.standard_normal((3, 3))
    keys = np.linalg.inv(truth).T
    target = source[0] @ truth, keys.T @ source[1]
    found = fit_turns(source, target, 4, False, 1e-7)
    np.testing.assert_allclose(found.matrix, truth, atol=1e-10)
    assert found.determined
    signs = np.diag([1.0, -1, 1, -1, -1, 1, 1])
    target = source[0] @ signs, signs @ source[1]
    assert np.array_equal(fit_turns(source, target, 4, True, 1e-7).matrix, signs)
    silent = np.zeros((30, 7)), np.zeros((7, 20))
    assert not fit_turns(silent, silent, 4, True, 1e-7).determined
