"""Roundings too close to call: flagged by their margin, never guessed, closed by more evidence."""

import dataclasses

import numpy as np

import planted_layers
from normgauge.exact_recovery import maps, sliced_product
from normgauge.exact_recovery.arithmetic import arithmetic
from normgauge.exact_recovery.grids import grid
from normgauge.exact_recovery.second_look import settle
from normgauge.exact_recovery.stragglers import (
    REQUIRED_MARGIN,
    TRUSTED_MARGIN,
    Evidence,
    Straggler,
    decisive,
    gather,
)

TORCH = arithmetic("torch")


def hard_layer(rows, seed=3):
    """One tiny negative gain, and weights on its feature and elsewhere that are smaller than their
    noise.
    """
    generator = np.random.default_rng(11)
    store = grid("float32")
    gains = store.round(generator.lognormal(-0.5, 0.4, 32))
    gains[9] = np.float32(-2.6e-4)
    weights = store.round(generator.standard_normal((32, 24)) * 0.14)
    weights[9, ::2] = store.round(weights[9, ::2] * np.geomspace(2e-5, 1e-6, 12))
    weights[4, 3] = float(np.float32(3e-8))
    bias = store.round(generator.standard_normal(24) * 0.3)
    return planted_layers.layer(
        seed=seed, rows=rows, width=32, gains=gains, biases=np.zeros(32), weights=weights, bias=bias
    )


def first_stage(layer):
    design = maps.gauge_design(layer.inputs, layer.gains, layer.biases, TORCH)
    return maps.recover(design, [layer.outputs], [True], layer.grid, TORCH)[0]


def settled_by_second_look(layer, result):
    design = maps.gauge_design(layer.inputs, layer.gains, layer.biases, TORCH)
    return settle(design, result, layer.inputs, layer.outputs, True, layer.grid, TORCH)


def test_stragglers_appear_are_flagged_and_close_with_fresh_observations():
    layer = hard_layer(400)
    result = first_stage(layer)
    wrong = result.values != layer.truth
    assert not result.undetermined.any()
    assert (result.margins < REQUIRED_MARGIN).any()
    assert not (wrong & (result.margins >= REQUIRED_MARGIN)).any()

    settled, looks = settled_by_second_look(layer, result)
    assert not ((settled.values != layer.truth) & (settled.margins >= REQUIRED_MARGIN)).any()
    pending = [look for look in looks if look.decision.margins.min() < REQUIRED_MARGIN]
    assert pending
    for look in pending:
        origin, seen, decision, rounds = look.straggler, look.evidence, look.decision, 0
        while decision.margins.min() < REQUIRED_MARGIN and rounds < 100:
            fresh = hard_layer(4000, seed=1000 + rounds)
            design = np.hstack([fresh.inputs, np.ones((4000, 1))])
            seen = seen.merge(
                gather([origin], design, fresh.outputs[:, [origin.column]], TORCH, True)[0]
            )
            decision = origin.decide(seen, layer.grid)
            rounds += 1
        assert decision.margins.min() >= REQUIRED_MARGIN
        np.testing.assert_array_equal(
            decision.values, layer.truth[origin.coordinates, origin.column]
        )


def test_a_second_look_with_the_decided_coordinates_held_only_raises_margins():
    result = first_stage(hard_layer(400))
    layer = hard_layer(400)
    settled, _ = settled_by_second_look(layer, result)
    assert (settled.margins < REQUIRED_MARGIN).sum() <= (result.margins < REQUIRED_MARGIN).sum()


def test_evidence_merges_to_the_same_as_all_at_once_and_falls_as_the_root():
    generator = np.random.default_rng(0)
    design, residual = generator.standard_normal((6000, 2)), generator.standard_normal(6000)
    parts = [
        Evidence.of(design[start : start + 1000], residual[start : start + 1000])
        for start in range(0, 6000, 1000)
    ]
    merged = parts[0]
    for part in parts[1:]:
        merged = merged.merge(part)
    whole = Evidence.of(design, residual)
    np.testing.assert_allclose(merged.estimate()[0], whole.estimate()[0], rtol=1e-10)
    np.testing.assert_allclose(merged.estimate()[1], whole.estimate()[1], rtol=1e-2)
    np.testing.assert_allclose(parts[0].estimate()[1] / whole.estimate()[1], np.sqrt(6), rtol=0.1)


def test_parts_weigh_by_their_precision():
    generator = np.random.default_rng(1)
    design, noise = generator.standard_normal((4000, 2)), generator.standard_normal(4000)
    noisy, precise = Evidence.of(design, noise), Evidence.of(design[::-1], noise * 2.0**-5)
    both = noisy.merge(precise).estimate()[1]
    np.testing.assert_allclose(both, precise.estimate()[1], rtol=0.01)
    assert (both < precise.estimate()[1]).all()


def test_a_weight_below_its_noise_is_out_of_reach():
    generator = np.random.default_rng(0)
    design = generator.standard_normal((1000, 3))
    noise = generator.standard_normal(1000) * 1e-9
    for weight, reached in ((0.0, False), (0.25, True)):
        straggler = Straggler(0, np.array([1]), np.array([0.5, weight, 0.0]))
        decision = straggler.decide(
            gather([straggler], design, (design @ straggler.start + noise)[:, None], TORCH, True)[
                0
            ],
            grid("float32"),
        )
        assert decision.within_reach(16) is reached
        assert (decision.values[0] == weight, decision.margins[0] >= REQUIRED_MARGIN) == (
            True,
            reached,
        )


def test_a_planted_wrong_bit_is_seen_by_the_evidence():
    layer = planted_layers.layer(columns=1)
    result = first_stage(layer)
    low, _ = layer.grid.neighbours(result.values[[5], 0])
    values = result.values.copy()
    values[5, 0] = low[0]
    flagged = dataclasses.replace(
        result, values=values, margins=np.where(np.arange(49)[:, None] == 5, 0.0, result.margins)
    )
    settled, _ = settled_by_second_look(layer, flagged)
    np.testing.assert_array_equal(settled.values, layer.truth)


def summed_in_order(design, values):
    """A matrix product as plain float64 loops form it: where leading columns hardly vary, all rows
    round alike.
    """
    total = np.zeros(len(design))
    for column, value in zip(design.T, values, strict=True):
        total = total + column * value
    return total


def test_a_residual_in_plain_float64_would_claim_a_wrong_value_and_the_sliced_one_does_not():
    """Many rows lift a common rounding error above the noise of their mean."""
    generator = np.random.default_rng(4)
    rows, store = 32_768, grid("float32")
    design = np.hstack(
        [
            np.full((rows, 12), 1.1) * generator.uniform(0.5, 2, 12),
            generator.standard_normal((rows, 3)),
            np.ones((rows, 1)),
        ]
    )
    start = np.append(store.round(generator.standard_normal(15) * 0.14), 0.0)
    outputs = -sliced_product.residual(np.zeros((rows, 1)), design, start[:, None])[:, 0]
    bias = (outputs - summed_in_order(design, start)).mean()
    # its spacing is just below the bias
    start[-1] = store.round(np.array([1.5 * 2.0 ** (23 + np.floor(np.log2(abs(bias))))]))[0]
    outputs = -sliced_product.residual(np.zeros((rows, 1)), design, start[:, None])[:, 0]
    straggler = Straggler(0, np.array([15]), start)
    plain = straggler.decide(
        Evidence.of(design[:, 15:], outputs - summed_in_order(design, start)), store
    )
    assert plain.values[0] != start[-1]
    assert plain.margins[0] >= REQUIRED_MARGIN
    sliced = straggler.decide(gather([straggler], design, outputs[:, None], TORCH, True)[0], store)
    assert sliced.values[0] == start[-1]
    assert sliced.margins[0] >= REQUIRED_MARGIN


def test_a_margin_of_a_fit_on_plain_residuals_is_not_trusted_below_16(monkeypatch):
    generator = np.random.default_rng(5)
    store, inputs = grid("float32"), generator.standard_normal((2000, 12))
    weights = store.round(generator.standard_normal((12, 1)) * 0.14)
    noise = maps.solve(
        maps.full_design(inputs, False, TORCH).factors, inputs @ weights, TORCH
    ).noise
    # its spacing is 10 to 20 noises
    weights[5, 0] = 1.5 * 2.0 ** np.ceil(np.log2(10 * noise[5, 0]) + 23)
    design, outputs = maps.full_design(inputs, False, TORCH), inputs @ weights
    honest = maps.solve

    def biased(*arguments, extended=False):
        solution = honest(*arguments, extended=extended)
        if not extended:
            solution.values[5] += store.ulp(weights[5])
        return solution

    monkeypatch.setattr(maps, "solve", biased)
    first = maps.recover(design, [outputs], [False], store, TORCH)[0]
    assert first.values[5] != weights[5]
    assert REQUIRED_MARGIN <= first.margins[5] < TRUSTED_MARGIN
    settled, _ = settle(design, first, inputs, outputs, False, store, TORCH)
    np.testing.assert_array_equal(settled.values, weights)
    assert settled.margins.min() >= REQUIRED_MARGIN


def test_a_rounding_that_all_rows_share_lends_no_precision():
    """An eighth of a spacing in the mean of the outputs is 25 noises of 8,192 rows, and moves a
    small weight to the next grid point.
    """
    generator = np.random.default_rng(6)
    store, rows = grid("float32"), 8192
    design = np.column_stack(
        [10 + 0.01 * generator.standard_normal(rows), generator.standard_normal(rows)]
    )
    spacing = 2.0**-52
    # its spacing is about the error
    start = store.round(
        np.array([1.5 * 2.0 ** np.round(np.log2(spacing / 8 / 10 * 1.5) + 23), 0.1])
    )
    outputs = 1.5 + design @ start
    outputs += spacing * (generator.random(rows) < 0.125)
    straggler = Straggler(0, np.array([0]), np.append(start, 1.5))
    whole = np.column_stack([design, np.ones(rows)])
    believed, doubted = (
        straggler.decide(
            gather([straggler], whole, outputs[:, None], TORCH, rounded_once)[0], store
        )
        for rounded_once in (True, False)
    )
    assert believed.values[0] != start[0]
    assert believed.margins[0] >= REQUIRED_MARGIN
    assert doubted.margins[0] < REQUIRED_MARGIN


def test_what_all_rows_share_is_shared_by_all_parts_and_no_number_of_parts_averages_it_out():
    generator = np.random.default_rng(7)
    common, whole = np.full(1000, 1e-9), Evidence.nothing(1)
    parts = [
        Evidence.of(
            generator.standard_normal((1000, 1)) + 1,
            common + 1e-12 * generator.standard_normal(1000),
            common=common,
        )
        for _ in range(27)
    ]
    for part in parts:
        whole = whole.merge(part)
    correction, deviation = whole.estimate()
    assert 0.9 < deviation[0] / parts[0].estimate()[1][0] < 1.1
    assert abs(correction[0]) < 2 * deviation[0]


def test_fresh_sums_rounded_once_decide_alone_where_the_first_roundings_have_something_in_common():
    generator = np.random.default_rng(5)
    column, noise = generator.standard_normal((4000, 1)) + 1, 1e-9 * generator.standard_normal(4000)
    common = np.full(4000, 1e-9)
    first = Evidence.of(column, noise + common, common=common)
    fresh = Evidence.of(
        generator.standard_normal((4000, 1)) + 1, 1e-9 * generator.standard_normal(4000)
    )
    assert decisive(first, fresh) is fresh
    correction, deviation = decisive(first, fresh).estimate()
    assert abs(correction[0]) < 4 * deviation[0]
    assert deviation[0] < 0.2 * first.merge(fresh).estimate()[1][0]
    unseen = Evidence.of(np.zeros((4000, 1)), noise)  # the feature is active in no fresh row
    assert decisive(first, unseen).rows == 8000
    assert decisive(first, Evidence.nothing(1)).rows == 4000
