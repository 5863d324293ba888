"""A checkpoint rewritten by any symmetry of docs/redundancy.md is equal to itself; one edit beside
it is found at its place.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch

from normgauge.anatomy import describe
from normgauge.checkpoint_comparison.align_gains import with_normal_gains
from normgauge.checkpoint_comparison.alignment import align
from normgauge.checkpoint_comparison.equality import differing
from normgauge.checkpoint_comparison.factors import attention_layers
from normgauge.checkpoint_comparison.location import located
from normgauge.checkpoint_comparison.pairing import make_pair
from normgauge.checkpoint_comparison.study import compare
from normgauge.redundancy.family import Kind
from normgauge.redundancy.files import read_shape
from normgauge.redundancy.measure import random_checkpoint
from normgauge.redundancy.readers import add_to_matrix, output_map, stored
from normgauge.redundancy.symmetries import symmetries

SHAPES = Path(__file__).parents[2] / "config" / "shapes" / "small"
SPREAD = 0.3  # of the coordinates of a random place
# one small model that has the family
KINDS = {
    Kind.QUERY_KEY: "qwen2",
    Kind.VALUE_OUTPUT: "gpt2",
    Kind.FEED_FORWARD: "gpt2-relu",
    Kind.ROTATION: "pythia",
    Kind.GAIN: "gemma2",
    Kind.BIAS: "bert",
    Kind.KERNEL: "bert",
    Kind.NULL_LINE: "gpt2",
    Kind.KEY_BIAS: "bert",
    Kind.VALUE_BIAS: "whisper",
    Kind.LOST_VALUE: "pythia-sequential",
    Kind.CONSTANT: "bert-masked-lm",
    Kind.HEAD_GAIN: "gemma3",
    Kind.SCORE_BIAS: "t5",
}
FAMILIES = ("gpt2", "gpt2-untied", "bert-masked-lm", "pythia", "llama", "qwen3", "gemma3", "t5")


def source(name: str):
    """A small random checkpoint in float32."""
    config = read_shape(SHAPES / f"tiny-{name}.json")
    found = random_checkpoint(config, 1)
    return with_tensors(found, stored(describe(config), found.tensors))


def with_tensors(checkpoint, tensors):
    """Stored in float32."""
    return dataclasses.replace(
        checkpoint, tensors={name: value.float() for name, value in tensors.items()}
    )


def rewritten(checkpoint, kinds):
    """The checkpoint at a random place of every family of these kinds, one after the other."""
    anatomy = describe(checkpoint.config)
    generator = np.random.default_rng(3)
    tensors = stored(anatomy, checkpoint.tensors)
    for symmetry in symmetries(anatomy):
        if symmetry.kind in kinds:
            tensors = symmetry.act(tensors, SPREAD * generator.standard_normal(symmetry.dimension))
    return with_tensors(checkpoint, tensors)


def edited(checkpoint):
    """The checkpoint with the output map of the last layer's head 1 changed by a tenth."""
    anatomy = describe(checkpoint.config)
    layer = attention_layers(anatomy)[-1]
    output = output_map(anatomy, layer.maps["value"])
    tensors = stored(anatomy, checkpoint.tensors)
    width, size = (anatomy.space(name).size for name in (output.writes, layer.maps["query"].writes))
    head = size // anatomy.space(layer.maps["query"].writes).heads
    change = torch.zeros(width, size, dtype=torch.float64)
    generator = torch.Generator().manual_seed(5)
    change[:, head : 2 * head] = 0.05 * torch.randn(width, head, generator=generator).double()
    add_to_matrix(anatomy, tensors, output, change)
    return with_tensors(checkpoint, tensors), layer.block


def apart(first, second):
    aligned = align(make_pair(first, second))
    return differing(aligned, located(aligned))


@pytest.mark.parametrize("kind", Kind)
def test_a_checkpoint_rewritten_by_a_symmetry_is_equal(kind):
    given = source(KINDS[kind])
    other = rewritten(given, {kind})
    assert any(not torch.equal(value, given.tensors[name]) for name, value in other.tensors.items())
    assert apart(given, other) == []


@pytest.mark.parametrize("name", FAMILIES)
def test_all_symmetries_at_once_are_taken_out_and_an_edit_beside_them_is_found(name):
    given = source(name)
    assert apart(given, rewritten(given, set(Kind))) == []
    other, block = edited(given)
    found = compare(make_pair(given, rewritten(other, set(Kind))), (), 99, 0)
    decision = found.decision
    assert decision["verdict"] == "changed"
    parts = {part["part"] for part in decision["differing"]}
    # where values have constants, what the head writes is part of the layer's constant too
    rest = parts - {f"block {block} head 1: ov_energy"}
    assert len(parts) == 1 + len(rest)
    assert all(f"block.{block}" in part and part.endswith("constant") for part in rest)
    first = found.nulls[0]
    assert (first["statistic"], first["block"], first["head"]) == ("ov_energy", block, 1)
    assert first["significant"]


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (Kind.VALUE_BIAS, "gpt2"),
        (Kind.BIAS, "bert"),
        (Kind.KERNEL, "gpt2"),
        (Kind.GAIN, "llama"),
        (Kind.HEAD_GAIN, "qwen3"),
        (Kind.CONSTANT, "bert-masked-lm"),
        (Kind.ROTATION, "llama"),
    ],
)
def test_a_symmetry_whose_compensation_is_left_out_is_no_equality(kind, name):
    given = source(name)
    other = rewritten(given, {kind})
    changed = [each for each in other.tensors if not torch.equal(*_both(given, other, each))]
    partly = {**other.tensors, changed[-1]: given.tensors[changed[-1]]}
    assert apart(given, with_tensors(given, partly)) != []


def _both(first, second, name):
    return first.tensors[name], second.tensors[name]


def test_equal_checkpoints_have_no_component_and_no_label():
    given = source("gpt2")
    decision = compare(make_pair(given, rewritten(given, set(Kind))), (), 99, 0).decision
    assert (decision["verdict"], decision["components"]) == ("equal", [])
    assert (decision["label"], decision["differing"]) == ("abstain", [])


def test_a_sign_goes_between_a_row_and_its_query_gain():
    given = source("qwen3")
    anatomy = describe(given.config)
    layer = attention_layers(anatomy)[0]
    norm = next(each for each in anatomy.norms if each.space == layer.maps["query"].writes)
    signs = torch.tensor([1.0, -1.0, 1.0, 1.0])
    weight = layer.maps["query"].weight
    heads = anatomy.space(norm.space).heads
    moved = {
        norm.gain: given.tensors[norm.gain] * signs,
        weight: given.tensors[weight] * signs.repeat(heads)[:, None],
    }
    other = with_tensors(given, {**given.tensors, **moved})
    assert apart(given, other) == []
    assert apart(given, with_tensors(given, {**given.tensors, weight: moved[weight]})) != []


def test_query_and_key_gains_are_brought_to_one_form_on_each_side():
    given = source("gemma3")
    pair = make_pair(given, rewritten(given, {Kind.HEAD_GAIN}))
    sides = [with_normal_gains(side) for side in (pair.a, pair.b)]
    norms = [norm for norm in pair.anatomy.norms if norm.space.endswith(("query", "key"))]
    for norm in norms:
        before, after = (side.tensor(norm.gain) for side in sides)
        np.testing.assert_allclose(after, before, atol=1e-6)
