"""Known answers of the fingerprint on planted moments, and the protocol check naming each planted
fault.
"""

from dataclasses import replace

import numpy as np
import pytest
import torch

from normgauge.anatomy.kernel import kernel_basis
from normgauge.anatomy.structure import Site
from normgauge.errors import InputError
from normgauge.fingerprint import (
    Identity,
    Measurement,
    NormFacts,
    alignment,
    measure,
    protocol_check,
)
from normgauge.fingerprint.profile import (
    behaviour,
    norm_kind_from_activations,
    norm_kind_from_parameters,
)
from normgauge.fingerprint.protocol import vanishes_along_kernel
from normgauge.fingerprint.schur import noise_floor_recovery, schur_columns
from normgauge.fingerprint.spectrum import (
    check_accumulation,
    effective_rank,
    limits,
    spectrum_columns,
)
from normgauge.moments import Accumulator, Moments

D, N = 24, 4000


def gaussian(seed=0, d=D, n=N, dtype=torch.float64):
    return torch.randn(n, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(
        dtype
    )


def layer_norm(x, gain, bias):
    return torch.nn.functional.layer_norm(x, (x.shape[1],), gain.to(x.dtype), bias.to(x.dtype))


def rms_norm(x, gain):
    return x * x.pow(2).mean(1, keepdim=True).rsqrt() * gain


def moments_of(x, method="cov64"):
    accumulator = Accumulator(method, x.shape[1])
    for chunk in x.split(500):
        accumulator.update(chunk)
    return accumulator.moments()


def gain_of(kind, d=D):
    gain = torch.linspace(0.4, 1.9, d, dtype=torch.float64)
    if kind == "negative":
        gain[::3] *= -1
    if kind == "tiny":
        gain[5] = -2.6e-4
    if kind == "zero":
        gain[7] = 0
    if kind == "two zeros":
        gain[[3, 7]] = 0
    if kind == "one plus w":
        gain = 1 + torch.linspace(-0.8, 0.5, d, dtype=torch.float64)
    return gain


def facts(kind, gain, bias=None):
    return NormFacts("norm", kind, gain.numpy(), None if bias is None else bias.numpy())


BIAS = torch.linspace(-1.0, 2.0, D, dtype=torch.float64)


@pytest.mark.parametrize("gains", ["plain", "negative", "tiny", "zero", "two zeros", "one plus w"])
@pytest.mark.parametrize("method", ["cov64", "tsqr64"])
def test_the_bottom_of_a_layer_norm_output_is_the_predicted_kernel(gains, method):
    gain = gain_of(gains)
    norm = facts("LayerNorm", gain, BIAS)
    moments = moments_of(layer_norm(gaussian() + 1.5, gain, BIAS), method)
    columns = spectrum_columns("site", moments, "float64", norm)
    assert columns["null_cos_gamma_inv"] > 0.9999
    assert columns["null_dimension"] == (2 if gains == "two zeros" else 1)
    assert (
        columns["cos_gamma_inv"] is None
        if gains == "two zeros"
        else columns["cos_gamma_inv"] > 0.9999
    )
    assert columns["relative_gamma_inv"] < 1e-7
    assert protocol_check(columns, moments, norm) == []
    # The sign of each gain enters: the kernel of the absolute gains is another direction.
    if gains == "negative":
        assert alignment(moments.spectrum().bottom(1)[:, 0], kernel_basis(np.abs(norm.gain))) < 0.99


def test_kernel_of_subnormal_gains_is_finite():
    basis = kernel_basis(np.array([1.0, 1e-310, -1.0]))
    assert np.isfinite(basis).all()
    np.testing.assert_allclose(np.abs(basis[:, 0]), [0, 1, 0], atol=1e-300)


def test_rms_norm_has_no_kernel():
    gain = gain_of("plain", 400)
    norm = facts("RMSNorm", gain)
    moments = moments_of(rms_norm(gaussian(d=400, n=8000), gain))
    columns = spectrum_columns("site", moments, "float64", norm)
    assert columns["null_dimension"] == 0
    assert columns["relative_gamma_inv"] > 1e-2
    assert columns["cos_gamma_inv"] < 0.15
    assert protocol_check(columns, moments, norm) == []


def test_an_aligned_rms_norm_is_reported_as_a_finding():
    gain = gain_of("plain")
    norm = facts("RMSNorm", gain)
    direction = torch.from_numpy(norm.kernel[:, 0])
    x = gaussian()
    x = x - 0.999 * (x @ direction)[:, None] * direction
    moments = moments_of(x)
    assert protocol_check(spectrum_columns("site", moments, "float64", norm), moments, norm) == [
        "rms-alignment"
    ]


def planted_fault(name):
    gain = gain_of("plain")
    norm = facts("LayerNorm", gain, BIAS)
    x = gaussian()
    good = moments_of(layer_norm(x, gain, BIAS))
    if name == "wrong-hook":  # the norm's input instead of its output
        return moments_of(x), norm
    if name == "raw-gram":
        return Moments(good.method, good.n, good.mean, good.scatter(centred=False)), norm
    # one massive direction, mixed over all coordinates, pushes the float32 floor above the rest
    if name == "accumulator-floor":
        massive = x[:, :1] * torch.linspace(-1, 1, D, dtype=torch.float64).cos() + 1e-5 * x
        return moments_of(layer_norm(massive, gain, BIAS), "cov32"), norm
    raise ValueError(name)


def test_float64_accumulation_resolves_what_the_planted_float32_floor_hides():
    _, norm = planted_fault("accumulator-floor")
    x = gaussian()
    massive = x[:, :1] * torch.linspace(-1, 1, D, dtype=torch.float64).cos() + 1e-5 * x
    better = moments_of(layer_norm(massive, gain_of("plain"), BIAS))
    assert protocol_check(spectrum_columns("site", better, "float64", norm), better, norm) == []


@pytest.mark.parametrize("fault", ["wrong-hook", "raw-gram", "accumulator-floor"])
def test_the_protocol_check_names_the_planted_fault(fault):
    moments, norm = planted_fault(fault)
    columns = spectrum_columns("site", moments, "float64", norm)
    if fault == "accumulator-floor":
        assert columns["cos_gamma_inv"] is None, "its floor hides several directions"
    else:
        assert columns["cos_gamma_inv"] < 0.9999
    assert protocol_check(columns, moments, norm) == [fault]


@pytest.mark.parametrize(("forward_dtype", "share"), [("bfloat16", 40), ("float16", 400)])
def test_a_forward_pass_too_coarse_to_tell_says_so(forward_dtype, share):
    """One direction carries most of the variance, as in trained models: the floors then reach past
    most singular values.
    """
    gain = gain_of("plain")
    massive = (
        gaussian() + share * gaussian()[:, :1] * torch.linspace(-1, 1, D, dtype=torch.float64).cos()
    )
    for kind, out in (
        ("LayerNorm", layer_norm(massive, gain, BIAS)),
        ("RMSNorm", rms_norm(massive, gain)),
    ):
        norm = facts(kind, gain, BIAS if kind == "LayerNorm" else None)
        coarse = moments_of(out.to(getattr(torch, forward_dtype)))
        columns = spectrum_columns("site", coarse, forward_dtype, norm)
        assert vanishes_along_kernel(columns) is None, kind
        precise = spectrum_columns("site", moments_of(out), "float64", norm)
        assert vanishes_along_kernel(precise) == (kind == "LayerNorm")
    wrong = moments_of(massive.to(getattr(torch, forward_dtype)))
    norm = facts("LayerNorm", gain, BIAS)
    assert protocol_check(spectrum_columns("site", wrong, forward_dtype, norm), wrong, norm) == [
        "forward-floor"
    ]


def test_the_raw_gram_misses_the_kernel_exactly_when_the_bias_has_a_part_along_it():
    gain = gain_of("plain")
    kernel = torch.from_numpy(kernel_basis(gain.numpy())[:, 0])
    along = 40.0 * kernel
    across = BIAS - (BIAS @ kernel) * kernel
    for bias, misses in ((along, True), (across, False)):
        norm = facts("LayerNorm", gain, bias)
        columns = spectrum_columns(
            "site", moments_of(layer_norm(gaussian(), gain, bias)), "float64", norm
        )
        assert columns["cos_gamma_inv"] > 0.9999
        assert (columns["raw_cos_gamma_inv"] < 0.9) == misses
        assert columns["cos_beta_gamma_inv"] == pytest.approx(1.0 if misses else 0.0, abs=1e-6)


def test_float32_forward_puts_the_kernel_below_its_floor_and_says_so():
    gain = gain_of("plain")
    norm = facts("LayerNorm", gain, BIAS)
    moments = moments_of(layer_norm(gaussian(dtype=torch.float32), gain, BIAS))
    columns = spectrum_columns("site", moments, "float32", norm)
    assert columns["sigma_min"] <= max(columns["forward_floor"], columns["accumulator_floor"])
    assert columns["sigma_active_min"] > 100 * columns["forward_floor"]
    assert columns["active_rank"] == D - 1
    assert "sigma-min-below-floor" in limits(columns, N, D, norm, "full")
    assert "stored-quantised" in limits(columns, N, D, norm, "quantised")
    assert "n-over-d-below-10" in limits(columns, 9 * D, D, norm, "full")


def test_constant_activations_are_refused_by_site():
    with pytest.raises(InputError, match="site decoder/embedding: the activations do not vary"):
        spectrum_columns(
            "decoder/embedding", moments_of(torch.ones(N, D, dtype=torch.float64)), "float64", None
        )


def test_effective_rank_of_known_spectra():
    assert effective_rank(np.ones(7)) == pytest.approx(7)
    assert effective_rank(np.array([0.0, 0.0, 3.0])) == pytest.approx(1)


def test_refusals():
    moments = moments_of(gaussian(n=D))
    with pytest.raises(InputError, match="24 samples for 24 coordinates"):
        check_accumulation("s", moments, 1.0, forced=False)
    massive = moments_of(gaussian() * 1e5, "cov32")
    with pytest.raises(InputError, match="float32 accumulator"):
        check_accumulation("s", massive, 2e5, forced=False)
    check_accumulation("s", massive, 2e5, forced=True)


@pytest.mark.parametrize("group", ["residual", "schur"])
def test_a_float32_scatter_of_massive_activations_is_refused_unless_forced(group):
    """At the inputs of linear maps as well as on the residual stream."""
    measurement = tiny_measurement()
    massive = next(site for site in measurement.sites.values() if site.group == group).id
    moments = {**measurement.moments, massive: moments_of(gaussian() * 1e5, "cov32")}
    with pytest.raises(InputError, match=rf"site {massive}: .* float32 accumulator"):
        measure([replace(measurement, moments=moments)], IDENTITY)
    assert measure([replace(measurement, moments=moments)], IDENTITY, force_cov32=True)


@pytest.mark.parametrize("method", ["cov64", "tsqr64"])
def test_schur_ratio_of_a_known_matrix(method):
    gain = torch.ones(D, dtype=torch.float64)
    norm = facts("RMSNorm", gain)
    x = gaussian()
    columns = schur_columns(moments_of(x, method), "float64", norm)
    gram = (x.T @ x / N).numpy()
    u = np.full(D, D**-0.5)
    assert columns["lambda_min"] == pytest.approx(np.linalg.eigvalsh(gram)[0])
    assert columns["quadratic_form"] == pytest.approx(u @ gram @ u)
    assert (
        columns["delta"]
        == columns["delta_recovered"]
        == pytest.approx(1 - np.linalg.eigvalsh(gram)[0] / (u @ gram @ u))
    )
    assert 0 <= columns["delta"] < 1, (
        "Rayleigh: the smallest eigenvalue is below every quadratic form"
    )
    assert columns["axis_minimum"] == pytest.approx(np.diag(gram).min())
    largest, epsilon = np.linalg.eigvalsh(gram)[-1], np.finfo(np.float64).eps
    forward = epsilon**2 * max(4 * largest, np.trace(gram) / 16)
    assert columns["floor"] == pytest.approx(
        max(forward, largest * (4 * epsilon if method == "cov64" else (D * epsilon) ** 2))
    )
    assert not columns["below_floor"]
    assert schur_columns(moments_of(x, method), "float64", None)["delta"] is None


def test_schur_at_a_layer_norm_output_without_bias_is_rounding_and_marked():
    gain = gain_of("plain")
    norm = facts("LayerNorm", gain)
    columns = schur_columns(
        moments_of(layer_norm(gaussian(dtype=torch.float32), gain, torch.zeros(D))), "float32", norm
    )
    assert columns["below_floor"]
    assert columns["recovered"] == (columns["lambda_min"] < 0 and columns["quadratic_form"] < 0)


@pytest.mark.parametrize("width", [64, 384, 768, 1600])
def test_the_rounding_of_an_isotropic_layer_norm_output_is_no_schur_ratio(width):
    """No eigenvalue is large here, and the rounding of a mean, common to all coordinates, adds up
    along the kernel.
    """
    states = torch.randn(4 * width, width, generator=torch.Generator().manual_seed(width))
    norm = facts("LayerNorm", torch.ones(width, dtype=torch.float64))
    columns = schur_columns(
        moments_of(torch.nn.functional.layer_norm(states, (width,))), "float32", norm
    )
    assert columns["below_floor"]
    assert columns["quadratic_form"] < columns["floor"] / 2


@pytest.mark.parametrize(
    ("lowest", "quadratic", "expected"),
    [
        (0.2, 0.5, (0.6, 0.6, False)),
        (2e-14, 5e-14, (0.6, 0.6, False)),
        (-2e-14, -5e-14, (None, 0.6, True)),
        (-5e-14, -2e-14, (None, -1.5, True)),
        (-2e-14, 0.5, (1.0, 1.0, False)),
        (-2e-14, -5e-3, (None, None, False)),
        (0.2, None, (None, None, False)),
    ],
)
def test_noise_floor_recovery(lowest, quadratic, expected):
    """The published rule; its negative values appear only where both numbers are rounding."""
    delta, recovered_delta, recovered = noise_floor_recovery(lowest, quadratic)
    assert (delta, recovered_delta, recovered) == (
        pytest.approx(expected[0]),
        pytest.approx(expected[1]),
        expected[2],
    )


@pytest.mark.parametrize(
    ("profile", "expected"),
    [
        ([1.0, 2.0, 3.0], "depth-invariant"),
        ([2.0, 0.9, 1.0], "intermediate-dip"),
        ([2.0, 1.5, 0.99], "depth-decreasing"),
        ([2.0, None, 3.0], "undetermined (below floor)"),
        ([2.0, 0.5, None], "undetermined (below floor)"),
        ([0.5, None, 3.0], "intermediate-dip"),
        ([None, None, 0.5], "depth-decreasing"),
        ([], "undetermined (below floor)"),
    ],
)
def test_behaviour(profile, expected):
    assert behaviour("pre-norm", profile) == expected
    assert behaviour("post-norm", profile) == "not applicable (post-norm)"


def test_a_ratio_below_the_floor_may_still_be_known_to_fall():
    assert behaviour("pre-norm", [2.0, 2.0, None], [None, None, 0.7]) == "depth-decreasing"
    assert behaviour("pre-norm", [2.0, None, 2.0], [None, 0.7, None]) == "intermediate-dip"
    assert (
        behaviour("pre-norm", [2.0, None, 2.0], [None, 1.3, None]) == "undetermined (below floor)"
    )


def test_norm_kind():
    with_bias, without = (
        facts("LayerNorm", gain_of("plain"), BIAS),
        facts("RMSNorm", gain_of("plain")),
    )
    assert norm_kind_from_parameters([without, with_bias]) == "LayerNorm"
    assert norm_kind_from_parameters([without]) == "RMSNorm"
    assert norm_kind_from_parameters([]).startswith("undetermined")
    assert norm_kind_from_activations(True, True, False) == "LayerNorm"
    assert norm_kind_from_activations(True, False, False) == "RMSNorm"
    assert norm_kind_from_activations(True, True, True) == "undetermined (zero gain)"
    assert norm_kind_from_activations(True, None, False) == "undetermined (below floor)"
    assert (
        norm_kind_from_activations(False, None, False)
        == "undetermined (no norm output on the stream)"
    )


def site(name, block, tap, group, norm=None):
    return Site(f"decoder/{name}", group, "decoder", block, tap, "module", "output", D, norm)


def tiny_measurement(scale=2.0, kind="LayerNorm"):
    gain = gain_of("plain")
    norm = facts(kind, gain, BIAS if kind == "LayerNorm" else None)
    x = gaussian()
    out = layer_norm(x, gain, BIAS) if kind == "LayerNorm" else rms_norm(x, gain)
    sites = [
        site("embedding", 0, "embedding", "residual"),
        site("block.1/output", 1, "output", "residual"),
        site("terminal_norm", 2, "terminal_norm", "terminal", "norm"),
        site("block.1/query_key_value_input", 1, "query_key_value_input", "schur", "norm"),
    ]
    values = [x, scale * x, out, out]
    return Measurement(
        "float64",
        {s.id: moments_of(value) for s, value in zip(sites, values, strict=True)},
        {s.id: s for s in sites},
        {"norm": norm},
    )


IDENTITY = Identity(
    "m", "r", "gpt2", "published", "full", None, "pre-norm", {"decoder": 1}, "decoder"
)


@pytest.mark.parametrize("kind", ["LayerNorm", "RMSNorm"])
def test_rows_of_a_tiny_model(kind):
    fingerprint, schur, stacks = measure([tiny_measurement(kind=kind)], IDENTITY)
    assert [row["tap"] for row in fingerprint] == ["embedding", "output", "terminal_norm"]
    assert len(schur) == 1
    (row,) = stacks
    assert row["behaviour"] == "depth-invariant"
    assert row["min_ratio"] == pytest.approx(2.0)
    assert row["min_ratio_block"] == 1
    assert row["output_ratio"] == pytest.approx(2.0)
    assert row["norm_kind_parameters"] == row["norm_kind_activations"] == kind
    assert row["norm_kinds_agree"]
    assert (row["post_norm_cos_gamma_inv"] > 0.9999) == (kind == "LayerNorm")
    assert measure([tiny_measurement(scale=0.5)], IDENTITY)[2][0]["behaviour"] == "depth-decreasing"
