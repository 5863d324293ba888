"""Heads whose activations do not tell where they belong are decided by weights, where these can."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from normgauge.gauge.head_evidence import decided_heads
from normgauge.gauge.head_matching import HeadMatching
from normgauge.gauge.model_gauge import Gauge
from normgauge.gauge.random_gauges import random_gauge
from normgauge.gauge.transform import transformed
from normgauge.gauge.weight_maps import Weights
from unit.gauge_models import config_of, random_checkpoint

CASES = {  # GELU and absolute positions; rotary positions, two query heads for each key
    "gpt2": ("GPT2LMHeadModel", {"n_embd": 48, "n_head": 6, "n_inner": 32}),
    "llama": (
        "LlamaForCausalLM",
        {"hidden_size": 48, "num_attention_heads": 6, "num_key_value_heads": 3, "head_dim": 8},
    ),
}
LAYER = "decoder/block.1/attention"


def undecided(element, uncertain, order=None):
    """A matching by activations that is wrong about the uncertain heads, or says this order."""
    groups, repeats = element.head_order.shape
    places = np.arange(groups * repeats) if order is None else order
    return HeadMatching(
        places.reshape(groups, repeats)[:, 0] // repeats,
        places.reshape(groups, repeats) % repeats,
        np.zeros((len(places), len(places))),
        np.zeros(len(places)),
        uncertain,
        uncertain.copy(),
        500,
        0.0,
    )


def pair(case, noise=0.1):
    """(anatomy, source's weights with its stream in place, the perturbed copy's, the layer's
    element): the copy is under a planted gauge of everything.
    """
    architecture, changes = CASES[case]
    checkpoint, anatomy = random_checkpoint(config_of(case, architecture, **changes))
    truth = random_gauge(anatomy, 4)
    generator = torch.Generator().manual_seed(7)
    tuned = {
        name: value
        + noise * value.std(correction=0) * torch.randn(value.shape, generator=generator)
        for name, value in checkpoint.tensors.items()
    }
    target = transformed(replace(checkpoint, tensors=tuned), anatomy, truth)
    stream = Gauge({"residual": truth.elements["residual"]})
    sides = (
        Weights(anatomy, checkpoint.tensors, stream),
        Weights(anatomy, target.tensors, Gauge({})),
    )
    return anatomy, *sides, truth.elements[LAYER]


def order_of(element):
    repeats = element.head_order.shape[1]
    return (element.group_order[:, None] * repeats + element.head_order).ravel()


@pytest.mark.parametrize("case", CASES)
def test_heads_that_say_nothing_are_told_apart_by_weights(case):
    anatomy, source, target, element = pair(case)
    truth = order_of(element)
    assert not np.array_equal(truth, np.arange(6))
    known = {"residual": np.ones(48, dtype=bool)}
    all_silent = undecided(element, np.ones(6, dtype=bool))
    found = decided_heads(anatomy, LAYER, all_silent, source, target, known)
    assert np.array_equal(found.order, truth)
    assert not found.uncertain.any()
    assert not found.silent.any()
    known["residual"][:24] = False  # half of the stream is enough
    found = decided_heads(anatomy, LAYER, all_silent, source, target, known)
    assert np.array_equal(found.order, truth)
    some = np.array([True, True, False, False, True, True])
    right = undecided(element, some, truth)
    assert not decided_heads(anatomy, LAYER, right, source, target, known).uncertain.any()


@pytest.mark.parametrize("case", CASES)
def test_weights_of_strangers_decide_nothing(case):
    """The control: the layer's maps are drawn anew in the target."""
    anatomy, source, target, element = pair(case)
    drawn = random_checkpoint(config_of(case, CASES[case][0], **CASES[case][1]), seed=9)[0]
    other = Weights(anatomy, drawn.tensors, Gauge({}))
    known = {"residual": np.ones(48, dtype=bool)}
    before = undecided(element, np.ones(6, dtype=bool))
    found = decided_heads(anatomy, LAYER, before, source, other, known)
    assert found.uncertain.all()
    assert np.array_equal(found.order, before.order)
    nothing = {"residual": np.zeros(48, dtype=bool)}
    assert decided_heads(anatomy, LAYER, before, source, target, nothing) is before


def test_two_heads_that_are_one_stay_uncertain():
    """Equal heads cannot be told apart by anything; the others are."""
    anatomy, source, target, element = pair("gpt2")
    truth = order_of(element)
    for weights, (first, second) in ((source, (0, 1)), (target, (truth[0], truth[1]))):
        for name, axis in (
            ("attn.c_attn.weight", 1),
            ("attn.c_attn.bias", 0),
            ("attn.c_proj.weight", 0),
        ):
            full = f"transformer.h.0.{name}"
            rows = weights.tensors[full].movedim(axis, 0)
            parts = rows.reshape(-1, 6, 8, *rows.shape[1:])
            parts[:, second] = parts[:, first]
    known = {"residual": np.ones(48, dtype=bool)}
    before = undecided(element, np.ones(6, dtype=bool))
    found = decided_heads(anatomy, LAYER, before, source, target, known)
    assert found.uncertain.tolist() == [True, True, False, False, False, False]
    assert np.array_equal(found.order[2:], truth[2:])
