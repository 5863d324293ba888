"""Tables that are seen as sums: what an unsure value of a known table does to the last one, and
what the grid says of their gauge.
"""

import numpy as np

from normgauge.exact_recovery import attack
from normgauge.exact_recovery.description import Array, Description, ObservedTable, StoredTensor
from normgauge.exact_recovery.embeddings import TableRows, remaining_table
from normgauge.exact_recovery.grids import Grid, grid

STORE = grid("float32")


def test_a_value_seen_beside_an_unsure_one_alone_is_not_claimed():
    generator = np.random.default_rng(0)
    tokens, positions = (STORE.round(generator.standard_normal((rows, 4)) * 0.1) for rows in (5, 3))
    index = {"token": np.array([0, 1, 2, 3, 4]), "position": np.array([0, 1, 1, 2, 2])}
    total = tokens[index["token"]] + positions[index["position"]]
    guessed, margins = tokens.copy(), np.full(tokens.shape, 100.0)
    # wrong, and not claimed: at the only sight of position 0, and at one of two of position 1
    guessed[[0, 1], [2, 3]] += 2.0**-20
    guessed = STORE.round(guessed)
    margins[0, 2] = margins[1, 3] = 1.0
    found = remaining_table(
        total, {"token": TableRows(guessed, margins)}, index, "position", 3, STORE
    )
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


TINY = Grid("tiny", 3, -3)
"""Three mantissa bits and ten binades: few enough grid points to try them all."""


def by_trying(values):
    """The shifts that keep (n,) values on the tiny grid, each grid point of the first value
    tried.
    """
    last = int(TINY.index(np.array([TINY.largest]))[0])
    shifts = TINY.point(np.arange(-last, last + 1)) - values[0]
    moved = values[:, None] + shifts
    return shifts[((TINY.round(moved) == moved) & (np.abs(moved) <= TINY.largest)).all(axis=0)]


def test_the_counted_shifts_are_those_that_trying_all_of_them_finds():
    last, several = int(TINY.index(np.array([TINY.largest]))[0]), 0
    for seed in range(300):
        generator = np.random.default_rng(seed)
        indices = generator.integers(-last, last + 1, generator.integers(1, 7))
        values = TINY.point(indices // 2 ** int(generator.integers(0, 5)))
        expected = by_trying(values)
        sides = attack.grid_shifts((values - 0.75)[:, None], np.zeros((len(values), 1)), TINY)
        assert sides[0].count[0] + sides[1].count[0] == len(expected)
        ends = [side.shift((values - 0.75)[:, None])[0] - 0.75 for side in sides if side.count[0]]
        assert set(ends) <= set(expected)
        several += len(expected) > 1
    assert 100 < several < 300


def summed(tokens, positions, rows=4000, seed=0):
    """Embedding sums of two tables, with indices."""
    generator = np.random.default_rng(seed)
    index = generator.integers(0, len(tokens), rows), generator.integers(0, len(positions), rows)
    return tokens[index[0]] + positions[index[1]], *index


def observed(folder, tables, indices, total, dtype="float32"):
    """An observation folder of embedding sums alone."""
    tensors = tuple(StoredTensor(name, table.shape, dtype, None) for name, table in tables.items())
    for name, values in {
        "embedding": total,
        **{f"{name}.indices": index[:, None] for name, index in indices.items()},
    }.items():
        np.ascontiguousarray(values, dtype=np.float64).tofile(folder / f"{name}.f64")
    looked_up = tuple(ObservedTable(name, Array(f"{name}.indices", 1)) for name in tables)
    return Description(tensors, (), (), looked_up, Array("embedding", total.shape[1]))


def inside(found, tables):
    return np.array(
        [
            any(
                side["low"][f] <= tables[side["table"][f]][side["row"][f], f] <= side["high"][f]
                for side in found.sides
            )
            for f in range(len(found.survivors))
        ]
    )


def test_the_stored_shift_survives_for_every_feature_wherever_the_tables_means_lie(tmp_path):
    generator = np.random.default_rng(2)
    # an attack centred on mean zero would miss these
    means = generator.standard_normal((2, 24)) * np.repeat([0.0, 0.3, 5.0], 8)
    tables = {
        name: STORE.round(generator.standard_normal((rows, 24)) * 0.05 + mean)
        for name, rows, mean in (("t", 400, means[0]), ("p", 16, means[1]))
    }
    total, tokens, positions = summed(*tables.values())
    found = attack.attack(
        observed(tmp_path, tables, {"t": tokens, "p": positions}, total), tmp_path
    )
    assert inside(found, tables).all()
    assert found.survivors.min() > 1
    assert len(found.features) == 0


def test_a_feature_of_a_tiny_and_a_large_value_is_reached_and_rightly(tmp_path):
    generator = np.random.default_rng(3)
    tables = {
        name: STORE.round(generator.standard_normal((rows, 6)) * 0.05)
        for name, rows in (("t", 400), ("p", 16))
    }
    tables["t"][7, 2], tables["t"][9, 2] = STORE.round(np.array([3.1e-9, 3.3]))
    total, tokens, positions = summed(*tables.values())
    found = attack.attack(
        observed(tmp_path, tables, {"t": tokens, "p": positions}, total), tmp_path
    )
    assert inside(found, tables).all()
    np.testing.assert_array_equal(found.features, [2])
    np.testing.assert_array_equal(found.values[:, 0], tables["t"][found.rows, 2])


def test_sums_that_float64_has_rounded_keep_the_stored_shift(tmp_path):
    """Values from 1e-14 to 1 have more binades than float64 has bits left: nearly every sum drops
    some.
    """
    generator = np.random.default_rng(5)
    tables = {
        name: STORE.round(
            10 ** generator.uniform(-14, 0, (rows, 24)) * generator.choice((-1.0, 1.0), (rows, 24))
        )
        for name, rows in (("t", 300), ("p", 16))
    }
    total, tokens, positions = summed(*tables.values())
    assert (attack._difference(total, tables["p"][positions])[1] > 0).any()
    found = attack.attack(
        observed(tmp_path, tables, {"t": tokens, "p": positions}, total), tmp_path
    )
    assert inside(found, tables).all()


def test_three_tables_and_half_precision_keep_the_stored_shift(tmp_path):
    for dtype in ("float32", "float16", "bfloat16"):
        generator, store = np.random.default_rng(4), grid(dtype)
        tables = {
            name: store.round(generator.standard_normal((rows, 40)) * 0.05 + 0.2)
            for name, rows in (("t", 300), ("w", 2), ("p", 16))
        }
        indices = {name: generator.integers(0, len(table), 3000) for name, table in tables.items()}
        total = tables["t"][indices["t"]] + tables["w"][indices["w"]] + tables["p"][indices["p"]]
        found = attack.attack(observed(tmp_path, tables, indices, total, dtype), tmp_path)
        assert inside(found, tables).all()
        assert (found.values == tables["t"][np.ix_(found.rows, found.features)]).all()
