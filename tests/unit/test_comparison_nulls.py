"""p-values and corrections by hand, energy laws against simulation, planted edits found first, and nothing found where there is nothing."""

from __future__ import annotations

from collections import defaultdict
from itertools import permutations

import numpy as np
import pytest
import torch
from jsonschema import ValidationError

from normgauge.anatomy import describe
from normgauge.comparison.alignment import align
from normgauge.comparison.decision import decide, write_decision
from normgauge.comparison.folds import fold_steps, foldable_norms
from normgauge.comparison.kernels import Kernel, change
from normgauge.comparison.location import head_components, kernel_spread, table_components, table_names, unit_components
from normgauge.comparison.nulls import (
    Test,
    benjamini_hochberg,
    energy_ratios,
    largest_energy_ratios,
    largest_statistic,
    matched_tokens,
    relabellings,
    rotated_products,
    test_rows,
)
from normgauge.comparison.pair import make_pair
from normgauge.comparison.precision import mantissa_bits, rounding_variance
from normgauge.comparison.study import all_tests, compare
from normgauge.errors import InputError
from normgauge.gauge.admissible import gauge_spaces, random_gauge
from normgauge.gauge.transform import transform
from unit.comparison_pairs import FAMILIES, PROBES, changed, checkpoint

test_rows.__test__ = False  # type: ignore[attr-defined]
Test.__test__ = False  # type: ignore[attr-defined]
SMALL = {"num_hidden_layers": 3}
GAUGED = {"gemma3": {"num_key_value_heads": 1}, "llama": {}, "gpt2": {}, "bert": {}}
"""Families with a key head of its own for every query head or one for all, a bias for every map or none."""


def one_test(observed: float, draws, confirmatory: bool = True, statistic: str = "ov_energy") -> Test:
    return Test(statistic, "null", observed, np.asarray(draws, dtype=float), confirmatory, {"block": 1, "part": "attention", "head": 0})


def test_p_counts_the_observed_value_as_one_of_the_draws():
    assert one_test(5.0, range(9)).p == (4 + 1) / (9 + 1)
    assert one_test(100.0, range(9)).p == one_test(100.0, range(9)).smallest_p == 1 / 10


def test_benjamini_hochberg_by_hand():
    assert benjamini_hochberg([0.01, 0.04, 0.03, 0.9]) == pytest.approx([0.04, 0.16 / 3, 0.16 / 3, 0.9])
    assert benjamini_hochberg([]) == []


def test_the_familywise_p_is_that_of_the_most_extreme_draw():
    generator = np.random.default_rng(0)
    tests = [one_test(float(generator.standard_normal()), generator.standard_normal(999)) for _ in range(20)]
    smallest = min(test.p for test in tests)
    # of twenty independent uniform p-values the smallest is below x with probability 1 - (1 - x)^20
    assert min(largest_statistic(tests)) == pytest.approx(1 - (1 - smallest) ** 20, abs=0.05)


def test_exploratory_tests_are_corrected_apart_and_never_significant():
    rows = test_rows([one_test(9.0, range(8), confirmatory) for confirmatory in (False, True) for _ in range(2)])
    assert [row["confirmatory"] for row in rows] == [True, True, False, False]
    assert not any(row["significant"] for row in rows if not row["confirmatory"])


def test_relabellings_are_all_of_them_for_few_tokens():
    matrix = np.random.default_rng(0).standard_normal((5, 5))
    found = relabellings(matrix, 10, np.random.default_rng(1))
    expected = [sum(matrix[i, s[i]] for i in range(5)) for s in permutations(range(5))][1:]
    assert np.allclose(np.sort(found), np.sort(expected))
    assert len(relabellings(np.eye(9), 10, np.random.default_rng(1))) == 10


def test_rotations_keep_the_identity_product():
    matrix = np.random.default_rng(0).standard_normal((4, 4))
    assert rotated_products(matrix, matrix, np.eye(4)[None])[0] == pytest.approx(np.sum(matrix**2))


def test_matched_tokens_are_alike_in_length_and_never_the_probes():
    lengths = np.random.default_rng(0).uniform(1, 2, 500)
    ids = (3, 77, 120)
    drawn = matched_tokens(lengths, ids, 50, np.random.default_rng(1))
    assert not np.isin(drawn, ids).any()
    assert np.abs(lengths[drawn] - lengths[list(ids)]).max() < 0.2


def test_the_energy_law_is_that_of_random_changes():
    """Mean and variance of |dL R + L dR|^2 over many normal changes, in the balanced basis that the law assumes."""
    generator = np.random.default_rng(0)
    size, rank = 24, 4
    values = np.array([3.0, 2.0, 1.0, 0.5])
    left = np.linalg.qr(generator.standard_normal((size, rank)))[0] * np.sqrt(values)
    right = (np.linalg.qr(generator.standard_normal((size, rank)))[0] * np.sqrt(values)).T
    small = 1e-4
    energies = np.array(
        [
            change(
                Kernel(left, right),
                Kernel(left + small * generator.standard_normal(left.shape), right + small * generator.standard_normal(right.shape)),
            ).energy()
            for _ in range(4000)
        ]
    )
    assert energies.mean() == pytest.approx(2 * small**2 * size * values.sum(), rel=0.02)
    assert energies.var() / energies.mean() ** 2 == pytest.approx(kernel_spread(values, size), rel=0.1)
    shape = 1 / kernel_spread(values, size)
    assert np.quantile(energies / energies.mean(), [0.05, 0.95]) == pytest.approx(
        np.quantile(energy_ratios(shape, 4000, generator), [0.05, 0.95]), rel=0.05
    )


def test_the_law_of_the_largest_is_that_of_the_largest_draw():
    generator = np.random.default_rng(0)
    for shapes in (np.full(30, 8.0), np.linspace(4, 20, 30)):
        drawn = np.max([generator.gamma(shape, size=5000) / shape for shape in shapes], axis=0)
        assert np.quantile(largest_energy_ratios(shapes, 5000, generator), [0.1, 0.5, 0.9]) == pytest.approx(
            np.quantile(drawn, [0.1, 0.5, 0.9]), rel=0.03
        )


def test_the_rounding_floor_is_what_rounding_does():
    values = torch.randn(200, 300, generator=torch.Generator().manual_seed(0))
    rounded = values.bfloat16().float()
    assert mantissa_bits(rounded) == 7
    assert mantissa_bits(values) == 23
    assert mantissa_bits(torch.tensor([1.0, 2.0, 0.5, 0.0])) == 0
    floor = rounding_variance(rounded.double().numpy(), 7, torch.float32).sum()
    assert floor == pytest.approx(float((rounded - values).double().square().sum()), rel=0.02)
    # of both sides: the relative difference of about 0.002 that independent rounding to bfloat16 gives
    assert (2 * floor / float(values.double().square().sum())) ** 0.5 == pytest.approx(0.0023, abs=2e-4)


def test_ones_do_not_make_a_coarse_grid():
    """A tensor of ones uses no mantissa bit; the grid is that of all tensors of its dtype."""
    source = checkpoint("bert", 1)
    name = next(name for name in source.tensors if name.endswith("LayerNorm.weight"))
    side = make_pair(changed(source, {name: torch.ones_like(source.tensors[name])}), source).a
    assert mantissa_bits(side.tensors[name]) == 0
    assert side.grid_bits(name) > 20
    assert side.floor(name).max() < 1e-12


def test_matrices_of_a_coarser_grid_than_the_gains_have_their_own_floor():
    """Matrices in bfloat16 and gains in float32, stored as float32: as the training of many models leaves them."""
    source = checkpoint("bert", 1)
    single = changed(source, {name: value.float() for name, value in source.tensors.items()})
    mixed = changed(source, {name: value.bfloat16().float() if value.ndim > 1 else value.float() for name, value in source.tensors.items()})
    side = make_pair(single, mixed).b
    assert {side.grid_bits(tensor.name) for tensor in side.anatomy.tensors if len(tensor.shape) > 1} == {7}
    assert side.grid_bits(next(name for name in side.tensors if name.endswith("LayerNorm.weight"))) > 20


def test_no_token_is_matched_where_there_is_none():
    with pytest.raises(InputError, match="no token beside"):
        matched_tokens(np.ones(4), range(4), 5, np.random.default_rng(0))


def tensor_name(source, *endings: str) -> str:
    return next(name for name in source.tensors if name.endswith(endings))


def with_rank_one_edit(source):
    """Head 2 of the second block writes one more direction."""
    names = [name for name in source.tensors if name.endswith(("o_proj.weight", "attn.c_proj.weight", "attention.output.dense.weight"))]
    weight = source.tensors[names[1]].clone()
    generator = torch.Generator().manual_seed(3)
    size = weight.shape[0] // 4 if names[1].endswith("c_proj.weight") else weight.shape[1] // heads_of(source)
    edit = torch.outer(torch.randn(weight.shape[0], generator=generator), torch.randn(size, generator=generator)).double()
    if names[1].endswith("c_proj.weight"):  # stored in x out
        size = weight.shape[0] // heads_of(source)
        edit = torch.outer(torch.randn(size, generator=generator), torch.randn(weight.shape[1], generator=generator)).double()
        weight[size : 2 * size] += 0.3 * edit
    else:
        weight[:, size : 2 * size] += 0.3 * edit
    return changed(source, {names[1]: weight}), {"statistic": "ov_energy", "block": 2, "head": 1}


def heads_of(source) -> int:
    return source.config.num_attention_heads


def with_scaled_unit(source):
    name = [
        name
        for name in source.tensors
        if name.endswith(("down_proj.weight", "mlp.c_proj.weight", "output.dense.weight")) and "attention" not in name
    ][2]
    weight = source.tensors[name].clone()
    (weight if name.endswith("c_proj.weight") else weight.T)[5] *= 1.5
    return changed(source, {name: weight}), {"statistic": "mlp_unit_terms", "block": 3, "unit": 5}


def with_edited_row(source):
    name = tensor_name(source, "embed_tokens.weight", "wte.weight", "word_embeddings.weight")
    weight = source.tensors[name].clone()
    weight[13] += 0.2
    return changed(source, {name: weight}), {"statistic": "table_row_energy", "token": 13, "label": name}


@pytest.mark.parametrize("edit", [with_rank_one_edit, with_scaled_unit, with_edited_row])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_planted_edit_is_ranked_first_with_the_smallest_p(family, edit):
    source = checkpoint(family, 1, **SMALL)
    edited, expected = edit(source)
    pair = make_pair(source, edited)
    rows = test_rows(all_tests(align(pair), (), None, 99, np.random.default_rng(0)))
    assert {key: rows[0][key] for key in expected} == expected
    assert rows[0]["significant"]
    assert rows[0]["p"] == rows[0]["smallest_p"]
    assert [row["significant"] for row in rows[1:]] == [False] * (len(rows) - 1)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_wrong_place_of_a_planted_edit_is_not_named(family):
    source = checkpoint(family, 1, **SMALL)
    decision = compare(make_pair(source, with_scaled_unit(source)[0]), (), 99, 0).decision
    assert [(item["layer"], item["part"], item["units"]) for item in decision["components"]] == [(3, "mlp", [5])]
    assert decision["label"] == "abstain"


@pytest.mark.parametrize("family", FAMILIES)
def test_seeds_and_rounding_give_nothing(family):
    """A few runs; benchmarks/comparison_nulls.py makes a hundred of each."""
    first = checkpoint(family, 11, **SMALL)
    rounded = changed(first, {name: value.bfloat16().double() for name, value in first.tensors.items()})
    for other in (checkpoint(family, 12, **SMALL), rounded):
        pair = make_pair(first, other)
        rows = test_rows(all_tests(align(pair), PROBES, "five", 99, np.random.default_rng(0)))
        assert sum(row["confirmatory"] for row in rows) > 20
        assert [row for row in rows if row["significant"]] == []


@pytest.mark.parametrize("family", GAUGED)
def test_gauges_and_rounding_together_give_nothing(family):
    """B is A in another gauge of every group at once, folds too, both stored as mixed precision leaves them."""
    found = 0
    for seed in range(3):
        aligned = align(gauged_and_stored(family, seed, mixed))
        assert {row["found"] for row in aligned.rows if row["group"] in ("residual", "units", "folds")} == {"gauge"}
        rows = test_rows(all_tests(aligned, PROBES, "five", 99, np.random.default_rng(0)))
        found += sum(row["significant"] for row in rows)
    assert found == 0


@pytest.mark.parametrize("family", GAUGED)
def test_the_floor_of_components_is_what_rounding_leaves_in_another_gauge(family):
    """Energies against what is expected of rounding alone, with long biases, and gains as coarse as the matrices."""
    energies, expected = defaultdict(float), defaultdict(float)
    for seed in range(3):
        aligned = align(gauged_and_stored(family, seed, torch.Tensor.bfloat16))
        tables = [table_components(aligned, name) for name in table_names(aligned.pair)]
        for components in (*head_components(aligned), unit_components(aligned), *tables):
            assert components is not None
            energies[components.statistic] += components.energies.sum()
            expected[components.statistic] += components.noise.mean.sum()
    ratios = {name: energies[name] / expected[name] for name in energies}
    assert ratios["ov_energy"] == pytest.approx(1.0, rel=0.15)
    assert max(ratios.values()) < 1.15  # less where a permutation leaves both sides the same rounding


def gauged_and_stored(family: str, seed: int, store):
    """A pair of one function: A, and A in another gauge of every group, both as `store` leaves their tensors."""
    plain = checkpoint(family, seed, **SMALL | GAUGED[family])
    long = {name: 4 * value for name, value in plain.tensors.items() if value.ndim == 1 and name.endswith("bias")}
    source = changed(plain, long)
    anatomy = describe(source.config)
    gauge = random_gauge(anatomy, seed, gauge_spaces(anatomy))
    moved = dict(transform(anatomy, {name: value.double() for name, value in source.tensors.items()}, gauge))
    generator = np.random.default_rng(seed)
    steps = fold_steps(anatomy, {norm.name: np.exp2(generator.uniform(-1, 1, norm.size)) for norm in foldable_norms(anatomy)})
    for name, each in steps.items():
        for step in each:
            moved[name] = step.apply(moved[name])
    return make_pair(as_stored(source, store), as_stored(changed(source, moved), store))


def mixed(value):
    """Matrices rounded to bfloat16, all else to float32."""
    return value.bfloat16() if value.ndim > 1 else value


def as_stored(source, store):
    return changed(source, {name: store(value).float() for name, value in source.tensors.items()})


def test_a_decision_names_the_side_with_more_and_keeps_its_schema(tmp_path):
    rows = test_rows([Test("ov_copy_all_heads", "relabelled tokens", 3.0, np.zeros(999), True, {"part": "attention"}, -3.0)])
    decision = decide(rows, "five", {"five": (), "other": ("x",)})
    assert (decision["label"], decision["probability"], decision["evidence"]) == ("A", 1 - 0.001 / 2, [0])
    assert decision["dropped_tokens"] == {"other": ["x"]}
    write_decision(tmp_path / "decision.json", decision)
    with pytest.raises(ValidationError):
        write_decision(tmp_path / "other.json", decision | {"label": "C"})
    assert [path.name for path in tmp_path.iterdir()] == ["decision.json"]


def test_a_decision_abstains_when_the_declared_test_does_not_survive():
    rows = test_rows([Test("ov_copy_all_heads", "relabelled tokens", 0.0, np.ones(999), True, {"part": "attention"}, 0.0)])
    decision = decide(rows, "five", {})
    assert (decision["label"], decision["probability"], decision["components"]) == ("abstain", 0.5, [])
    assert "does not survive" in decision["note"]
