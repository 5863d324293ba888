"""Merging and resumed training on tiny models: laws that hold exactly, and faults that show."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from normgauge.anatomy import describe
from normgauge.calibration.batches import Batch
from normgauge.gauge.model_gauge import write_gauge
from normgauge.gauge.transform import transformed
from normgauge.schemas.trajectories import (
    MOVED,
    NOT_MOVED,
    PERMUTED,
    PLACED,
    PLACED_STATE,
    RECORDED,
    SIGNED,
    UNALIGNED,
    tables,
)
from normgauge.training.plan import Plan
from normgauge.trajectories.averaging import Recorded, average_rows
from normgauge.trajectories.interpolation import Interpolated, Line
from normgauge.trajectories.merging import merge_rows, pair_of
from normgauge.trajectories.recorded import recorded_gauge
from normgauge.trajectories.resuming import resumed_rows
from unit.gauge_models import config_of, random_checkpoint


@pytest.fixture(scope="module")
def llama():
    return random_checkpoint(config_of("llama", "LlamaForCausalLM"))[0]


def tokens(checkpoint, count, length, seed):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(checkpoint.config.vocab_size, (count, length), generator=generator)


def probes(checkpoint, anatomy):
    return [
        Batch({"input_ids": ids[None]}, {stack.name: None for stack in anatomy.stacks})
        for ids in tokens(checkpoint, 16, 12, 1)
    ]


def rows_of(first, second, seed, stream_alone=True):
    pair = pair_of(first, second, stream_alone)
    found = merge_rows(pair, probes(first, pair.anatomy), tokens(first, 3, 10, 2), seed)
    return {row["way"]: row for row in found}


def test_under_the_gauge_that_made_them_so_two_copies_have_no_barrier(llama):
    for stream_alone in (True, False):
        found = rows_of(llama, llama, 42, stream_alone)
        assert list(found) == [UNALIGNED, PERMUTED, PLACED, SIGNED]
        assert found[SIGNED]["places_right"] == found[PLACED]["places_right"] == 1
        floor = found[SIGNED]["floor"]
        assert found[SIGNED]["barrier"] <= 4 * floor
        assert np.ptp(found[SIGNED]["losses"]) <= 4 * floor
        for way in (UNALIGNED, PERMUTED, PLACED):  # between the ends is another model
            assert np.ptp(found[way]["losses"]) > 100 * floor, way
        assert 0.2 < found[SIGNED]["negative"] < 0.8


def test_the_ends_of_every_line_are_the_two_models(llama):
    other = random_checkpoint(config_of("llama", "LlamaForCausalLM"), seed=6)[0]
    found = rows_of(llama, other, None)
    sequences = tokens(llama, 3, 10, 2)
    ends = [Interpolated(each, sequences).line(each.tensors, 2).means[0] for each in (llama, other)]
    for row in found.values():
        assert row["losses"][0] == pytest.approx(ends[0], abs=1e-6)
        assert row["losses"][-1] == pytest.approx(ends[1], abs=1e-5)
        assert row["places_right"] is None
        assert row["barrier"] >= 0


def test_a_checkpoint_is_not_changed_by_what_is_measured_on_it(llama):
    before = {name: value.clone() for name, value in llama.tensors.items()}
    rows_of(llama, llama, 42)
    assert all(torch.equal(before[name], value) for name, value in llama.tensors.items())


def test_a_barrier_is_the_rise_above_the_chord():
    losses = np.array([[1.0, 3.0], [4.0, 4.0], [3.0, 1.0]])
    line = Line(losses)
    assert line.barrier == 2.0
    assert line.peak == 1
    assert line.barrier_error == pytest.approx(0)
    assert Line(losses[[0, 2]]).barrier == 0
    assert Line(losses[:, :1]).barrier_error is None


def written(folder, checkpoint):
    """A checkpoint as a folder of safetensors."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(checkpoint.config.to_dict(), default=str))
    save_file(dict(checkpoint.tensors), folder / "model.safetensors", metadata={"format": "pt"})
    return folder


@pytest.fixture(scope="module")
def fine_tunes(llama, tmp_path_factory):
    """Two that differ a little from one base, each in recorded coordinates of its own."""
    place, anatomy, found = tmp_path_factory.mktemp("pair"), describe(llama.config), {}
    for number, name in enumerate(("first", "second")):
        generator = torch.Generator().manual_seed(number)
        tensors = {
            key: value + 0.02 * torch.randn(value.shape, generator=generator)
            for key, value in llama.tensors.items()
        }
        gauge = recorded_gauge(anatomy, 50 + number)
        write_gauge(place / f"{name}.parquet", gauge, {})
        tuned = transformed(replace(llama, tensors=tensors), anatomy, gauge)
        found[name] = written(place / name, tuned)
    return place, anatomy, tuple(found.values())


def averages(llama, fine_tunes, recorded=True):
    place, anatomy, folders = fine_tunes
    gauges = Recorded(place / "first.parquet", place / "second.parquet") if recorded else None
    texts = {"text": tokens(llama, 4, 10, 2)}
    rows = list(average_rows(folders, probes(llama, anatomy), texts, gauges))
    assert {"first", "second", *rows[0]} == set(tables.schemas["aligned_merges"].names)
    return {row["way"]: row for row in rows}


def test_what_align_writes_averages_as_if_both_had_stayed_in_one_basis(llama, fine_tunes):
    found = averages(llama, fine_tunes)
    assert list(found) == [UNALIGNED, PERMUTED, PLACED, SIGNED, RECORDED]
    aligned, asked = found[SIGNED], found[RECORDED]
    assert aligned["average_loss"] == pytest.approx(asked["average_loss"], rel=1e-4)
    # the maps of heads, which no gauge is recorded of, are brought nearer as well
    assert 0.9 * asked["apart"] < aligned["apart"] <= asked["apart"]
    for way in (UNALIGNED, PERMUTED, PLACED):
        assert abs(found[way]["average_loss"] - asked["average_loss"]) > 0.01, way
        assert found[way]["apart"] > 5 * asked["apart"], way
    ends = {(row["first_loss"], round(row["second_loss"], 4)) for row in found.values()}
    assert len(ends) == 1  # every way is the same function at its end
    for row in found.values():
        middle = (row["first_loss"] + row["second_loss"]) / 2
        assert row["rise"] == pytest.approx(row["average_loss"] - middle, abs=1e-6)


def test_without_records_there_is_nothing_to_undo(llama, fine_tunes):
    found = averages(llama, fine_tunes, recorded=False)
    assert RECORDED not in found
    assert {row["kind"] for row in found.values()} == {"trained apart"}


@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
def test_training_goes_on_as_it_would_have_where_the_state_moves_along(llama, optimizer):
    rate = 1e-3 if optimizer == "adamw" else 1e-1
    plan = Plan(8, rate, 3, batch=2, length=8, optimizer=optimizer)
    stream = tokens(llama, 1, 400, 4)[0]
    rows = list(resumed_rows(llama, plan, stream, tokens(llama, 4, 8, 5), [42, 43]))
    assert len(rows) == 2 * 3 * 4
    for row in rows:
        if row["resumed"] == 0 or row["state"] == MOVED:
            assert row["relative_error"] < 1e-9, row
        elif row["resumed"] == 4:
            assert row["relative_error"] > 1e-6, row
    assert {row["state"] for row in rows} == {MOVED, PLACED_STATE, NOT_MOVED}
    assert len({row["relative_error"] for row in rows if row["resumed"] == 4}) == 6
