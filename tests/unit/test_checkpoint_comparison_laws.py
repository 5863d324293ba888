"""Parts sum to totals, two routes agree, equal checkpoints differ by nothing, a swap turns signs,
and a known gauge is found.
"""

from __future__ import annotations

import dataclasses
import gc
import weakref
from collections import defaultdict
from itertools import permutations

import numpy as np
import pytest

from normgauge.checkpoint_comparison import factors, head_components, kernels, study
from normgauge.checkpoint_comparison.align_heads import balanced_maps
from normgauge.checkpoint_comparison.alignment import align
from normgauge.checkpoint_comparison.factors import (
    Mode,
    attention_factors,
    attention_layers,
    feed_forward_factors,
    feed_forward_layers,
    rotary_frequencies,
)
from normgauge.checkpoint_comparison.inventory import inventory_rows
from normgauge.checkpoint_comparison.kernels import Units, change, change_terms, mean_terms
from normgauge.checkpoint_comparison.ov import (
    exact_z,
    head_kernel,
    sign_pattern_shares,
    token_kernel,
)
from normgauge.checkpoint_comparison.pair import Pair
from normgauge.checkpoint_comparison.pairing import make_pair
from normgauge.checkpoint_comparison.probes import frames
from normgauge.checkpoint_comparison.qk import score_kernel
from normgauge.checkpoint_comparison.recency import fourier_series, series_at
from normgauge.checkpoint_comparison.statistics import GROUPS
from normgauge.checkpoint_comparison.study import compare, kernel_rows
from unit.comparison_pairs import FAMILIES, PROBES, checkpoint, gauged, nearby, pair_of, rows_of

CLOSE = 1e-10


def near(found: float, expected: float, scale: float = 0.0) -> bool:
    return abs(found - expected) <= CLOSE * max(abs(expected), scale)


def sums(rows, part: str, whole: str, key=("mode", "block", "head", "probe")):
    """Per place: the sum of the parts' changes, and the whole's change."""
    parts, wholes = defaultdict(float), {}
    for row in rows:
        place = tuple(row[name] for name in key)
        if row["statistic"] == part or (
            part.endswith("*")
            and row["statistic"].startswith(part[:-1])
            and row["statistic"].endswith("_part")
        ):
            parts[place] += row["change"]
        if row["statistic"] == whole:
            wholes[place] = row["change"]
    return [(parts[place], wholes[place]) for place in parts]


@pytest.mark.parametrize("family", FAMILIES)
def test_parts_sum_to_their_total(family):
    rows = rows_of(family)
    labelled = ("mode", "block", "head", "probe", "label")
    cases = [
        ("ov_copy_*", "ov_copy", labelled[:4]),
        ("ov_copy_token", "ov_copy", labelled[:4]),
        ("qk_contrast_*", "qk_contrast", labelled),
        ("mlp_up_path_*", "mlp_up_path", labelled[:4]),
        ("qk_composition_*", "qk_composition_all", labelled[:4]),
    ]
    for part, whole, key in cases:
        found = sums(rows, part, whole, key)
        assert found
        scale = max(abs(total) for _, total in found)
        assert all(near(parts, total, scale) for parts, total in found), part
    ordered = sums([row for row in rows if row["probe"] == "five"], "ov_contrast", "ov_copy")
    assert ordered
    assert all(
        near(parts, total, max(abs(each) for _, each in ordered)) for parts, total in ordered
    )


@pytest.mark.parametrize("family", FAMILIES)
def test_shares_sum_to_one(family):
    rows = rows_of(family)
    for statistic in ("trilinear_share", "recency_band"):
        totals = defaultdict(float)
        for row in rows:
            if row["statistic"] == statistic:
                totals[row["mode"], row["block"], row["head"], row["probe"]] += row["change"]
        assert statistic == "recency_band" or totals
        assert all(near(total, 1.0) for total in totals.values())


def test_head_sign_patterns_average_to_one_over_the_heads():
    changes = np.random.default_rng(0).standard_normal((4, 30))
    shares = sign_pattern_shares(changes @ changes.T)
    assert len(shares) == 8
    assert near(shares.mean(), 1 / 4)


@pytest.mark.parametrize("family", FAMILIES)
def test_kernels_by_the_dense_route(family):
    """Low-rank inner products against the products themselves, in the order in which nobody would
    compute them.
    """
    pair = pair_of(family)
    layer = attention_layers(pair.anatomy)[1]
    first, second = (attention_factors(side, layer, Mode.FOLDED) for side in (pair.a, pair.b))
    for kernel in (head_kernel, score_kernel):
        dense = [kernel(side, 1).left @ kernel(side, 1).right for side in (first, second)]
        moved = change(kernel(first, 1), kernel(second, 1))
        assert near(moved.energy(), np.sum((dense[1] - dense[0]) ** 2))
        assert near((moved.singular_values() ** 2).sum(), moved.energy())
    seen = frames(pair, PROBES, Mode.FOLDED)[0]
    token = token_kernel(first, 0, seen[0])
    whole = head_kernel(first, 0)
    assert np.allclose(
        token.left @ token.right,
        seen[0].writes @ (whole.left @ whole.right) @ seen[0].reads.T,
        rtol=1e-12,
        atol=1e-12,
    )


@pytest.mark.parametrize("family", FAMILIES)
def test_the_sum_over_units_by_the_dense_route(family):
    pair = pair_of(family)
    layer = feed_forward_layers(pair.anatomy)[0]
    sides = []
    for side in (pair.a, pair.b):
        factors = feed_forward_factors(side, layer, Mode.FOLDED)
        sides.append((factors.down, *(read[:, :-1] for read in factors.reads)))
    units, terms = Units(*sides), change_terms(len(sides[0]))

    def tensor(factors):
        if len(factors) == 2:
            return np.einsum("jm,ja->jma", *factors)
        return (np.einsum("jm,ja,jb->jmab", *factors) + np.einsum("jm,jb,ja->jmab", *factors)) / 2

    dense = [tensor(factors) for factors in sides]
    assert np.allclose(
        units.energies(terms),
        ((dense[1] - dense[0]).reshape(len(dense[0]), -1) ** 2).sum(1),
        rtol=1e-10,
    )
    assert near(units.gram(terms).sum(), np.sum((dense[1].sum(0) - dense[0].sum(0)) ** 2))
    assert near(
        units.gram(mean_terms(units.count)).sum(), np.sum(((dense[1] + dense[0]).sum(0) / 2) ** 2)
    )
    # analysis 14 from analysis 8: the sum over units of the energies, and the terms across units
    assert units.gram(terms).sum() != pytest.approx(units.energies(terms).sum())


@pytest.mark.parametrize("family", ["gemma3", "llama"])
def test_the_fourier_series_is_the_kernel_at_every_offset(family):
    pair = pair_of(family)
    layer = attention_layers(pair.anatomy)[1]
    factors = attention_factors(pair.a, layer, Mode.FOLDED)
    frequencies = rotary_frequencies(pair.a, layer.block)
    rows = frames(pair, PROBES, Mode.FOLDED)[0][0].reads
    series = fourier_series(factors, 2, rows, len(frequencies))
    for offset in (0, 1, 7, 300):
        kernel = score_kernel(factors, 2, frequencies, offset)
        assert near(
            series_at(series, frequencies, np.array([offset])).item(),
            np.trace(kernel.between(rows, rows)),
        )


@pytest.mark.parametrize("family", FAMILIES)
def test_a_checkpoint_against_itself_is_all_zero(family):
    source = checkpoint(family, 1)
    pair = make_pair(source, source)
    aligned = align(pair)
    assert {row["found"] for row in aligned.rows} <= {"identity", "balanced"}
    assert {row["change"] for row in kernel_rows(aligned.pair, PROBES, {})} == {0.0}
    assert {
        (row["difference"], row["relative"], row["aligned_relative"])
        for row in inventory_rows(pair, aligned.pair)
    } == {(0.0, 0.0, 0.0)}


@pytest.mark.parametrize("family", FAMILIES)
def test_a_swap_turns_the_sign_of_odd_statistics_and_leaves_the_others(family):
    pair = gauged(pair_of(family), "values")
    assert pair is not None
    forth, back = (kernel_rows(align(each).pair, PROBES, {}) for each in (pair, pair.swapped()))
    place = ("statistic", "mode", "block", "part", "head", "unit", "probe", "label")
    found = {tuple(row[name] for name in place): row for row in back}
    assert len(found) == len(back)
    scales = defaultdict(float)
    for row in forth:
        scales[row["statistic"], row["mode"]] = max(
            scales[row["statistic"], row["mode"]], abs(row["change"])
        )
    for row in forth:
        key = tuple(row[name] for name in place)
        # the source head is chosen by size: it is named alike in both directions
        if key[0] == "qk_composition":
            assert key in found
        expected = -row["change"] if row["odd"] else row["change"]
        assert (
            abs(found[key]["change"] - expected) <= 1e-8 * scales[row["statistic"], row["mode"]]
        ), key


def composed(pair: Pair) -> Pair:
    """B moved by a gauge of every group that the family has, one after the other."""
    for group in GROUPS:
        pair = gauged(pair, group) or pair if group != "folds" else pair
    return gauged(pair, "folds") or pair


@pytest.mark.parametrize("family", FAMILIES)
def test_a_gauge_of_every_group_is_found_and_taken_out(family):
    pair = near_pair(family)
    plain, other = align(pair), align(composed(pair))
    verdicts = defaultdict(set)
    for row in other.rows:
        verdicts[row["group"]].add(row["found"])
    assert verdicts["residual"] == verdicts["units"] == verdicts["heads"] == {"gauge"}
    before, after = (kernel_rows(each.pair, PROBES, {}) for each in (plain, other))
    # what balancing makes zero is zero up to rounding
    scales: dict[tuple, float] = defaultdict(lambda: 1e-12)
    for row in before:
        scales[row["statistic"], row["mode"]] = max(
            scales[row["statistic"], row["mode"]], abs(row["change"])
        )
    assert len(before) == len(after)
    # the fold is fitted to the gains, so that what it leaves differs by the gains' own small change
    moved = {
        (row["statistic"], row["mode"], row["head"]): (row["change"], again["change"])
        for row, again in zip(before, after, strict=True)
        if row["mode"] == "folded"
        and abs(row["change"] - again["change"]) > 1e-6 * scales[row["statistic"], row["mode"]]
    }
    assert moved == {}


def near_pair(family: str) -> Pair:
    """A pair as close as a fine-tune, so that its gauge is certain."""
    first = checkpoint(family, 1)
    return make_pair(first, nearby(first, 2, share=0.02))


@pytest.mark.parametrize("family", FAMILIES)
def test_independent_checkpoints_do_not_correspond(family):
    pair = make_pair(checkpoint(family, 1), checkpoint(family, 2))
    found = {row["group"]: row["found"] for row in align(pair).rows}
    assert found["residual"] == found["units"] == found["heads"] == "none"


def test_a_swapped_pair_is_labelled_anew():
    pair = dataclasses.replace(pair_of("bert"), unmatched={"head.weight": "A"})
    assert pair.swapped().a.label == "A"
    assert pair.swapped().unmatched == {"head.weight": "B"}


@pytest.mark.parametrize("least", [1e-2, 1e-6])
def test_products_with_a_factor_near_singular_are_balanced_and_brought_together(least):
    generator = np.random.default_rng(0)
    frames = [np.linalg.qr(generator.standard_normal((12, 4)))[0] for _ in range(2)]
    written, reading = np.geomspace(1, least, 4)[:, None] * frames[0].T, frames[1]
    mixed = np.linalg.qr(generator.standard_normal((4, 4)))[0] * np.array([1, 2, 3, 4])
    sides = (written, reading), (mixed.T @ written, reading @ np.linalg.inv(mixed).T)
    maps = balanced_maps(*sides)
    moved = [
        (own.T @ first, second @ np.linalg.inv(own).T)
        for own, (first, second) in zip(maps, sides, strict=True)
    ]
    for first, second in moved:
        np.testing.assert_allclose(first @ first.T, second.T @ second, atol=1e-12 / least)
    for one, other in zip(*moved, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-12 / least)
    np.testing.assert_allclose(maps[0], maps[0].T, atol=1e-12 / least)


def test_the_swapped_pair_is_brought_to_the_same_basis_up_to_one_rotation():
    generator = np.random.default_rng(1)
    sides = [(generator.standard_normal((3, 9)), generator.standard_normal((9, 3))) for _ in "ab"]
    forth, back = balanced_maps(*sides), balanced_maps(*reversed(sides))
    turns = [np.linalg.solve(one, other) for one, other in zip(forth, back[::-1], strict=True)]
    np.testing.assert_allclose(turns[0], turns[1], atol=1e-12)
    np.testing.assert_allclose(turns[0] @ turns[0].T, np.eye(3), atol=1e-12)


@pytest.mark.parametrize("blocks", [4])
def test_the_factors_of_one_block_are_in_memory_whatever_the_number_of_blocks(monkeypatch, blocks):
    """Two modes of both sides of the block that is read, and of the one before it, at most; with
    all blocks kept, five would hold ten and more.
    """
    alive, most = weakref.WeakSet(), [0]
    plain = factors.attention_factors

    def counted(*arguments):
        found = plain(*arguments)
        alive.add(found)
        if len(alive) > 6:  # what cycles keep is not kept for good
            gc.collect()
        most[0] = max(most[0], len(alive))
        return found

    for module in (study, head_components):
        monkeypatch.setattr(module, "attention_factors", counted)
    first = checkpoint("llama", 1, num_hidden_layers=blocks)
    compare(make_pair(first, nearby(first, 2)), PROBES, 9, 0, "five")
    assert most[0] <= 6


def test_units_in_runs_are_units_at_once(monkeypatch):
    generator = np.random.default_rng(0)
    sides = [tuple(generator.standard_normal((7, size)) for size in (4, 5, 5)) for _ in "ab"]
    down = tuple(generator.standard_normal((7, 3)) for _ in "ab")
    terms = change_terms(3)
    whole = Units(*sides).grams([terms, mean_terms(3)], [down])
    monkeypatch.setattr(kernels, "RUN", 3)
    for first, second in zip(
        whole, Units(*sides).grams([terms, mean_terms(3)], [down]), strict=True
    ):
        np.testing.assert_allclose(first, second, rtol=1e-12)
    projected = Units((down[0], *sides[0][1:]), (down[1], *sides[1][1:]))
    np.testing.assert_allclose(whole[2], projected.gram(terms), rtol=1e-12)


def test_the_exact_z_is_that_of_all_relabellings():
    generator = np.random.default_rng(0)
    drawn = generator.standard_normal((5, 5))
    matrix = drawn - drawn.mean(0) - drawn.mean(1, keepdims=True) + drawn.mean()
    traces = [matrix[np.arange(5), list(order)].sum() for order in permutations(range(5))]
    assert np.mean(traces) == pytest.approx(0, abs=1e-12)
    assert exact_z(matrix) == pytest.approx(np.trace(matrix) / np.std(traces))
