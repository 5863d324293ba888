"""Whole checkpoint folders: identical bytes after a round trip, untouched files, refusals that
leave nothing behind.
"""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from normgauge.checkpoints.building import build_model
from normgauge.checkpoints.opening import open_checkpoint
from normgauge.errors import InputError
from normgauge.gauge.equivalence import deviation
from normgauge.gauge.groups import Monomial, Orthogonal
from normgauge.gauge.model_gauge import Gauge
from normgauge.gauge.random_gauges import random_gauge
from normgauge.gauge.transform import transform
from normgauge.transport import folders
from normgauge.transport.folders import StoredTensors, transform_folder
from unit.gauge_models import inputs_of, tiny


@pytest.fixture
def folder(tmp_path):
    """A tiny Llama in bfloat16 and float32, in two shards, with a superfluous tensor and a
    tokenizer.
    """
    checkpoint, _ = tiny("llama", "LlamaForCausalLM")
    path = tmp_path / "stored"
    path.mkdir()
    checkpoint.config.save_pretrained(path)
    (path / "tokenizer.json").write_text("{}")
    tensors = {
        name: value.bfloat16() if "mlp" in name else value
        for name, value in checkpoint.tensors.items()
    }
    tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.ones(3)
    names = list(tensors)
    weight_map = {
        name: f"model-{1 + number % 2:05}-of-00002.safetensors" for number, name in enumerate(names)
    }
    for file in set(weight_map.values()):
        save_file(
            {name: tensors[name] for name in names if weight_map[name] == file},
            path / file,
            metadata={"format": "pt"},
        )
    import json

    (path / "model.safetensors.index.json").write_text(
        json.dumps({"metadata": {}, "weight_map": weight_map})
    )
    return path


def contents(path):
    return {file.name: file.read_bytes() for file in path.iterdir()}


def test_a_gauge_and_its_inverse_give_back_identical_files(folder, tmp_path):
    _, anatomy = tiny("llama", "LlamaForCausalLM")
    gauge = Gauge(
        {"residual": Monomial.random(12, 42), "decoder/block.1/ffn": Monomial.random(20, 43)}
    )
    transform_folder(folder, tmp_path / "moved", gauge)
    assert contents(tmp_path / "moved") != contents(folder)
    transform_folder(tmp_path / "moved", tmp_path / "back", gauge.inverse())
    assert contents(tmp_path / "back") == contents(folder)
    moved = {
        name: value
        for file in (tmp_path / "moved").glob("*.safetensors")
        for name, value in load_file(file).items()
    }
    assert torch.equal(moved["model.layers.0.self_attn.rotary_emb.inv_freq"], torch.ones(3))
    transform_folder(folder, tmp_path / "full", random_gauge(anatomy, 7))
    for full, destination in (
        (random_gauge(anatomy, 7), tmp_path / "full"),
        (gauge, tmp_path / "moved"),
    ):
        models = [build_model(open_checkpoint(path), "float32") for path in (folder, destination)]
        found = deviation(*models, anatomy, full, [inputs_of("llama", "LlamaForCausalLM")])
        # scales are rounded to bfloat16; a wrong gauge is off by more than the logits themselves
        assert found.relative < 0.05


def test_powers_of_two_come_back_to_the_byte_and_other_scales_are_said_to_be_rounded(
    folder, tmp_path
):
    powers = np.exp2(np.random.default_rng(1).integers(-3, 4, 20)) * Monomial.random(20, 1).factors
    for name, factors in (
        ("powers", powers),
        ("thirds", np.where(np.arange(20) == 3, 3.0, powers)),
    ):
        gauge = Gauge(
            {
                "residual": Monomial.random(12, 42),
                "decoder/block.1/ffn": Monomial(Monomial.random(20, 43).target, factors),
            }
        )
        rounded = transform_folder(folder, tmp_path / name, gauge).rounded
        assert rounded == (() if name == "powers" else rounded)
        transform_folder(tmp_path / name, tmp_path / f"{name}-back", gauge.inverse())
        assert (contents(tmp_path / f"{name}-back") == contents(folder)) == (name == "powers")
    assert sorted(rounded) == [
        "model.layers.0.mlp.down_proj.weight",
        "model.layers.0.mlp.up_proj.weight",
    ]


def test_powers_of_two_that_leave_the_range_of_the_dtype_round_or_are_refused(folder, tmp_path):
    """Below its normal range float16 drops bits, above its range there is nothing."""
    checkpoint, _ = tiny("llama", "LlamaForCausalLM")
    (tmp_path / "half").mkdir()
    checkpoint.config.save_pretrained(tmp_path / "half")
    save_file(
        {name: value.half() for name, value in checkpoint.tensors.items()},
        tmp_path / "half/model.safetensors",
    )
    small, large = (
        Gauge({"decoder/block.1/ffn": Monomial(np.arange(20), np.full(20, factor))})
        for factor in (2.0**-12, 2.0**18)
    )
    assert transform_folder(tmp_path / "half", tmp_path / "small", small).rounded == (
        "model.layers.0.mlp.up_proj.weight",
    )
    with pytest.raises(
        InputError,
        match=r"tensor model.layers.0.mlp.up_proj.weight leaves the range of torch.float16",
    ):
        transform_folder(tmp_path / "half", tmp_path / "large", large)
    assert not (tmp_path / "large").exists()


@pytest.mark.parametrize(
    ("dtype", "space", "tensor"),
    [
        (torch.float16, "decoder/block.1/ffn", "model.layers.0.mlp.(up|down)_proj.weight"),
        (torch.bfloat16, "decoder/block.2/ffn", "model.layers.1.mlp.(up|down)_proj.weight"),
        (torch.float16, "decoder/block.2/attention", "model.layers.1.self_attn.[a-z]_proj.weight"),
        (torch.float32, "decoder/block.1/attention", "model.layers.0.self_attn.[a-z]_proj.weight"),
    ],
)
def test_large_weights_under_drawn_scales_are_refused_with_their_tensor(
    tmp_path, dtype, space, tensor
):
    """At nine tenths of the largest value of the dtype, in a folder and in memory; a signed
    permutation still moves them.
    """
    checkpoint, anatomy = tiny("llama", "LlamaForCausalLM")
    large = {
        name: (value.sign() * 0.9 * torch.finfo(dtype).max).to(dtype)
        for name, value in checkpoint.tensors.items()
    }
    (tmp_path / "large").mkdir()
    checkpoint.config.save_pretrained(tmp_path / "large")
    save_file(large, tmp_path / "large/model.safetensors")
    gauge = random_gauge(anatomy, 42, (space,))
    for move in (
        lambda: transform_folder(tmp_path / "large", tmp_path / "moved", gauge),
        lambda: dict(transform(anatomy, large, gauge)),
    ):
        with pytest.raises(InputError, match=f"tensor {tensor} leaves the range of {dtype}"):
            move()
    assert [path.name for path in tmp_path.iterdir()] == ["large"]
    signed = Gauge({"residual": Monomial.random(12, 42)})
    assert all(bool(value.isfinite().all()) for _, value in transform(anatomy, large, signed))


def test_rows_are_moved_in_runs(folder, tmp_path, monkeypatch):
    gauge = Gauge({"residual": Monomial.random(12, 42)})
    transform_folder(folder, tmp_path / "whole", gauge)
    monkeypatch.setattr(folders, "CHUNK", 100)
    transform_folder(folder, tmp_path / "runs", gauge)
    assert contents(tmp_path / "runs") == contents(tmp_path / "whole")
    stored = StoredTensors(folder / "model-00001-of-00002.safetensors")
    assert [len(rows) for rows in stored.rows("model.embed_tokens.weight", 100)] == [2] * 8 + [1]
    assert len(stored) == len(list(stored))


def test_memory_is_that_of_a_run_of_rows(tmp_path):
    checkpoint, _ = tiny("llama", "LlamaForCausalLM")
    source = tmp_path / "wide"
    source.mkdir()
    config = checkpoint.config.__class__(**{**checkpoint.config.to_dict(), "vocab_size": 400_000})
    config.architectures = ["LlamaModel"]
    config.save_pretrained(source)
    tensors = {
        name.removeprefix("model."): value
        for name, value in checkpoint.tensors.items()
        if name != "lm_head.weight"
    }
    tensors["embed_tokens.weight"] = torch.ones(400_000, 12)
    save_file(tensors, source / "model.safetensors")
    tracemalloc.start()
    transform_folder(source, tmp_path / "moved", Gauge({"residual": Monomial.random(12, 42)}))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    # Python's own buffers: the run read and its copy
    assert peak < 2.5 * folders.CHUNK < 400_000 * 12 * 4


@pytest.mark.parametrize(
    ("gauge", "message"),
    [
        (Gauge({"residual": Orthogonal.random(12, 1)}), "absorb the gains first"),
        (Gauge({"residual": Monomial.random(9, 1)}), "9 coordinates"),
        (Gauge({"elsewhere": Monomial.random(12, 1)}), "no gauge moves 'elsewhere'"),
    ],
)
def test_a_refused_gauge_leaves_nothing_behind(folder, tmp_path, gauge, message):
    with pytest.raises(InputError, match=message):
        transform_folder(folder, tmp_path / "moved", gauge)
    assert [path.name for path in tmp_path.iterdir()] == ["stored"]


def test_what_lies_at_the_destination_is_never_deleted(folder, tmp_path):
    before = contents(folder)
    (tmp_path / "file").write_text("kept")
    for destination in (folder, tmp_path / "file", tmp_path):
        with pytest.raises(InputError, match="exists already"):
            transform_folder(folder, destination, Gauge({"residual": Monomial.random(12, 42)}))
    assert contents(folder) == before
    assert (tmp_path / "file").read_text() == "kept"


def test_read_only_files_are_copied_and_moved(folder, tmp_path):
    for path in folder.iterdir():
        path.chmod(0o444)
    gauge = Gauge({"residual": Monomial.random(12, 42)})
    transform_folder(folder, tmp_path / "moved", gauge)
    # else only root could write it
    assert all(path.stat().st_mode & 0o200 for path in (tmp_path / "moved").glob("*.safetensors"))
    transform_folder(tmp_path / "moved", tmp_path / "back", gauge.inverse())
    assert contents(tmp_path / "back") == contents(folder)


def test_incomplete_and_mixed_folders_are_refused(folder, tmp_path):
    gauge = Gauge({"residual": Monomial.random(12, 42)})
    (folder / "pytorch_model.bin").write_bytes(b"")
    with pytest.raises(
        InputError,
        match=r"not moved, but in the old coordinates: pytorch_model\.bin; --leave-behind",
    ):
        transform_folder(folder, tmp_path / "moved", gauge)
    (folder / "pytorch_model.bin").unlink()
    (folder / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(InputError, match=r"model-00002-of-00002.safetensors: shard missing"):
        transform_folder(folder, tmp_path / "moved", gauge)
    assert [path.name for path in tmp_path.iterdir()] == ["stored"]


def test_folders_without_safetensors_are_refused(tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="no weights: expected model"):
        transform_folder(tmp_path / "empty", tmp_path / "moved", Gauge({}))
    assert [path.name for path in tmp_path.iterdir()] == ["empty"]
