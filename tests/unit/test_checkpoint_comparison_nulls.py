"""p-values and corrections by hand, energy laws against simulation, planted edits found first, and
nothing found where there is nothing.
"""

from __future__ import annotations

from collections import defaultdict
from itertools import permutations

import numpy as np
import pytest
import torch
from jsonschema import ValidationError
from scipy.stats import binom

from normgauge.anatomy import describe
from normgauge.checkpoint_comparison.alignment import align
from normgauge.checkpoint_comparison.components import Components, Noise
from normgauge.checkpoint_comparison.decision import decide, write_decision
from normgauge.checkpoint_comparison.folds import fold_steps, foldable_norms
from normgauge.checkpoint_comparison.head_components import head_components, kernel_spread
from normgauge.checkpoint_comparison.inventory import inventory_rows
from normgauge.checkpoint_comparison.kernels import Kernel, change
from normgauge.checkpoint_comparison.location import located, table_components, table_names
from normgauge.checkpoint_comparison.nulls import (
    Test,
    benjamini_hochberg,
    energy_ratios,
    familywise,
    largest_energy_ratios,
    matched_tokens,
    relabelled_traces,
    relabellings,
    rotated_products,
    test_rows,
)
from normgauge.checkpoint_comparison.pairing import make_pair
from normgauge.checkpoint_comparison.precision import mantissa_bits, rounding_variance
from normgauge.checkpoint_comparison.study import all_tests, compare
from normgauge.checkpoint_comparison.unit_components import unit_components
from normgauge.errors import InputError
from normgauge.gauge.admissible import gauge_spaces
from normgauge.gauge.random_gauges import random_gauge
from normgauge.gauge.transform import transform
from unit.comparison_pairs import FAMILIES, PROBES, changed, checkpoint

test_rows.__test__ = False  # type: ignore[attr-defined]
Test.__test__ = False  # type: ignore[attr-defined]
SMALL = {"num_hidden_layers": 3}
GAUGED = {"gemma3": {"num_key_value_heads": 1}, "llama": {}, "gpt2": {}, "bert": {}}
"""Families with a key head of its own for every query head or one for all, a bias for every map or
none.
"""


def one_test(
    observed: float, draws, confirmatory: bool = True, statistic: str = "ov_energy"
) -> Test:
    return Test(
        statistic,
        "null",
        observed,
        np.asarray(draws, dtype=float),
        confirmatory,
        {"block": 1, "part": "attention", "head": 0},
    )


def test_p_counts_the_observed_value_as_one_of_the_draws():
    assert one_test(5.0, range(9)).p == (4 + 1) / (9 + 1)
    assert one_test(100.0, range(9)).p == one_test(100.0, range(9)).smallest_p == 1 / 10


def test_benjamini_hochberg_by_hand():
    assert benjamini_hochberg([0.01, 0.04, 0.03, 0.9]) == pytest.approx(
        [0.04, 0.16 / 3, 0.16 / 3, 0.9]
    )
    assert benjamini_hochberg([]) == []


def test_the_familywise_p_is_that_of_the_smallest_p():
    generator = np.random.default_rng(0)
    tests = [
        one_test(float(generator.standard_normal()), generator.standard_normal(999))
        for _ in range(20)
    ]
    # of twenty independent uniform p-values the smallest is at most x with probability 1 - (1 -
    # x)^20
    assert familywise(tests) == pytest.approx([1 - (1 - test.p) ** 20 for test in tests], rel=1e-9)


def test_the_familywise_p_of_tests_that_share_their_draws_is_that_of_one_where_they_are_one():
    draws = np.random.default_rng(0).standard_normal(199)
    tests = [
        Test("ov_copy", "null", 2.0 * scale, scale * draws, True, shared="all")
        for scale in (1.0, 2.0, 5.0)
    ]
    assert familywise(tests) == pytest.approx([tests[0].p] * 3)
    apart = [Test(test.statistic, test.null, test.observed, test.draws, True) for test in tests]
    assert familywise(apart) == pytest.approx([1 - (1 - tests[0].p) ** 3] * 3)


def test_a_test_that_cannot_reach_a_p_does_not_count_against_it():
    strong, coarse = one_test(9.0, np.linspace(0, 1, 999)), one_test(0.5, np.linspace(0, 1, 23))
    assert familywise([strong, coarse])[0] == pytest.approx(1 / 1000)
    assert familywise([strong, coarse])[1] == pytest.approx(
        1 - (1 - coarse.p) * (1 - np.floor(coarse.p * 1000) / 1000)
    )


RUNS = 500


def independent_family(generator):
    """24 tests with 999 draws each."""
    return [one_test(row[0], row[1:]) for row in generator.standard_normal((24, 1000))]


def tied_family(generator):
    """The same with coarse values, many of them equal."""
    return [one_test(row[0], row[1:]) for row in np.round(generator.standard_normal((24, 1000)), 1)]


def small_family(generator):
    """Three tests, so that their smallest family-wise p is below 0.001."""
    return [one_test(row[0], row[1:]) for row in generator.standard_normal((3, 3999))]


def relabelled_family(generator):
    """The copy statistic of eight heads whose kernels are alike, and their sum: one relabelling
    acts on all; energies beside.
    """
    targets = np.argsort(generator.random((999, 9)), axis=1)
    targets[0] = np.arange(9)
    common = generator.standard_normal((9, 9))
    heads = [common + 0.3 * generator.standard_normal((9, 9)) for _ in range(8)]
    values = [np.abs(relabelled_traces(matrix, targets)) for matrix in (*heads, sum(heads))]
    tests = [
        Test("ov_copy", "relabelled tokens", row[0], row[1:], True, shared="tokens")
        for row in values
    ]
    # the observed labels are as random as the drawn ones: under the null they are one of them
    return [*tests, *small_family(generator)]


def energy_family(generator):
    """Eight heads that a random change of one variance reached; the tests fit that variance to the
    eight energies.
    """
    shapes, susceptibilities = generator.uniform(5, 60, 8), generator.uniform(1, 4, 8)
    energies = susceptibilities * generator.gamma(shapes) / shapes
    none = Noise(np.zeros(8), np.zeros(8))
    ratios, fitted = Components(
        "ov_energy", [], energies, susceptibilities, 1 / shapes, none, energies
    ).ratios()
    return [
        one_test(ratio, energy_ratios(shape, 999, generator))
        for ratio, shape in zip(ratios, fitted, strict=True)
    ]


FAMILIES_OF_TESTS = [
    independent_family,
    tied_family,
    small_family,
    relabelled_family,
    energy_family,
]


@pytest.mark.parametrize("family", FAMILIES_OF_TESTS)
def test_the_familywise_p_and_q_are_calibrated_under_the_global_null(family):
    """In 500 runs at most 5, 15 and 45 have a family-wise p, or a q, of 0.001, 0.01 and 0.05 or
    less: a calibrated p exceeds these bounds with probability 1e-4 (binomial).
    """
    generator = np.random.default_rng(0)
    smallest = []
    for _ in range(RUNS):
        tests = family(generator)
        smallest.append(
            [min(familywise(tests)), min(benjamini_hochberg([test.p for test in tests]))]
        )
    found = np.array(smallest)
    bounds = [binom.ppf(1 - 1e-4, RUNS, level) for level in (0.001, 0.01, 0.05)]
    assert bounds == [5, 15, 45]
    for level, bound in zip((0.001, 0.01, 0.05), bounds, strict=True):
        assert (found <= level).sum(0).max() <= bound
    # the lattice of these p-values has a step between 0.04 and 0.05, coarse values have a wider
    # one; a fitted variance is the larger for the head that stands out, so those tests are
    # conservative
    frequent = 0.02 if family in (tied_family, energy_family) else 0.04
    assert (found[:, 0] <= 0.05).sum() >= binom.ppf(1e-4, RUNS, frequent)


def test_the_familywise_p_of_independent_draws_is_above_one_minus_exp_of_minus_q():
    """q is at most m p and (1 - p)^m at most exp(-m p), so no row may lie below, significant ones
    neither.
    """
    generator = np.random.default_rng(0)
    families = [independent_family(generator) for _ in range(20)]
    families += [
        [
            one_test(9.0 * (number < 5) + row[0], row[1:])
            for number, row in enumerate(generator.standard_normal((40, 1600)))
        ]
    ]
    source = checkpoint("gemma3", 1, **SMALL)
    pair = make_pair(source, with_scaled_unit(source)[0])
    families.append(
        [test for test in every_test(align(pair), (), None, 99, generator) if test.confirmatory]
    )
    for tests in families:
        for row in test_rows(tests):
            assert row["familywise_p"] >= (1 - np.exp(-row["q"])) * (1 - 1e-9)


def test_the_copy_tests_of_all_heads_share_their_relabellings():
    source = checkpoint("gpt2", 1, **SMALL)
    pair = make_pair(source, checkpoint("gpt2", 2, **SMALL))
    tests = every_test(align(pair), PROBES, "five", 99, np.random.default_rng(0))
    copies = {
        test.statistic: [other for other in tests if other.statistic == test.statistic]
        for test in tests
        if "copy" in test.statistic
    }
    assert {test.shared for members in copies.values() for test in members} == {
        "relabelled tokens of five"
    }
    assert len(copies["ov_copy"]) > 4
    exploratory = {test.null for test in tests if not test.confirmatory and test.shared is None}
    assert exploratory == {"row signs", "head signs"}


def test_exploratory_tests_are_corrected_apart_and_never_significant():
    rows = test_rows(
        [one_test(9.0, range(8), confirmatory) for confirmatory in (False, True) for _ in range(2)]
    )
    assert [row["confirmatory"] for row in rows] == [True, True, False, False]
    assert not any(row["significant"] for row in rows if not row["confirmatory"])


def test_relabellings_are_all_of_them_for_few_tokens():
    matrix = np.random.default_rng(0).standard_normal((5, 5))
    found = relabelled_traces(matrix, relabellings(5, 10, np.random.default_rng(1)))
    expected = [sum(matrix[i, s[i]] for i in range(5)) for s in permutations(range(5))][1:]
    assert np.allclose(np.sort(found), np.sort(expected))
    assert relabellings(9, 10, np.random.default_rng(1)).shape == (10, 9)


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
    """Mean and variance of |dL R + L dR|^2 over many normal changes, in the balanced basis that the
    law assumes.
    """
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
                Kernel(
                    left + small * generator.standard_normal(left.shape),
                    right + small * generator.standard_normal(right.shape),
                ),
            ).energy()
            for _ in range(4000)
        ]
    )
    assert energies.mean() == pytest.approx(2 * small**2 * size * values.sum(), rel=0.02)
    assert energies.var() / energies.mean() ** 2 == pytest.approx(
        kernel_spread(values, size), rel=0.1
    )
    shape = 1 / kernel_spread(values, size)
    assert np.quantile(energies / energies.mean(), [0.05, 0.95]) == pytest.approx(
        np.quantile(energy_ratios(shape, 4000, generator), [0.05, 0.95]), rel=0.05
    )


def test_the_law_of_the_largest_is_that_of_the_largest_draw():
    generator = np.random.default_rng(0)
    for shapes in (np.full(30, 8.0), np.linspace(4, 20, 30)):
        drawn = np.max([generator.gamma(shape, size=5000) / shape for shape in shapes], axis=0)
        assert np.quantile(
            largest_energy_ratios(shapes, 5000, generator), [0.1, 0.5, 0.9]
        ) == pytest.approx(np.quantile(drawn, [0.1, 0.5, 0.9]), rel=0.03)


def test_the_rounding_floor_is_what_rounding_does():
    values = torch.randn(200, 300, generator=torch.Generator().manual_seed(0))
    rounded = values.bfloat16().float()
    assert mantissa_bits(rounded) == 7
    assert mantissa_bits(values) == 23
    assert mantissa_bits(torch.tensor([1.0, 2.0, 0.5, 0.0])) == 0
    floor = rounding_variance(rounded.double().numpy(), 7, torch.float32).sum()
    assert floor == pytest.approx(float((rounded - values).double().square().sum()), rel=0.02)
    # of both sides: the relative difference of about 0.002 that independent rounding to bfloat16
    # gives
    assert (2 * floor / float(values.double().square().sum())) ** 0.5 == pytest.approx(
        0.0023, abs=2e-4
    )


def test_ones_do_not_make_a_coarse_grid():
    """A tensor of ones uses no mantissa bit; the grid is that of all tensors of its dtype."""
    source = checkpoint("bert", 1)
    name = next(name for name in source.tensors if name.endswith("LayerNorm.weight"))
    side = make_pair(changed(source, {name: torch.ones_like(source.tensors[name])}), source).a
    assert mantissa_bits(side.tensors[name]) == 0
    assert side.grid_bits(name) > 20
    assert side.floor(name).max() < 1e-12


def test_matrices_of_a_coarser_grid_than_the_gains_have_their_own_floor():
    """Matrices in bfloat16 and gains in float32, stored as float32: as the training of many models
    leaves them.
    """
    source = checkpoint("bert", 1)
    single = changed(source, {name: value.float() for name, value in source.tensors.items()})
    mixed = changed(
        source,
        {
            name: value.bfloat16().float() if value.ndim > 1 else value.float()
            for name, value in source.tensors.items()
        },
    )
    side = make_pair(single, mixed).b
    assert {
        side.grid_bits(tensor.name) for tensor in side.anatomy.tensors if len(tensor.shape) > 1
    } == {7}
    assert (
        side.grid_bits(next(name for name in side.tensors if name.endswith("LayerNorm.weight")))
        > 20
    )


def test_no_token_is_matched_where_there_is_none():
    with pytest.raises(InputError, match="no token beside"):
        matched_tokens(np.ones(4), range(4), 5, np.random.default_rng(0))


APART = {"part": "block 1 head 0: ov_energy", "relative": 0.1, "rounding": 1e-7}


def every_test(aligned, *rest):
    return all_tests(aligned, located(aligned), *rest)


def tensor_name(source, *endings: str) -> str:
    return next(name for name in source.tensors if name.endswith(endings))


def with_rank_one_edit(source):
    """Head 2 of the second block writes one more direction."""
    names = [
        name
        for name in source.tensors
        if name.endswith(("o_proj.weight", "attn.c_proj.weight", "attention.output.dense.weight"))
    ]
    weight = source.tensors[names[1]].clone()
    generator = torch.Generator().manual_seed(3)
    size = (
        weight.shape[0] // 4
        if names[1].endswith("c_proj.weight")
        else weight.shape[1] // heads_of(source)
    )
    edit = torch.outer(
        torch.randn(weight.shape[0], generator=generator), torch.randn(size, generator=generator)
    ).double()
    if names[1].endswith("c_proj.weight"):  # stored in x out
        size = weight.shape[0] // heads_of(source)
        edit = torch.outer(
            torch.randn(size, generator=generator),
            torch.randn(weight.shape[1], generator=generator),
        ).double()
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
        if name.endswith(("down_proj.weight", "mlp.c_proj.weight", "output.dense.weight"))
        and "attention" not in name
    ][2]
    weight = source.tensors[name].clone()
    (weight if name.endswith("c_proj.weight") else weight.T)[5] *= 1.5
    return changed(source, {name: weight}), {"statistic": "mlp_unit_terms", "block": 3, "unit": 5}


def with_edited_row(source):
    name = tensor_name(source, "embed_tokens.weight", "wte.weight", "word_embeddings.weight")
    weight = source.tensors[name].clone()
    weight[13] += 0.2
    return changed(source, {name: weight}), {
        "statistic": "table_row_energy",
        "token": 13,
        "label": name,
    }


@pytest.mark.parametrize("edit", [with_rank_one_edit, with_scaled_unit, with_edited_row])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_planted_edit_is_ranked_first_with_the_smallest_p(family, edit):
    source = checkpoint(family, 1, **SMALL)
    edited, expected = edit(source)
    pair = make_pair(source, edited)
    rows = test_rows(every_test(align(pair), (), None, 99, np.random.default_rng(0)))
    assert {key: rows[0][key] for key in expected} == expected
    assert rows[0]["significant"]
    assert rows[0]["p"] == rows[0]["smallest_p"]
    assert [row["significant"] for row in rows[1:]] == [False] * (len(rows) - 1)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_wrong_place_of_a_planted_edit_is_not_named(family):
    source = checkpoint(family, 1, **SMALL)
    decision = compare(make_pair(source, with_scaled_unit(source)[0]), (), 99, 0).decision
    assert [(item["layer"], item["part"], item["units"]) for item in decision["components"]] == [
        (3, "mlp", [5])
    ]
    assert decision["label"] == "abstain"


@pytest.mark.parametrize("family", FAMILIES)
def test_seeds_and_rounding_give_nothing(family):
    """A few runs; benchmarks/checkpoint_comparison_nulls.py makes a hundred of each."""
    first = checkpoint(family, 11, **SMALL)
    rounded = changed(
        first, {name: value.bfloat16().double() for name, value in first.tensors.items()}
    )
    for other in (checkpoint(family, 12, **SMALL), rounded):
        pair = make_pair(first, other)
        rows = test_rows(every_test(align(pair), PROBES, "five", 99, np.random.default_rng(0)))
        assert sum(row["confirmatory"] for row in rows) > 20
        assert [row for row in rows if row["significant"]] == []


@pytest.mark.parametrize("family", GAUGED)
def test_gauges_and_rounding_together_give_nothing(family):
    """B is A in another gauge of every group at once, folds too, both stored as mixed precision
    leaves them.
    """
    found = 0
    for seed in range(3):
        aligned = align(gauged_and_stored(family, seed, mixed))
        assert {
            row["found"] for row in aligned.rows if row["group"] in ("residual", "units", "folds")
        } == {"gauge"}
        rows = test_rows(every_test(aligned, PROBES, "five", 99, np.random.default_rng(0)))
        found += sum(row["significant"] for row in rows)
    assert found == 0


@pytest.mark.parametrize("family", GAUGED)
def test_the_floor_of_components_is_what_rounding_leaves_in_another_gauge(family):
    """Energies against what is expected of rounding alone, with long biases, and gains as coarse as
    the matrices.
    """
    energies, expected = defaultdict(float), defaultdict(float)
    for seed in range(3):
        aligned = align(gauged_and_stored(family, seed, torch.Tensor.bfloat16))
        tables = [table_components(aligned, name) for name in table_names(aligned.pair)]
        for components in (*head_components(aligned), unit_components(aligned), *tables):
            assert components is not None
            energies[components.statistic] += components.energies.sum()
            expected[components.statistic] += components.noise.mean.sum()
    # where a permutation is all that moved a tensor both sides carry the same rounding, and none is
    # expected
    assert {name for name in energies if energies[name] == 0} == {
        name for name in energies if expected[name] == 0
    }
    ratios = {name: energies[name] / expected[name] for name in energies if expected[name]}
    assert ratios["ov_energy"] == pytest.approx(1.0, rel=0.15)
    assert 0.75 < min(ratios.values()) <= max(ratios.values()) < 1.15


def test_rounding_is_expected_of_the_values_that_differ_alone():
    """A quarter of a table and of a head's maps moved by one unit in the last place of bfloat16,
    the rest equal.
    """
    source = changed(
        checkpoint("llama", 1),
        {name: value.bfloat16() for name, value in checkpoint("llama", 1).tensors.items()},
    )
    table, output, down = (
        tensor_name(source, ending)
        for ending in ("embed_tokens.weight", "o_proj.weight", "down_proj.weight")
    )
    moved, chosen = {}, {}
    for name in (table, output, down):
        bits = source.tensors[name].clone().view(torch.int16)
        chosen[name] = torch.arange(bits.numel()).reshape(bits.shape) % 4 == 1
        moved[name] = torch.where(chosen[name], bits + 1, bits).view(torch.bfloat16)
    pair = make_pair(source, changed(source, moved))
    aligned = align(pair)
    rows = {row["tensor"]: row for row in inventory_rows(pair, aligned.pair)}
    for name in moved:
        assert rows[name]["changed"] == pytest.approx(0.25, abs=0.01)
        # one spacing squared where a sixth of it is expected of two roundings; a spacing may double
        # with the exponent
        assert rows[name]["above_floor"] == pytest.approx(5 / 6, abs=0.02)
    expected = (pair.a.floor(table) + pair.b.floor(table)) * chosen[table].numpy()
    assert table_components(aligned, table).noise.mean == pytest.approx(expected.sum(1))
    changed_components = 0
    for components in (*head_components(aligned), unit_components(aligned)):
        assert ((components.noise.mean > 0) == (components.energies > 0)).all(), (
            components.statistic
        )
        changed_components += int((components.energies > 0).sum())
    assert changed_components > 4


def gauged_and_stored(family: str, seed: int, store):
    """A pair of one function: A, and A in another gauge of every group, both as `store` leaves
    their tensors.
    """
    plain = checkpoint(family, seed, **SMALL | GAUGED[family])
    long = {
        name: 4 * value
        for name, value in plain.tensors.items()
        if value.ndim == 1 and name.endswith("bias")
    }
    source = changed(plain, long)
    anatomy = describe(source.config)
    gauge = random_gauge(anatomy, seed, gauge_spaces(anatomy))
    moved = dict(
        transform(anatomy, {name: value.double() for name, value in source.tensors.items()}, gauge)
    )
    generator = np.random.default_rng(seed)
    steps = fold_steps(
        anatomy,
        {
            norm.name: np.exp2(generator.uniform(-1, 1, norm.size))
            for norm in foldable_norms(anatomy)
        },
    )
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
    rows = test_rows(
        [
            Test(
                "ov_copy_all_heads",
                "relabelled tokens",
                3.0,
                np.zeros(999),
                True,
                {"part": "attention"},
                -3.0,
            )
        ]
    )
    decision = decide(rows, [APART], "five", {"five": (), "other": ("x",)})
    assert (decision["label"], decision["evidence"]) == ("A", [0])
    assert decision["declared"] == {"row": 0, "change": -3.0} | {
        name: pytest.approx(0.001) for name in ("p", "q", "familywise_p")
    }
    assert "probability" not in decision
    assert decision["dropped_tokens"] == {"other": ["x"]}
    write_decision(tmp_path / "decision.json", decision)
    with pytest.raises(ValidationError):
        write_decision(tmp_path / "other.json", decision | {"label": "C"})
    assert [path.name for path in tmp_path.iterdir()] == ["decision.json"]


def test_a_decision_abstains_when_the_declared_test_does_not_survive():
    rows = test_rows(
        [
            Test(
                "ov_copy_all_heads",
                "relabelled tokens",
                0.0,
                np.ones(999),
                True,
                {"part": "attention"},
                0.0,
            )
        ]
    )
    decision = decide(rows, [APART], "five", {})
    assert (decision["label"], decision["components"]) == ("abstain", [])
    assert decision["declared"] == {
        "row": 0,
        "change": 0.0,
        "p": 1.0,
        "q": 1.0,
        "familywise_p": 1.0,
    }
    assert decide([], [APART], None, {})["declared"] is None
    assert "does not survive" in decision["note"]
