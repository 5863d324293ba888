"""Units whose activations do not tell where they belong are decided by weights, where these can."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from normgauge.gauge.groups import Monomial
from normgauge.gauge.matching import Cost, match_matrix
from normgauge.gauge.matching_report import parts
from normgauge.gauge.model_matching import Part, match_models
from normgauge.gauge.random_gauges import random_gauge
from normgauge.gauge.transform import transformed
from normgauge.gauge.weight_evidence import _no_worse_than_identity, _resolved, _Rows
from unit.gauge_models import config_of, random_checkpoint
from unit.test_gauge_model_matching import probes

WIDE = {
    "gpt2": ("GPT2LMHeadModel", {"n_embd": 64, "n_inner": 96}),
    "llama": ("LlamaForCausalLM", {"hidden_size": 64, "intermediate_size": 96}),
}
ALIKE = 24  # units in pairs that fire alike


def pair(case, seed=3):
    """(source, its perturbed copy under a planted gauge, the gauge): units 0 to 23 fire alike in
    pairs, since the maps that write them are the same up to a thousandth, and are read differently.
    """
    architecture, changes = WIDE[case]
    checkpoint, anatomy = random_checkpoint(config_of(case, architecture, **changes))
    generator = torch.Generator().manual_seed(seed)
    tensors = {name: value.clone() for name, value in checkpoint.tensors.items()}
    for name, axis in writers(anatomy, "decoder/block.1/ffn"):
        rows = tensors[name].movedim(axis, 0)
        noise = torch.randn(rows[1:ALIKE:2].shape, generator=generator)
        rows[1:ALIKE:2] = rows[0:ALIKE:2] + 1e-3 * noise
    source = replace(checkpoint, tensors=tensors)
    truth = random_gauge(anatomy, seed)
    tuned = {
        name: value + 0.1 * value.std(correction=0) * torch.randn(value.shape, generator=generator)
        for name, value in tensors.items()
    }
    return source, transformed(replace(source, tensors=tuned), anatomy, truth), truth, anatomy


def writers(anatomy, space):
    return axes_of(anatomy, space, "write")


def axes_of(anatomy, space, role):
    return [
        (tensor.name, number)
        for tensor in anatomy.tensors
        for number, axis in enumerate(tensor.axes)
        if axis.role == role and axis.indices(space)
    ]


@pytest.mark.parametrize("case", WIDE)
def test_units_that_fire_alike_are_told_apart_by_weights(case):
    source, target, truth, _ = pair(case)
    found = match_models(source, target, probes(case, WIDE[case][0]))
    units = next(each for each in found.of(Part.UNITS) if each.space == "decoder/block.1/ffn")
    assert units.found.by_weights[:ALIKE].all()
    assert units.certain.all()
    element = truth.elements[units.space]
    assert np.array_equal(units.element.target, element.target)
    assert np.array_equal(np.sign(units.element.factors), np.sign(element.factors))
    assert any("decided by weights" in line for line in parts(found))


@pytest.mark.parametrize("case", WIDE)
def test_weights_that_say_nothing_decide_nothing(case):
    """The control: what reads and writes the units is drawn anew in the target, so that no match of
    them is right, while the activations of all other units stay evidence.
    """
    source, target, truth, anatomy = pair(case)
    space = "decoder/block.1/ffn"
    generator = torch.Generator().manual_seed(8)
    tensors = {name: value.clone() for name, value in target.tensors.items()}
    places = torch.tensor(truth.elements[space].target[:ALIKE].tolist())
    for name, axis in [*writers(anatomy, space), *axes_of(anatomy, space, "read")]:
        rows = tensors[name].movedim(axis, 0)
        rows[places] = 0.5 * torch.randn(rows[places].shape, generator=generator)
    found = match_models(source, replace(target, tensors=tensors), probes(case, WIDE[case][0]))
    units = next(each for each in found.of(Part.UNITS) if each.space == space)
    assert not units.certain[:ALIKE].any()
    assert not units.found.by_weights[:ALIKE].any()


def planted(generator, size=40, places=300, noise=0.3):
    source = generator.standard_normal((size, places))
    order = generator.permutation(size)
    target = np.empty_like(source)
    target[order] = source + noise * generator.standard_normal(source.shape)
    return source, target, order


def undecided(size, group_target=None):
    """A matching that activations say nothing about: of independent samples, at a random place."""
    matching = match_matrix(np.zeros((size, size)), 9, np.zeros(size, bool), np.zeros(size, bool))
    assert matching.uncertain.all()
    chosen = np.arange(size) if group_target is None else group_target
    return replace(matching, gauge=Monomial(chosen, np.ones(size)))


@pytest.mark.parametrize("seed", range(3))
def test_signs_and_places_from_weights_alone(seed):
    generator = np.random.default_rng(seed)
    source, target, order = planted(generator)
    signs = generator.choice((-1.0, 1.0), len(order))
    moved = np.empty_like(target)
    moved[order] = signs[:, None] * target[order]
    found = _resolved(undecided(len(order)), [_Rows(source, moved, True)], Cost.ABSOLUTE)
    assert found.by_weights.all()
    assert not found.uncertain.any()
    assert np.array_equal(found.gauge.target, order)
    assert np.array_equal(found.gauge.factors, signs)


@pytest.mark.parametrize("seed", range(3))
def test_strangers_weights_are_certain_of_nothing_and_no_further_apart_than_before(seed):
    generator = np.random.default_rng(seed)
    source, target = generator.standard_normal((2, 40, 300))
    before = generator.permutation(40)
    found = _resolved(undecided(40, before), [_Rows(source, target, True)], Cost.SIGNED)
    assert not found.by_weights.any()
    assert found.uncertain.all()
    apart = [np.square(source - target[each]).sum() for each in (found.gauge.target, np.arange(40))]
    assert apart[0] <= apart[1]


def test_numbers_go_back_where_the_identity_is_nearer():
    left, right = np.array([2, 5, 7, 8]), np.array([2, 5, 7, 9])
    nearness = np.zeros((4, 4))
    nearness[[0, 1, 2], [0, 1, 2]] = 1.0
    # 2 and 5 have changed places; 8 went to 7 and 7 to 9
    kept = np.array([1, 0, 3, 2])
    back = _no_worse_than_identity(nearness, left, right, kept, np.zeros(4, dtype=bool))
    assert back.tolist() == [0, 1, 2, 3]
    nearness[0, 1] = 3.0
    back = _no_worse_than_identity(nearness, left, right, kept, np.zeros(4, dtype=bool))
    assert back.tolist() == [1, 0, 2, 3]
