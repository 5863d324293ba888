"""Moments by group of sequences, and the uncertainty over sequences that comes of them."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from normgauge.anatomy.structure import Site
from normgauge.calibration.batches import Batch, sequence_groups
from normgauge.capture import capture
from normgauge.fingerprint import Identity, Measurement, measure
from normgauge.moments import METHODS, GroupedAccumulator, Workspace, leave_one_out, merge_all, read_moments, write_moments

WIDTH, LENGTH = 6, 16


def grouped(method, parts):
    """Moments of these groups of rows, each in two chunks, the second after all the first: a group may come back."""
    accumulator = GroupedAccumulator(method, parts[0].shape[1], Workspace(), distinct=True)
    for half in (0, 1):
        for number, part in enumerate(parts):
            accumulator.update(torch.from_numpy(part[half::2]), number)
    return accumulator.moments()


def parts(seed, groups=4, n=40, d=WIDTH):
    rng = np.random.default_rng(seed)
    return [rng.normal(size=(n + 3 * group, d)) * np.geomspace(1, 1e-3, d) + 5 for group in range(groups)]


def centred_scatter(rows):
    return (rows - rows.mean(0)).T @ (rows - rows.mean(0))


@pytest.mark.parametrize("method", METHODS)
def test_moments_without_a_group_are_those_of_the_other_rows(method):
    rows = parts(0)
    moments = grouped(method, rows)
    tolerance = 1e-5 if method == "cov32" else 1e-11
    np.testing.assert_allclose(moments.scatter(), centred_scatter(np.vstack(rows)), rtol=tolerance, atol=tolerance)
    without = list(leave_one_out(moments))
    assert len(without) == len(rows)
    for number, left in enumerate(without):
        others = np.vstack([part for other, part in enumerate(rows) if other != number])
        assert (left.method, left.n) == (method, len(others))
        np.testing.assert_allclose(left.mean, others.mean(0), rtol=tolerance)
        np.testing.assert_allclose(left.scatter(), centred_scatter(others), rtol=tolerance, atol=tolerance)


def test_a_factor_without_a_group_keeps_what_a_scatter_loses():
    turn, _ = np.linalg.qr(np.random.default_rng(9).normal(size=(WIDTH, WIDTH)))
    rows = [((part - 5) * [1, 1, 1, 1, 1, 1e-8]) @ turn for part in parts(1)]
    others = np.vstack(rows[1:])
    exact = np.linalg.svd(others - others.mean(0), compute_uv=False)[-1]
    bottom = {method: next(leave_one_out(grouped(method, rows))).spectrum().values[0] for method in ("cov64", "tsqr64")}
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
        np.testing.assert_allclose(np.abs(merged_part.triangle), np.abs(part.triangle), rtol=tolerance, atol=tolerance)
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
    names = [(name, how) for how in ("whole", "crop", "crop") for name in ("cat", "moon", "brick, wall")]
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
        return self.block(hidden if self.positions is None else hidden + self.positions.weight[: ids.shape[1]])


def sites():
    return (
        Site("embedding", "residual", "decoder", 0, "embedding", "block", "input", WIDTH),
        Site("output", "residual", "decoder", 1, "output", "block", "output", WIDTH),
        Site("query", "schur", "decoder", 1, "query_key_value_input", "block", "input", WIDTH, argument="input"),
        Site("value", "schur", "decoder", 1, "attention_output_input", "block", "input", WIDTH, argument="input"),
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
    mask = torch.rand(10, LENGTH, generator=torch.Generator().manual_seed(2)) < 0.7 if masked else None
    measured = [captured(ids, batch_size, mask=mask) for batch_size in (1, 4, 10)]
    for name in ("embedding", "output", "query"):
        one, *others = [each[name] for each in measured]
        sizes = [3, 2, 3, 2]
        if not masked:
            assert [part.n for part in one.groups.values()] == [size * LENGTH for size in sizes]
        assert sum(part.n for part in one.groups.values()) == one.n
        for other in others:
            for number, part in one.groups.items():
                np.testing.assert_allclose(other.groups[number].triangle, part.triangle, rtol=1e-9, atol=1e-9)
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
    """The rows of a stream whose X_0 has so many different samples among its 4000, None for uncounted."""
    rows = torch.randn(4000, 24, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    moments = {}
    for site in (sites()[0], sites()[2]):
        accumulator = GroupedAccumulator("cov64", 24, Workspace())
        accumulator.update(rows)
        hashes = None if distinct is None else np.arange(distinct, dtype=np.uint64)
        moments[site.id] = replace(accumulator.moments(), distinct=hashes)
    places = {site.id: replace(site, width=24) for site in (sites()[0], sites()[2])}
    identity = Identity("m", "r", "llama", "published", "full", None, "pre-norm", {"decoder": 1}, "decoder")
    return measure([Measurement("float64", moments, places, {})], identity)


@pytest.mark.parametrize(("distinct", "flagged"), [(None, False), (4000, False), (100, True)])
def test_few_token_types_are_few_samples_however_many_tokens_repeat_them(distinct, flagged):
    (embedding,), (query,), (row,) = stack(distinct)
    assert row["n_over_d"] == 4000 / 24
    assert row["distinct_over_d"] == (None if distinct is None else distinct / 24)
    for each in (embedding, query, row):
        assert ("n-over-d-below-10" in each["flags"]) == flagged
    assert embedding["distinct_rows"] == query["distinct_rows"] == distinct
