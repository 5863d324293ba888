"""The storage grids agree with the machine's own number formats."""

import numpy as np
import pytest
import torch

from normgauge.errors import InputError
from normgauge.exact_recovery.grids import GRIDS, grid

DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


def spread_values(name, count=20_000):
    generator = np.random.default_rng(1)
    low = {"float32": -45, "float16": -8, "bfloat16": -40}[name]
    values = generator.standard_normal(count) * 10.0 ** generator.uniform(low, 2, count)
    powers = 2.0 ** np.arange(GRIDS[name].minimum_exponent - GRIDS[name].mantissa, 7)
    return np.concatenate(
        [values, powers, -powers, powers * (1 + 2**-30), powers * (1 - 2**-30), [0.0]]
    )


@pytest.mark.parametrize("name", GRIDS)
def test_rounding_is_the_machines(name):
    values = spread_values(name)
    expected = torch.from_numpy(values).to(DTYPES[name]).to(torch.float64).numpy()
    single = torch.from_numpy(values).to(torch.float32).to(torch.float64).numpy()
    # torch may round twice through float32
    exact = np.abs(values - single) == 0 if name != "float32" else np.ones(len(values), bool)
    exact |= np.abs(GRIDS[name].boundary_distance(values)) > 1e-7 * np.abs(values)
    np.testing.assert_array_equal(GRIDS[name].round(values)[exact], expected[exact])
    assert exact.mean() > 0.99


@pytest.mark.parametrize("name", GRIDS)
def test_ties_go_to_even(name):
    ulp = 2.0 ** -GRIDS[name].mantissa
    np.testing.assert_array_equal(
        GRIDS[name].round(np.array([1 + ulp / 2, 1 + 3 * ulp / 2, -1 - ulp / 2])),
        [1, 1 + 2 * ulp, -1],
    )


@pytest.mark.parametrize("name", GRIDS)
def test_index_is_monotone_and_inverts(name):
    grid_ = GRIDS[name]
    points = np.unique(grid_.round(spread_values(name)))
    index = grid_.index(points)
    assert (np.diff(index) > 0).all()
    np.testing.assert_array_equal(grid_.point(index), points)
    low, high = grid_.neighbours(points)
    np.testing.assert_array_equal(grid_.round(low), low)
    assert (low < points).all()
    assert (points < high).all()
    assert grid_.index(np.zeros(1))[0] == 0
    np.testing.assert_array_equal(
        grid_.neighbours(np.zeros(1)), [[-grid_.smallest], [grid_.smallest]]
    )


@pytest.mark.parametrize("name", GRIDS)
def test_ulp_is_the_outward_spacing_and_boundaries_are_midpoints(name):
    grid_ = GRIDS[name]
    points = grid_.round(spread_values(name))
    low, high = grid_.neighbours(points)
    np.testing.assert_array_equal(
        grid_.ulp(points), np.where(points < 0, points - low, high - points)
    )
    shifted = points + 0.2 * (high - points)
    expected = np.minimum((points + high) / 2 - shifted, shifted - (points + low) / 2)
    np.testing.assert_allclose(
        grid_.boundary_distance(shifted, points), expected, rtol=1e-5, atol=0
    )


def test_a_dtype_without_a_grid_is_refused():
    with pytest.raises(InputError, match="Q4_1"):
        grid("Q4_1")
