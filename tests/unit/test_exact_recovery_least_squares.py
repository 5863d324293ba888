"""Least squares: planted weights come back, the noise estimate is honest, rank is decided, the
sliced residual is exact.
"""

from fractions import Fraction

import numpy as np
import pytest

from normgauge.exact_recovery import sliced_product
from normgauge.exact_recovery.arithmetic import ROUTES, arithmetic
from normgauge.exact_recovery.grids import GRIDS
from normgauge.exact_recovery.least_squares import design_matrix, factorise, solve


def planted(condition, seed=0, rows=400, width=24, columns=10):
    generator = np.random.default_rng(seed)
    mixing = np.linalg.qr(generator.standard_normal((width, width)))[0] * np.geomspace(
        1, 1 / condition, width
    )
    inputs = (
        generator.standard_normal((rows, width))
        @ mixing
        @ np.linalg.qr(generator.standard_normal((width, width)))[0]
    )
    weights = GRIDS["float32"].round(generator.standard_normal((width, columns)) * 0.1)
    bias = GRIDS["float32"].round(generator.standard_normal(columns))
    return inputs, weights, bias, inputs @ weights + bias


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("extended", [False, True])
def test_planted_weights_come_back_and_the_noise_covers_the_error(route, extended):
    inputs, weights, bias, outputs = planted(1e5)
    factors = factorise(design_matrix(inputs, intercept=True), arithmetic(route))
    solution = solve(factors, outputs, arithmetic(route), extended=extended)
    truth = np.vstack([weights, bias])
    error = np.abs(solution.values - truth) / solution.noise
    assert factors.null_rank == 0
    assert np.sqrt((error**2).mean()) < 2.0
    assert np.sqrt((error**2).mean()) > 0.1
    assert solution.relative_residual.max() < 1e-14


def test_normal_equations_would_lose_what_qr_keeps():
    inputs, weights, bias, outputs = planted(1e7)
    design = design_matrix(inputs, intercept=True)
    solution = solve(factorise(design, arithmetic("torch")), outputs, arithmetic("torch"))
    truth = np.vstack([weights, bias])
    normal = np.linalg.solve(design.T @ design, design.T @ outputs)
    assert np.abs(solution.values - truth).max() * 1e3 < np.abs(normal - truth).max()


def test_rank_is_decided():
    inputs, *_ = planted(1e5)
    dependent = np.hstack(
        [inputs, inputs @ np.ones((inputs.shape[1], 1)), np.zeros((len(inputs), 1))]
    )
    assert factorise(design_matrix(inputs, intercept=True), arithmetic("torch")).null_rank == 0
    assert factorise(design_matrix(dependent, intercept=True), arithmetic("torch")).null_rank == 2


def test_more_observations_lower_the_noise_as_the_square_root():
    few, many = (fitted_noise(rows) for rows in (500, 8000))
    assert np.median(few / many) == pytest.approx(4.0, rel=0.1)


def fitted_noise(rows):
    inputs, _, _, outputs = planted(10, rows=rows)
    outputs = outputs + 1e-10 * np.random.default_rng(9).standard_normal(outputs.shape)
    return solve(
        factorise(design_matrix(inputs, True), arithmetic("torch")), outputs, arithmetic("torch")
    ).noise


def test_the_noise_is_honest_where_a_few_large_rows_decide_a_coordinate():
    generator = np.random.default_rng(8)
    inputs = generator.standard_normal((3000, 6)) * np.exp(
        1.5 * generator.standard_normal((3000, 1))
    )
    inputs[:, 0] *= (np.arange(3000) % 50 == 0) * 3.0
    weights = generator.standard_normal((6, 400))
    design = design_matrix(inputs, intercept=True)
    rounding = (
        1e-12 * np.abs(inputs).sum(axis=1, keepdims=True) * generator.standard_normal((3000, 400))
    )
    solution = solve(
        factorise(design, arithmetic("torch")), inputs @ weights + rounding, arithmetic("torch")
    )
    error = (solution.values - np.vstack([weights, np.zeros(400)])) / solution.noise
    np.testing.assert_allclose(np.sqrt((error**2).mean(axis=1)), 1.0, atol=0.2)


def test_the_sliced_residual_is_exact_to_twice_the_precision():
    generator = np.random.default_rng(3)
    design = generator.standard_normal((6, 40)) * 10.0 ** generator.uniform(-3, 3, (6, 40))
    values = generator.standard_normal((40, 3))
    targets = design @ values
    exact = np.array(
        [
            [
                float(
                    Fraction(targets[i, c])
                    - sum(Fraction(design[i, j]) * Fraction(values[j, c]) for j in range(40))
                )
                for c in range(3)
            ]
            for i in range(6)
        ]
    )
    scale = np.abs(design) @ np.abs(values)
    assert (
        np.abs(sliced_product.residual(targets, design, values) - exact) / scale
    ).max() < 2.0**-60
    assert (np.abs((targets - design @ values) - exact) / scale).max() > 2.0**-56


def test_the_sliced_residual_does_not_lose_small_weights_beside_a_huge_one():
    """A collapsed gain makes a feature of 1e-33 and, in the fit, a weight of 1e15 on it."""
    generator = np.random.default_rng(3)
    design, values = generator.standard_normal((6, 40)), generator.standard_normal((40, 3))
    design[:, 7] *= 1e-33
    values[7] *= 1e15
    targets = design @ values
    exact = np.array(
        [
            [
                float(
                    Fraction(targets[i, c])
                    - sum(
                        map(Fraction.__mul__, map(Fraction, design[i]), map(Fraction, values[:, c]))
                    )
                )
                for c in range(3)
            ]
            for i in range(6)
        ]
    )
    assert np.abs(sliced_product.residual(targets, design, values) - exact).max() < 2.0**-60
