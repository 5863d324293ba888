"""Laws of the moments: merging, centring, accuracy on planted spectra."""

import flint
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from threadpoolctl import threadpool_limits

from normgauge.errors import InputError
from normgauge.moments import (
    METHODS,
    Accumulator,
    Moments,
    merge,
    merge_all,
    read_moments,
    write_moments,
)

TOLERANCE = {"cov32": 2e-5, "cov64": 1e-12, "tsqr64": 1e-12}


def samples(seed, n=300, d=7, offset=3.0):
    return np.random.default_rng(seed).normal(offset, 1.0, (n, d)) * np.linspace(0.5, 2.0, d)


def accumulate(method, x, chunk=64):
    accumulator = Accumulator(method, x.shape[1])
    for start in range(0, len(x), chunk):
        accumulator.update(torch.from_numpy(x[start : start + chunk]))
    return accumulator.moments()


def planted(sigma, n=600, seed=0):
    """Centred samples with exactly the given singular values."""
    rng = np.random.default_rng(seed)
    left, _ = np.linalg.qr(np.hstack([np.ones((n, 1)), rng.normal(size=(n, len(sigma)))]))
    right, _ = np.linalg.qr(rng.normal(size=(len(sigma), len(sigma))))
    return left[:, 1:] @ np.diag(sigma) @ right.T


def exact_bottom(x, centred=True):
    """The smallest singular value of the given float64 samples, from 600-bit arithmetic."""
    precision, flint.ctx.prec = flint.ctx.prec, 600
    try:
        rows = flint.arb_mat(x.tolist())
        ones = flint.arb_mat([[1] * len(x)])
        mean = ones * rows / len(x)
        centre = (
            mean.transpose() * mean * len(x) if centred else flint.arb_mat(x.shape[1], x.shape[1])
        )
        return float(
            min(
                value.real
                for value in flint.acb_mat(rows.transpose() * rows - centre).eig(multiple=True)
            ).sqrt()
        )
    finally:
        flint.ctx.prec = precision


def close(a: Moments, b: Moments, tolerance):
    assert a.n == b.n
    np.testing.assert_allclose(a.mean, b.mean, rtol=tolerance, atol=tolerance)
    scale = np.abs(b.scatter()).max()
    np.testing.assert_allclose(a.scatter(), b.scatter(), atol=tolerance * scale, rtol=0)


@pytest.mark.parametrize("method", METHODS)
def test_equals_the_definition(method):
    x = samples(0)
    moments = accumulate(method, x)
    centred = x - x.mean(0)
    close(moments, Moments("cov64", len(x), x.mean(0), centred.T @ centred), TOLERANCE[method])
    np.testing.assert_allclose(moments.scatter(centred=False), x.T @ x, rtol=TOLERANCE[method] * 10)


@pytest.mark.parametrize("method", METHODS)
@settings(max_examples=20, deadline=None)
@given(
    cuts=st.lists(st.integers(1, 299), min_size=2, max_size=2, unique=True),
    seed=st.integers(0, 100),
)
def test_merge_is_associative_and_equal_to_one_pass(method, cuts, seed):
    x = samples(seed)
    first, second = sorted(cuts)
    a, b, c = (accumulate(method, part) for part in (x[:first], x[first:second], x[second:]))
    whole = accumulate(method, x, chunk=len(x))
    close(merge(merge(a, b), c), merge(a, merge(b, c)), TOLERANCE[method])
    close(merge_all([a, b, c]), whole, TOLERANCE[method])
    close(merge(b, a), merge(a, b), TOLERANCE[method])


@pytest.mark.parametrize("method", METHODS)
def test_the_empty_moments_are_the_identity(method):
    moments = accumulate(method, samples(1))
    empty = Moments.empty(method, moments.d)
    assert merge(moments, empty) is moments
    assert merge(empty, moments) is moments


@pytest.mark.parametrize("method", METHODS)
def test_centred_moments_do_not_see_a_shift(method):
    x = samples(2)
    close_scatter = accumulate(method, x + 100.0).scatter()
    reference = accumulate(method, x).scatter()
    np.testing.assert_allclose(
        close_scatter, reference, atol=100 * TOLERANCE[method] * np.abs(reference).max()
    )


def test_mixed_methods_merge_as_the_less_accurate_one():
    x = samples(3)
    merged = merge(accumulate("tsqr64", x[:100]), accumulate("cov64", x[100:]))
    assert merged.method == "cov64"
    close(merged, accumulate("cov64", x), 1e-12)


def test_tsqr_resolves_what_the_scatter_cannot():
    sigma = np.geomspace(1.0, 1.0 / 1.5e9, 48)
    x = planted(sigma)
    measured = {method: accumulate(method, x).spectrum().values for method in METHODS}
    bottom = sigma[-1]
    assert abs(measured["tsqr64"][0] - bottom) < 1e-10 * sigma[0]
    assert abs(measured["tsqr64"][0] / bottom - 1) < 1e-5
    assert abs(measured["cov64"][0] / bottom - 1) > 0.1, (
        "cov64 cannot resolve condition 1.5e9; if it does the comparison is void"
    )
    np.testing.assert_allclose(measured["tsqr64"], sigma[::-1], atol=1e-12)


@pytest.mark.parametrize(("method", "condition"), [("cov64", 3e6), ("tsqr64", 1.5e9)])
@pytest.mark.parametrize("centred", [True, False])
def test_massive_coordinates_leave_the_small_directions_their_accuracy(method, condition, centred):
    """Scales lie along coordinates, in an order that is neither ascending nor descending, as
    activation outliers do.
    """
    rng = np.random.default_rng(3)
    x = (rng.normal(size=(96, 24)) + 0.5) * rng.permutation(np.geomspace(1.0, condition, 24))
    moments, bottom = accumulate(method, x), exact_bottom(x, centred)
    sigma, vectors = moments.spectrum(centred).values, moments.spectrum(centred).bottom(24)
    assert sigma[-1] / bottom > condition / 10
    assert abs(sigma[0] / bottom - 1) < 1e-12
    np.testing.assert_allclose(vectors.T @ vectors, np.eye(24), atol=1e-12)
    rows = x - x.mean(axis=0) if centred else x
    np.testing.assert_allclose(np.linalg.norm(rows @ vectors, axis=0)[-4:], sigma[-4:], rtol=1e-9)
    if not centred:
        assert abs(moments.gram_eigenvalues()[0] * len(x) / bottom**2 - 1) < 1e-12


@pytest.mark.parametrize(
    "scales",
    [np.geomspace(1.0, 3e6, 256), np.r_[np.ones(252), [3e6] * 4]],
    ids=["geometric", "four massive"],
)
def test_the_values_of_a_wide_scatter_beside_massive_coordinates_are_those_of_its_factor(scales):
    """Wide enough for LAPACK to divide and conquer, which is where a scatter's small values were
    lost.
    """
    rng = np.random.default_rng(5)
    x = rng.normal(size=(1024, 256)) * rng.permutation(scales)
    scatter, factor = (
        accumulate(method, x, 512).spectrum().values for method in ("cov64", "tsqr64")
    )
    np.testing.assert_allclose(scatter, factor, rtol=1e-6)


@pytest.mark.parametrize("method", ["cov64", "tsqr64"])
def test_a_few_bottom_directions_span_a_wide_null_space_beside_massive_coordinates(method):
    """40 exact null directions of 256, more than one and fewer than all: LAPACK takes another path
    than for either.
    """
    rng = np.random.default_rng(7)
    null = np.linalg.qr(rng.normal(size=(256, 40)))[0]
    x = rng.normal(size=(1024, 256)) * np.r_[np.ones(252), [1e3] * 4]
    moments = accumulate(method, x - x @ null @ null.T, 512)
    spectrum = moments.spectrum()
    bottom = spectrum.bottom(40)
    np.testing.assert_allclose(bottom.T @ bottom, np.eye(40), atol=1e-12)
    assert np.linalg.svd(null.T @ bottom)[1].min() > 1 - 1e-9
    assert (
        spectrum.values[39]
        <= moments.accumulator_floor(spectrum.values[-1])
        < 1
        < spectrum.values[40]
    )


@pytest.mark.parametrize("rows", [1, 24, 25, 26])
def test_a_first_chunk_of_any_length_gives_the_same_factor(rows):
    """Of fewer rows than the factor's, as many, or more: [1, X] has 25 columns here."""
    x = samples(6, n=60, d=24)
    accumulator = Accumulator("tsqr64", 24)
    for part in (x[:rows], x[rows:]):
        accumulator.update(torch.from_numpy(part))
    close(accumulator.moments(), accumulate("tsqr64", x, 60), 1e-12)


def test_cov32_fails_where_cov64_holds():
    sigma = np.geomspace(1.0, 1.0 / 3e6, 48)
    x = planted(sigma)
    assert abs(accumulate("cov64", x).spectrum().values[0] / sigma[-1] - 1) < 1e-2
    assert abs(accumulate("cov32", x).spectrum().values[0] / sigma[-1] - 1) > 0.1


@pytest.mark.parametrize("method", ["cov64", "tsqr64"])
@pytest.mark.parametrize("centred", [True, False])
def test_spectrum_is_the_svd(method, centred):
    x = samples(4)
    moments = accumulate(method, x)
    _, sigma, vectors = np.linalg.svd(x - x.mean(0) if centred else x, full_matrices=False)
    values, directions = (
        moments.spectrum(centred).values,
        moments.spectrum(centred).bottom(moments.d),
    )
    np.testing.assert_allclose(values, sigma[::-1], rtol=1e-10)
    np.testing.assert_allclose(np.abs(np.sum(directions.T * vectors[::-1], axis=1)), 1.0, rtol=1e-8)
    direction = vectors[2]
    assert moments.length_along(direction, centred) == pytest.approx(sigma[2], rel=1e-10)
    np.testing.assert_allclose(
        moments.gram_eigenvalues()[-1], np.linalg.svd(x)[1][0] ** 2 / len(x), rtol=1e-10
    )


@pytest.mark.parametrize("method", METHODS)
def test_layer_norm_of_gaussian_input_is_isotropic_with_one_null_direction(method):
    d, n = 32, 20000
    x = torch.randn(n, d, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    moments = accumulate(method, torch.nn.functional.layer_norm(x, (d,)).numpy(), chunk=1000)
    sigma, bottom = moments.spectrum().values, moments.spectrum().bottom(1)
    assert sigma[0] <= moments.accumulator_floor(sigma[-1])
    assert abs(bottom.sum()) / np.sqrt(d) > 0.9999
    # The remaining d - 1 directions share the total variance d equally.
    np.testing.assert_allclose(sigma[1:] ** 2 / n, d / (d - 1), rtol=0.1)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_non_finite_activations_are_refused_at_once(method, bad):
    chunk = torch.zeros(10, 4, dtype=torch.float64)
    chunk[3, 2] = bad
    with pytest.raises(InputError, match="NaN or infinity"):
        Accumulator(method, 4).update(chunk)


def test_unknown_method_and_differing_widths_are_refused():
    with pytest.raises(InputError, match="cov16"):
        Accumulator("cov16", 4)
    with pytest.raises(InputError, match="widths 3 and 4"):
        merge(Moments.empty("cov64", 3), Moments.empty("cov64", 4))


@pytest.mark.parametrize("method", METHODS)
def test_storage_round_trip_is_exact_and_repeats_its_bytes(tmp_path, method):
    moments = accumulate(method, samples(5))
    paths = [tmp_path / "a.parquet", tmp_path / "b.parquet"]
    for path in paths:
        write_moments(path, moments, {"site": "decoder/block.1/output"})
    assert paths[0].read_bytes() == paths[1].read_bytes()
    back, metadata = read_moments(paths[0])
    assert metadata["site"] == "decoder/block.1/output"
    assert (back.method, back.n) == (moments.method, moments.n)
    np.testing.assert_array_equal(back.mean, moments.mean)
    np.testing.assert_array_equal(back.matrix, moments.matrix)


def test_a_foreign_or_broken_file_is_refused(tmp_path):
    path = tmp_path / "moments.parquet"
    path.write_bytes(b"not parquet")
    with pytest.raises(InputError, match="cannot be read as parquet"):
        read_moments(path)


def with_threads(threads, method, x):
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        with threadpool_limits(threads):
            moments = accumulate(method, x, chunk=2048)
            spectrum = moments.spectrum()
            return moments, spectrum.values, spectrum.bottom(8)
    finally:
        torch.set_num_threads(before)


def test_cov64_has_the_same_bits_on_one_and_two_threads():
    x = samples(6, n=4096, d=384)
    (one, sigma_one, bottom_one), (two, sigma_two, bottom_two) = (
        with_threads(threads, "cov64", x) for threads in (1, 2)
    )
    np.testing.assert_array_equal(bottom_one, bottom_two)
    np.testing.assert_array_equal(one.matrix, two.matrix)
    np.testing.assert_array_equal(one.mean, two.mean)
    np.testing.assert_array_equal(sigma_one, sigma_two)


def test_tsqr64_differs_by_rounding_only_between_one_and_two_threads():
    x = samples(6, n=4096, d=384)
    (_, sigma_one, _), (_, sigma_two, _) = (
        with_threads(threads, "tsqr64", x) for threads in (1, 2)
    )
    np.testing.assert_allclose(sigma_one, sigma_two, rtol=0, atol=1e-14 * sigma_one.max())
