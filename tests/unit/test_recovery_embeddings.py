"""Tables that are seen as sums: what an unsure value of a known table does to the last one."""

import numpy as np

from normgauge.recovery.embeddings import TableRows, remaining_table
from normgauge.recovery.grids import grid

STORE = grid("float32")


def test_a_value_seen_beside_an_unsure_one_alone_is_not_claimed():
    generator = np.random.default_rng(0)
    tokens, positions = (STORE.round(generator.standard_normal((rows, 4)) * 0.1) for rows in (5, 3))
    index = {"token": np.array([0, 1, 2, 3, 4]), "position": np.array([0, 1, 1, 2, 2])}
    total = tokens[index["token"]] + positions[index["position"]]
    guessed, margins = tokens.copy(), np.full(tokens.shape, 100.0)
    guessed[[0, 1], [2, 3]] += 2.0**-20  # wrong, and not claimed: at the only sight of position 0, and at one of two of position 1
    guessed = STORE.round(guessed)
    margins[0, 2] = margins[1, 3] = 1.0
    found = remaining_table(total, {"token": TableRows(guessed, margins)}, index, "position", 3, STORE)
    claimed = found.margins >= 4
    assert not ((found.values != positions) & claimed).any()
    assert not claimed[0, 2]
    assert claimed.sum() == claimed.size - 1


def test_rows_that_no_position_used_are_undetermined():
    table = STORE.round(np.random.default_rng(1).standard_normal((4, 2)))
    index = np.array([1, 3, 3])
    found = remaining_table(table[index], {}, {"t": index}, "t", 4, STORE)
    np.testing.assert_array_equal(found.values[[1, 3]], table[[1, 3]])
    assert np.isnan(found.values[[0, 2]]).all()
    assert not found.margins[[0, 2]].any()
