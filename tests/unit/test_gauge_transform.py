"""The transform over every family: same function, exact round trips, refusals, controls that must
fail.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

from normgauge.anatomy.structure import NormKind, SpaceKind
from normgauge.checkpoints.building import build_model
from normgauge.checkpoints.opening import Checkpoint, untied
from normgauge.errors import InputError
from normgauge.gauge.absorb import absorb_gains, absorption_cost
from normgauge.gauge.admissible import Group, QueryMaps, admissible, gauge_spaces
from normgauge.gauge.equivalence import CONTROL_FACTOR, TOLERANCES, deviation, equivalence_row
from normgauge.gauge.groups import AttentionGauge, Monomial, Orthogonal
from normgauge.gauge.model_gauge import Gauge
from normgauge.gauge.random_gauges import random_element, random_gauge
from normgauge.gauge.transform import transform, transform_unchecked, transformed
from normgauge.signed_permutation.boundary import STORED
from unit.gauge_models import CLASSES, SCEPTR, config_of, inputs_of, random_checkpoint, tiny
from unit.test_anatomy import PICTURES

DOUBLE = "float64"


def double(checkpoint: Checkpoint) -> Checkpoint:
    return with_tensors(
        checkpoint, {name: value.double() for name, value in checkpoint.tensors.items()}
    )


def with_tensors(checkpoint: Checkpoint, tensors) -> Checkpoint:
    return dataclasses.replace(checkpoint, tensors=dict(tensors))


def compare(
    case,
    architecture,
    before: Checkpoint,
    after: Checkpoint,
    anatomy,
    gauge: Gauge,
    dtype: str = DOUBLE,
):
    models = [build_model(checkpoint, dtype) for checkpoint in (before, after)]
    return deviation(*models, anatomy, gauge, [inputs_of(case, architecture)])


def residual_of(anatomy) -> str:
    return anatomy.primary_stack.space


# ---------------------------------------------------------------- the same function


@pytest.mark.parametrize(("case", "architecture"), CLASSES)
def test_a_random_element_of_every_group_at_once_keeps_the_function(case, architecture):
    checkpoint, anatomy = tiny(case, architecture)
    checkpoint = double(checkpoint)
    gauge = random_gauge(anatomy, 42)
    found = compare(
        case, architecture, checkpoint, transformed(checkpoint, anatomy, gauge), anatomy, gauge
    )
    row = equivalence_row("every space", 42, DOUBLE, STORED, found)
    assert row["verdict"] == "passed", row
    assert found.relative <= 1e-10
    moved = dict(transform(anatomy, checkpoint.tensors, gauge))
    changed = [
        name for name, value in checkpoint.tensors.items() if not torch.equal(value, moved[name])
    ]
    assert len(changed) > len(checkpoint.tensors) / 2  # the gauge is not nothing


@pytest.mark.parametrize(
    ("case", "architecture"),
    [("llama", "LlamaForCausalLM"), ("qwen3", "Qwen3ForCausalLM"), ("gemma3", "Gemma3ForCausalLM")],
)
@pytest.mark.parametrize(
    "heads", [{"num_key_value_heads": 1}, {"num_attention_heads": 1, "num_key_value_heads": 1}]
)
def test_a_single_key_head_keeps_the_function(case, architecture, heads):
    """The gain of its norm is as long as the whole key space, and signs pass it all the same."""
    checkpoint, anatomy = random_checkpoint(config_of(case, architecture, **heads))
    checkpoint, gauge = double(checkpoint), random_gauge(anatomy, 42)
    assert (
        compare(
            case, architecture, checkpoint, transformed(checkpoint, anatomy, gauge), anatomy, gauge
        ).relative
        <= 1e-10
    )


@pytest.mark.parametrize(("case", "architecture"), CLASSES)
def test_index_only_gauges_and_their_inverses_give_back_every_bit(case, architecture):
    checkpoint, anatomy = tiny(case, architecture)
    half = {
        name: value.to(torch.bfloat16) if number % 2 else value
        for number, (name, value) in enumerate(checkpoint.tensors.items())
    }
    gauge = Gauge({space: index_only(anatomy, space) for space in gauge_spaces(anatomy)})
    moved = dict(transform(anatomy, half, gauge))
    back = dict(transform(anatomy, moved, gauge.inverse()))
    assert list(back) == list(half)
    for name, value in half.items():
        assert value.dtype == moved[name].dtype
        assert torch.equal(back[name].view(torch.uint8), value.view(torch.uint8)), name


def index_only(anatomy, space: str):
    element = random_element(anatomy, space, 42)
    if isinstance(element, AttentionGauge):
        size = element.query_maps.shape[-1], element.value_maps.shape[-1]
        signs = np.stack(
            [Monomial.random(size[1], 7 + group).matrix() for group in range(element.groups)]
        )
        return AttentionGauge(
            element.group_order,
            element.head_order,
            np.tile(np.eye(size[0]), (element.groups, 1, 1)),
            signs,
        )
    return Monomial(element.target, np.sign(element.factors))


@pytest.mark.parametrize(
    ("case", "architecture"),
    [("gpt2", "GPT2LMHeadModel"), ("llama", "LlamaForCausalLM"), ("bert", "BertModel")],
)
def test_in_float32_the_deviation_is_rounding(case, architecture):
    checkpoint, anatomy = tiny(case, architecture)
    gauge = random_gauge(anatomy, 42, (residual_of(anatomy),))
    found = compare(
        case,
        architecture,
        checkpoint,
        transformed(checkpoint, anatomy, gauge),
        anatomy,
        gauge,
        "float32",
    )
    assert found.relative < 1e-4
    assert equivalence_row("residual", 42, "float32", STORED, found)["verdict"] == "passed"


# ---------------------------------------------------------------- what is admissible, and why

LAYER_NORM_CASES = [
    pair
    for pair in CLASSES
    if pair[0].startswith(("gpt", "bert", "roberta", "distilbert", "electra", "opt", "clip"))
    or pair[0].startswith(("cohere", "falcon", "bloom", "modernbert", "deberta"))
    or pair[0].startswith((*PICTURES, SCEPTR))
]


@pytest.mark.parametrize(("case", "architecture"), CLASSES)
def test_the_residual_group_follows_the_norm(case, architecture):
    _, anatomy = tiny(case, architecture)
    expected = (
        Group.COMMON_SIGN if anatomy.norm_kind == NormKind.LAYER_NORM else Group.SIGNED_PERMUTATION
    )
    if case.startswith(
        ("bert", "albert", "roberta", "distilbert", "electra", "modernbert", "deberta")
    ) and architecture.endswith("MaskedLM"):
        tied_to_gelu = any(
            item.activation for item in anatomy.maps if item.writes == residual_of(anatomy)
        )
        expected = Group.PERMUTATION if tied_to_gelu else expected
    assert admissible(anatomy, residual_of(anatomy)).group == expected


def test_groups_of_the_other_spaces():
    def group(case, architecture, space):
        rule = admissible(tiny(case, architecture)[1], space)
        return rule.group, rule.query_maps, rule.heads_move

    # a convolution writes it through gelu
    assert group("whisper", "WhisperModel", "encoder/residual")[0] == Group.PERMUTATION
    assert group("whisper", "WhisperModel", "encoder/features")[0] == Group.PERMUTATION
    # tanh is odd
    assert group("bert", "BertForSequenceClassification", "pooled")[0] == Group.SIGNED_PERMUTATION
    assert group("gpt2", "GPT2LMHeadModel", "decoder/block.1/ffn")[0] == Group.PERMUTATION
    # relu
    assert (
        group("t5", "T5ForConditionalGeneration", "encoder/block.1/ffn")[0]
        == Group.POSITIVE_MONOMIAL
    )
    assert group("llama", "LlamaForCausalLM", "decoder/block.1/ffn")[0] == Group.MONOMIAL
    assert group("gpt2", "GPT2LMHeadModel", "decoder/block.1/attention")[1:] == (
        QueryMaps.GENERAL,
        True,
    )
    assert group("llama", "LlamaForCausalLM", "decoder/block.1/attention")[1:] == (
        QueryMaps.ROTARY,
        True,
    )
    assert group("qwen3", "Qwen3ForCausalLM", "decoder/block.1/attention")[1:] == (
        QueryMaps.SIGNS,
        True,
    )
    assert group("t5", "T5ForConditionalGeneration", "decoder/block.1/attention")[1:] == (
        QueryMaps.GENERAL,
        False,
    )
    # no score bias
    assert group("t5", "T5ForConditionalGeneration", "decoder/block.1/cross_attention")[1:] == (
        QueryMaps.GENERAL,
        True,
    )
    # one of its coordinates is computed, not stored
    assert "features" not in gauge_spaces(tiny(SCEPTR, "Sceptr")[1])
    with pytest.raises(InputError, match="no gauge moves 'vocabulary'"):
        admissible(tiny("llama", "LlamaForCausalLM")[1], "vocabulary")


def test_part_of_a_head_may_turn():
    config = config_of("gpt_neox", "GPTNeoXForCausalLM")
    config.rope_parameters = {**config.rope_parameters, "partial_rotary_factor": 1 / 3}
    checkpoint, anatomy = random_checkpoint(config)
    assert anatomy.rotary_size == 2  # of 6
    checkpoint = double(checkpoint)
    gauge = random_gauge(anatomy, 42)
    maps = gauge.elements["decoder/block.1/attention"].query_maps
    assert np.abs(maps[:, 2:, 2:]).min() > 0
    found = compare(
        "gpt_neox",
        "GPTNeoXForCausalLM",
        checkpoint,
        transformed(checkpoint, anatomy, gauge),
        anatomy,
        gauge,
    )
    assert found.relative <= 1e-10


# --------------------------------- outside the group the function changes, and the gauge is refused


def controls():
    """(id, case, architecture, gauge of the anatomy, what the refusal says)."""

    def residual(make):
        return lambda anatomy: Gauge({residual_of(anatomy): make(anatomy.primary_stack.width)})

    def of_layer(**changes):
        def make(anatomy):
            element = random_element(anatomy, "decoder/block.2/attention", 42)
            return Gauge(
                {
                    "decoder/block.2/attention": dataclasses.replace(
                        element, **{key: value(element) for key, value in changes.items()}
                    )
                }
            )

        return make

    def general(element):
        return np.stack(
            [
                Orthogonal.random(element.query_maps.shape[-1], 3 + group).matrix
                for group in range(element.groups)
            ]
        )

    def head_signs(element):
        size = element.query_maps.shape[-1]
        return np.tile(np.diag([-1.0] + [1.0] * (size - 1)), (element.groups, 1, 1))

    def ffn(make):
        return lambda anatomy: Gauge(
            {
                f"{anatomy.primary_stack.name}/block.1/ffn": make(
                    anatomy.space(f"{anatomy.primary_stack.name}/block.1/ffn").size
                )
            }
        )

    signed = lambda size: Monomial.random(size, 42)  # noqa: E731
    dense = lambda size: Orthogonal.random(size, 42)  # noqa: E731
    fixing = lambda size: Orthogonal.random(size, 42, fixing_ones=True)  # noqa: E731
    for case, architecture in LAYER_NORM_CASES:
        yield (
            f"{architecture}-{case}-signs",
            case,
            architecture,
            residual(signed),
            "factors leave the group",
        )
    for case, architecture in (
        ("llama", "LlamaForCausalLM"),
        ("gemma3", "Gemma3ForCausalLM"),
        ("t5", "T5ForConditionalGeneration"),
    ):
        yield f"{case}-dense", case, architecture, residual(dense), "absorb the gains"
        scaled = residual(
            lambda size: Monomial(np.arange(size), np.full(size, 2.0) ** np.arange(size))
        )
        yield f"{case}-scaled", case, architecture, scaled, "factors leave the group"
    yield "gpt2-dense", "gpt2", "GPT2LMHeadModel", residual(fixing), "absorb the gains"
    yield "gpt2-ffn-signs", "gpt2", "GPT2LMHeadModel", ffn(signed), "not odd"
    yield "t5-ffn-signs", "t5", "T5ForConditionalGeneration", ffn(signed), "not odd"
    yield "llama-ffn-dense", "llama", "LlamaForCausalLM", ffn(dense), "does not pass silu"
    yield (
        "llama-query",
        "llama",
        "LlamaForCausalLM",
        of_layer(query_maps=general),
        "complex factor per rotary pair",
    )
    yield (
        "qwen3-query",
        "qwen3",
        "Qwen3ForCausalLM",
        of_layer(query_maps=head_signs),
        "one sign per rotary pair",
    )
    moved = of_layer(group_order=lambda element: element.group_order[::-1])
    yield "t5-heads", "t5", "T5ForConditionalGeneration", moved, "keep their order"


@pytest.mark.parametrize(
    ("case", "architecture", "make", "reason"),
    [pytest.param(*rest, id=name) for name, *rest in controls()],
)
def test_a_gauge_outside_the_group_changes_the_function_and_is_refused(
    case, architecture, make, reason
):
    checkpoint, anatomy = tiny(case, architecture)
    checkpoint = double(checkpoint)
    gauge = make(anatomy)
    with pytest.raises(InputError, match=reason) as refusal:
        transform(anatomy, checkpoint.tensors, gauge)
    assert next(iter(gauge.elements)) in str(refusal.value)
    after = with_tensors(checkpoint, transform_unchecked(anatomy, checkpoint.tensors, gauge))
    found = compare(case, architecture, checkpoint, after, anatomy, gauge)
    assert found.relative >= CONTROL_FACTOR * TOLERANCES[DOUBLE]
    assert (
        equivalence_row("control", 42, DOUBLE, STORED, found, predicted=1.0)["verdict"] == "passed"
    )
    assert (
        equivalence_row("control", 42, DOUBLE, STORED, found, predicted=0.0)["verdict"]
        == "no power"
    )
    assert equivalence_row("control", 42, DOUBLE, STORED, found)["verdict"] == "failed"


def test_gauges_of_another_model_and_foreign_tensors_are_refused():
    checkpoint, anatomy = tiny("llama", "LlamaForCausalLM")
    with pytest.raises(InputError, match="13 coordinates, the model has 12"):
        transform(anatomy, checkpoint.tensors, Gauge({"residual": Monomial.random(13, 1)}))
    with pytest.raises(InputError, match="cannot act there"):
        transform(
            anatomy,
            checkpoint.tensors,
            Gauge({"decoder/block.1/attention": Monomial.random(24, 1)}),
        )
    layer = random_element(anatomy, "decoder/block.1/attention", 1)
    with pytest.raises(InputError, match="cannot act there"):
        transform(
            anatomy,
            checkpoint.tensors,
            Gauge({"decoder/block.1/ffn": AttentionGauge.identity(2, 1, 10, 10)}),
        )
    with pytest.raises(InputError, match="4 groups"):
        transform(
            anatomy,
            checkpoint.tensors,
            Gauge({"decoder/block.1/attention": AttentionGauge.identity(4, 1, 6, 3)}),
        )
    assert layer.groups == 2
    gauge = random_gauge(anatomy, 1)
    with pytest.raises(InputError, match="tensor spare has no place"):
        transform(anatomy, {**checkpoint.tensors, "spare": torch.ones(2)}, gauge)
    with pytest.raises(InputError, match=r"model\.norm\.weight has shape \[3\]"):
        transform(anatomy, {**checkpoint.tensors, "model.norm.weight": torch.ones(3)}, gauge)


# ---------------------------------------------------------------- absorbed gains

ABSORBING = [
    ("llama", "LlamaForCausalLM"),
    ("llama-biased", "LlamaForCausalLM"),
    ("qwen3", "Qwen3ForCausalLM"),
    ("gemma", "GemmaForCausalLM"),
    ("gpt2", "GPT2LMHeadModel"),
    ("gpt_neox", "GPTNeoXForCausalLM"),
    ("gpt_neox", "GPTNeoXForSequenceClassification"),
    ("vit", "ViTForImageClassification"),
]


@pytest.mark.parametrize(("case", "architecture"), ABSORBING)
def test_absorbed_gains_keep_the_function_and_admit_dense_rotations(case, architecture):
    checkpoint, _ = tiny(case, architecture)
    loose = untied(double(checkpoint))
    anatomy = tiny_describe(loose)
    folded = absorb_gains(loose, anatomy)
    before = build_model(double(checkpoint), DOUBLE)
    for gauge in (Gauge({}), Gauge({residual_of(anatomy): rotation(anatomy)})):
        after = transformed(folded, anatomy, gauge)
        outputs_kept = deviation(
            *[_logits_only(model) for model in (before, build_model(after, DOUBLE))],
            anatomy,
            gauge,
            [inputs_of(case, architecture)],
        )
        assert outputs_kept.relative <= 1e-10
    if anatomy.norm_kind == NormKind.LAYER_NORM:
        tilted = Gauge({residual_of(anatomy): Orthogonal.random(anatomy.primary_stack.width, 3)})
        with pytest.raises(InputError, match="fixes the vector of ones"):
            transform(anatomy, folded.tensors, tilted)
        after = with_tensors(folded, transform_unchecked(anatomy, folded.tensors, tilted))
        found = deviation(
            _logits_only(before),
            _logits_only(build_model(after, DOUBLE)),
            anatomy,
            tilted,
            [inputs_of(case, architecture)],
        )
        assert found.relative >= CONTROL_FACTOR * TOLERANCES[DOUBLE]


def rotation(anatomy):
    return Orthogonal.random(
        anatomy.primary_stack.width, 3, fixing_ones=anatomy.norm_kind == NormKind.LAYER_NORM
    )


def tiny_describe(checkpoint):
    from normgauge.anatomy import describe

    return describe(checkpoint.config)


class _logits_only(torch.nn.Module):  # noqa: N801
    """A model whose only output is its logits: absorbing changes the scale of hidden states, by
    design.
    """

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, **inputs):
        return {"logits": self.model(**inputs).logits}


@pytest.mark.parametrize(
    ("case", "architecture", "reason"),
    [
        ("bert", "BertForMaskedLM", "post-norm"),
        ("gemma2", "Gemma2ForCausalLM", "sandwich"),
        ("llama", "LlamaModel", "take the class with its head"),
        ("gpt2", "GPT2LMHeadModel", "untie the checkpoint first"),
        ("t5", "T5ForConditionalGeneration", "share one residual space"),
        ("t5-untied", "T5ForConditionalGeneration", "share one residual space"),
        ("dinov2", "Dinov2ForImageClassification", "take the class with its head"),
    ],
)
def test_gains_that_nothing_can_absorb_are_refused(case, architecture, reason):
    checkpoint, anatomy = tiny(case, architecture)
    with pytest.raises(InputError, match=reason):
        absorb_gains(checkpoint, anatomy)


def rotated(case, architecture, gain: float, stored: str, tolerance: float | None):
    """(what the absorbed gains and a rotation move the outputs by, what `absorption_cost` expects)
    with one collapsed gain.
    """
    checkpoint, _ = tiny(case, architecture)
    loose = untied(checkpoint)
    anatomy = tiny_describe(loose)
    norm = next(norm for norm in anatomy.norms if norm.space == residual_of(anatomy))
    tensors = dict(loose.tensors)
    tensors[norm.gain] = tensors[norm.gain].clone()
    tensors[norm.gain][5], tensors[norm.bias] = gain, torch.full_like(tensors[norm.bias], 0.3)
    planted = with_tensors(
        loose, {name: value.to(getattr(torch, stored)) for name, value in tensors.items()}
    )
    cost = absorption_cost(
        *(planted.tensors[name].double() for name in (norm.gain, norm.bias)), getattr(torch, stored)
    )
    gauge = Gauge({residual_of(anatomy): rotation(anatomy)})
    after = transformed(absorb_gains(planted, anatomy, tolerance=tolerance), anatomy, gauge)
    models = [_logits_only(build_model(each, stored)) for each in (planted, after)]
    return deviation(*models, anatomy, gauge, [inputs_of(case, architecture)]).relative, cost


@pytest.mark.parametrize("gain", [1e-2, 1e-4, 1e-6, 1e-8])
def test_what_a_collapsed_gain_costs_is_foreseen(gain):
    moved, cost = rotated("gpt2", "GPT2LMHeadModel", gain, "float32", float("inf"))
    # of the largest output, whose scale is not that of what is read
    assert cost / 30 < moved < 30 * cost


@pytest.mark.parametrize(
    ("gain", "stored"), [(1e-4, "float32"), (1e-9, "float32"), (1e-7, "float64"), (0.0, "float64")]
)
def test_a_gain_that_costs_too_much_is_refused_with_its_coordinate(gain, stored):
    with pytest.raises(
        InputError,
        match=r"ln_1: coordinate 5 has a gain of .* under a bias of 0\.3; .* in " + stored,
    ):
        rotated("gpt2", "GPT2LMHeadModel", gain, stored, None)


@pytest.mark.parametrize(
    ("gain", "stored", "most"), [(1e-2, "float32", 1e-4), (1e-4, "float64", 1e-10)]
)
def test_a_gain_that_costs_little_is_absorbed(gain, stored, most):
    assert rotated("gpt2", "GPT2LMHeadModel", gain, stored, None)[0] < most


def test_a_gain_of_zero_without_a_bias_costs_nothing():
    gain, bias = torch.tensor([1.0, 0.0, 2.0]).double(), torch.tensor([1.0, 0.0, 0.0]).double()
    assert absorption_cost(gain, bias, torch.float64) == pytest.approx(2**-53 * (4 / 3) ** 0.5)
    assert absorption_cost(gain, bias.flip(0) + 1, torch.float64) == float("inf")


def test_spaces_of_every_kind_are_moved():
    kinds = {
        tiny(*pair)[1].space(space).kind
        for pair in CLASSES
        for space in gauge_spaces(tiny(*pair)[1])
        if not space.endswith("attention")
    }
    assert kinds == {SpaceKind.RESIDUAL, SpaceKind.FFN, SpaceKind.OTHER}
