"""What the statistics of the fingerprint mean: each against a planted case whose answer is
known.
"""

from fractions import Fraction

import numpy as np
import pytest
import torch

from normgauge.anatomy.structure import Site
from normgauge.fingerprint import Identity, Measurement, NormFacts, measure, protocol_check
from normgauge.fingerprint.mahalanobis import mean_length
from normgauge.fingerprint.rounding import Rounding
from normgauge.fingerprint.schur import delta_lower, schur_columns, schur_faults
from normgauge.fingerprint.spectrum import limits, spectrum_columns
from normgauge.moments import Accumulator, Moments

D, N = 24, 4000
IDENTITY = Identity(
    "m", "r", "gpt2", "published", "full", None, "pre-norm", {"decoder": 1}, "decoder"
)


def gaussian(seed=0, d=D, n=N):
    return np.random.default_rng(seed).standard_normal((n, d))


def moments_of(x, method="cov64"):
    accumulator = Accumulator(method, x.shape[1])
    for chunk in torch.as_tensor(x).split(500):
        accumulator.update(chunk)
    return accumulator.moments()


def layer_norm(x, norm):
    centred = x - x.mean(axis=1, keepdims=True)
    return centred / centred.std(axis=1, keepdims=True) * norm.gain + norm.bias


def a_norm(along=0.3, drift=0.0, kind="LayerNorm", gain=None):
    """A norm whose bias has the part `along` of v, and the input that it gets: its mean is `drift`
    in one direction.
    """
    gain = (
        np.linspace(0.4, 1.9, D) * np.where(np.arange(D) % 5 == 0, -1, 1) if gain is None else gain
    )
    norm = NormFacts("norm", kind, gain, np.linspace(-1, 2, D))
    v = norm.kernel[:, 0]
    norm = NormFacts("norm", kind, gain, norm.bias - (norm.bias @ v) * v + along * v)
    return norm, gaussian() + drift * np.cos(np.arange(D))


# --- the Schur ratio behind a LayerNorm ---


@pytest.mark.parametrize("method", ["cov64", "tsqr64"])
@pytest.mark.parametrize("drift", [0.0, 1.0, 30.0])
@pytest.mark.parametrize("along", [1e-3, 0.3, 5.0])
def test_the_ratio_behind_a_layer_norm_is_that_of_its_mean(along, drift, method):
    """No direction deepens here, C is what it is: the ratio follows from (beta . v)^2 and the
    length of the mean alone.
    """
    norm, x = a_norm(along, drift)
    columns = schur_columns(moments_of(layer_norm(x, norm), method), "float64", norm)
    assert columns["quadratic_form"] == pytest.approx(along**2, rel=1e-9)
    assert columns["predicted_quadratic_form"] == pytest.approx(along**2, rel=1e-12)
    assert columns["mahalanobis_unresolved"] == 0
    lowest, floor = columns["lambda_min"], columns["floor"]
    ratio, slack = (
        lowest / columns["quadratic_form"],
        (2 * (abs(lowest) * floor) ** 0.5 + floor) / along**2,
    )
    assert (
        columns["predicted_ratio_low"] - slack <= ratio <= columns["predicted_ratio_high"] + slack
    )
    assert (
        columns["predicted_ratio_low"]
        <= columns["predicted_ratio"]
        <= columns["predicted_ratio_high"]
    )
    if along < 1:
        assert ratio == pytest.approx(columns["predicted_ratio"], rel=0.05)
    assert schur_faults(columns) == []


def test_delta_near_one_and_the_bottom_vector_still_the_predicted_one():
    """What moves delta is the mean's length; the bottom vector of A, the `deeper direction`, stays
    v.
    """
    deltas = []
    for drift in (0.0, 3.0, 1000.0):
        norm, x = a_norm(0.01, drift)
        columns = schur_columns(moments_of(layer_norm(x, norm), "tsqr64"), "float64", norm)
        assert columns["bottom_cos_gamma_inv"] > 0.999
        deltas.append(columns["delta"])
    assert deltas == sorted(deltas)
    assert deltas[-1] > 0.9999


def test_another_activation_than_the_norms_output_is_named():
    norm, x = a_norm()
    assert schur_faults(schur_columns(moments_of(x), "float64", norm)) == ["wrong-hook"]
    assert schur_faults(
        schur_columns(moments_of(layer_norm(x, norm)[:, ::-1].copy()), "float64", norm)
    ) == ["wrong-hook"]
    other, _ = a_norm(kind="RMSNorm")
    columns = schur_columns(moments_of(x), "float64", other)
    assert (schur_faults(columns), columns["predicted_ratio"], columns["mahalanobis_squared"]) == (
        [],
        None,
        None,
    )


def test_a_wrong_hook_at_a_linear_map_is_told_of_the_stream():
    norm, x = a_norm()
    place = {"embedding": site("embedding", 0, "embedding")}
    place["qkv"] = site(
        "block.1/query_key_value_input", 1, "query_key_value_input", "schur", "norm"
    )
    for activation, expected in (
        (layer_norm(x, norm), []),
        (x, [f"{place['qkv'].id}: protocol:wrong-hook"]),
    ):
        moments = {place["embedding"].id: moments_of(x), place["qkv"].id: moments_of(activation)}
        sites = {each.id: each for each in place.values()}
        assert (
            measure([Measurement("float64", moments, sites, {"norm": norm})], IDENTITY)[2][0][
                "protocol"
            ]
            == expected
        )


def test_several_zero_gains_predict_a_ratio_of_zero():
    gain = np.linspace(0.4, 1.9, D)
    gain[[3, 7]] = 0
    norm = NormFacts("norm", "LayerNorm", gain, np.linspace(-1, 2, D))
    columns = schur_columns(moments_of(layer_norm(gaussian(), norm)), "float64", norm)
    assert columns["predicted_quadratic_form"] == pytest.approx(min(norm.bias[[3, 7]] ** 2))
    assert columns["quadratic_form"] == pytest.approx(columns["predicted_quadratic_form"])
    assert columns["predicted_ratio_high"] == 0
    assert columns["lambda_min"] <= columns["floor"]


def exact_length(covariance, mean):
    """m^T C^-1 m in exact rational arithmetic, by elimination."""
    rows = [
        [Fraction(value) for value in (*row, last)]
        for row, last in zip(covariance, mean, strict=True)
    ]
    d = len(rows)
    for column in range(d):
        pivot = next(row for row in range(column, d) if rows[row][column])
        rows[column], rows[pivot] = rows[pivot], rows[column]
        for row in range(d):
            if row != column:
                factor = rows[row][column] / rows[column][column]
                rows[row] = [a - factor * b for a, b in zip(rows[row], rows[column], strict=True)]
    return float(sum(Fraction(m) * rows[i][d] / rows[i][i] for i, m in enumerate(mean)))


@pytest.mark.parametrize("method", ["cov64", "tsqr64"])
@pytest.mark.parametrize("condition", [1e2, 1e6])
def test_the_length_of_the_mean_against_exact_arithmetic(condition, method):
    """A covariance of condition `condition` squared, with one exact kernel axis: the error lies
    below the stated one.
    """
    d = 8
    rotation = np.linalg.qr(gaussian(1, d - 1, d - 1))[0]
    samples = np.zeros((400, d))
    samples[:, 1:] = (
        gaussian(2, d - 1, 400) @ np.diag(np.geomspace(1 / condition, 1, d - 1)) @ rotation + 1
    )
    samples[:, 0] = 0.25
    moments = moments_of(samples, method)
    exact = [[Fraction(float(value)) for value in row] for row in samples[:, 1:]]
    mean = [sum(column) / len(exact) for column in zip(*exact, strict=True)]
    left = [[value - m for value, m in zip(row, mean, strict=True)] for row in exact]
    columns = list(zip(*left, strict=True))
    covariance = [
        [sum(a * b for a, b in zip(one, two, strict=True)) / len(exact) for two in columns]
        for one in columns
    ]
    sigma = float(np.sqrt(moments.gram_eigenvalues()[-1]))
    rounding = Rounding.of(moments, sigma * 2.0**-52, moments.accumulator_floor(sigma))
    kernel = np.eye(d)[:, :1]
    length = mean_length(moments, kernel, rounding)
    true = exact_length(covariance, mean)
    assert abs(length.squared - true) <= length.error
    assert length.unresolved == 0
    if method == "tsqr64":
        assert length.error < 1e-3 * true


def test_directions_below_the_floor_make_the_length_a_lower_bound():
    """Two constant coordinates, one more than the kernel: a part of T^2 is unknown, and the ratio
    bounded from above alone.
    """
    gain = np.linspace(0.4, 1.9, D)
    gain[[4, 9]] = 1e-12
    collapsed, x = a_norm(gain=gain)
    moments = moments_of(layer_norm(x, collapsed))
    columns = schur_columns(moments, "float32", collapsed)
    assert columns["mahalanobis_unresolved"] == 1
    assert columns["predicted_ratio_low"] == 0
    assert (
        columns["lambda_min"] / columns["predicted_quadratic_form"]
        <= columns["predicted_ratio_high"] + 1e-9
    )


def test_a_covariance_that_cannot_be_inverted_is_no_failure():
    """Its lost direction is left out and counted, even where no floor was given."""
    gain = np.linspace(0.4, 1.9, D)
    gain[[4, 9]] = 1e-12
    norm, x = a_norm(gain=gain)
    moments = moments_of(layer_norm(x, norm))
    length = mean_length(moments, norm.kernel, Rounding(0.0, 0.0))
    assert (length.unresolved, np.isfinite(length.squared)) == (1, True)


# --- a lower bound on delta ---


def test_delta_is_bounded_where_lambda_min_alone_is_lost():
    """uᵀAu = 1.2e-7 stands far above a floor of 8e-12, lambda_min does not: delta is known to be
    near 1, and no noise.
    """
    rounding = Rounding(8.1e-12**0.5, 1.3e-13)
    bound = delta_lower(2.3e-12, 1.2e-7, rounding)
    assert 0.9998 < bound < 1 - (2.3e-12**0.5 + 8.1e-12**0.5) ** 2 / 1.2e-7
    assert delta_lower(1e-9, 1.2e-7, rounding) is None, "resolved"
    assert delta_lower(2.3e-12, 8e-12, rounding) is None, "noise"
    assert delta_lower(-1e-13, 9e-12, rounding) >= 0
    assert delta_lower(2.3e-12, None, rounding) is None


@pytest.mark.parametrize("seed", range(3))
def test_the_bound_on_delta_holds_for_every_error_of_the_floors_size(seed):
    """Samples with a known ratio, moved by an error of the stated norm in the worst direction for
    each number.
    """
    rng, d, n = np.random.default_rng(seed), 6, 500
    left, right = (
        np.linalg.qr(rng.standard_normal((n, d)))[0],
        np.linalg.qr(rng.standard_normal((d, d)))[0],
    )
    sigma = np.array([1.0, 0.9, 0.7, 0.5, 3e-4, 2e-6])
    u = right[:, 5] * np.sqrt(1 - 1e-4) + right[:, 4] * 1e-2
    amplitude = 3e-6
    samples = left * sigma @ right.T
    worst = amplitude * left @ np.diag([0, 0, 0, 0, 1, -1]) @ right.T
    noise = rng.standard_normal((n, d))
    noise *= amplitude / np.linalg.norm(noise, 2)
    true = 1 - sigma[5] ** 2 / np.sum((samples @ u) ** 2)
    for error in (worst, -worst, noise):
        moved = samples + error
        lowest, form = np.linalg.svd(moved, compute_uv=False)[-1] ** 2, np.sum((moved @ u) ** 2)
        bound = delta_lower(lowest, form, Rounding(amplitude, 0.0))
        assert bound is None or bound <= true
    assert (
        delta_lower(sigma[5] ** 2, np.sum((samples @ u) ** 2), Rounding(amplitude, 0.0)) is not None
    )


def test_a_bounded_delta_is_not_marked_as_noise():
    norm, x = a_norm(0.02, 1000.0)
    exact = layer_norm(x, norm)
    columns = schur_columns(moments_of(exact.astype(np.float32)), "float32", norm)
    assert columns["lambda_min"] <= columns["floor"] < columns["quadratic_form"]
    assert not columns["below_floor"]
    true = schur_columns(moments_of(exact, "tsqr64"), "float64", norm)["delta"]
    assert 0.5 < columns["delta_lower"] <= true


# --- ratios at a fixed rank ---


def site(name, block, tap, group="residual", norm=None, width=D):
    return Site(f"decoder/{name}", group, "decoder", block, tap, "module", "output", width, norm)


def measured(embedding, output, forward_dtype="float64", norm=None, after=None):
    """Rows of a model of one block: its embedding, its output and, with a norm, the terminal norm's
    output.
    """
    width = embedding.shape[1]
    values = {
        site("embedding", 0, "embedding", width=width): embedding,
        site("block.1/output", 1, "output", width=width): output,
    }
    if norm is not None:
        values[site("terminal_norm", 2, "terminal_norm", "terminal", "norm", width)] = after
    moments = {place.id: moments_of(value) for place, value in values.items()}
    measurement = Measurement(
        forward_dtype,
        moments,
        {place.id: place for place in values},
        {"norm": norm} if norm else {},
    )
    fingerprint, _, (stack,) = measure([measurement], IDENTITY)
    return fingerprint, stack


def test_a_stream_that_gains_rank_does_not_fall():
    """X_0 of rank 32 in 64 coordinates, X_1 that with a little noise: the corollary's singular
    value stays, another one appears.
    """
    embedding = gaussian(1, 32) @ gaussian(2, 64, 32)
    _, stack = measured(embedding, embedding + 1e-3 * gaussian(3, 64))
    assert stack["fixed_rank"] == 32
    assert stack["fixed_rank_min_ratio"] == pytest.approx(1.0, abs=1e-3)
    assert stack["min_ratio"] < 2e-3
    assert (stack["behaviour_smallest_active"], stack["fixed_rank_below_floor"]) == (
        "depth-decreasing",
        0,
    )
    assert (
        measured(embedding, 1.01 * embedding + 1e-3 * gaussian(3, 64))[1]["behaviour"]
        == "depth-invariant"
    )


def test_a_stream_that_loses_rank_falls():
    """X_1 of half the rank: the r0-th value lies below the floor, which is far below X_0's; the
    published statistic sees growth.
    """
    embedding = gaussian(1, 64)
    output = 2 * embedding.copy()
    output[:, 32:] = output[:, :32]
    fingerprint, stack = measured(embedding, output)
    assert (stack["behaviour"], stack["behaviour_smallest_active"]) == (
        "depth-decreasing",
        "depth-invariant",
    )
    assert (stack["fixed_rank_min_ratio"], stack["fixed_rank_below_floor"]) == (None, 1)
    assert 0 < fingerprint[1]["fixed_rank_ratio_upper"] < 1e-6


def test_at_full_rank_both_ratios_are_the_same():
    fingerprint, stack = measured(gaussian(1), 0.5 * gaussian(1))
    assert fingerprint[0]["fixed_rank_ratio"] == fingerprint[0]["ratio_to_embedding"] == 1
    assert (
        fingerprint[1]["fixed_rank_ratio"]
        == fingerprint[1]["ratio_to_embedding"]
        == pytest.approx(0.5)
    )
    assert stack["behaviour"] == stack["behaviour_smallest_active"] == "depth-decreasing"


# --- statistics of a bottom vector ---


BOTTOM = ("cos_ones", "cos_gamma_inv", "cos_min_gain", "cos_gamma_inv_rest")


def test_no_statistic_of_a_bottom_vector_that_is_not_determined():
    """Three constant coordinates: what stands instead does not hang on the rounding that picks the
    vector.
    """
    gain = np.linspace(0.4, 1.9, D)
    gain[[4, 9, 15]] = 1e-14
    norm, _ = a_norm(gain=gain)
    rows = []
    for seed in range(3):
        out = layer_norm(gaussian(seed) + 1.5, norm)
        fingerprint, stack = measured(gaussian(8), gaussian(9), norm=norm, after=out)
        columns = fingerprint[-1]
        assert columns["tap"] == "terminal_norm"
        assert columns["null_dimension"] == 3
        assert [columns[name] for name in BOTTOM] == [None] * 4
        assert [columns[f"raw_{name}"] for name in ("cos_ones", "cos_gamma_inv")] == [None] * 2
        assert columns["null_cos_gamma_inv"] == pytest.approx(1)
        assert columns["null_cos_gamma_inv_rest"] < 1e-6, (
            "1/gamma owes its place there to the three axes"
        )
        assert "degenerate-bottom" in columns["flags"]
        assert stack["post_norm_cos_ones"] == columns["null_cos_ones"]
        assert stack["post_norm_raw_cos_gamma_inv"] == columns["raw_null_cos_gamma_inv"]
        rows.append(stack)
    values = {
        name: [row[name] for row in rows]
        for name in ("post_norm_cos_ones", "post_norm_cos_gamma_inv")
    }
    for found in values.values():
        assert found == pytest.approx([found[0]] * 3, abs=1e-6)


def test_two_values_closer_than_the_rounding_leave_the_vector_open():
    """Both are resolved, their difference is not."""
    base = np.linalg.qr(gaussian(1) - gaussian(1).mean(axis=0))[0]
    scales = np.ones(D)
    scales[:2] = 0.1, 0.1 + 1e-9
    close = moments_of(base * scales)
    scales[1] = 0.2
    apart = moments_of(base * scales)
    open_, closed = (spectrum_columns("site", each, "float32", None) for each in (close, apart))
    assert (open_["null_dimension"], open_["cos_ones"], open_["bottom_sine"]) == (0, None, 1)
    assert (closed["null_dimension"], closed["cos_ones"] is None) == (0, False)
    assert closed["bottom_sine"] < 1e-4
    assert "degenerate-bottom" in limits(open_, N, D, None, "full")


@pytest.mark.parametrize("seed", range(3))
def test_the_bottom_vector_turns_by_no_more_than_stated(seed):
    rng = np.random.default_rng(seed)
    samples = np.linalg.qr(rng.standard_normal((300, 8)))[0] * np.array(
        [1, 0.9, 0.8, 0.5, 0.3, 0.2, 0.02, 0.01]
    )
    error = rng.standard_normal(samples.shape)
    error *= 1e-3 / np.linalg.norm(error, 2)
    sigma = np.linalg.svd(samples, compute_uv=False)[::-1]
    before, after = (np.linalg.svd(each)[2][-1] for each in (samples, samples + error))
    sine = np.sqrt(max(1 - (before @ after) ** 2, 0))
    assert sine <= Rounding(1.3e-3, 0).turn(sigma) < 0.2


# --- an RMSNorm that aligns with 1/gamma ---


def rms_norm(x, norm):
    return x / np.sqrt((x**2).mean(axis=1, keepdims=True)) * norm.gain


def aligned(gain, x=None, d=400):
    norm = NormFacts("norm", "RMSNorm", gain, None)
    moments = moments_of(rms_norm(gaussian(1, d) if x is None else x, norm))
    columns = spectrum_columns("site", moments, "float64", norm)
    return columns, protocol_check(columns, moments, norm)


def gains(d=400, **collapsed):
    gain = 1 + 0.2 * np.cos(np.arange(d))
    for place, value in collapsed.items():
        gain[int(place.removeprefix("at"))] = value
    return gain


def test_one_collapsed_gain_is_named_as_the_reason():
    columns, faults = aligned(gains(at7=0.02))
    assert faults == ["rms-alignment by one collapsed gain"]
    assert columns["cos_gamma_inv"] > 0.9
    assert columns["cos_min_gain"] > 0.99
    assert columns["min_gain_share"] > 0.85
    assert columns["cos_gamma_inv_rest"] < 0.15
    assert columns["collapsed_gains"] == 1


def test_several_collapsed_gains_are_counted():
    assert aligned(gains(at7=0.02, at30=-0.021))[1] == ["rms-alignment by 2 collapsed gains"]
    columns, faults = aligned(gains(at7=1e-16, at30=-1e-16))
    assert columns["null_dimension"] == 2
    assert faults == ["rms-alignment by 2 collapsed gains"]


def test_an_alignment_over_all_coordinates_is_not_put_down_to_one():
    """The same alignment without a collapsed gain, and one that stays when the collapsed axis is
    taken out.
    """
    for gain in (gains(), gains(at7=0.08)):
        norm = NormFacts("norm", "RMSNorm", gain, None)
        along = norm.kernel[:, 0] * norm.gain
        along /= np.linalg.norm(along)
        x = gaussian(1, 400)
        columns, faults = aligned(gain, x - 0.99 * (x @ along)[:, None] * along)
        assert faults == ["rms-alignment"]
        assert columns["cos_gamma_inv_rest"] > 0.15
    assert aligned(gains())[1] == []


# --- the kind of norm ---


def test_a_layer_norm_without_bias_is_called_one():
    gain = np.linspace(0.4, 1.9, D)
    norm = NormFacts("norm", "LayerNorm", gain, None)
    with_zero_bias = NormFacts("norm", "LayerNorm", gain, np.zeros(D))
    _, stack = measured(
        gaussian(1), gaussian(2), norm=norm, after=layer_norm(gaussian(3), with_zero_bias)
    )
    assert (stack["norm_kind"], stack["norm_kind_activations"]) == ("LayerNorm", "LayerNorm")
    assert (stack["norm_kind_parameters"], stack["norm_kinds_agree"]) == ("RMSNorm", False)


def test_filled_moments_keep_what_is_orthogonal():
    directions = np.linalg.qr(gaussian(5)[:, :2].copy()[:D])[0]
    x = gaussian(6) * np.geomspace(1e-3, 1, D)
    for method in ("cov64", "tsqr64"):
        moments = moments_of(x, method)
        filled = moments.filled(directions)
        assert isinstance(filled, Moments)
        rest = np.linalg.qr(np.hstack([directions, gaussian(7)[:D, : D - 2]]))[0][:, 2:]
        np.testing.assert_allclose(
            rest.T @ filled.scatter() @ rest,
            rest.T @ moments.scatter() @ rest,
            rtol=1e-9,
            atol=1e-9,
        )
        assert np.linalg.eigvalsh(directions.T @ filled.scatter() @ directions)[0] > 1e-3
        np.testing.assert_allclose(directions.T @ filled.scatter() @ rest, 0, atol=1e-8)
