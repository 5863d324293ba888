"""The commands on a tiny folder, and the check that names the block where a function first differs."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from safetensors.torch import load_file, save_file

from normgauge.anatomy import describe
from normgauge.calibration.batches import Batch
from normgauge.calibration.prepare import prepare
from normgauge.checkpoints.building import build_model
from normgauge.command import main
from normgauge.gauge.absorb import absorb_gains, untied
from normgauge.gauge.check import check
from normgauge.gauge.groups import Monomial, Orthogonal
from normgauge.gauge.model_gauge import Gauge, read_gauge
from normgauge.gauge.transform import transformed
from unit.gauge_models import tiny

LLAMA = ("llama", "LlamaForCausalLM")


@pytest.fixture
def folder(tmp_path):
    checkpoint, _ = tiny(*LLAMA)
    path = tmp_path / "model"
    path.mkdir()
    checkpoint.config.save_pretrained(path)
    save_file(dict(checkpoint.tensors), path / "model.safetensors")
    entry = {"modality": "tokens", "calibration": "random-tokens"}
    prepare(entry, path, None, tmp_path / "calibration.parquet", config=checkpoint.config, sequences=6, length=64)
    return path


def test_random_apply_recover_and_back(folder, tmp_path, capsys):
    probes = ["--calibration", str(tmp_path / "calibration.parquet"), "--batches", "4"]
    paths = {name: str(tmp_path / name) for name in ("g.parquet", "moved", "found.parquet", "back")}
    assert main(["gauge", "random", str(folder), paths["g.parquet"], "--seed", "45"]) == 0
    assert read_gauge(paths["g.parquet"]) == Gauge({"residual": Monomial.random(12, 45)})
    assert main(["gauge", "apply", str(folder), paths["g.parquet"], paths["moved"]]) == 0
    assert main(["gauge", "check", str(folder), paths["moved"], *probes]) == 0
    assert "the same function" in capsys.readouterr().out
    assert main(["gauge", "recover", str(folder), paths["moved"], paths["found.parquet"], *probes]) == 0
    assert "row argmax on |C|, certified" in capsys.readouterr().out
    assert read_gauge(paths["found.parquet"]) == read_gauge(paths["g.parquet"])
    assert main(["gauge", "apply", paths["moved"], paths["found.parquet"], paths["back"], "--inverse"]) == 0
    assert (tmp_path / "back/model.safetensors").read_bytes() == (folder / "model.safetensors").read_bytes()
    capsys.readouterr()
    assert main(["gauge", "audit", str(folder), *probes, "--top", "3"]) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[0].startswith("outputs move by ")
    assert [line.split(" (")[0] for line in said[1:]] == [
        "attribution",
        "active coordinates",
        "difference of means",
        "active feed-forward units",
    ]
    assert all(line.endswith("100% agree after the gauge") for line in said[1:])


def test_another_function_and_bad_input(folder, tmp_path, capsys):
    probes = ["--calibration", str(tmp_path / "calibration.parquet")]
    other = tmp_path / "other"
    other.mkdir()
    tensors = load_file(folder / "model.safetensors")
    tensors["model.layers.1.mlp.up_proj.weight"][0] += 1
    save_file(tensors, other / "model.safetensors")
    (other / "config.json").write_text((folder / "config.json").read_text())
    assert main(["gauge", "check", str(folder), str(other), *probes]) == 1
    assert "first difference at decoder/block.2/output" in capsys.readouterr().out
    bert, _ = tiny("bert", "BertModel")
    (tmp_path / "bert").mkdir()
    bert.config.save_pretrained(tmp_path / "bert")
    save_file(dict(bert.tensors), tmp_path / "bert/model.safetensors")
    assert main(["gauge", "check", str(folder), str(tmp_path / "bert"), *probes]) == 1
    assert "compare checkpoints of one class and shape" in capsys.readouterr().err
    assert main(["gauge", "random", str(folder), str(tmp_path / "g"), "--space", "vocabulary"]) == 1
    assert "error: --space vocabulary" in capsys.readouterr().err
    assert main(["gauge", "apply", str(folder), str(tmp_path / "absent"), str(tmp_path / "moved")]) == 1
    assert "absent" in capsys.readouterr().err


def test_hidden_states_that_are_outputs_need_the_gauge(tmp_path, capsys):
    checkpoint, _ = tiny("llama", "LlamaModel")
    source = tmp_path / "model"
    source.mkdir()
    checkpoint.config.save_pretrained(source)
    save_file(dict(checkpoint.tensors), source / "model.safetensors")
    entry = {"modality": "tokens", "calibration": "random-tokens"}
    prepare(entry, source, None, tmp_path / "calibration.parquet", config=checkpoint.config, sequences=2, length=16)
    names = [str(tmp_path / name) for name in ("model", "g.parquet", "moved")]
    assert main(["gauge", "random", *names[:2]]) == 0
    assert main(["gauge", "apply", *names]) == 0
    pair = [names[0], names[2], "--calibration", str(tmp_path / "calibration.parquet")]
    assert main(["gauge", "check", *pair]) == 1
    assert "need the --gauge between" in capsys.readouterr().out
    assert main(["gauge", "check", *pair, "--gauge", names[1]]) == 0


def test_a_folded_and_rotated_model_is_the_same_function():
    checkpoint, _ = tiny(*LLAMA)
    double = dataclasses.replace(checkpoint, tensors={name: value.double() for name, value in checkpoint.tensors.items()})
    loose = untied(double)
    anatomy = describe(loose.config)
    folded = absorb_gains(loose, anatomy)
    turned = transformed(folded, anatomy, Gauge({"residual": Orthogonal.random(12, 1)}))
    batch = Batch({"input_ids": torch.randint(2, 17, (2, 9), generator=torch.Generator().manual_seed(1))}, {"decoder": None})
    found = check(build_model(double, "float64"), build_model(turned, "float64"), anatomy, [batch], Gauge({}))
    assert found.outputs.relative <= 1e-10
    assert found.first_difference(1e-10) is None
    assert len(found.sites) == 3
    broken = dict(turned.tensors) | {"model.layers.0.self_attn.o_proj.weight": torch.zeros(12, 24)}
    spoilt = build_model(dataclasses.replace(turned, tensors=broken), "float64")
    found = check(build_model(double, "float64"), spoilt, anatomy, [batch], Gauge({}))
    assert not found.outputs.unchanged("float64")
    assert found.first_difference(1e-10) == "decoder/block.1/output"
