"""The verdict "the same up to rounding": continuous changes of coordinates, over every family, and
edits just above and below the bound.
"""

from __future__ import annotations

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch

from normgauge.anatomy import describe
from normgauge.gauge.random_gauges import random_gauge
from normgauge.gauge.transform import transform
from normgauge.lineage.bounded import Bounded, exact, factors, over_bound, stored
from normgauge.lineage.evasion import ATTACKS
from normgauge.lineage.invariants import up_to_rounding
from normgauge.lineage.rounding import Given
from normgauge.lineage.same import Verdict, same
from unit.gauge_models import CLASSES, random_checkpoint, tiny

UNTRIED = ("qwen3", "gemma3")  # query and key norms: said to be not compared
FEW = [("gpt2", "GPT2LMHeadModel"), ("llama", "LlamaForCausalLM"), ("bert", "BertForMaskedLM")]


def given(checkpoint, anatomy, tensors=None):
    return Given(anatomy, checkpoint.tensors if tensors is None else tensors)


def gauged(case, architecture, seed=1):
    checkpoint, anatomy = tiny(case, architecture)
    moved = dict(transform(anatomy, checkpoint.tensors, random_gauge(anatomy, seed)))
    return given(checkpoint, anatomy), given(checkpoint, anatomy, moved)


@pytest.mark.parametrize(("case", "architecture"), CLASSES, ids=str)
def test_copies_under_continuous_gauges_are_one_up_to_rounding_and_edited_ones_are_not(
    case, architecture
):
    first, second = gauged(case, architecture)
    found = up_to_rounding(first, second)
    if case in UNTRIED:
        assert found is None
        return
    assert found is not None
    assert found.explained
    names = [name for name, value in second.tensors.items() if value.ndim > 1 and value.any()]
    for name in np.random.default_rng(3).choice(names, min(3, len(names)), replace=False):
        edited = {key: each.clone() for key, each in second.tensors.items()}
        flat = edited[name].view(-1)
        flat[flat.abs().argmax()] *= 1.5
        other = up_to_rounding(first, replace(second, tensors=edited))
        assert other is None or not other.explained, name


@pytest.mark.parametrize(("case", "architecture"), FEW[:2])
def test_rotations_with_absorbed_gains_are_found(case, architecture):
    checkpoint, anatomy = tiny(case, architecture)
    moved = ATTACKS["rotation, gains absorbed"](checkpoint, anatomy, 3).checkpoint
    first, second = given(checkpoint, anatomy), given(moved, describe(moved.config))
    found = up_to_rounding(first, second)
    assert found is not None
    assert found.rotated
    assert found.explained
    edited = {key: each.clone() for key, each in moved.tensors.items()}
    name = next(key for key in edited if key.endswith(("c_fc.weight", "up_proj.weight")))
    edited[name][1, 2] += 1e-3 * edited[name].abs().max()
    other = up_to_rounding(first, replace(second, tensors=edited))
    assert other is not None
    assert not other.explained
    assert other.tensor == name


def test_an_edit_just_above_the_bound_is_seen_and_one_below_is_not():
    """The bound of the value-output product of one head, of which one stored value is changed."""
    first, second = gauged("gpt2", "GPT2LMHeadModel", seed=2)
    before = up_to_rounding(first, second)
    assert before is not None
    name = "transformer.h.0.attn.c_proj.weight"

    def ulp_after(size):
        edited = {key: each.clone() for key, each in second.tensors.items()}
        edited[name][3, 5] += size
        found = up_to_rounding(first, replace(second, tensors=edited))
        assert found is not None
        return found.ulp

    size = 1e-3 * float(second.tensors[name].abs().max())
    slope = ulp_after(size) / size  # far above the bound the ratio grows with the edit
    assert ulp_after(1.2 * (0.5 + before.ulp) / slope) > 0.5
    assert ulp_after(0.8 * (0.5 - before.ulp) / slope) <= 0.5


def test_a_copy_in_a_coarser_dtype_is_the_same_up_to_its_rounding():
    checkpoint, anatomy = tiny("llama", "LlamaForCausalLM")
    half = {name: value.bfloat16() for name, value in checkpoint.tensors.items()}
    found = same(given(checkpoint, anatomy), Given(anatomy, half))
    assert found.verdict == Verdict.ROUNDED
    name = "model.layers.0.mlp.gate_proj.weight"
    twice = {**half, name: half[name] * (1 + 3 * torch.finfo(torch.bfloat16).eps)}
    assert same(given(checkpoint, anatomy), Given(anatomy, twice)).verdict == Verdict.ANOTHER


def test_unrelated_models_and_other_settings_are_not_the_same():
    checkpoint, anatomy = tiny("llama", "LlamaForCausalLM")
    other, _ = random_checkpoint(checkpoint.config, seed=9)
    found = up_to_rounding(given(checkpoint, anatomy), given(other, anatomy))
    assert found is None or not found.explained
    config = copy.deepcopy(checkpoint.config)
    config.hidden_act = "relu"
    found = same(
        Given(anatomy, checkpoint.tensors, checkpoint.config),
        Given(anatomy, checkpoint.tensors, config),
    )
    assert found.verdict == Verdict.SETTINGS
    assert found.settings == ("hidden_act",)


def test_bounds_hold_for_sums_and_products_that_were_rounded_once():
    generator = np.random.default_rng(0)
    values = [generator.standard_normal(shape) for shape in ((5, 7), (7, 6), (5, 6))]
    one, other, third = (stored(torch.from_numpy(each).float()) for each in values)
    found = one @ other * third + third
    exactly = exact((values[0] @ values[1]) * values[2] + values[2])
    assert 0 < over_bound(exactly, found) <= 1
    factor, inverse = factors(one, Bounded(3 * one.value, 3 * one.error))
    assert np.allclose(factor.value, 3)
    assert np.allclose(inverse.value, 1 / 3)
    nothing, without = factors(one, Bounded(0 * one.value, one.error))
    assert not nothing.value.any()
    assert np.isinf(without.error).all()
