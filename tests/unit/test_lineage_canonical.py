"""The canonical form: one per class under discrete gauges, the same function, another one for
another model.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch
import transformers

from normgauge.checkpoints.building import build_model
from normgauge.errors import InputError
from normgauge.gauge.equivalence import outputs
from normgauge.gauge.transform import transform
from normgauge.lineage.canonical import canonical, canonical_tensors, digest_of
from normgauge.lineage.discrete import random_discrete_gauge
from unit.gauge_models import CLASSES, random_checkpoint, tiny

FEW = [("gpt2", "GPT2LMHeadModel"), ("llama", "LlamaForCausalLM"), ("sceptr", "Sceptr")]


def moved(anatomy, tensors, seed, signs=True):
    return dict(transform(anatomy, tensors, random_discrete_gauge(anatomy, seed, signs)))


@cache
def form(case, architecture):
    checkpoint, anatomy = tiny(case, architecture)
    return canonical(anatomy, checkpoint.tensors)


def llama(groups=2, heads=4, seed=5, **changes):
    config = transformers.LlamaConfig(
        hidden_size=changes.pop("hidden_size", 8),
        num_hidden_layers=1,
        num_attention_heads=heads,
        num_key_value_heads=groups,
        head_dim=4,
        intermediate_size=6,
        vocab_size=9,
        tie_word_embeddings=False,
        bos_token_id=0,
        eos_token_id=0,
        architectures=["LlamaForCausalLM"],
        **changes,
    )
    checkpoint, anatomy = random_checkpoint(config, seed)
    return dict(checkpoint.tensors), anatomy


@pytest.mark.parametrize(("case", "architecture"), CLASSES, ids=str)
def test_copies_under_random_discrete_gauges_have_one_form(case, architecture):
    checkpoint, anatomy = tiny(case, architecture)
    expected = form(case, architecture)
    assert expected.proven
    for seed in range(2):
        copy = moved(anatomy, checkpoint.tensors, seed)
        found = canonical(anatomy, copy)
        assert found.sha256 == expected.sha256
        bytes_of = canonical_tensors(anatomy, copy, found.gauge)
        assert digest_of({name: bytes_of[name] for name in bytes_of}) == digest_of(
            canonical_tensors(anatomy, checkpoint.tensors, expected.gauge)
        )


@pytest.mark.parametrize(("case", "architecture"), FEW)
def test_the_form_is_its_own_form(case, architecture):
    checkpoint, anatomy = tiny(case, architecture)
    first = form(case, architecture)
    tensors = canonical_tensors(anatomy, checkpoint.tensors, first.gauge)
    again = canonical(anatomy, tensors)
    assert again.sha256 == first.sha256
    brought = canonical_tensors(anatomy, tensors, again.gauge)
    assert all(brought[name].equal(tensors[name]) for name in tensors)


@pytest.mark.parametrize(("case", "architecture"), FEW)
def test_one_value_makes_another_form(case, architecture):
    checkpoint, anatomy = tiny(case, architecture)
    expected = form(case, architecture).sha256
    generator = np.random.default_rng(3)
    names = [tensor.name for tensor in anatomy.tensors if tensor.alias_of is None]
    for number in range(12):
        tensors = {name: value.clone() for name, value in checkpoint.tensors.items()}
        name = names[generator.integers(len(names))]
        flat = tensors[name].view(-1)
        place, other = generator.integers(flat.numel(), size=2)
        before = flat.clone()
        if number % 3 == 0:
            flat[place] = torch.nextafter(flat[place], torch.tensor(math.inf))
        elif number % 3 == 1:
            flat[place] *= -1
        else:
            flat[place], flat[other] = before[other], before[place]
        same = bool((flat == before).all())
        found = canonical(anatomy, moved(anatomy, tensors, number)).sha256
        assert (found == expected) == same, (name, number)


def test_the_form_keeps_the_function():
    checkpoint, anatomy = tiny("llama", "LlamaForCausalLM")
    tensors = canonical_tensors(
        anatomy, checkpoint.tensors, form("llama", "LlamaForCausalLM").gauge
    )
    ids = torch.arange(12).reshape(2, 6)
    before, after = (
        outputs(build_model(each, "float64"), {"input_ids": ids})["logits"]
        for each in (checkpoint, replace(checkpoint, tensors=tensors))
    )
    assert float((before - after).abs().max()) < 1e-12 * float(before.abs().max())


def filled(kind, shape, generator):
    if kind == "ternary":
        return torch.randint(-1, 2, shape, generator=generator).float()
    if kind == "sparse":
        kept = torch.rand(shape, generator=generator) < 0.15
        return torch.where(kept, torch.randn(shape, generator=generator), 0.0)
    if kind == "bfloat16":
        return (0.1 * torch.randn(shape, generator=generator)).bfloat16()
    return torch.full(shape, 0.5 if kind == "constant" else 0.0)


@pytest.mark.parametrize("kind", ["ternary", "sparse", "bfloat16", "constant", "zero"])
@pytest.mark.parametrize(("case", "architecture"), [*FEW, ("qwen3", "Qwen3ForCausalLM")])
def test_weights_with_many_equal_values(kind, case, architecture):
    checkpoint, anatomy = tiny(case, architecture)
    generator = torch.Generator().manual_seed(1)
    tensors = {
        name: filled(kind, value.shape, generator) for name, value in checkpoint.tensors.items()
    }
    expected = canonical(anatomy, tensors)
    found = [canonical(anatomy, moved(anatomy, tensors, seed)) for seed in range(2)]
    assert expected.proven
    assert {each.sha256 for each in found} == {expected.sha256}


def test_interchangeable_units_heads_and_groups():
    tensors, anatomy = llama()
    block = "model.layers.0."
    gate, up, down = (f"{block}mlp.{name}_proj.weight" for name in ("gate", "up", "down"))
    for name in (gate, up):
        tensors[name][1] = tensors[name][0]
    tensors[down][:, 1] = tensors[down][:, 0]
    query, key, value, output = (f"{block}self_attn.{name}_proj.weight" for name in "qkvo")
    tensors[query][4:8] = tensors[query][:4]  # two heads of the first group
    tensors[output][:, 4:8] = tensors[output][:, :4]
    twins = canonical(anatomy, tensors)
    assert twins.proven
    assert twins.leaves == 1
    for name in (key, value):
        tensors[name][4:] = tensors[name][:4]
    tensors[query][8:], tensors[output][:, 8:] = tensors[query][:8], tensors[output][:, :8]
    groups = canonical(anatomy, tensors)
    assert groups.proven
    assert groups.leaves == 1
    for seed in range(3):
        assert canonical(anatomy, moved(anatomy, tensors, seed)).sha256 == groups.sha256


def test_pairs_that_can_only_be_exchanged_together():
    """Coordinates 0 and 1 of the stream, and the tokens' columns, are alike; units tell them apart,
    and are exchanged with them.
    """
    tensors, anatomy = llama()
    for name, value in tensors.items():
        if value.ndim == 1:
            value[1] = value[0]
        elif name.endswith("down_proj.weight"):
            value[1] = value[0]
            value[0, [0, 1]], value[1, [0, 1]] = torch.tensor([0.3, 0.7]), torch.tensor([0.7, 0.3])
            value[2:, 1] = value[2:, 0]
        elif name.endswith(("gate_proj.weight", "up_proj.weight")):
            value[:, 1] = value[:, 0]
            value[1] = value[0]
            value[0, 0] = value[1, 1] = 0.9
            value[0, 1] = value[1, 0] = 0.2
        elif name.endswith("o_proj.weight"):
            value[1] = value[0]
        else:
            value[:, 1] = value[:, 0]
    expected = canonical(anatomy, tensors)
    assert expected.proven
    assert expected.leaves > 1
    found = {canonical(anatomy, moved(anatomy, tensors, seed)).sha256 for seed in range(4)}
    assert found == {expected.sha256}


def cycles(*lengths):
    """The adjacency of disjoint cycles; their nodes all have two neighbours."""
    return torch.block_diag(
        *(torch.eye(each).roll(1, 0) + torch.eye(each).roll(-1, 0) for each in lengths)
    )


def test_graphs_that_refinement_alone_cannot_tell_apart():
    """A hexagon and two triangles, as what units read of a stream that nothing else tells apart."""
    tensors, anatomy = llama(groups=1, heads=1, hidden_size=6)
    plain = {
        name: torch.ones_like(value) if value.ndim == 1 else torch.zeros_like(value)
        for name, value in tensors.items()
    }
    plain["model.embed_tokens.weight"] += 1
    for name in ("gate", "down"):
        plain[f"model.layers.0.mlp.{name}_proj.weight"] = torch.eye(6)
    found = []
    for graph in (cycles(6), cycles(3, 3)):
        plain["model.layers.0.mlp.up_proj.weight"] = graph
        forms = [canonical(anatomy, copy) for copy in (plain, moved(anatomy, plain, 1))]
        assert all(each.proven and each.leaves > 1 for each in forms)
        found.append({each.sha256 for each in forms})
    assert [len(each) for each in (*found, found[0] | found[1])] == [1, 1, 2]


def hadamard(size):
    return np.ones((1, 1)) if size == 1 else np.kron(hadamard(size // 2), [[1, 1], [1, -1]])


def test_weights_like_hadamard_s_are_decided_or_flagged():
    tensors, anatomy = llama()
    for name, value in tensors.items():
        size = max(value.shape)
        full = torch.from_numpy(hadamard(1 << (size - 1).bit_length())).float()
        tensors[name] = full[: len(value), : value.shape[-1]] if value.ndim == 2 else full[0, :8]
    forms = [canonical(anatomy, moved(anatomy, tensors, seed), leaves=10) for seed in (1, 2)]
    assert forms[0].sha256 == forms[1].sha256 or not all(each.proven for each in forms)


def test_zeros_have_no_sign_and_nan_is_refused():
    tensors, anatomy = llama()
    name = "model.layers.0.mlp.up_proj.weight"
    tensors[name][0, 0] = 0.0
    expected = canonical(anatomy, tensors).sha256
    tensors[name][0, 0] = -0.0
    assert canonical(anatomy, tensors).sha256 == expected
    tensors[name][0, 0] = math.nan
    with pytest.raises(InputError, match=f"{name} holds NaN"):
        canonical(anatomy, tensors)


def test_tied_copies_do_not_count():
    checkpoint, anatomy = tiny("gpt2", "GPT2LMHeadModel")
    tensors = dict(checkpoint.tensors)
    both = {**tensors, "lm_head.weight": tensors["transformer.wte.weight"]}
    other = {name: value for name, value in both.items() if name != "transformer.wte.weight"}
    expected = form("gpt2", "GPT2LMHeadModel").sha256
    for stored in (both, other):
        assert canonical(anatomy, stored).sha256 == expected
