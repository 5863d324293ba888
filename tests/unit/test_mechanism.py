"""The mechanism of planted sublayers: principal cosines, chance, and cancellation along the bottom
direction.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

from normgauge.anatomy.structure import Site
from normgauge.fingerprint import Identity, Measurement, NormFacts
from normgauge.fingerprint.mechanism import (
    chance_cosines,
    mechanism_rows,
    principal_cosines,
    top_directions,
)
from normgauge.fingerprint.study import fingerprint_rows
from normgauge.moments import Accumulator

D, N = 48, 6000
WEAK = 3  # the coordinate along which the stream varies least


def drawn(seed, scale=1.0):
    generator = torch.Generator().manual_seed(seed)
    return scale * torch.randn(N, D, generator=generator, dtype=torch.float64)


def moments_of(x):
    accumulator = Accumulator("cov64", x.shape[1])
    accumulator.update(x)
    return accumulator.moments()


def site(block, tap, group, module="block", norm=None):
    names = {"embedding": "decoder/embedding"}
    identifier = names.get(tap, f"decoder/block.{block}/{tap}")
    return Site(identifier, group, "decoder", block, tap, module, "output", D, norm)


def measured(attention, mlp, parallel=False, norm=None):
    """Rows of one block that adds these deltas to a stream whose weakest direction is WEAK."""
    stream = drawn(0)
    stream[:, WEAK] *= 0.1
    middle = stream + attention(stream)
    values = {
        site(0, "embedding", "residual"): stream,
        site(1, "attention_delta", "deltas"): attention(stream),
        site(1, "mlp_delta", "deltas", norm=norm): mlp(middle),
        site(1, "output", "residual"): middle + mlp(middle),
    }
    if not parallel:
        values[site(1, "after_attention", "taps", module="norm")] = middle
    gain = np.ones(D)
    gain[0] = 5.0
    norms = {"norm": NormFacts("norm", "RMSNorm", gain, None)}
    measurement = Measurement(
        "float64",
        {each.id: moments_of(value) for each, value in values.items()},
        {each.id: each for each in values},
        norms,
    )
    identity = Identity(
        "model", "1", "llama", "published", "full", None, "pre-norm", {"decoder": 1}, "decoder"
    )
    rows = fingerprint_rows(measurement, identity)
    return {row["sublayer"]: row for row in mechanism_rows([measurement], identity, rows)}


def test_variances_and_covariance_of_a_sublayer_that_cancels():
    def cancels(stream):
        delta = 0.01 * drawn(1)
        delta[:, WEAK] -= 0.6 * stream[:, WEAK]
        return delta

    rows = measured(cancels, lambda middle: 0.5 * drawn(2))
    attention, mlp = rows["attention"], rows["mlp"]
    assert attention["lowers"]
    assert not mlp["lowers"]
    assert attention["ratio_after"] == pytest.approx(0.4, abs=0.03) == mlp["ratio_before"]
    assert attention["correlation"] < -0.98
    assert abs(mlp["correlation"]) < 0.1
    # the variance falls where the correlation is below minus half the ratio of the deviations
    deviations = np.sqrt(attention["delta_variance"] / attention["variance"])
    assert attention["correlation"] < -deviations / 2
    total = attention["variance"] + attention["delta_variance"] + 2 * attention["covariance"]
    assert total == pytest.approx(mlp["variance"], rel=1e-9)


def test_a_delta_in_the_bottom_directions_stands_out_of_chance():
    def aligned(stream):
        delta = 1e-3 * drawn(1)
        delta[:, WEAK] += drawn(3)[:, WEAK]
        return delta

    rows = measured(aligned, lambda middle: drawn(2, 0.5))
    aligned_row, plain = rows["attention"], rows["mlp"]
    assert aligned_row["largest_cosine"] > 0.99
    assert aligned_row["mean_cosine"] > aligned_row["chance_cosine_high"]
    assert plain["mean_cosine"] < plain["chance_cosine_high"]
    assert aligned_row["delta_share"] > 0.99


def test_parallel_sublayers_have_cosines_but_nothing_between_them():
    rows = measured(lambda stream: drawn(1), lambda middle: drawn(2), parallel=True)
    for row in rows.values():
        assert row["lowers"] is None
        assert row["covariance"] is None
        assert row["mean_cosine"] is not None


def test_gain_concentration_of_the_norms_before_and_after():
    rows = measured(lambda stream: drawn(1), lambda middle: drawn(2), norm="norm")
    expected = 5 * D / (D + 4)
    assert rows["mlp"]["norm_concentration"] == pytest.approx(expected)
    assert rows["mlp"]["post_norm_concentration"] == pytest.approx(expected)
    assert rows["attention"]["post_norm_concentration"] is None


def test_principal_cosines_are_those_of_the_planted_angles():
    angles = np.array([0.2, 0.9, 1.3])
    first = np.eye(D)[:, :3]
    second = first * np.cos(angles) + np.eye(D)[:, 3:6] * np.sin(angles)
    np.testing.assert_allclose(principal_cosines(first, second), np.cos(angles), atol=1e-12)


def test_chance_is_what_independent_subspaces_read():
    mean, high = chance_cosines(D, 4)
    generator = np.random.default_rng(7)

    def basis():
        return np.linalg.qr(generator.standard_normal((D, 4)))[0]

    read = [principal_cosines(basis(), basis()) for _ in range(300)]
    assert np.mean(read) == pytest.approx(mean, rel=0.05)
    assert np.mean(np.mean(read, axis=1) > high) < 0.1
    assert np.sqrt(np.mean(np.square(read))) == pytest.approx(np.sqrt(4 / D), rel=0.05)


def test_top_directions_hold_their_share():
    x = drawn(0)
    x[:, 5] *= 10
    vectors, share = top_directions(moments_of(x), 1)
    assert abs(vectors[5, 0]) > 0.999
    assert share == pytest.approx(100 / (100 + D - 1), rel=0.05)
