"""What a match calls certain is right, however samples depend on each other; sites vote."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.signal import lfilter

from normgauge.errors import InputError
from normgauge.gauge.activations import Activations, halves
from normgauge.gauge.admissible import Group
from normgauge.gauge.correlation import correlate
from normgauge.gauge.groups import Monomial
from normgauge.gauge.jackknife import LEAST, NOMINAL_RATE, Blocks, blocks_of
from normgauge.gauge.matching import match
from normgauge.gauge.site_matching import PairedSite, match_sites

WIDTH = 48


def autoregressive(generator, lengths, memory):
    """float64 (samples, WIDTH), stationary, of variance one, by itself in each sequence."""
    parts = []
    for length in lengths:
        steps = generator.standard_normal((length, WIDTH)) * np.sqrt(1 - memory**2)
        steps[0] /= np.sqrt(1 - memory**2)
        parts.append(lfilter([1], [1, -memory], steps, axis=0))
    return np.concatenate(parts)


def pair_of(source, target, lengths):
    return PairedSite(
        *(Activations(torch.from_numpy(rows), tuple(lengths)) for rows in (source, target))
    )


def planted(kind, seed, lengths, memory, correlation):
    """Two sites' worth of one coordinate each matched to itself, with what samples may have in
    common.
    """
    generator = np.random.default_rng(seed)
    source = autoregressive(generator, lengths, memory)
    noise = autoregressive(generator, lengths, memory)
    target = correlation * source + np.sqrt(1 - correlation**2) * noise
    if kind == "heavy tails":  # whole positions are large in both models
        scale = np.exp(generator.standard_normal((len(source), 1)))
        source, target = source * scale, target * scale
    if kind == "sequence effects":  # what a sequence is about, which the models do not share
        shifts = generator.standard_normal((2, len(lengths), WIDTH)) * 2
        source, target = (
            rows + np.repeat(shift, lengths, axis=0)
            for rows, shift in zip((source, target), shifts, strict=True)
        )
    return pair_of(source, target, lengths)


@pytest.mark.parametrize(
    ("kind", "lengths", "memory", "correlation", "power"),
    [
        ("autoregressive", [256] * 2, 0.95, 0.35, 0.0),
        ("autoregressive", [512], 0.95, 0.35, 0.0),
        ("autoregressive", [256] * 32, 0.95, 0.35, 0.4),
        ("independent", [256] * 4, 0.0, 0.35, 0.9),
        ("heavy tails", [128] * 8, 0.9, 0.5, 0.0),
        ("sequence effects", [64] * 24, 0.5, 0.5, 0.0),
    ],
)
def test_certain_means_right(kind, lengths, memory, correlation, power):
    """The share of coordinates that are certain and wrong is at most the nominal one; where the
    samples suffice, many are certain.
    """
    wrong = certain = total = 0
    for seed in range(12 if len(lengths) == 32 else 40):
        found = match_sites(
            [planted(kind, seed, lengths, memory, correlation)], Group.SIGNED_PERMUTATION
        )
        right = (found.gauge.target == np.arange(WIDTH)) & (found.gauge.factors > 0)
        wrong += int((~found.uncertain & ~right).sum())
        certain += int((~found.uncertain).sum())
        total += WIDTH
    assert wrong <= NOMINAL_RATE * total
    assert certain >= power * total


def test_samples_taken_as_independent_are_not_enough():
    """The control: by the formula for independent samples one in ten of the certain matches is
    wrong.
    """
    wrong = certain = 0
    for seed in range(40):
        site = planted("autoregressive", seed, [256] * 2, 0.95, 0.35)
        found = match(correlate(site.source.T, site.target.T))
        right = (found.gauge.target == np.arange(WIDTH)) & (found.gauge.factors > 0)
        wrong += int((~found.uncertain & ~right).sum())
        certain += int((~found.uncertain).sum())
    assert wrong > 0.05 * certain > 0


@pytest.mark.parametrize("memory", [0.0, 0.5, 0.9])
def test_effective_samples_of_autoregressive_coordinates(memory):
    """A correlation of two AR(1) coordinates varies as that of n (1 - m^2) / (1 + m^2) independent
    samples (Bartlett 1946).
    """
    lengths = [256] * 64
    found = match_sites([planted("autoregressive", 3, lengths, memory, 0.6)], Group.PERMUTATION)
    assert np.median(found.effective) == pytest.approx(
        sum(lengths) * (1 - memory**2) / (1 + memory**2), rel=0.15
    )
    assert found.effective.max() <= sum(lengths)


def test_the_standard_error_of_a_mean():
    """The influences of a mean are its samples over n; blocks of one sample give the textbook's
    standard error.
    """
    rows = torch.randn(400, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    expected = rows.numpy().std(0, ddof=1) / 20
    blocks = blocks_of([[1] * 400])
    np.testing.assert_allclose(
        blocks.standard_error(blocks.sums(0, (rows - rows.mean(0)).T / 400).T), expected, rtol=1e-12
    )
    assert blocks.quantile == pytest.approx(3.0, rel=0.02)


def test_pieces_of_one_sequence_add_what_neighbours_have_in_common():
    """Four pieces of two sequences: the products within a sequence count twice, those across not,
    and no negative sum.
    """
    blocks = Blocks((np.arange(4),), np.array([0, 0, 1, 1]))
    sums = np.array([[1.0, 2.0, 3.0, 4.0], [1.0, -2.0, 3.0, -4.0]]).T
    expected = [(1 + 4 + 9 + 16 + 2 * (1 * 2 + 3 * 4)) * 4 / 3, (1 + 4 + 9 + 16) * 4 / 3]
    np.testing.assert_allclose(blocks.standard_error(sums) ** 2, expected)


def test_blocks_are_sequences_and_few_sequences_are_cut():
    many = blocks_of([[3] * 20])
    assert many.starts[0].tolist() == list(range(0, 60, 3))
    few = blocks_of([[40, 30], [8, 4]])
    # as many pieces as the shorter site has samples
    assert len(few.sequences) == len(few.starts[0]) == len(few.starts[1]) == 8 + 4
    assert few.starts[0].tolist() == [0, 5, 10, 15, 20, 25, 30, 35, 40, 47, 55, 62]
    assert few.starts[1].tolist() == list(range(12))
    assert len(blocks_of([[100]]).sequences) == LEAST
    with pytest.raises(ValueError, match="sites of one set"):
        blocks_of([[3, 3], [3]])


def test_sites_vote_and_the_clearest_one_does_not_decide():
    """Three sites of one space, each too noisy alone for some coordinate; together they are right,
    and a bad site weighs little.
    """
    generator = np.random.default_rng(1)
    truth = Monomial.random(WIDTH, 5)
    lengths = [50] * 12
    state = generator.standard_normal((600, WIDTH))
    pairs = []
    for _ in range(4):
        source = state + 3 * generator.standard_normal(state.shape)
        target = truth.apply(
            torch.from_numpy(state + 3 * generator.standard_normal(state.shape))
        ).numpy()
        pairs.append(pair_of(source, target, lengths))
    alone = [match_sites([pair], Group.SIGNED_PERMUTATION).gauge for pair in pairs]
    assert max(float((found.target == truth.target).mean()) for found in alone) < 0.9
    together = match_sites(pairs, Group.SIGNED_PERMUTATION)
    assert float((together.gauge.target == truth.target).mean()) > 0.9
    spoilt = [
        *pairs,
        pair_of(
            *(np.repeat(generator.standard_normal((12, WIDTH)), 50, axis=0) for _ in range(2)),
            lengths,
        ),
    ]
    assert (
        float((match_sites(spoilt, Group.SIGNED_PERMUTATION).gauge.target == truth.target).mean())
        > 0.85
    )


def test_constant_coordinates_are_never_certain_and_one_site_where_they_vary_is_enough():
    generator = np.random.default_rng(2)
    rows = [generator.standard_normal((200, WIDTH)) for _ in range(2)]
    rows[0][:, :2] = 7.0
    lengths = [10] * 20
    one = match_sites([pair_of(rows[0], rows[0], lengths)], Group.PERMUTATION)
    assert np.flatnonzero(one.uncertain).tolist() == np.flatnonzero(one.constant).tolist() == [0, 1]
    assert not one.certified
    both = match_sites([pair_of(each, each, lengths) for each in rows], Group.PERMUTATION)
    assert not both.uncertain.any()
    assert both.gauge == Monomial.identity(WIDTH)


def test_halves_share_no_sequence_and_have_like_sizes():
    lengths = [5, 9, 2, 30, 4, 4, 8]
    first, second = halves(lengths)
    assert sorted(first + second) == list(range(7))
    assert abs(sum(lengths[i] for i in first) - sum(lengths[i] for i in second)) <= max(lengths)


def test_parts_of_activations():
    whole = Activations(torch.arange(20.0).reshape(10, 2), (4, 3, 3))
    assert whole.first(6).lengths == (4, 2)
    assert torch.equal(whole.first(6).rows, whole.rows[:6])
    assert whole.first(4).lengths == (4,)
    chosen = whole.of_sequences([2, 0])
    assert chosen.lengths == (3, 4)
    assert torch.equal(chosen.rows, torch.cat([whole.rows[7:], whole.rows[:4]]))


def test_activations_that_do_not_pair_are_refused():
    five, four = (Activations(torch.randn(count, 3), (count,)) for count in (5, 4))
    with pytest.raises(InputError, match="expected the same samples"):
        PairedSite(five, four)
    with pytest.raises(InputError, match="3 samples, expected at least 4"):
        PairedSite(four.first(3), four.first(3))
