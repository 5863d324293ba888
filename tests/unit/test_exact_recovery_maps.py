"""Maps from planted layers: every bit, or an honest refusal. A value claimed and wrong is the one
thing that must never happen.
"""

import numpy as np
import pytest
import torch

import planted_layers
from normgauge.anatomy.structure import NormKind
from normgauge.errors import InputError
from normgauge.exact_recovery import falsifier, maps, norm_parameters
from normgauge.exact_recovery.arithmetic import ROUTES, arithmetic
from normgauge.exact_recovery.grids import GRIDS, grid
from normgauge.exact_recovery.second_look import settle

TORCH = arithmetic("torch")


def solved(layer, gains=None, biases=None, store=None, route=TORCH):
    design = maps.gauge_design(
        layer.inputs,
        layer.gains if gains is None else gains,
        layer.biases if biases is None else biases,
        route,
    )
    return maps.recover(design, [layer.outputs], [True], store or layer.grid, route)[0]


def silent_misses(result, truth):
    return int(
        ((result.values != truth) & (result.margins >= 4) & np.isfinite(result.values)).sum()
    )


@pytest.mark.parametrize("name", GRIDS)
def test_every_bit_behind_a_layer_norm(name):
    layer = planted_layers.layer(dtype=name)
    result = solved(layer)
    np.testing.assert_array_equal(result.values, layer.truth)
    assert result.margins.min() > 4
    assert (result.null_rank, result.reason) == (1, None)
    assert result.null_cosine == pytest.approx(1.0, abs=1e-12)


def test_both_arithmetic_routes_give_the_same_bits():
    layer = planted_layers.layer(seed=5)
    first, second = (solved(layer, route=route) for route in ROUTES.values())
    np.testing.assert_array_equal(first.values, second.values)


def test_least_squares_alone_reproduces_outputs_but_not_the_stored_bits():
    layer = planted_layers.layer()
    values = solved(layer).solved.values
    outputs = np.hstack([layer.inputs, np.ones((len(layer.inputs), 1))]) @ values
    np.testing.assert_allclose(outputs, layer.outputs, atol=1e-12)
    assert (layer.grid.round(values) == layer.truth).mean() < 0.01


def test_a_map_that_no_norm_feeds_is_determined_by_rounding():
    layer = planted_layers.layer()
    inputs = np.tanh(layer.residual)
    result = maps.recover(
        maps.full_design(inputs, True, TORCH),
        [inputs @ layer.weights + layer.bias],
        [True],
        layer.grid,
        TORCH,
    )[0]
    np.testing.assert_array_equal(result.values, layer.truth)
    assert (result.null_rank, result.gauge_dimension) == (0, 0)


def test_maps_with_and_without_bias_share_one_search():
    layer = planted_layers.layer()
    design = maps.gauge_design(layer.inputs, layer.gains, layer.biases, TORCH)
    bare = layer.inputs @ layer.weights[:, ::-1]
    first, second = maps.recover(design, [layer.outputs, bare], [True, False], layer.grid, TORCH)
    np.testing.assert_array_equal(first.values, layer.truth)
    np.testing.assert_array_equal(second.values, layer.weights[:, ::-1])


def test_negative_and_tiny_gains():
    generator = np.random.default_rng(2)
    gains = grid("float32").round(
        generator.lognormal(-0.5, 0.5, 48) * np.where(generator.random(48) < 0.3, -1, 1)
    )
    gains[17] = np.float32(-2.6e-4)
    layer = planted_layers.layer(gains=gains)
    result = solved(layer)
    assert not result.undetermined.any()
    assert silent_misses(result, layer.truth) == 0
    np.testing.assert_array_equal(
        np.delete(result.values, 17, axis=0), np.delete(layer.truth, 17, axis=0)
    )


def test_equal_gains_are_undetermined_and_nothing_is_guessed():
    layer = planted_layers.layer(gains=np.ones(48), biases=np.zeros(48))
    result = solved(layer)
    assert result.undetermined.all()
    assert not np.isfinite(result.values).any()
    assert "many places" in result.reason
    assert result.gauge_dimension == 1


def test_wrong_gains_are_refused():
    layer = planted_layers.layer()
    wrong = layer.gains.copy()
    wrong[3] *= 1.5
    with pytest.raises(InputError, match="null direction"):
        solved(layer, gains=wrong)


def test_inputs_that_are_no_norms_output_are_refused():
    layer = planted_layers.layer()
    inputs = layer.inputs + np.random.default_rng(0).standard_normal(layer.inputs.shape) * 1e-3
    with pytest.raises(InputError, match="full rank"):
        maps.gauge_design(inputs, layer.gains, layer.biases, TORCH)


def test_a_coarser_storage_dtype_than_the_true_one_is_undetermined():
    layer = planted_layers.layer()
    result = solved(layer, store=grid("float16"))
    assert result.undetermined.all()
    inputs = np.tanh(layer.residual)
    plain = maps.recover(
        maps.full_design(inputs, True, TORCH),
        [inputs @ layer.weights],
        [True],
        grid("bfloat16"),
        TORCH,
    )[0]
    assert plain.undetermined.all()
    assert "off the bfloat16 grid" in plain.reason


def test_too_few_rows_are_refused():
    layer = planted_layers.layer(rows=49)
    with pytest.raises(InputError, match="at least 50"):
        solved(layer)


def test_an_unseen_direction_makes_a_map_undetermined():
    layer = planted_layers.layer()
    inputs = np.tanh(layer.residual)
    inputs[:, 5] = 0
    result = maps.recover(
        maps.full_design(inputs, True, TORCH), [inputs @ layer.weights], [True], layer.grid, TORCH
    )[0]
    assert result.undetermined.all()
    assert result.gauge_dimension == 1


@pytest.mark.parametrize("name", ["float32", "bfloat16"])
def test_permuted_rows_give_nothing_where_the_same_procedure_gives_all_of_the_true_pairing(name):
    layer = planted_layers.layer(dtype=name, columns=32)
    design = maps.gauge_design(layer.inputs, layer.gains, layer.biases, TORCH)
    found = falsifier.falsify(design, layer.outputs, True, layer.grid, TORCH, (1, 2))
    np.testing.assert_array_equal(found.true, layer.truth)
    assert found.decided.all()
    assert found.true_score < 1e-3
    assert found.claimed == 0
    assert (found.permuted == layer.truth).sum() <= (
        0 if name == "float32" else 0.02 * layer.truth.size
    )
    assert found.permuted_score > 0.45
    assert found.residual_ratio > 1e12


def test_the_falsifier_of_a_map_that_no_norm_feeds_and_of_one_whose_line_has_no_lattice():
    layer = planted_layers.layer(columns=32)
    inputs = np.tanh(layer.residual)
    found = falsifier.falsify(
        maps.full_design(inputs, True, TORCH),
        inputs @ layer.weights + layer.bias,
        True,
        layer.grid,
        TORCH,
        (1, 2),
    )
    np.testing.assert_array_equal(found.true, layer.truth)
    assert (found.permuted != layer.truth).all()
    equal = planted_layers.layer(gains=np.ones(48), biases=np.zeros(48), columns=32)
    design = maps.gauge_design(equal.inputs, equal.gains, equal.biases, TORCH)
    found = falsifier.falsify(design, equal.outputs, True, equal.grid, TORCH, (1, 2))
    assert (found.true == equal.truth).mean() < 0.1  # no power, and that is seen


def test_coordinates_that_the_window_does_not_move_lend_a_wrong_place_no_improbability():
    """Behind a gain of 1e-30 all values but the one of that gain are the same anywhere in the
    window.
    """
    layer = planted_layers.layer(seed=7)
    usual, gains, biases = solved(layer), layer.gains.copy(), layer.biases.copy()
    gains[17], biases[17] = grid("float32").round(np.array([1e-30, 2e-30]))
    layer = planted_layers.layer(seed=7, gains=gains, biases=biases)
    result = solved(layer)
    assert usual.log10_null < -200
    assert result.log10_null > -20
    assert silent_misses(result, layer.truth) == 0
    np.testing.assert_array_equal(
        np.delete(result.values, 17, axis=0), np.delete(layer.truth, 17, axis=0)
    )


@pytest.mark.parametrize("kind", list(NormKind))
def test_norm_parameters(kind):
    layer = planted_layers.layer(seed=4)
    unit = norm_parameters.normalised(layer.residual, kind, 1e-5)
    has_bias = kind is NormKind.LAYER_NORM
    outputs = unit * layer.gains + (layer.biases if has_bias else 0)
    found = norm_parameters.solve(layer.residual, outputs, kind, 1e-5, has_bias)
    np.testing.assert_array_equal(layer.grid.round(found.gains), layer.gains)
    assert found.relative_residual.max() < 1e-14
    if has_bias:
        np.testing.assert_array_equal(layer.grid.round(found.biases), layer.biases)
    wrong = norm_parameters.solve(layer.residual, outputs, kind, 1e-2, has_bias)
    assert wrong.relative_residual.max() > 1e-6


def test_noise_of_norm_parameters_where_the_stream_lies_far_from_its_mean():
    """Roundings of a row's mean and scale are common to its features and do not average out over
    rows: a bias takes them all.
    """
    for seed in range(4):
        generator = torch.Generator().manual_seed(seed)
        spread = 0.1 * torch.randn(8192, 256, generator=generator, dtype=torch.float64)
        residual = spread + torch.randn(256, generator=generator, dtype=torch.float64)
        gains = (1 + 0.03 * torch.randn(256, generator=generator)).double()
        biases = (0.005 * torch.randn(256, generator=generator)).double()
        outputs = torch.nn.functional.layer_norm(residual, (256,), gains, biases, 1e-5).numpy()
        found = norm_parameters.solve(residual.numpy(), outputs, NormKind.LAYER_NORM, 1e-5, True)
        assert (np.abs(found.biases - biases.numpy()) <= 4 * found.bias_noise).all()
        np.testing.assert_array_equal(
            norm_parameters.stored(found.biases, found.bias_noise, 0.0, grid("float32"))[0], biases
        )


def test_zeros_are_flagged_because_their_sign_leaves_no_trace():
    layer = planted_layers.layer(dtype="float16")
    weights = layer.weights.copy()
    weights[3, 5], weights[4, 6] = 0.0, -0.0
    inputs = np.tanh(layer.residual)
    design, outputs = maps.full_design(inputs, False, TORCH), inputs @ weights
    result, looks = settle(
        design,
        maps.recover(design, [outputs], [False], layer.grid, TORCH)[0],
        inputs,
        outputs,
        False,
        layer.grid,
        TORCH,
    )
    np.testing.assert_array_equal(result.values, weights)
    np.testing.assert_array_equal(result.margins >= 4, weights != 0)
    assert looks == []


def test_a_feature_active_on_a_few_rows_is_never_claimed_wrongly():
    """Its rows leave no residual, in extended precision none at all: noise must not vanish with
    it.
    """
    claimed = 0
    for seed in range(40):
        generator = np.random.default_rng(seed)
        rows, width = int(generator.integers(12, 80)), int(generator.integers(3, 10))
        inputs = generator.standard_normal((rows, width))
        inputs[:, :3] = 0
        for feature in range(3):
            inputs[generator.integers(0, rows, generator.integers(1, 4)), feature] = (
                10.0 ** -generator.uniform(0, 12)
            )
        store = grid(("float32", "float16", "bfloat16")[seed % 3])
        weights = store.round(generator.standard_normal((width, 12)) * 0.14)
        design, outputs = maps.full_design(inputs, False, TORCH), inputs @ weights
        result = maps.recover(design, [outputs], [False], store, TORCH)[0]
        settled, _ = settle(design, result, inputs, outputs, False, store, TORCH)
        assert silent_misses(result, weights) == silent_misses(settled, weights) == 0
        claimed += int((settled.margins >= 4).sum())
    assert claimed > 1000


def test_a_column_far_along_the_line_is_not_found_elsewhere_behind_gains_in_small_ratios():
    found = 0
    for seed in range(12):
        generator = np.random.default_rng(seed)
        gains = generator.integers(1, 64, 17) / 8.0
        weights = grid("float32").round(
            generator.standard_normal((17, 20)) * 0.0014
            + generator.standard_normal(20) * 3 / gains[:, None]
        )
        layer = planted_layers.layer(
            seed=seed, width=17, rows=300, gains=gains, biases=np.zeros(17), weights=weights
        )
        result = solved(layer)
        assert silent_misses(result, layer.truth) == 0
        found += int((~result.undetermined).sum())
    assert found > 0


def test_outputs_that_are_all_zero_are_recorded_as_zero_and_not_claimed():
    layer = planted_layers.layer(weights=np.zeros((48, 3)), bias=np.zeros(3))
    result = solved(layer)
    assert not (result.margins >= 4).any()


@pytest.mark.parametrize("name", ["float16", "bfloat16"])
def test_gains_and_biases_off_the_grid_are_undetermined(name):
    layer = planted_layers.layer(seed=4)
    outputs = (
        norm_parameters.normalised(layer.residual, NormKind.LAYER_NORM, 1e-5) * layer.gains
        + layer.biases
    )
    found = norm_parameters.solve(layer.residual, outputs, NormKind.LAYER_NORM, 1e-5, True)
    for values, noise in ((found.gains, found.gain_noise), (found.biases, found.bias_noise)):
        points, margins = norm_parameters.stored(values, noise, 0.0, grid(name))
        assert np.isnan(points).all()
        assert not margins.any()


def test_norm_parameters_too_small_to_see_are_not_claimed():
    """A gain far below its bias: the outputs are all the bias, and agree with any such gain without
    a residual.
    """
    for seed in range(30):
        generator = np.random.default_rng(seed)
        store, residual = (
            grid("bfloat16"),
            generator.standard_normal((100, 12)) * np.exp(generator.standard_normal((100, 1))),
        )
        gains = store.round(generator.standard_normal(12) * 10.0 ** generator.uniform(-20, 0, 12))
        biases = store.round(
            generator.standard_normal(12)
            * 10.0 ** generator.uniform(-20, 1, 12)
            * (generator.random(12) > 0.2)
        )
        outputs = norm_parameters.normalised(residual, NormKind.LAYER_NORM, 1e-5) * gains + biases
        found = norm_parameters.solve(residual, outputs, NormKind.LAYER_NORM, 1e-5, True)
        for truth, values, noise in (
            (gains, found.gains, found.gain_noise),
            (biases, found.biases, found.bias_noise),
        ):
            points, margins = norm_parameters.stored(values, noise, 0.0, store)
            assert not ((margins >= 4) & (points != truth)).any()
            np.testing.assert_array_equal(points[truth == 0], 0)


def test_an_offset_gain_of_zero_is_recorded_as_zero():
    generator = np.random.default_rng(3)
    residual, weights = generator.standard_normal((3000, 8)), np.where(np.arange(8) < 4, 0.0, 0.25)
    outputs = norm_parameters.normalised(residual, NormKind.RMS_NORM, 1e-6) * (1 + weights)
    found = norm_parameters.solve(residual, outputs, NormKind.RMS_NORM, 1e-6, False)
    points, margins = norm_parameters.stored(found.gains, found.gain_noise, 1.0, grid("bfloat16"))
    np.testing.assert_array_equal(points, weights)
    np.testing.assert_array_equal(margins >= 4, weights != 0)


def test_a_feature_that_never_varies_has_no_gain():
    found = norm_parameters.solve(
        np.ones((9, 1)), np.full((9, 1), 0.5), NormKind.LAYER_NORM, 1e-5, True
    )
    points, _ = norm_parameters.stored(found.gains, found.gain_noise, 0.0, grid("float32"))
    assert np.isnan(points).all()
