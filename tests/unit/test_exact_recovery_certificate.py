"""The certificate: the sieve and the walk agree, one survivor where the column is determined,
several where it is not.
"""

import numpy as np
import pytest

import planted_layers
from normgauge.exact_recovery import certificate, maps
from normgauge.exact_recovery.arithmetic import arithmetic

TORCH = arithmetic("torch")


def family(layer):
    design = maps.gauge_design(layer.inputs, layer.gains, layer.biases, TORCH)
    return maps.recover(design, [layer.outputs], [True], layer.grid, TORCH)[0].solved


def by_both_routes(solved, layer, column):
    """The certificates of one column by the sieve and by the walk, whose survivors are the same."""
    arguments = (
        solved.line,
        solved.values[:, column],
        solved.noise[:, column],
        layer.weights[:, column],
        layer.grid,
    )
    by_sieve, by_walk = (
        certificate.certify(*arguments, full=True),
        certificate.certify(*arguments, full=False),
    )
    np.testing.assert_array_equal(by_sieve.survivors, by_walk.survivors)
    return by_sieve, by_walk


@pytest.mark.parametrize("name", ["float32", "float16", "bfloat16"])
def test_exactly_one_survivor_and_it_is_the_stored_column(name):
    layer = planted_layers.layer(dtype=name, columns=3)
    solved = family(layer)
    stored = layer.gains[solved.line.pivot] * layer.weights[solved.line.pivot]
    for column in range(3):
        by_sieve, by_walk = by_both_routes(solved, layer, column)
        assert len(by_sieve.survivors) == 1
        assert by_sieve.candidates == by_walk.candidates
        assert abs(by_sieve.survivors[0] - stored[column]) < by_sieve.tolerance


def test_gains_in_small_ratios_leave_several_survivors_by_both_routes_and_nothing_is_claimed():
    generator = np.random.default_rng(6)
    gains = generator.choice([1.0, 1.5, 2.0], 48)
    layer = planted_layers.layer(gains=gains, biases=np.zeros(48), columns=2, dtype="float16")
    design = maps.gauge_design(layer.inputs, layer.gains, layer.biases, TORCH)
    result = maps.recover(design, [layer.outputs], [True], layer.grid, TORCH)[0]
    solved = result.solved
    for column in range(2):
        by_sieve, _ = by_both_routes(solved, layer, column)
        assert len(by_sieve.survivors) > 1 or not result.undetermined[column]
    assert result.undetermined.all()


def test_the_walk_visits_exactly_the_returns_of_a_rotation():
    generator = np.random.default_rng(7)
    for _ in range(200):
        position, rotation = (int(value) for value in generator.integers(0, certificate.MODULUS, 2))
        width = int(certificate.MODULUS * 10 ** generator.uniform(-3, -0.5))
        limit = int(generator.integers(1, 1500))
        expected = [
            k for k in range(limit) if (position + k * rotation) % certificate.MODULUS <= width
        ]
        assert certificate._returns(position, rotation, width, limit) == expected


def test_sieve_and_walk_agree_when_the_noise_is_large():
    layer = planted_layers.layer(
        dtype="float16", columns=4, gains=np.ones(48) * 0.7, biases=np.zeros(48)
    )
    solved = family(layer)
    for column in range(4):
        given = certificate.candidates(
            solved.line, solved.values[:, column], solved.noise[:, column] * 1e6, layer.grid
        )
        kept = certificate.sieve(given)
        np.testing.assert_array_equal(kept, certificate.walk(given))
        assert len(kept) > 10


def residuals_of(layer, places=200):
    solved = family(layer)
    parts = [
        certificate.null_residuals(
            solved.line,
            solved.values[:, column],
            solved.noise[:, column],
            layer.grid,
            places,
            np.random.default_rng(column),
        )
        for column in range(layer.weights.shape[1])
    ]
    return certificate.null_summary(
        [residuals for residuals, _ in parts], sum(left_out for _, left_out in parts)
    )


@pytest.mark.parametrize("name", ["float32", "float16", "bfloat16"])
def test_residuals_at_wrong_places_are_uniform(name):
    found = residuals_of(planted_layers.layer(dtype=name, columns=16))
    assert found["residuals"] + found["left_out"] == 16 * 200 * 49
    assert found["left_out"] <= 0.02 * found["residuals"]
    assert found["p"] > 0.01
    assert sum(found["counts"]) == found["residuals"]


def test_the_test_of_uniformity_sees_residuals_of_coordinates_that_do_not_move(monkeypatch):
    layer = planted_layers.layer()
    gains, biases = layer.gains.copy(), layer.biases.copy()
    gains[5], biases[5] = layer.grid.round(np.array([1e-30, 2e-30]))
    layer = planted_layers.layer(gains=gains, biases=biases, columns=16)
    honest = residuals_of(layer)
    assert honest["residuals"] == 16 * 200
    assert honest["p"] > 0.01
    # all coordinates, as if the null held for them
    monkeypatch.setattr("normgauge.exact_recovery.gauge_line.SWEPT", 0.0)
    assert residuals_of(layer)["p"] < 1e-50


def test_no_residuals_have_no_test():
    found = certificate.null_summary([], 7)
    assert (found["residuals"], found["left_out"], found["statistic"], found["p"]) == (
        0,
        7,
        None,
        None,
    )
    assert not any(found["counts"])
