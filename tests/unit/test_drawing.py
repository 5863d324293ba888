"""Twins drawn tensor by tensor: every weight has the bytes that the whole model's draw gives."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn
from transformers.initialization import TORCH_INIT_FUNCTIONS

from normgauge.anatomy import describe
from normgauge.calibration.batches import batches
from normgauge.calibration.prepare import prepare
from normgauge.calibration.settings import Settings
from normgauge.capture import capture, norm_rows
from normgauge.capture.settings import CaptureSettings
from normgauge.capture.study import select_sites
from normgauge.checkpoints import drawing
from normgauge.checkpoints.architectures import new_model
from normgauge.checkpoints.building import fresh_tensors, reinitialise
from normgauge.checkpoints.drawing import DrawnTensors, drawn_tensors, twin, why_drawn_whole
from normgauge.checkpoints.opening import Checkpoint, open_checkpoint
from normgauge.checkpoints.skeleton import Skeleton
from normgauge.fingerprint.files import norm_facts, read_identity
from normgauge.fingerprint.reinitialised import fingerprint_reinitialised
from normgauge.fingerprint.study import Measurement, measure
from normgauge.schemas.fingerprint import tables
from unit.gauge_models import config_of, random_checkpoint
from unit.test_anatomy import ALL_CLASSES, SCEPTR

EVERY = os.environ.get("NORMGAUGE_EVERY_ORDER") == "1"
CLASSES = [pair for pair in ALL_CLASSES if pair[0] not in SCEPTR] + [("sceptr", "Sceptr")]
CASES = CLASSES if EVERY else list(dict(CLASSES).items())


def source_of(config):
    return Checkpoint(config, {}, {}, (Path("model.safetensors"),))


@pytest.mark.parametrize(("case", "architecture"), CASES)
def test_every_weight_has_the_bytes_of_the_whole_draw(case, architecture):
    """One class of each case; with NORMGAUGE_EVERY_ORDER=1 all. No family is drawn whole."""
    config = config_of(case, architecture)
    whole = fresh_tensors(config, 3)
    state = torch.random.get_rng_state()
    found = drawn_tensors(source_of(config), 3)
    names = list(found)[::-1]  # in whatever order they are asked for
    for name in names:
        value = found.anew(name)
        assert value.shape == whole[name].shape, name
        assert value.numpy().tobytes() == whole[name].numpy().tobytes(), name
    assert torch.equal(torch.random.get_rng_state(), state)
    held = {name for name, value in found.items() if not value.is_meta}
    assert held <= set(dict(new_model(config, torch.float32).named_buffers()))


class _Everything(nn.Module):
    """A parameter for each of torch's initialisations, and values that are changed in parts."""

    def __init__(self):
        super().__init__()
        for name in TORCH_INIT_FUNCTIONS:
            shape = (3, 4, 5) if name == "dirac_" else (19, 7)
            setattr(self, name, nn.Parameter(torch.empty(shape)))
            arguments = {"constant_": (2.0,), "sparse_": (0.4,)}.get(name, ())
            getattr(nn.init, name)(self.get_parameter(name), *arguments)
        self.given = nn.Parameter(torch.ones(3, 4))
        self.cut = nn.Parameter(torch.empty(5, 6).normal_())
        with torch.no_grad():
            self.get_parameter("normal_")[2].zero_()
            self.get_parameter("uniform_")[:, 1].normal_(1.0)
            nn.init.trunc_normal_(self.get_parameter("ones_"), 0.0, 1.0, 1.0, 3.0)  # few are kept
            self.given.mul_(torch.arange(4.0)).add_(0.5)


class _Reading(nn.Module):
    """A parameter whose values hang on those of another one."""

    def __init__(self):
        super().__init__()
        self.first = nn.Parameter(torch.empty(4, 4).normal_())
        self.second = nn.Parameter(torch.empty(4, 4))
        with torch.no_grad():
            self.second.copy_(self.first @ self.first)


def test_every_initialisation_of_torch_is_followed(monkeypatch):
    monkeypatch.setattr(drawing, "new_model", lambda *_: _Everything())
    torch.manual_seed(7)
    whole = _Everything().state_dict()
    found = drawn_tensors(source_of(None), 7)
    assert found.keys() == whole.keys()
    for name, value in whole.items():
        assert found[name].is_meta
        assert found.anew(name).numpy().tobytes() == value.numpy().tobytes(), name


def test_what_cannot_be_followed_is_drawn_whole_and_said(monkeypatch, capsys):
    """The reason is there for who asks, and in a twin the values are those of the whole draw."""
    config = config_of("llama", "LlamaModel")
    whole = fresh_tensors(config, 8)
    assert why_drawn_whole(source_of(config)) is None
    monkeypatch.setattr(drawing, "new_model", lambda *_: _Reading())
    reason = why_drawn_whole(source_of(config))
    assert reason is not None
    assert "reads values of a parameter" in reason
    made = twin(source_of(config), 8)
    assert "initialisation with seed 8: drawn whole" in capsys.readouterr().err
    assert not isinstance(made.tensors, DrawnTensors)
    assert all(torch.equal(made.tensors[name], value) for name, value in whole.items())


def test_a_draw_from_another_state_of_the_generator_is_seen(monkeypatch):
    """The fault: a weight is drawn from the state of the one after it. It has other bytes, and is
    refused when it is drawn.
    """
    config = config_of("llama", "LlamaModel")
    name, after = (f"layers.{block}.mlp.up_proj.weight" for block in (0, 1))
    found, whole = drawn_tensors(source_of(config), 3), fresh_tensors(config, 3)
    (own,), (other,) = (found._drawings[each].steps for each in (name, after))
    faulty = replace(found._drawings[name], steps=(replace(own, state=other.state),))
    with pytest.raises(RuntimeError, match="another state of the generator"):
        faulty.values()
    monkeypatch.setattr(drawing, "_digest", lambda _: own.after)
    assert not torch.equal(faulty.values(), whole[name])
    assert torch.equal(found.anew(name), whole[name])


@pytest.fixture
def folder(tmp_path):
    """A llama of three blocks on disk, its manifest as far as it is read, and a calibration."""
    checkpoint, anatomy = random_checkpoint(
        config_of("llama", "LlamaForCausalLM", num_hidden_layers=3)
    )
    (tmp_path / "checkpoint").mkdir()
    save_file(dict(checkpoint.tensors), tmp_path / "checkpoint" / "model.safetensors")
    checkpoint.config.save_pretrained(tmp_path / "checkpoint")
    facts = dict.fromkeys(("model", "revision", "provenance", "precision", "objective"), "m")
    stacks = [{"name": "decoder", "blocks": 3, "width": anatomy.stacks[0].width}]
    facts |= {"family": "llama", "norm_placement": "pre-norm", "stacks": stacks}
    (tmp_path / "manifest.json").write_text(json.dumps(facts))
    prepare(
        {"modality": "text", "calibration": "random-tokens"},
        tmp_path / "checkpoint",
        None,
        tmp_path / "calibration.parquet",
        config=checkpoint.config,
        settings=Settings(24, 8),
    )
    return tmp_path


DTYPES = {"float64": ["residual", "schur"], "float32": ["residual", "terminal"]}
KINDS = ("fingerprint", "schur", "stacks")


def measure_twins(folder, destination):
    fingerprint_reinitialised(
        folder / "checkpoint",
        folder / "manifest.json",
        folder / "calibration.parquet",
        {kind: destination / f"{kind}.parquet" for kind in KINDS},
        CaptureSettings(DTYPES, "cov64", 8, ["query_key_value_input"], 4),
        (42, 43),
    )
    return {kind: (destination / f"{kind}.parquet").read_bytes() for kind in KINDS}


def test_twins_have_the_rows_of_the_whole_model_pass(folder):
    measure_twins(folder, folder / "twins")
    checkpoint = open_checkpoint(folder / "checkpoint")
    anatomy = describe(checkpoint.config)
    identity = replace(
        read_identity(folder / "manifest.json"),
        provenance="random initialisation",
        precision="full",
    )
    expected = dict.fromkeys(KINDS, ())
    for seed in (42, 43):
        measurements = []
        for dtype, groups in DTYPES.items():
            model = reinitialise(checkpoint, seed, dtype)
            sites = select_sites(anatomy, groups, ["query_key_value_input"])
            given = batches(
                folder / "calibration.parquet",
                folder=folder / "checkpoint",
                config=checkpoint.config,
                batch_size=8,
                groups=4,
            )
            norms = norm_rows(anatomy, model.state_dict())
            measurements.append(
                Measurement(
                    dtype,
                    capture(model, sites, given, "cov64"),
                    {site.id: site for site in sites},
                    {norm["norm"]: norm_facts(norm) for norm in norms},
                )
            )
        for kind, rows in zip(KINDS, measure(measurements, identity), strict=True):
            expected[kind] += tuple({"seed": seed, **row} for row in rows)
    for kind in KINDS:
        assert tables.read(folder / "twins" / f"{kind}.parquet", f"reinitialised_{kind}") == [
            dict(row) for row in expected[kind]
        ]


def test_twins_that_were_killed_go_on_at_their_block(folder, monkeypatch):
    """What was done before the second block of the second arithmetic is not done again."""
    drawn, deadly = [], 5
    honest = Skeleton.load

    def load(model, names):
        names = list(names)
        drawn.extend(int(name.split(".")[2]) for name in names if name.endswith("q_proj.weight"))
        if len(drawn) == deadly:
            raise KeyboardInterrupt
        honest(model, names)

    monkeypatch.setattr(Skeleton, "load", load)
    with pytest.raises(KeyboardInterrupt):
        measure_twins(folder, folder / "twins")
    assert not list((folder / "twins").glob("*.parquet"))
    drawn.clear()
    deadly = None
    gone_on = measure_twins(folder, folder / "twins")
    assert drawn == [1, 2, *[0, 1, 2] * 2]
    assert measure_twins(folder, folder / "whole") == gone_on
    assert sorted(path.stem for path in (folder / "twins").iterdir()) == sorted(KINDS)
