"""Whose gauge a file holds: a hash of the weights alone, and a distance without the weights."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import torch
from safetensors.torch import load_file, save_file

from normgauge.gauge.model_gauge import Gauge, write_gauge
from normgauge.transport import folders
from normgauge.transport.origin import Origin, identity_of, read_origin
from unit.gauge_models import tiny


def saved(path, checkpoint, tensors=None, **metadata):
    path.mkdir()
    checkpoint.config.save_pretrained(path)
    save_file(
        dict(tensors or checkpoint.tensors), path / "model.safetensors", metadata=metadata or None
    )
    return path


def test_only_the_weights_count(tmp_path, monkeypatch):
    checkpoint, _ = tiny("llama-biased", "LlamaForCausalLM")  # its readout is tied
    model = saved(tmp_path / "model", checkpoint)
    found = identity_of(model)
    (model / "README.md").write_text("another")
    (model / ".cache").mkdir()
    (model / ".cache/x").write_text("")
    saved(tmp_path / "headed", checkpoint, format="pt", author="another")
    tied = dict(checkpoint.tensors) | {
        "lm_head.weight": checkpoint.tensors["model.embed_tokens.weight"].clone()
    }
    saved(tmp_path / "tied", checkpoint, dict(reversed(tied.items())))
    (tmp_path / "sharded").mkdir()
    checkpoint.config.save_pretrained(tmp_path / "sharded")
    weight_map = {
        name: f"model-0000{1 + number % 2}-of-00002.safetensors"
        for number, name in enumerate(checkpoint.tensors)
    }
    for shard in set(weight_map.values()):
        part = {
            name: value for name, value in checkpoint.tensors.items() if weight_map[name] == shard
        }
        save_file(part, tmp_path / "sharded" / shard)
    (tmp_path / "sharded/model.safetensors.index.json").write_text(
        json.dumps({"metadata": {}, "weight_map": weight_map})
    )
    (tmp_path / "torch").mkdir()
    checkpoint.config.save_pretrained(tmp_path / "torch")
    torch.save(dict(checkpoint.tensors), tmp_path / "torch/pytorch_model.bin")
    for name in ("model", "headed", "tied", "sharded", "torch"):
        assert identity_of(tmp_path / name).sha256 == found.sha256, name
    monkeypatch.setattr(folders, "CHUNK", 100)
    assert identity_of(model).sha256 == found.sha256


def test_every_bit_of_a_weight_counts(tmp_path):
    checkpoint, _ = tiny("llama", "LlamaForCausalLM")
    model = saved(tmp_path / "model", checkpoint)
    seen = {identity_of(model).sha256}
    for number, name in enumerate(
        ("model.norm.weight", "model.layers.1.self_attn.k_proj.bias", "lm_head.weight")
    ):
        tensors = load_file(model / "model.safetensors")
        if name in tensors:
            tensors[name].view(-1).view(torch.int32)[3] ^= 1
            seen.add(identity_of(saved(tmp_path / f"bit{number}", checkpoint, tensors)).sha256)
    tensors = load_file(model / "model.safetensors")
    tensors["lm_head.weight"] = tensors["lm_head.weight"].double()
    seen.add(identity_of(saved(tmp_path / "wide", checkpoint, tensors)).sha256)
    first, second = (f"model.layers.{block}.input_layernorm.weight" for block in (0, 1))
    tensors = load_file(model / "model.safetensors")
    tensors |= {first: tensors[second], second: tensors[first]}
    seen.add(identity_of(saved(tmp_path / "swapped", checkpoint, tensors)).sha256)
    assert len(seen) == 5


def test_the_sketch_measures_distance(tmp_path):
    checkpoint, _ = tiny("llama", "LlamaForCausalLM")
    source = identity_of(saved(tmp_path / "model", checkpoint))
    generator = torch.Generator().manual_seed(1)
    ratios = []
    for number, size in enumerate((1e-1, 1e-3, 1e-5, 1e-3)):
        noise = {
            name: size * torch.randn(value.shape, generator=generator)
            for name, value in checkpoint.tensors.items()
        }
        tensors = {name: value + noise[name] for name, value in checkpoint.tensors.items()}
        other = identity_of(saved(tmp_path / f"near{number}", checkpoint, tensors))
        truth = (
            sum(
                float((tensors[name].double() - value.double()).square().sum())
                for name, value in checkpoint.tensors.items()
            )
            ** 0.5
        )
        ratios.append(source.distance(other) / truth)
    assert np.abs(np.log(ratios)).max() < 0.3  # standard error 9 %
    assert source.distance(source) == 0


def test_a_gauge_names_its_models(tmp_path):
    checkpoint, _ = tiny("llama", "LlamaForCausalLM")
    source = identity_of(saved(tmp_path / "model", checkpoint))
    origin = Origin(source, "0" * 64)
    write_gauge(tmp_path / "g.parquet", Gauge({}), {"seed": "42", **origin.metadata()})
    found = read_origin(tmp_path / "g.parquet")
    assert (found.source.architecture, found.source.sha256, found.target_sha256) == (
        "LlamaForCausalLM",
        source.sha256,
        "0" * 64,
    )
    assert np.array_equal(found.source.sketch, source.sketch)
    for damage in ({"source_sketch": "[1]"}, {"source_sketch": "x"}, {}):
        write_gauge(tmp_path / "h.parquet", Gauge({}), damage)
        assert read_origin(tmp_path / "h.parquet") is None
    assert dataclasses.replace(origin, target_sha256=None).metadata().keys() == {
        "architecture",
        "source_sha256",
        "source_sketch",
    }
