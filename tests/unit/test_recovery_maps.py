"""Maps from planted layers: every bit, or an honest refusal. A value claimed and wrong is the one thing that must never happen."""

import numpy as np
import pytest

import planted_layers
from normgauge.anatomy.structure import NormKind
from normgauge.errors import InputError
from normgauge.recovery import falsifier, maps, norm_parameters
from normgauge.recovery.arithmetic import ROUTES, arithmetic
from normgauge.recovery.grids import GRIDS, grid

TORCH = arithmetic("torch")


def solved(layer, gains=None, biases=None, store=None, route=TORCH):
    design = maps.gauge_design(layer.inputs, layer.gains if gains is None else gains, layer.biases if biases is None else biases, route)
    return maps.recover(design, [layer.outputs], [True], store or layer.grid, route)[0]


def silent_misses(result, truth):
    return int(((result.values != truth) & (result.margins >= 4) & np.isfinite(result.values)).sum())


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
    result = maps.recover(maps.full_design(inputs, True, TORCH), [inputs @ layer.weights + layer.bias], [True], layer.grid, TORCH)[0]
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
    gains = grid("float32").round(generator.lognormal(-0.5, 0.5, 48) * np.where(generator.random(48) < 0.3, -1, 1))
    gains[17] = np.float32(-2.6e-4)
    layer = planted_layers.layer(gains=gains)
    result = solved(layer)
    assert not result.undetermined.any()
    assert silent_misses(result, layer.truth) == 0
    np.testing.assert_array_equal(np.delete(result.values, 17, axis=0), np.delete(layer.truth, 17, axis=0))


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
    plain = maps.recover(maps.full_design(inputs, True, TORCH), [inputs @ layer.weights], [True], grid("bfloat16"), TORCH)[0]
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
    result = maps.recover(maps.full_design(inputs, True, TORCH), [inputs @ layer.weights], [True], layer.grid, TORCH)[0]
    assert result.undetermined.all()
    assert result.gauge_dimension == 1


def test_permuted_rows_claim_nothing():
    layer = planted_layers.layer()
    design = maps.gauge_design(layer.inputs, layer.gains, layer.biases, TORCH)
    result = falsifier.permuted(design, layer.outputs, True, layer.grid, TORCH, seed=1)
    assert result.claimed == 0
    assert (result.rounded != np.delete(layer.truth, design.line.pivot, axis=0)).all()
    assert result.residual_ratio > 1e12


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


def test_zeros_are_flagged_because_their_sign_leaves_no_trace():
    layer = planted_layers.layer(dtype="float16")
    weights = layer.weights.copy()
    weights[3, 5], weights[4, 6] = 0.0, -0.0
    inputs = np.tanh(layer.residual)
    design, outputs = maps.full_design(inputs, False, TORCH), inputs @ weights
    result, looks = maps.settle(
        design, maps.recover(design, [outputs], [False], layer.grid, TORCH)[0], inputs, outputs, False, layer.grid, TORCH
    )
    np.testing.assert_array_equal(result.values, weights)
    np.testing.assert_array_equal(result.margins >= 4, weights != 0)
    assert looks == []
