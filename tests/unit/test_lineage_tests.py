"""The tests of lineage: exact on independent models, blind where they must be, and the count behind
changes of coordinates.
"""

from __future__ import annotations

import importlib
from functools import cache

import numpy as np
import pytest
import torch
import transformers
from scipy.stats import binom, kstest

from normgauge.anatomy import describe
from normgauge.checkpoints.building import reinitialise
from normgauge.errors import InputError
from normgauge.gauge.random_gauges import random_gauge
from normgauge.gauge.transform import transform
from normgauge.lineage.decision import Verdict, lineage
from normgauge.lineage.discrete import random_discrete_gauge
from normgauge.lineage.frame_match import agreeing, beyond_reads, frame_match, frame_of
from normgauge.lineage.held_initial import fresh_initialisations, held_initial_test
from normgauge.lineage.localisation import localise
from normgauge.lineage.null import hidden_test, stream_test, units_test
from normgauge.lineage.tiny import tiny_config, tiny_tensors
from normgauge.lineage.trace_test import double_centred, trace_test
from normgauge.lineage.units import Side, class_prefixes, hidden_units, pair_of
from unit.gauge_models import random_checkpoint
from unit.test_verbs import GPT2, document, refused, saved, summary

ANATOMY = describe(tiny_config())
MODELS = 16


@cache
def tiny(seed, steps=4):
    return tiny_tensors(seed, steps)


def side(seed, steps=4):
    return Side(ANATOMY, tiny(seed, steps))


@cache
def derived():
    """A model trained on from model 0, on other sequences."""
    return tiny_tensors(77, 6, tiny(0), rate=1e-3)


def gauged(tensors, seed, discrete=True, spaces=None):
    draw = random_discrete_gauge if discrete else random_gauge
    gauge = draw(ANATOMY, seed)
    if spaces is not None:
        gauge = type(gauge)({n: e for n, e in gauge.elements.items() if spaces(n)})
    return Side(ANATOMY, dict(transform(ANATOMY, tensors, gauge)))


def test_p_values_of_independent_models_are_uniform():
    """Disjoint pairs of models that saw one source of data; the committed null has 200."""
    found = []
    for number in range(MODELS // 2):
        pair = pair_of(side(2 * number), side(2 * number + 1))
        found += [units_test(pair, number, 199).p, stream_test(pair, number, True, 199).p]
    assert kstest(found, "uniform").pvalue > 0.01
    assert sum(p <= 0.05 for p in found) <= binom.ppf(0.999, len(found), 0.05)
    matches = [frame_match(pair_of(side(n), side(n + 1))) for n in range(0, MODELS, 2)]
    mean = np.mean([each.agreements / len(each.layers) for each in matches])
    assert 0.5 < mean < 1.7


def test_the_tests_find_descent_and_say_where():
    found = lineage(side(0), Side(ANATOMY, derived()), draws=999)
    assert found.verdict == Verdict.RELATED
    assert found.units.p == found.stream.p == 0.001
    assert found.units.z > 10
    assert len(found.sources) == 2
    strangers = lineage(side(1), Side(ANATOMY, derived()), draws=999)
    assert strangers.verdict == Verdict.UNRELATED
    assert strangers.sources == ()


def test_a_permutation_takes_the_power_of_the_exact_tests_and_not_the_count():
    expected = frame_match(pair_of(side(0), Side(ANATOMY, derived())))
    for seed in range(3):
        found = lineage(side(0), gauged(derived(), seed), draws=199)
        assert found.units.p > 0.005
        assert found.stream.p > 0.005
        assert found.match.agreements == expected.agreements > 90
        general = lineage(side(0), gauged(derived(), seed, discrete=False), draws=199)
        assert general.match.agreements == expected.agreements


def test_signs_of_the_linear_branch_and_scales_do_not_hide_units():
    found = frame_match(
        pair_of(side(0), gauged(derived(), 1, discrete=False, spaces=lambda n: n.endswith("ffn")))
    )
    assert found.agreements > 90


class Seen:
    """A batch as the models take it."""

    def __init__(self, seed):
        ids = torch.randint(64, (4, 16), generator=torch.Generator().manual_seed(seed))
        self.inputs = {"input_ids": ids}


def hidden_of(tensors):
    checkpoint, _ = random_checkpoint(tiny_config())
    own = type(checkpoint)(checkpoint.config, tensors, checkpoint.stored, checkpoint.files)
    return hidden_units(own, ANATOMY, [Seen(1)])


def test_hidden_activations_do_not_see_gauges_of_stream_and_attention():
    plain = hidden_of(derived())
    turned = hidden_of(gauged(derived(), 2, spaces=lambda n: not n.endswith("ffn")).tensors)
    moved = hidden_of(gauged(derived(), 2).tensors)
    first = hidden_of(tiny(0))
    expected = hidden_test(first, plain, 0, 199)
    found = hidden_test(first, turned, 0, 199)
    assert found.z == pytest.approx(expected.z, rel=1e-3)
    assert found.p == expected.p == 0.005
    assert hidden_test(first, moved, 0, 199).p > 0.005


def test_mean_and_variance_of_the_trace_are_exact():
    similarity = np.random.default_rng(0).standard_normal((5, 5)) + 3
    centred = double_centred(similarity)
    from itertools import permutations

    traces = [sum(centred[i, p] for i, p in enumerate(each)) for each in permutations(range(5))]
    assert np.mean(traces) == pytest.approx(0, abs=1e-12)
    assert np.var(traces) == pytest.approx(np.square(centred).sum() / 4)
    assert trace_test([similarity], 0, 99).z == pytest.approx(np.trace(centred) / np.std(traces))


def test_layers_copied_from_one_need_one_permutation_for_all():
    """Where an initialisation copies one layer into all, permutations of each layer by itself
    reject independent models; one permutation for all does not.
    """
    generator = np.random.default_rng(1)
    shared, apart = [], []
    for seed in range(40):
        one, other = (generator.standard_normal((30, 20)) for _ in range(2))
        layers = [
            (one + 0.1 * generator.standard_normal(one.shape))
            @ (other + 0.1 * generator.standard_normal(other.shape)).T
            for _ in range(6)
        ]
        shared.append(trace_test(layers, seed, 99).p)
        z = sum(trace_test([each], seed, 9).z for each in layers) / 6**0.5
        apart.append(z > 1.645)  # layers taken as independent
    assert kstest(shared, "uniform").pvalue > 0.01
    assert np.mean(apart) > 0.15


def test_without_regression_the_two_matches_of_unrelated_models_agree_too_often(monkeypatch):
    module = importlib.import_module("normgauge.lineage.frame_match")
    generator = np.random.default_rng(2)

    def layer():
        read = generator.standard_normal((60, 12))
        write = read @ np.eye(12) + 0.3 * generator.standard_normal((60, 12))
        return module.Layer("x", "residual", (read,), write)

    pairs = [(layer(), layer()) for _ in range(8)]
    kept = np.mean([len(agreeing(*pair, np.eye(12))) for pair in pairs])
    monkeypatch.setattr(module, "beyond_reads", lambda each: each.write)
    left = np.mean([len(agreeing(*pair, np.eye(12))) for pair in pairs])
    assert kept < 3
    assert left > 4 * max(kept, 1)


def test_the_frame_is_found_behind_rotations_and_signed_permutations():
    generator = np.random.default_rng(3)
    table = generator.standard_normal((40, 8))
    rotation = np.linalg.qr(generator.standard_normal((8, 8)))[0]
    assert np.allclose(frame_of({"t": table}, {"t": table @ rotation}), rotation)
    short = generator.standard_normal((5, 8))
    signed = np.eye(8)[generator.permutation(8)] * generator.choice((-1, 1), 8)[:, None]
    assert np.array_equal(frame_of({"t": short}, {"t": short @ signed}), signed)
    layer = pair_of(side(0), side(1)).layers[0][0]
    left = beyond_reads(layer)
    lengths = np.linalg.norm(layer.reads[-1], axis=1, keepdims=True)
    assert np.abs(left.T @ (layer.reads[-1] / lengths)).max() < 1e-12


def test_with_the_initial_weights_held_the_test_is_exact_behind_every_gauge():
    start = dict(reinitialise(tiny_config(), 500, "float32").state_dict())
    trained = tiny_tensors(5, 6, start, rate=1e-3)
    fresh = [
        dict(reinitialise(tiny_config(), 600 + seed, "float32").state_dict()) for seed in range(19)
    ]
    hidden = gauged(trained, 3, discrete=False)
    found = held_initial_test(Side(ANATOMY, start), hidden, fresh.__getitem__, 19)
    assert found.p == 1 / 20
    assert found.statistic > 4 * found.largest_fresh
    other = held_initial_test(Side(ANATOMY, fresh[0]), hidden, fresh[1:].__getitem__, 18)
    assert other.statistic < found.statistic / 4


def test_no_fresh_initialisation_is_that_of_a_small_seed():
    checkpoint, _ = random_checkpoint(tiny_config())
    fresh, name = fresh_initialisations(checkpoint), "model.layers.0.mlp.up_proj.weight"
    for seed in range(3):
        typed = reinitialise(tiny_config(), seed, "float32").state_dict()[name]
        assert not any(fresh(number)[name].equal(typed) for number in range(3))


def test_models_of_other_depth_are_compared_block_by_block():
    config = tiny_config()
    config.num_hidden_layers = 3
    deep, anatomy = random_checkpoint(config)
    tensors = {**deep.tensors, **{n: v for n, v in tiny(0).items() if n in deep.tensors}}
    found = lineage(Side(ANATOMY, tiny(0)), Side(anatomy, tensors), draws=199)
    assert found.verdict == Verdict.RELATED
    assert len(found.match.layers) == 2


def test_classes_of_one_family_are_compared_under_their_common_names():
    config = transformers.BertConfig(
        hidden_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=20,
        vocab_size=30,
        max_position_embeddings=12,
    )
    anatomies = []
    for name in ("BertModel", "BertForMaskedLM"):
        config.architectures = [name]
        anatomies.append(describe(config))
    assert class_prefixes(*anatomies) == ("", "bert.")


def test_the_verb_lineage(tmp_path, capsys):
    torch.manual_seed(1)
    config = transformers.GPT2Config(**GPT2)
    first = saved(tmp_path / "a", transformers.GPT2LMHeadModel(config))
    second = saved(tmp_path / "b", transformers.GPT2LMHeadModel(config))
    lines = summary(capsys, "lineage", first, first, second, "--draws", "999")
    assert [line.split()[-1] for line in lines[1:4]] == ["related", "evidence", "evidence"]
    found = document(capsys, "lineage", first, second, "--draws", "9", "--initial", first)
    (only,) = found["pairs"]
    assert only["count"]["expected"] == 2
    assert set(only["exact"]) == {"units", "stream", "initial"}
    lines = summary(capsys, "lineage", first, first, "--draws", "9", "--where")
    assert sum("64 of 64 units from" in line for line in lines) == 2
    assert "two or more" in refused(capsys, "lineage", first)


def test_models_that_cannot_be_compared_are_refused():
    other, anatomy = random_checkpoint(
        transformers.GPT2Config(**GPT2, architectures=["GPT2LMHeadModel"])
    )
    with pytest.raises(InputError, match="models of one family"):
        pair_of(side(0), Side(anatomy, other.tensors))
    name = "model.layers.0.mlp.up_proj.weight"
    for value in (np.nan, np.inf):
        broken = {**tiny(0), name: torch.full_like(tiny(0)[name], value)}
        with pytest.raises(InputError, match=f"B: tensor {name} holds"):
            lineage(side(0), Side(ANATOMY, broken))


def pruned(units, width):
    """Model 0 with its first units and coordinates alone, under a signed permutation of both."""
    config = tiny_config()
    config.intermediate_size, config.hidden_size, config.head_dim = units, width, 8
    anatomy = describe(config)
    generator = np.random.default_rng(8)
    kept = {16: generator.permutation(16)[:width], 48: generator.permutation(48)[:units]}
    tensors = {}
    for tensor in anatomy.tensors:
        value = tiny(0)[tensor.name]
        for axis, (old, new) in enumerate(zip(value.shape, tensor.shape, strict=True)):
            if old != new:
                value = value.index_select(axis, torch.tensor(kept[old][:new]))
        tensors[tensor.name] = value
    return Side(anatomy, tensors)


def test_models_of_other_width_and_with_fewer_units_are_compared_unit_by_unit():
    for units, width in ((40, 16), (48, 14)):
        small = pruned(units, width)
        for pair in ((side(0), small), (small, side(0))):
            found = lineage(*pair, draws=99)
            assert found.verdict == Verdict.RELATED, (units, width)
            assert found.match.units == 2 * units
            assert found.match.expected == pytest.approx(2 * units / 48)
        assert lineage(side(1), small, draws=99).verdict == Verdict.UNRELATED


def test_models_of_which_nothing_can_be_compared_are_not_called_unrelated():
    with pytest.raises(InputError, match="nothing tells whether they are related"):
        lineage(side(0), pruned(18, 12))


def shuffled_blocks(seed):
    """Four blocks of a Llama; and a copy under every gauge whose blocks are 3, 1, a stranger, 2."""
    config = tiny_config()
    config.num_hidden_layers, config.num_attention_heads, config.num_key_value_heads = 4, 4, 2
    (first, anatomy), (stranger, _) = (random_checkpoint(config, seed + k) for k in (0, 1))
    order = {0: 2, 1: 0, 2: None, 3: 1}
    spliced = dict(first.tensors)
    for block, source in order.items():
        for name in first.tensors:
            if name.startswith(f"model.layers.{block}."):
                origin = name.replace(f"layers.{block}.", f"layers.{source}.")
                spliced[name] = stranger.tensors[name] if source is None else first.tensors[origin]
    gauge = random_gauge(anatomy, seed)
    return (
        Side(anatomy, first.tensors),
        Side(anatomy, dict(transform(anatomy, spliced, gauge))),
        gauge,
        Side(anatomy, stranger.tensors),
    )


def test_blocks_units_and_heads_are_found_where_they_come_from():
    first, spliced, gauge, stranger = shuffled_blocks(3)
    found = localise(first, spliced)
    assert [each.source for each in found.units] == [
        "decoder/block.3/ffn",
        "decoder/block.1/ffn",
        "",
        "decoder/block.2/ffn",
    ]
    assert [each.source for each in found.heads] == [
        "decoder/block.3",
        "decoder/block.1",
        "",
        "decoder/block.2",
    ]
    for each in found.units:
        if each.source:
            target = gauge.elements[each.layer].target
            assert len(each.units) == each.total == 48
            assert (target[each.units[:, 0]] == each.units[:, 1]).all()
    for each in found.heads:
        if each.source:
            places = gauge.elements[f"{each.layer}/attention"].query.order
            assert len(each.heads) == each.total == 4
            assert (places[each.heads[:, 0]] == each.heads[:, 1]).all()
    nothing = localise(stranger, first)
    assert not any(each.source for each in (*nothing.units, *nothing.heads))
