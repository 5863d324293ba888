"""Three verdicts: every copy that the tool writes passes its own check, one real change does
not.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from torch.func import functional_call, jacrev

from normgauge.anatomy import describe
from normgauge.anatomy.structure import NormKind
from normgauge.calibration.batches import Batch
from normgauge.checkpoints.building import build_model
from normgauge.checkpoints.opening import untied
from normgauge.gauge.absorb import absorb_gains
from normgauge.gauge.admissible import gauge_spaces
from normgauge.gauge.check import DRAWS, Verdict, check
from normgauge.gauge.groups import AttentionGauge, Monomial, Orthogonal
from normgauge.gauge.model_gauge import Gauge
from normgauge.gauge.random_gauges import random_element, random_gauge
from normgauge.gauge.rounding import SINGLE_ROUNDING, change_in_ulp, isolated, roundable, ulp
from normgauge.gauge.stored import stored_errors
from normgauge.gauge.transform import transformed
from unit.gauge_models import inputs_of, tiny

LLAMA, GPT2 = ("llama", "LlamaForCausalLM"), ("gpt2", "GPT2LMHeadModel")
FAMILIES = [
    *(LLAMA, GPT2, ("gpt_neox", "GPTNeoXForCausalLM"), ("bert", "BertForMaskedLM")),
    *(("albert-groups", "AlbertForMaskedLM"), ("vit", "ViTForImageClassification")),
    *(("dinov2-gated", "Dinov2Model"), ("whisper", "WhisperForConditionalGeneration")),
    *(("t5", "T5ForConditionalGeneration"), ("qwen3", "Qwen3ForCausalLM"), ("sceptr", "Sceptr")),
]
STORED = (torch.float32, torch.bfloat16, torch.float16)


def stored_as(checkpoint, dtype):
    return dataclasses.replace(
        checkpoint, tensors={name: value.to(dtype) for name, value in checkpoint.tensors.items()}
    )


def changed(checkpoint, **tensors):
    """The checkpoint with tensors changed by functions, by name with `__` for the dots."""
    copies = {name.replace("__", "."): value for name, value in tensors.items()}
    moved = {
        name: copies[name](value.clone()) if name in copies else value
        for name, value in checkpoint.tensors.items()
    }
    return dataclasses.replace(checkpoint, tensors=moved)


def probes(case, architecture):
    _, anatomy = tiny(case, architecture)
    return [Batch(inputs_of(case, architecture), {stack.name: None for stack in anatomy.stacks})]


def index_only(anatomy, seed):
    """Permutations, signs and powers of two in every space."""
    elements = {}
    for number, space in enumerate(gauge_spaces(anatomy)):
        element = random_element(anatomy, space, seed + number)
        if isinstance(element, AttentionGauge):
            shape = (
                element.groups,
                element.repeats,
                element.query_maps.shape[-1],
                element.value_maps.shape[-1],
            )
            values = np.stack(
                [
                    2.0 * Monomial.random(shape[3], seed + group).matrix()
                    for group in range(shape[0])
                ]
            )
            elements[space] = dataclasses.replace(
                AttentionGauge.identity(*shape), value_maps=values
            )
        else:
            scales = np.sign(element.factors) * np.exp2(np.round(np.log2(np.abs(element.factors))))
            elements[space] = Monomial(element.target, scales)
    return Gauge(elements)


# ---------------------------------------------------------------- copies pass their own check


@pytest.mark.parametrize(("number", "family"), enumerate(FAMILIES))
def test_every_copy_of_every_family_passes_its_own_check(number, family):
    source, anatomy = tiny(*family)
    source = stored_as(source, STORED[number % 3])
    exact, rounding = index_only(anatomy, 42), random_gauge(anatomy, 42)
    assert all(element.exact for element in exact.elements.values())
    target = transformed(source, anatomy, exact)
    assert check(source, target, probes(*family), exact).verdict == Verdict.SAME
    assert not any(error.largest for error in stored_errors(source, target, exact))
    target = transformed(source, anatomy, rounding)
    found = check(source, target, probes(*family), rounding)
    assert found.verdict == Verdict.ROUNDED
    assert found.first_difference() is None
    errors = stored_errors(source, target, rounding)
    # once; torch goes to half by way of float32
    assert 0.4 < max(error.largest for error in errors) < 0.5001
    assert not any(error.beyond for error in errors)


def rotated(source):
    """Ties undone, gains absorbed, which rounds, and turned, which rounds again."""
    loose = untied(source)
    anatomy = describe(loose.config)
    mean_free = anatomy.norm_kind == NormKind.LAYER_NORM
    turn = Gauge({"residual": Orthogonal.random(12, 5, fixing_ones=mean_free)})
    return transformed(absorb_gains(loose, anatomy), anatomy, turn)


@pytest.mark.parametrize("dtype", STORED)
def test_every_group_passes_in_every_stored_dtype(dtype):
    source, anatomy = tiny(*LLAMA)
    source = stored_as(source, dtype)
    for space, expected in (
        ("residual", Verdict.SAME),
        ("ffn", Verdict.ROUNDED),
        ("attention", Verdict.ROUNDED),
    ):
        names = tuple(name for name in gauge_spaces(anatomy) if name.endswith(space))
        target = transformed(source, anatomy, random_gauge(anatomy, 42, names))
        assert check(source, target, probes(*LLAMA), Gauge({})).verdict == expected, space
        assert check(target, source, probes(*LLAMA), Gauge({})).verdict == expected, space
    found = check(source, rotated(source), probes(*LLAMA), Gauge({}))
    assert found.verdict == Verdict.ROUNDED
    assert 0.1 < found.ulp < 0.8


def test_a_rotation_and_head_maps_of_one_weight_round_it_once():
    source, anatomy = tiny(*LLAMA)
    source = absorb_gains(untied(stored_as(source, torch.bfloat16)), anatomy)
    layers = random_gauge(anatomy, 42, ("decoder/block.1/attention", "decoder/block.2/attention"))
    gauge = Gauge({"residual": Orthogonal.random(12, 5), **layers.elements})
    errors = stored_errors(source, transformed(source, anatomy, gauge), gauge)
    assert 0.4 < max(error.largest for error in errors) < 0.5001


def test_copies_in_another_dtype_are_rounded_once():
    source, _ = tiny(*GPT2)
    half = stored_as(source, torch.bfloat16)
    for pair in ((source, half), (half, source), (half, rotated(source)), (rotated(source), half)):
        found = check(*pair, probes(*GPT2), Gauge({}))
        assert found.verdict == Verdict.ROUNDED
        assert 0.1 < found.ulp < 0.8
    assert (
        check(half, stored_as(half, torch.float32), probes(*GPT2), Gauge({})).verdict
        == Verdict.SAME
    )
    double = stored_as(source, torch.float64)
    assert check(double, rotated(double), probes(*GPT2), Gauge({})).verdict == Verdict.SAME


def test_the_rounding_of_ill_conditioned_maps_is_explained():
    """A value map of condition 1e4 makes one rounding move the outputs thousands of times as
    far.
    """
    source, anatomy = tiny(*LLAMA)
    name = "decoder/block.1/attention"
    element = random_gauge(anatomy, 42, (name,)).elements[name]
    values = element.value_maps @ np.diag(np.geomspace(1, 1e-4, 6)) @ Orthogonal.random(6, 1).matrix
    gauge = Gauge({name: dataclasses.replace(element, value_maps=values)})
    target = transformed(source, anatomy, gauge)
    found = check(source, target, probes(*LLAMA), Gauge({}))
    assert found.verdict == Verdict.ROUNDED
    assert found.found.outputs > 1e-5
    assert not any(error.beyond for error in stored_errors(source, target, gauge))


# ---------------------------------------------------------------- real changes do not

UP, EMBEDDING = "model__layers__1__mlp__up_proj__weight", "model__embed_tokens__weight"


def with_one_changed(value):
    """The largest value of one row, 2^-6 larger: two to four ulp of bfloat16."""
    column = int(value[3].abs().argmax())
    value[3, column] *= 1 + 2**-6
    return value


def with_two_swapped(value):
    value[[2, 5]] = value[[5, 2]]
    return value


def with_a_sign_left_out(value):
    value[:, 4] *= -1
    return value


CHANGES = [
    ({UP: with_one_changed}, "decoder/block.2/output", "model.layers.1.mlp.up_proj.weight"),
    ({UP: with_two_swapped}, "decoder/block.2/output", "model.layers.1.mlp.up_proj.weight"),
    ({EMBEDDING: with_a_sign_left_out}, "decoder/block.1/output", "model.embed_tokens.weight"),
]


@pytest.mark.parametrize(("changes", "site", "tensor"), CHANGES)
@pytest.mark.parametrize("kind", ["exact", "rounding"])
def test_one_real_change_is_another_function(changes, site, tensor, kind):
    source, anatomy = tiny(*LLAMA)
    source = stored_as(source, torch.bfloat16)
    spaces = None if kind == "exact" else ("residual", "decoder/block.1/attention")
    gauge = index_only(anatomy, 42) if kind == "exact" else random_gauge(anatomy, 42, spaces)
    target = changed(transformed(source, anatomy, gauge), **changes)
    found = check(source, target, probes(*LLAMA), Gauge({}))
    assert found.verdict == Verdict.DIFFERENT
    single = changes.get(UP) is with_one_changed
    assert list(found.changed) == ([tensor] if single else [])
    if single:
        assert 1.9 < found.changed[tensor] < 4.1
    # else the rounding of the other tensors covers it at every site
    if kind == "exact" or not single:
        assert found.first_difference() == site
    first = next(error for error in stored_errors(source, target, gauge) if error.beyond)
    assert first.tensor == tensor


def test_changed_values_that_no_probe_reads_are_seen():
    source, anatomy = tiny(*LLAMA)
    batches = probes(*LLAMA)
    unread = min(set(range(17)) - set(batches[0].inputs["input_ids"].reshape(-1).tolist()))

    def one_row(value):
        value[unread, 2] *= 1.01
        return value

    target = changed(transformed(source, anatomy, index_only(anatomy, 42)), **{EMBEDDING: one_row})
    found = check(source, target, batches, Gauge({}))
    assert found.found.outputs <= found.arithmetic.outputs
    assert found.verdict == Verdict.DIFFERENT
    assert list(found.changed) == ["model.embed_tokens.weight"]


# ---------------------------------------------------------------- the measure itself


def test_ulp_is_the_distance_of_neighbours():
    values = torch.tensor([1.0, -1.5, 3.0, 0.1, 1e-7, 0.0, 2**-14])
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        stored = values.to(dtype)
        above = torch.nextafter(stored.abs(), torch.tensor(float("inf"), dtype=dtype))
        assert torch.equal(ulp(stored, dtype), above.double() - stored.abs().double())
    drawn = torch.randn(20000, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    errors = (drawn.half().double() - drawn) / ulp(drawn, torch.float16)
    assert float(errors.abs().max()) <= 0.5
    assert float(errors.square().mean().sqrt()) == pytest.approx(SINGLE_ROUNDING, rel=0.02)


def test_what_no_move_of_slices_explains():
    source = torch.randn(40, 30, generator=torch.Generator().manual_seed(1)).bfloat16()
    moved = 4 * Monomial.random(40, 2).apply(Monomial.random(30, 3).apply(source), 0)
    assert not roundable(source, moved).any()
    one = moved.clone()
    one[7, 9] *= 1 + 2**-6
    places = roundable(source, one)
    assert places.nonzero().tolist() == [[7, 9]]
    assert isolated(places)
    block = source[roundable(one, source)]
    assert 1.9 < change_in_ulp(block, one[places], torch.bfloat16) <= 4.1
    scaled = Monomial(np.arange(40), np.where(np.arange(40) == 5, 3.0, 1.0)).apply(moved, 0)
    places = roundable(source, scaled)
    assert places.any(1).nonzero().tolist() == [[5]]
    assert places[5].all()
    assert not isolated(places)
    turned = Orthogonal.random(30, 4).apply(source)
    assert roundable(source, turned).all()


def test_draws_agree_with_the_first_order_estimate():
    """The effect of moving every value by an ulp is the Jacobian's, to a quarter, where it is
    linear.
    """
    source, _ = tiny(*GPT2)
    target = rotated(source)
    found = check(source, target, probes(*GPT2), Gauge({}))
    model = build_model(target, "float64")
    parameters = {name: value.detach() for name, value in model.named_parameters()}
    inputs = inputs_of(*GPT2)
    jacobians = jacrev(
        lambda changed: functional_call(model, changed, (), inputs).logits.reshape(-1)
    )(parameters)
    largest = model(**inputs).logits.abs().max()
    scale = {name: ulp(value, torch.float32) for name, value in parameters.items()}
    generator = torch.Generator().manual_seed(7)
    effects = []
    for _ in range(60):
        moves = {
            name: unit * (torch.randint(0, 2, unit.shape, generator=generator) * 2 - 1)
            for name, unit in scale.items()
        }
        effect = sum(
            (jacobians[name] * move).sum(tuple(range(1, move.ndim + 1)))
            for name, move in moves.items()
        )
        effects.append(float(effect.abs().max() / largest))
    expected = float(np.sqrt(np.mean(np.square(effects))))
    assert found.rounding.outputs == pytest.approx(expected, rel=0.25)
    assert DRAWS >= 4
