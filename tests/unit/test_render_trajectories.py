"""Every figure of trajectories is drawn from rows of its table, and shows what they say."""

import itertools

import pytest

from normgauge.render import style
from normgauge.render.trajectories.drawings import DRAWINGS
from normgauge.schemas.trajectories import (
    ENDPOINT,
    MOVED,
    NOT_MOVED,
    ONE_BASE,
    PLACED_STATE,
    RECORDED,
    SIGNED,
    TRANSPORT,
    UNALIGNED,
    tables,
)
from result_samples import filled
from unit.test_render import assert_legible, visible_texts

RUN = {"model": "m", "learning_rate": 1e-3, "steps": 8, "tokens": 500}
SPACES = [{"space": "residual", "sites": "all sites"}, {"space": "units", "sites": "all sites"}]
ROWS = {
    "trajectory_transport": [
        RUN | space | {"way": way, "stride": stride, "signed_accuracy": 0.4, "fitted": fitted}
        for space, (way, stride), fitted in itertools.product(
            SPACES, [(TRANSPORT, 2), (TRANSPORT, 4), (ENDPOINT, None)], (True, False)
        )
    ],
    "trajectory_pairs": [
        RUN | space | {"pair": "cross-seed", "way": way, "signed_accuracy": 0.6}
        for space, way in itertools.product(SPACES, (ENDPOINT, "transport via base"))
    ],
    "trajectory_cycles": [
        RUN | space | {"cycle": cycle, "moved": 0.2}
        for space, cycle in itertools.product(SPACES, ("base - a - b", "a - b - c"))
    ],
    "endpoint_budget": [
        RUN | space | {"tokens": tokens, "accuracy": 0.5}
        for space, tokens in itertools.product(SPACES, (39, 500))
    ],
    "natural_alignment": [
        {"other": "m@seed2", "site": "all sites", "match": "in the group", "tokens": tokens}
        for tokens in (39, 500)
    ],
    "merge_barriers": [
        {"first": "m@s1", "second": second, "kind": kind, "seed": seed, "way": way, "barrier": 0.5}
        for (second, kind, seed), way in itertools.product(
            [("m@s1", "scrambled", 42), ("m@s2", "trained apart", None)], (UNALIGNED, SIGNED)
        )
    ],
    "aligned_merges": [
        {
            "first": "m@a",
            "second": "m@b",
            "kind": ONE_BASE,
            "way": way,
            "text": text,
            "first_loss": 2.0,
            "second_loss": 3.0,
            "average_loss": loss,
            "rise_error": 0.02,
            "certain": 0.99,
        }
        for (way, loss), text in itertools.product(
            ((UNALIGNED, 6.5), (SIGNED, 2.25), (RECORDED, 2.24)), ("kjv", "python-code")
        )
    ],
    "resumed_training": [
        {"optimizer": "adamw", "state": way, "resumed": step, "relative_error": 1e-3}
        for way, step in itertools.product((MOVED, PLACED_STATE, NOT_MOVED), (0, 4))
    ],
}


@pytest.mark.parametrize("name", DRAWINGS)
def test_every_row_is_in_the_figure(name):
    drawing = DRAWINGS[name]
    schema = tables.schemas[drawing.table]
    rows = [
        filled(schema, **{key: row[key] for key in row if key in schema.names})
        for row in ROWS[drawing.table]
    ]
    figure = drawing(rows)
    points = sum(
        len(line.get_xdata())
        for axes in figure.axes
        for line in axes.lines
        if line.get_marker() not in ("None", None, "")
    )
    expected = {"trajectory_transport": 6, "transport_trust": 8, "trajectory_pairs": 2}
    expected |= {"trajectory_cycles": 4, "endpoint_budget": 4, "natural_alignment": 8}
    expected |= {"merge_barriers": 4, "resumed_training": 6, "aligned_merges": 0}
    assert points == expected[name]


def test_the_table_of_averages_says_every_loss_beside_the_ends():
    schema = tables.schemas["aligned_merges"]
    figure = DRAWINGS["aligned_merges"]([filled(schema, **row) for row in ROWS["aligned_merges"]])
    said = [text.get_text() for text in visible_texts(figure)[0]]
    assert said.count("2.00, 3.00") == 2
    for loss in ("6.50", "2.25", "2.24"):
        assert sum(text.startswith(loss) for text in said) == 2
    with style.look():
        assert_legible(figure)
