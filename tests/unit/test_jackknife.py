"""Moments by group of sequences, and the uncertainty over sequences that comes of them."""

import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch

from normgauge.anatomy.structure import Site
from normgauge.calibration.batches import Batch, sequence_groups
from normgauge.capture import capture
from normgauge.fingerprint import Identity, Measurement, NormFacts, measure
from normgauge.fingerprint.jackknife import schur_uncertainty, spectrum_uncertainty
from normgauge.fingerprint.schur import schur_columns
from normgauge.fingerprint.spectrum import spectrum_columns
from normgauge.jackknife import standard_error
from normgauge.moments import (
    METHODS,
    GroupedAccumulator,
    Workspace,
    leave_one_out,
    merge_all,
    read_moments,
    write_moments,
)
from normgauge.moments.bottom import bottom_of
from normgauge.render import pooled

WIDTH, LENGTH = 6, 16


def grouped(method, parts):
    """Moments of these groups of rows, each in two chunks, the second after all the first: a group
    may come back.
    """
    accumulator = GroupedAccumulator(method, parts[0].shape[1], Workspace(), distinct=True)
    for half in (0, 1):
        for number, part in enumerate(parts):
            accumulator.update(torch.from_numpy(part[half::2]), number)
    return accumulator.moments()


def parts(seed, groups=4, n=40, d=WIDTH):
    rng = np.random.default_rng(seed)
    return [
        rng.normal(size=(n + 3 * group, d)) * np.geomspace(1, 1e-3, d) + 5
        for group in range(groups)
    ]


def centred_scatter(rows):
    return (rows - rows.mean(0)).T @ (rows - rows.mean(0))


@pytest.mark.parametrize("method", METHODS)
def test_moments_without_a_group_are_those_of_the_other_rows(method):
    rows = parts(0)
    moments = grouped(method, rows)
    tolerance = 1e-5 if method == "cov32" else 1e-11
    np.testing.assert_allclose(
        moments.scatter(), centred_scatter(np.vstack(rows)), rtol=tolerance, atol=tolerance
    )
    without = list(leave_one_out(moments))
    assert len(without) == len(rows)
    for number, left in enumerate(without):
        others = np.vstack([part for other, part in enumerate(rows) if other != number])
        assert (left.method, left.n) == (method, len(others))
        np.testing.assert_allclose(left.mean, others.mean(0), rtol=tolerance)
        np.testing.assert_allclose(
            left.scatter(), centred_scatter(others), rtol=tolerance, atol=tolerance
        )


def test_a_factor_without_a_group_keeps_what_a_scatter_loses():
    turn, _ = np.linalg.qr(np.random.default_rng(9).normal(size=(WIDTH, WIDTH)))
    rows = [((part - 5) * [1, 1, 1, 1, 1, 1e-8]) @ turn for part in parts(1)]
    others = np.vstack(rows[1:])
    exact = np.linalg.svd(others - others.mean(0), compute_uv=False)[-1]
    bottom = {
        method: next(leave_one_out(grouped(method, rows))).spectrum().values[0]
        for method in ("cov64", "tsqr64")
    }
    assert bottom["tsqr64"] == pytest.approx(exact, rel=1e-4)
    assert bottom["cov64"] != pytest.approx(exact, rel=0.1)


@pytest.mark.parametrize("method", METHODS)
def test_shards_that_cut_a_group_merge_to_the_same_groups(method, tmp_path):
    rows = parts(2)
    first, second = [part[:17] for part in rows[:2]], [rows[1][17:], *rows[2:]]
    shards = []
    for name, chunks, start in (("a", [rows[0], first[1]], 0), ("b", second, 1)):
        accumulator = GroupedAccumulator(method, WIDTH, Workspace(), distinct=True)
        for number, chunk in enumerate(chunks, start):
            accumulator.update(torch.from_numpy(chunk), number)
        write_moments(tmp_path / f"{name}.parquet", accumulator.moments(), {})
        shards.append(read_moments(tmp_path / f"{name}.parquet")[0])
    merged, whole = merge_all(shards), grouped(method, rows)
    tolerance = 1e-5 if method == "cov32" else 1e-11
    assert list(merged.groups) == list(whole.groups)
    assert merged.distinct_rows == whole.distinct_rows == len(np.vstack(rows))
    for merged_part, part in zip(merged.groups.values(), whole.groups.values(), strict=True):
        assert merged_part.n == part.n
        np.testing.assert_allclose(
            np.abs(merged_part.triangle), np.abs(part.triangle), rtol=tolerance, atol=tolerance
        )
    np.testing.assert_allclose(merged.scatter(), whole.scatter(), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("method", METHODS)
def test_groups_survive_storage_to_the_bit(method, tmp_path):
    moments = grouped(method, parts(3))
    write_moments(tmp_path / "a.parquet", moments, {"site": "x"})
    back, _ = read_moments(tmp_path / "a.parquet")
    np.testing.assert_array_equal(back.matrix, moments.matrix)
    np.testing.assert_array_equal(back.distinct, moments.distinct)
    for number, part in moments.groups.items():
        np.testing.assert_array_equal(back.groups[number].triangle, part.triangle)


def test_groups_are_neighbours_of_one_text_and_all_crops_of_one_picture():
    text = [{"kind": "ids", "source": "kjv"} for _ in range(19)]
    assert sequence_groups(text, 8) == [number * 8 // 19 for number in range(19)]
    assert sequence_groups(text[:3], 8) == [0, 1, 2]
    names = [
        (name, how) for how in ("whole", "crop", "crop") for name in ("cat", "moon", "brick, wall")
    ]
    pictures = [{"kind": "image", "source": f"{name}, {how}"} for name, how in names]
    assert sequence_groups(pictures, 2) == [0, 0, 1] * 3


class Embedding(torch.nn.Module):
    """Rows by token; with `positions`, by token and position."""

    def __init__(self, positions):
        super().__init__()
        self.tokens = torch.nn.Embedding(50, WIDTH)
        self.positions = torch.nn.Embedding(LENGTH, WIDTH) if positions else None
        self.block = torch.nn.Linear(WIDTH, WIDTH)

    def forward(self, ids):
        hidden = self.tokens(ids)
        return self.block(
            hidden if self.positions is None else hidden + self.positions.weight[: ids.shape[1]]
        )


def sites():
    return (
        Site("embedding", "residual", "decoder", 0, "embedding", "block", "input", WIDTH),
        Site("output", "residual", "decoder", 1, "output", "block", "output", WIDTH),
        Site(
            "query",
            "schur",
            "decoder",
            1,
            "query_key_value_input",
            "block",
            "input",
            WIDTH,
            argument="input",
        ),
        Site(
            "value",
            "schur",
            "decoder",
            1,
            "attention_output_input",
            "block",
            "input",
            WIDTH,
            argument="input",
        ),
    )


def captured(ids, batch_size, positions=False, mask=None, dtype=torch.float32):
    torch.manual_seed(0)
    model = Embedding(positions).to(dtype).eval()
    groups = [number * 4 // len(ids) for number in range(len(ids))]
    batches = [
        Batch(
            {"ids": ids[start : start + batch_size]},
            {"decoder": None if mask is None else mask[start : start + batch_size]},
            tuple(groups[start : start + batch_size]),
        )
        for start in range(0, len(ids), batch_size)
    ]
    return capture(model, sites(), batches, "cov64", first_batches=float("inf"))


@pytest.mark.parametrize("masked", [False, True])
def test_groups_do_not_depend_on_batches(masked):
    ids = torch.randint(0, 50, (10, LENGTH), generator=torch.Generator().manual_seed(1))
    mask = (
        torch.rand(10, LENGTH, generator=torch.Generator().manual_seed(2)) < 0.7 if masked else None
    )
    measured = [captured(ids, batch_size, mask=mask) for batch_size in (1, 4, 10)]
    for name in ("embedding", "output", "query"):
        one, *others = [each[name] for each in measured]
        sizes = [3, 2, 3, 2]
        if not masked:
            assert [part.n for part in one.groups.values()] == [size * LENGTH for size in sizes]
        assert sum(part.n for part in one.groups.values()) == one.n
        for other in others:
            for number, part in one.groups.items():
                np.testing.assert_allclose(
                    other.groups[number].triangle, part.triangle, rtol=1e-9, atol=1e-9
                )
    assert not measured[0]["value"].groups


def test_distinct_rows_are_token_types_or_pairs_of_token_and_position():
    ids = torch.randint(0, 50, (10, LENGTH), generator=torch.Generator().manual_seed(1))
    types = len(ids.unique())
    pairs = len(torch.unique(ids * LENGTH + torch.arange(LENGTH)))
    for positions, expected in ((False, types), (True, pairs)):
        measured = captured(ids, 4, positions)
        assert measured["embedding"].distinct_rows == measured["query"].distinct_rows == expected
        assert measured["output"].distinct_rows is None
    halves = [captured(part, 4)["embedding"] for part in (ids[:5], ids[5:])]
    assert merge_all(halves).distinct_rows == types


def stack(distinct):
    """The rows of a stream whose X_0 has so many different samples among its 4000, None for
    uncounted.
    """
    rows = torch.randn(4000, 24, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    moments = {}
    for site in (sites()[0], sites()[2]):
        accumulator = GroupedAccumulator("cov64", 24, Workspace())
        accumulator.update(rows)
        hashes = None if distinct is None else np.arange(distinct, dtype=np.uint64)
        moments[site.id] = replace(accumulator.moments(), distinct=hashes)
    places = {site.id: replace(site, width=24) for site in (sites()[0], sites()[2])}
    identity = Identity(
        "m", "r", "llama", "published", "full", None, "pre-norm", {"decoder": 1}, "decoder"
    )
    return measure([Measurement("float64", moments, places, {})], identity)


@pytest.mark.parametrize(("distinct", "flagged"), [(None, False), (4000, False), (100, True)])
def test_few_token_types_are_few_samples_however_many_tokens_repeat_them(distinct, flagged):
    (embedding,), (query,), (row,) = stack(distinct)
    assert row["n_over_d"] == 4000 / 24
    assert row["distinct_over_d"] == (None if distinct is None else distinct / 24)
    for each in (embedding, query, row):
        assert ("n-over-d-below-10" in each["flags"]) == flagged
    assert embedding["distinct_rows"] == query["distinct_rows"] == distinct


READINGS = {
    "first_block_max_ratio": (2, 1),
    "body_ratio": (2, 3),
    "first_block_post_norm_ratio": (4, 1),
}


def test_readings_of_a_ratio_are_quotients_of_the_same_sites_with_and_without_each_group():
    """Values at X_0..X_3 and after the terminal norm; the largest of the body is X_2's, the
    smallest X_3's.
    """
    generator = torch.Generator().manual_seed(3)
    groups = [
        torch.randn(900 + 50 * number, WIDTH, generator=generator, dtype=torch.float64)
        for number in range(4)
    ]
    scales = (0.1, 2.0, 7.0, 1.0, 3.0)
    taps = ("embedding", "output", "output", "output", "terminal_norm")
    places, moments = {}, {}
    for block, (tap, scale) in enumerate(zip(taps, scales, strict=True)):
        # so that the quotients vary with the samples
        turn = torch.linspace(1, 2 + block, WIDTH, dtype=torch.float64)
        place = replace(
            sites()[0], id=f"site.{block}", group="residual", block=block, tap=tap, width=WIDTH
        )
        place = replace(place, norm="last" if tap == "terminal_norm" else None)
        places[place.id] = place
        moments[place.id] = grouped(
            "cov64", [(scale * turn * torch.sin(rows + block)).numpy() for rows in groups]
        )
    identity = Identity(
        "m", "r", "llama", "published", "full", None, "pre-norm", {"decoder": 3}, "decoder"
    )
    norm = NormFacts("last", "RMSNorm", np.ones(WIDTH), None)
    _, _, (row,) = measure([Measurement("float64", moments, places, {"last": norm})], identity)
    sigma = [moments[name].spectrum().values[0] for name in places]
    without = [
        [left.spectrum().values[0] for left in leave_one_out(moments[name])] for name in places
    ]
    for name, (over, under) in READINGS.items():
        assert row[name] == pytest.approx(sigma[over] / sigma[under], rel=1e-12)
        quotients = np.array(without[over]) / np.array(without[under])
        np.testing.assert_allclose(dict(row["replicates"])[name], quotients, rtol=1e-9)
        assert row[f"{name}_se"] > 0


# --- the standard error ---


def test_the_error_of_a_mean_of_unequal_groups_is_that_of_its_groups_means():
    rng = np.random.default_rng(0)
    samples = [5, 9, 7, 12]
    rows = [rng.normal(size=size) for size in samples]
    whole, n = np.concatenate(rows).mean(), sum(samples)
    left = [np.concatenate(rows[:number] + rows[number + 1 :]).mean() for number in range(4)]
    terms = [(part.mean() - whole) ** 2 / (n / len(part) - 1) for part in rows]
    assert standard_error(whole, left, samples) == pytest.approx(np.mean(terms) ** 0.5, rel=1e-12)
    equal = standard_error(0.0, [1.0, 2.0, 4.0], [10, 10, 10])
    assert equal == pytest.approx((2 / 3 * np.sum((np.array([1.0, 2.0, 4.0]) - 7 / 3) ** 2)) ** 0.5)


def test_there_is_no_error_without_groups_or_below_the_rounding_of_the_replicates():
    assert standard_error(1.0, [1.0], [10]) is None
    assert standard_error(None, [1.0, 2.0], [10, 10]) is None
    with warnings.catch_warnings(action="error"):  # an empty group is no division by zero
        assert standard_error(1.0, [1.0, 2.0], [10, 0]) is None
    assert standard_error(1.0, [1.0, float("nan")], [10, 10]) is None
    assert standard_error(1.0, [1.0, 1.0 + 1e-13], [10, 10]) is not None
    assert standard_error(1.0, [1.0, 1.0 + 1e-13], [10, 10], resolution=1e-12) is None


# --- the statistics without each group ---


def wide_parts(seed, d=48, groups=4, spread=1e-2):
    rng = np.random.default_rng(seed)
    turn, _ = np.linalg.qr(rng.normal(size=(d, d)))
    return [
        rng.normal(size=(150 + 10 * group, d)) * np.geomspace(1, spread, d) @ turn + 2
        for group in range(groups)
    ]


BOTTOM = ("cos_gamma_inv", "cos_ones")


def exact_replicates(rows, norm, index):
    """By full decompositions of the samples themselves, at the same index and of as many samples as
    there are.
    """
    n, found = len(np.vstack(rows)), {}
    for number in range(len(rows)):
        others = np.vstack(rows[:number] + rows[number + 1 :])
        _, sigma, vectors = np.linalg.svd(others - others.mean(0), full_matrices=False)
        _, raw, raw_vectors = np.linalg.svd(others, full_matrices=False)
        gram, axis = others.T @ others / len(others), norm.kernel[:, 0]
        values = {
            "sigma_active_min": sigma[-1 - index] * (n / len(others)) ** 0.5,
            "cos_gamma_inv": abs(vectors[-1] @ axis),
            "cos_ones": abs(vectors[-1].sum()) / len(axis) ** 0.5,
            "raw_cos_gamma_inv": abs(raw_vectors[-1] @ axis),
            "lambda_min": raw[-1] ** 2 / len(others),
            "quadratic_form": axis @ gram @ axis,
            "delta": 1 - raw[-1] ** 2 / len(others) / (axis @ gram @ axis),
            "mahalanobis_squared": others.mean(0)
            @ np.linalg.pinv(np.cov(others.T, bias=True), rcond=1e-12)
            @ others.mean(0),
        }
        for name, value in values.items():
            found.setdefault(name, []).append(value)
    return found


@pytest.mark.parametrize("method", ["cov64", "tsqr64"])
@pytest.mark.parametrize(
    ("kind", "bias", "still"),
    [
        ("RMSNorm", 0.0, {"mahalanobis_squared"}),
        (
            "LayerNorm",
            0.0,
            {
                *BOTTOM,
                "raw_cos_gamma_inv",
                "lambda_min",
                "quadratic_form",
                "delta",
                "mahalanobis_squared",
            },
        ),
        ("LayerNorm", 0.3, {*BOTTOM, "quadratic_form"}),
    ],
)
def test_replicates_are_those_of_full_decompositions(method, kind, bias, still):
    """What has none: T^2 but behind a LayerNorm, and there what lies in the exact kernel or is
    (beta . v)^2 for any sequence.
    """
    rows = wide_parts(5)
    gain = np.random.default_rng(6).uniform(0.5, 2, rows[0].shape[1])
    norm = NormFacts("norm", kind, gain, bias * np.ones(len(gain)))
    if kind == "LayerNorm":
        rows = [(part - part.mean(1, keepdims=True)) * gain + norm.bias for part in rows]
    moments = grouped(method, rows)
    columns = spectrum_columns("site", moments, "float64", norm)
    uncertain = spectrum_uncertainty(moments, columns, norm, None, own=True)
    schur = schur_uncertainty(moments, schur_columns(moments, "float64", norm), norm)
    expected = exact_replicates(rows, norm, columns["null_dimension"])
    found = dict(uncertain["replicates"]) | dict(schur["replicates"])
    assert columns["null_dimension"] == (kind == "LayerNorm")
    assert set(found) & set(expected) == set(expected) - still
    for name in set(found) & set(expected):
        np.testing.assert_allclose(found[name], expected[name], rtol=1e-7, atol=1e-9, err_msg=name)
        assert ({**uncertain, **schur})[f"{name}_se"] > 0
    # An exact kernel does not move with the sequences: its cosine is 1 up to rounding, and that is
    # no uncertainty.
    if kind == "LayerNorm":
        assert columns["cos_gamma_inv"] > 1 - 1e-9
        assert uncertain["cos_gamma_inv_se"] is None


def test_the_bottom_has_the_same_bits_on_one_thread_and_on_two():
    moments = grouped("cov64", wide_parts(7, d=120))
    threads = torch.get_num_threads()
    found = []
    for count in (1, 2):
        torch.set_num_threads(count)
        found.append(bottom_of(moments, True, 2))
    torch.set_num_threads(threads)
    np.testing.assert_array_equal(found[0].values, found[1].values)
    np.testing.assert_array_equal(found[0].vectors, found[1].vectors)


def errors_of_gaussians(scales, repeats=80, groups=8, size=50):
    """(spread over repeated samples, root mean square of the jackknife's error) of the smallest
    singular value.
    """
    rng, values, errors = np.random.default_rng(8), [], []
    for _ in range(repeats):
        moments = grouped(
            "cov64", [rng.normal(size=(size, len(scales))) * scales for _ in range(groups)]
        )
        left = [
            bottom_of(each, True, 1).values[0] * (moments.n / each.n) ** 0.5
            for each in leave_one_out(moments)
        ]
        values.append(bottom_of(moments, True, 1).values[0])
        errors.append(standard_error(values[-1], left, [size] * groups))
    return np.std(values, ddof=1), np.mean(np.square(errors)) ** 0.5


def test_the_error_of_a_gaussian_sample_is_its_spread_over_samples():
    """Of a value apart from the others it is right; of the edge of an isotropic spectrum too large,
    and never too small.
    """
    spread, error = errors_of_gaussians(1.5 ** -np.arange(6.0))
    assert 0.85 < error / spread < 1.2
    spread, error = errors_of_gaussians(np.ones(12))
    assert 1.3 < error / spread < 2.2


def relative_error(rows):
    moments = grouped("cov64", rows)
    columns = spectrum_columns("site", moments, "float64", None)
    return (
        spectrum_uncertainty(moments, columns, None, None, own=False)["sigma_active_min_se"]
        / columns["sigma_active_min"]
    )


def test_tokens_that_say_the_same_do_not_make_the_error_smaller():
    """Sixteen copies of every token are sixteen times the samples and nothing new; groups of single
    tokens would not see it.
    """
    rng = np.random.default_rng(9)
    rows = [rng.normal(size=(60, 6)) * 1.5 ** -np.arange(6.0) for _ in range(8)]
    copied = [np.repeat(part, 16, axis=0) for part in rows]
    assert relative_error(copied) == pytest.approx(relative_error(rows), rel=1e-6)
    shuffled = rng.permutation(np.vstack(copied))
    assert relative_error(np.split(shuffled, 8)) < 0.6 * relative_error(rows)


def test_what_moves_both_sides_of_a_ratio_does_not_move_it():
    rows = parts(10, d=24, n=400)
    noisy = [
        part + 1e-4 * np.random.default_rng(number).normal(size=part.shape)
        for number, part in enumerate(rows)
    ]
    identity = Identity(
        "m", "r", "llama", "published", "full", None, "pre-norm", {"decoder": 1}, "decoder"
    )
    places = {site.id: replace(site, width=24) for site in sites()[:2]}
    for output, still in (([2 * part for part in rows], True), (noisy, False)):
        moments = {"embedding": grouped("cov64", rows), "output": grouped("cov64", output)}
        (_, row), _, (stack_row,) = measure([Measurement("float64", moments, places, {})], identity)
        assert row["sigma_active_min_se"] / row["sigma_active_min"] > 0.01
        if still:
            assert (row["ratio_to_embedding_se"] or 0.0) < 1e-6
        else:
            assert row["ratio_to_embedding_se"] > 1e-6
            assert (
                stack_row["max_ratio_se"]
                == stack_row["output_ratio_se"]
                == row["ratio_to_embedding_se"]
            )


def test_the_error_of_a_median_is_that_of_the_median_without_each_group():
    def row(value, replicates, samples=(10, 10, 10), **more):
        return {
            "delta": value,
            "group_samples": list(samples),
            "replicates": [("delta", replicates)],
            **more,
        }

    rows = [row(1.0, [0.9, 1.0, 1.1]), row(2.0, [2.1, 2.0, 1.9]), row(9.0, [9.0, 9.0, 9.5])]
    assert pooled.median_error(rows, "delta") == standard_error(2.0, [2.1, 2.0, 1.9], (10, 10, 10))
    opposite = rows[:2]
    assert (
        pooled.median_error(opposite, "delta") is None
        or pooled.median_error(opposite, "delta") < 1e-12
    )
    assert pooled.median_error([*rows, row(3.0, None) | {"replicates": []}], "delta") is None
    assert pooled.median_error([*rows, row(3.0, [3.0, 3.0, 3.1], (5, 10, 15))], "delta") is None
    assert pooled.over_seeds(
        [row(1.0, [], seed=1), row(3.0, [], seed=1), row(5.0, [], seed=2)], "delta"
    ) == (2.0, 5.0)
    assert pooled.over_seeds(rows, "delta") == (None, None)
