"""Tags are proved: a gauge on B leaves every statistic that is tagged with its group as it is, and
moves every other one.
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest

from normgauge.checkpoint_comparison.inventory import inventory_rows
from normgauge.checkpoint_comparison.statistics import GROUPS, STATISTICS, catalogue
from normgauge.checkpoint_comparison.study import kernel_rows
from unit.comparison_pairs import FAMILIES, PROBES, gauged, pair_of, rows_of

STAYS, MOVES = 1e-6, 1e-2


def by_statistic(rows):
    """(statistic, mode) -> values in order, and the groups that the rows are tagged with."""
    values, tags = defaultdict(list), {}
    for row in rows:
        key = row["statistic"], row["mode"]
        values[key].append(row["change"])
        tags[key] = row["invariant_under"]
    return {key: np.array(column) for key, column in values.items()}, tags


def largest_move(before: np.ndarray, after: np.ndarray) -> float:
    """The largest change over the largest value; infinite when rows appear or go."""
    if before.shape != after.shape:
        return float("inf")
    return float(np.abs(after - before).max() / max(np.abs(before).max(), 1e-300))


def moves(family: str, group: str) -> tuple[dict, dict]:
    """How far each statistic moves under a gauge of the group on B, and the tags; empty where the
    family has no such gauge.
    """
    other = gauged(pair_of(family), group)
    if other is None:
        return {}, {}
    before, tags = by_statistic(rows_of(family))
    after, _ = by_statistic(kernel_rows(other, PROBES, {}))
    return {key: largest_move(before[key], after[key]) for key in before}, tags


@pytest.mark.parametrize("group", GROUPS)
def test_a_tag_is_kept_in_every_family_and_what_is_not_tagged_moves_in_one(group):
    found: dict[tuple, float] = {}
    for family in FAMILIES:
        moved, tags = moves(family, group)
        assert {
            key: move for key, move in moved.items() if group in tags[key] and move > STAYS
        } == {}, family
        for key, move in moved.items():
            if group not in tags[key]:
                found[key] = max(found.get(key, 0.0), move)
    assert found
    assert {key: move for key, move in found.items() if move < MOVES} == {}


@pytest.mark.parametrize("group", GROUPS)
def test_the_tags_of_the_inventory_are_kept_and_what_is_not_tagged_moves(group):
    for family in FAMILIES:
        pair = pair_of(family)
        other = gauged(pair, group)
        if other is None:
            continue
        # a fold lives in the steps of the moved side: as stored here means before alignment
        moves = {}
        for before, after in zip(
            inventory_rows(pair, pair), inventory_rows(pair, other), strict=True
        ):
            change = (
                abs(after["aligned_relative"] - before["aligned_relative"])
                / before["aligned_relative"]
            )
            moves[before["tensor"]] = (group in before["invariant_under"], change)
        assert {
            name: found for name, found in moves.items() if found[0] and found[1] > STAYS
        } == {}, family
        assert any(not tagged and change > MOVES for tagged, change in moves.values())


def test_the_catalogue_of_the_documents_is_that_of_the_code():
    document = (Path(__file__).parents[2] / "docs" / "checkpoint_comparison.md").read_text()
    assert "\n".join(catalogue()) in document, (
        "run python -m normgauge.checkpoint_comparison.statistics"
    )


def test_every_statistic_is_declared_and_seen():
    seen = {row["statistic"] for family in FAMILIES for row in rows_of(family)}
    assert seen == set(STATISTICS)
