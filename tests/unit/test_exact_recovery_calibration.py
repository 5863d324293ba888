"""What shows that the numbers beside a recovery mean what they say: chances of wrong roundings, the
published probes, rates of the attack, the rank of the hardest gain.
"""

import numpy as np
import pytest
from scipy import stats

import planted_checkpoints
from normgauge.calibration import random_tokens
from normgauge.calibration.random_tokens import probes, published_ids
from normgauge.errors import InputError
from normgauge.exact_recovery.calls import Calls, chance_wrong
from normgauge.exact_recovery.grids import grid
from normgauge.exact_recovery.tabulate import _hardest, _rate

FLOAT32 = grid("float32")


@pytest.mark.parametrize(("understated", "honest"), [(1.0, True), (2.0, False)])
def test_the_chance_of_a_wrong_rounding_is_that_of_gaussian_noise(understated, honest):
    """Its positive control: a noise stated at half its size is seen."""
    generator = np.random.default_rng(0)
    stored = FLOAT32.round(generator.standard_normal((400, 50)) * 0.02)
    noise = FLOAT32.ulp(stored) * generator.uniform(0.05, 2, stored.shape)
    moved = stored + noise * generator.standard_normal(stored.shape)
    values, stated = FLOAT32.round(moved), noise / understated
    calls = Calls.of(values, FLOAT32.margin(moved, values, stated), stated, FLOAT32)
    chances = chance_wrong(calls.margins, calls.widths)
    wrong = (calls.values != stored[calls.coordinates, calls.columns]).sum()
    off = abs(wrong - chances.sum()) / np.sqrt((chances * (1 - chances)).sum())
    assert bool(off < 5) is honest
    assert len(chances) > 10_000


def test_the_published_ids_have_the_printed_hash(monkeypatch):
    ids = published_ids()
    assert (ids.shape, ids.dtype, ids.max() < 50257) == ((8, 1024), np.int64, True)
    monkeypatch.setattr(random_tokens, "PUBLISHED_SHA256", "0" * 16)
    with pytest.raises(InputError, match="sha256 50c674a8d7a91b94, printed is 0000"):
        published_ids()
    published_ids(33)  # of a fresh chunk: nothing is printed of it


def test_the_published_protocol_is_eight_sequences_a_chunk_and_needs_gpt2s_vocabulary():
    config = planted_checkpoints.gpt2_config(vocab_size=50257, n_positions=1024)
    passes = list(probes(config, 2 * 8192, 32, False, published=True))
    assert [tuple(each["input_ids"].shape) for each in passes] == [(1, 1024)] * 16
    drawn = np.vstack([each["input_ids"].numpy() for each in passes])
    np.testing.assert_array_equal(drawn[:8], published_ids(32))
    np.testing.assert_array_equal(drawn[8:], published_ids(33))
    for changes in ({"vocab_size": 101}, {"vocab_size": 50257, "n_positions": 512}):
        small = planted_checkpoints.gpt2_config(**changes)
        with pytest.raises(InputError, match="published protocol: ids below 50257"):
            next(probes(small, 8192, 32, False, published=True))


def test_the_rate_of_the_attack_has_the_interval_of_clopper_and_pearson():
    published = _rate(16, 768)
    assert published["attack_share"] == pytest.approx(2.08, abs=0.005)
    # its ends: there 16 or more, and 16 or fewer, have a chance of 2.5 %
    low, high = published["attack_low"] / 100, published["attack_high"] / 100
    assert stats.binom.sf(15, 768, low) == pytest.approx(0.025)
    assert stats.binom.cdf(16, 768, high) == pytest.approx(0.025)
    assert _rate(0, 256)["attack_low"] == 0
    assert set(_rate(0, 0).values()) == {None}


def test_the_hardest_gain_is_ranked_by_its_inverse():
    gains, margins = [0.5, -2.5e-4, 1.0, 2.0], [90.0, 4.1, 300.0, 800.0]
    rows = [
        {"gain": gain, "weight": 0.1, "margin": margin}
        for gain, margin in zip(gains, margins, strict=True)
    ]
    found = _hardest(rows)
    assert found["hardest_rank"] == 1
    assert found["hardest_ratio"] == pytest.approx(4000 / 1.5)
    rows[0]["margin"] = 4.05  # another coordinate is the hardest
    assert _hardest(rows)["hardest_rank"] == 2
    assert _hardest([])["hardest_rank"] is None
