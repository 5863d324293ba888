"""What lies beside a model's weights follows the gauge, or is named and not copied; nothing stays
in old coordinates unsaid.
"""

from __future__ import annotations

import copy
import dataclasses
import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from normgauge.checkpoints.building import build_model
from normgauge.checkpoints.opening import open_checkpoint
from normgauge.command import main
from normgauge.errors import InputError
from normgauge.gauge.equivalence import deviation
from normgauge.gauge.groups import Monomial
from normgauge.gauge.model_gauge import Gauge
from normgauge.gauge.random_gauges import random_gauge
from normgauge.transport.folders import transform_folder
from normgauge.transport.leftovers import holds_numbers
from unit.gauge_models import inputs_of, tiny
from unit.test_gauge_command import stored
from unit.test_gauge_transport import train

LLAMA = ("llama", "LlamaForCausalLM")
GAUGE = Gauge({"residual": Monomial.random(12, 42), "decoder/block.1/ffn": Monomial.random(20, 43)})


def wide(case, architecture):
    checkpoint, anatomy = tiny(case, architecture)
    return dataclasses.replace(
        checkpoint, tensors={name: value.double() for name, value in checkpoint.tensors.items()}
    ), anatomy


@pytest.fixture
def model(tmp_path):
    return stored(tmp_path / "model", wide(*LLAMA)[0])


def write(folder: Path, files: dict[str, bytes]) -> None:
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)


BINARY = torch.randn(64, generator=torch.Generator().manual_seed(1)).numpy().tobytes()
POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 9\n"
STALE = {
    "tf_model.h5": BINARY,
    "flax_model.msgpack": b"",
    "onnx/model.onnx": POINTER,
    "onnx/model.onnx_data": BINARY,
    "original/consolidated.00.pth": BINARY,
    "pytorch_model-00001-of-00001.bin": BINARY,
    "pytorch_model.bin.index.json": b"{}",
    "adapter/adapter_model.safetensors": BINARY,
    "openvino/weights": BINARY,
    "model.safetensors.old": BINARY,
}
KEPT = {
    "README.md": "Zeilen und Zeichen \u2192 \u00e4".encode(),
    "LICENSE": "caf\u00e9".encode("latin-1"),
    "vocab.txt": b"a\nb\n",
    "original/params.json": b"{}",
    "original/tokenizer.model": BINARY,
    "training_args.bin": BINARY,
    "scheduler.pt": BINARY,
    "rng_state_0.pth": BINARY,
    "images/figure.png": BINARY,
    "runs/events.out.tfevents.1.host": BINARY,
    "trainer_state.json": b"{}",
}


def test_files_in_old_coordinates_are_named_and_nothing_is_written(model, tmp_path, capsys):
    write(model, STALE | KEPT)
    write(model, {".git/objects/pack": BINARY, ".cache/huggingface/model.bin": BINARY})
    gauge, moved = str(tmp_path / "g.parquet"), tmp_path / "moved"
    assert main(["gauge", "random", str(model), gauge]) == 0
    before = sorted(tmp_path.rglob("*"))
    assert main(["gauge", "apply", str(model), gauge, str(moved)]) == 1
    error = capsys.readouterr().err
    assert "not moved, but in the old coordinates: " in error
    assert error.count("\n") == 1
    assert " and 2 more; --leave-behind" in error
    assert sum(name in error for name in STALE) >= len(STALE) - 2
    assert not any(name in error for name in KEPT)
    assert sorted(tmp_path.rglob("*")) == before
    assert main(["gauge", "apply", str(model), gauge, str(moved), "--leave-behind"]) == 0
    said = capsys.readouterr().out
    assert all(name in said.split("left behind, not moved: ")[1] for name in STALE)
    assert "not copied: .git, .cache" in said
    there = {
        str(path.relative_to(moved)): path.read_bytes()
        for path in moved.rglob("*")
        if path.is_file()
    }
    assert there.keys() == {*KEPT, "config.json", "generation_config.json", "model.safetensors"} & (
        {*KEPT} | {p.name for p in model.iterdir()}
    )
    assert all(there[name] == content for name, content in KEPT.items())
    # nothing is left in the copy
    assert main(["gauge", "apply", str(moved), gauge, str(tmp_path / "back"), "--inverse"]) == 0
    assert (tmp_path / "back/model.safetensors").read_bytes() == (
        model / "model.safetensors"
    ).read_bytes()


@pytest.mark.parametrize("name", STALE)
def test_each_kind_alone_is_refused_and_left_behind(model, tmp_path, name):
    write(model, {name: STALE[name]})
    with pytest.raises(
        InputError, match=rf"old coordinates: {name.replace('.', '[.]')}; --leave-behind"
    ):
        transform_folder(model, tmp_path / "moved", GAUGE)
    assert transform_folder(model, tmp_path / "moved", GAUGE, leave_behind=True).left == (name,)
    assert not (tmp_path / "moved" / name).exists()
    transform_folder(model, tmp_path / "same", Gauge({}))  # which moves nothing
    assert (tmp_path / "same" / name).read_bytes() == STALE[name]


def test_folders_that_held_nothing_but_what_is_left_behind_are_not_made(model, tmp_path):
    stale = next(content for name, content in STALE.items() if name.endswith(".onnx"))
    write(model, {"onnx/old/model.onnx": stale, "both/model.onnx": stale, "both/note.txt": b"kept"})
    (model / "empty").mkdir()
    transform_folder(model, tmp_path / "moved", GAUGE, leave_behind=True)
    made = {path.name for path in (tmp_path / "moved").iterdir() if path.is_dir()}
    assert made == {"both", "empty"}
    assert (tmp_path / "moved/both/note.txt").read_bytes() == b"kept"


@pytest.mark.parametrize("name", KEPT)
def test_files_without_coordinates_are_copied(tmp_path, name):
    write(tmp_path, {name: KEPT[name]})
    assert not holds_numbers(tmp_path / name)


# ---------------------------------------------------------------- optimizer states


def test_an_optimizer_state_that_names_its_parameters_moves_with_the_weights(model, tmp_path):
    checkpoint, anatomy = wide(*LLAMA)
    trained = build_model(checkpoint, "float64").requires_grad_(True)
    optimizer = torch.optim.AdamW(list(trained.named_parameters()), lr=1e-2)
    train(trained, optimizer, 5, seed=1)
    state = copy.deepcopy(optimizer.state_dict())
    save_file(
        {name: value.detach().clone() for name, value in trained.state_dict().items()},
        model / "model.safetensors",
    )
    torch.save(state, model / "optimizer.pt")
    assert transform_folder(model, tmp_path / "moved", GAUGE).moved == ("optimizer.pt",)
    train(trained, optimizer, 5, seed=2)
    found = {}
    for name, carried in (
        ("moved", torch.load(tmp_path / "moved/optimizer.pt", weights_only=True)),
        ("left", state),
    ):
        resumed = build_model(open_checkpoint(tmp_path / "moved"), "float64").requires_grad_(True)
        other = torch.optim.AdamW(list(resumed.named_parameters()), lr=1e-2)
        other.load_state_dict(copy.deepcopy(carried))
        train(resumed, other, 5, seed=2)
        found[name] = deviation(trained, resumed, anatomy, GAUGE, [inputs_of(*LLAMA)]).relative
    assert found["moved"] <= 1e-9
    assert found["left"] > 1e-3


@pytest.mark.parametrize("kind", ["two groups", "no names", "no state", "scales"])
def test_other_optimizer_files_are_named_with_the_reason(model, tmp_path, kind):
    built = build_model(wide(*LLAMA)[0], "float64")
    named = list(built.named_parameters())
    params = [value for _, value in named]
    made = {
        "two groups": lambda: torch.optim.AdamW(
            [{"params": params[:3]}, {"params": params[3:]}]
        ).state_dict(),
        "no names": lambda: torch.optim.AdamW(params).state_dict(),
        "no state": lambda: {"weights": torch.ones(3)},
        "scales": lambda: torch.optim.AdamW(named).state_dict(),
    }[kind]()
    torch.save(made, model / "optimizer.pt")
    gauge = (
        random_gauge(wide(*LLAMA)[1], 1, ("decoder/block.1/ffn",)) if kind == "scales" else GAUGE
    )
    reason = {
        "two groups": "group 0 has 3",
        "no names": "group 0 has",
        "no state": "expected the keys",
        "scales": "signed permutations alone",
    }
    with pytest.raises(
        InputError, match=rf"old coordinates: optimizer\.pt \(.*{reason[kind]}.*--leave-behind"
    ):
        transform_folder(model, tmp_path / "moved", gauge)
    assert transform_folder(model, tmp_path / "moved", gauge, leave_behind=True).left == (
        "optimizer.pt",
    )


# --------------------------------------------------------------- pipelines of sentence-transformers


def pipeline(folder, width, modes=("mean",), dense="2_Dense", out=7, **changes):
    """Pooling, a Dense that reads the stream, one that reads the first, and a normalisation, as
    they are saved.
    """
    prefix = {
        "mean": "mean_tokens",
        "max": "max_tokens",
        "cls": "cls_token",
        "lasttoken": "lasttoken",
    }
    generator = torch.Generator().manual_seed(2)
    modules = [
        ("Transformer", ""),
        ("Pooling", "1_Pooling"),
        ("Dense", dense),
        ("Dense", "3_Dense"),
        ("Normalize", "4_Normalize"),
    ]
    listed = [
        {
            "idx": number,
            "name": str(number),
            "path": path,
            "type": f"sentence_transformers.models.{kind}",
        }
        for number, (kind, path) in enumerate(modules)
    ]
    (folder / "modules.json").write_text(json.dumps(listed))
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling/config.json").write_text(
        json.dumps(
            {"word_embedding_dimension": width}
            | {f"pooling_mode_{prefix[mode]}": mode in modes for mode in prefix}
        )
    )
    for place, sizes in ((dense, (len(modes) * width, out)), ("3_Dense", (out, width))):
        (folder / place).mkdir()
        config = {
            "in_features": sizes[0],
            "out_features": sizes[1],
            "bias": True,
            "activation_function": "torch.nn.modules.activation.Tanh",
        }
        (folder / place / "config.json").write_text(json.dumps(config | changes))
        weight = 0.3 * torch.randn(sizes[1], sizes[0], generator=generator, dtype=torch.float64)
        bias = torch.randn(sizes[1], generator=generator, dtype=torch.float64)
        save_file(
            {"linear.weight": weight, "linear.bias": bias}, folder / place / "model.safetensors"
        )
    (folder / "4_Normalize").mkdir()


@torch.no_grad()
def embedded(folder, case, modes):
    """The embedding by that pipeline, in float64."""
    found = build_model(open_checkpoint(folder), "float64")(**inputs_of(*case)).last_hidden_state
    pooled = {
        "mean": lambda: found.mean(1),
        "cls": lambda: found[:, 0],
        "lasttoken": lambda: found[:, -1],
        "max": lambda: found.amax(1),
    }
    value = torch.cat([pooled[mode]() for mode in modes], -1)
    for place in ("2_Dense", "3_Dense"):
        stored_arrays = load_file(folder / place / "model.safetensors")
        value = torch.tanh(value @ stored_arrays["linear.weight"].T + stored_arrays["linear.bias"])
    return torch.nn.functional.normalize(value, dim=-1)


PIPELINES = [
    (("llama", "LlamaModel"), ("lasttoken",)),
    (("llama", "LlamaModel"), ("mean", "cls")),
    (("bert", "BertModel"), ("mean",)),
    (("gpt2", "GPT2Model"), ("cls", "lasttoken")),
]


@pytest.mark.parametrize(("case", "modes"), PIPELINES)
def test_the_first_dense_reads_the_stream_and_moves(case, modes, tmp_path):
    checkpoint, anatomy = wide(*case)
    folder = stored(tmp_path / "model", checkpoint)
    pipeline(folder, 12, modes)
    gauge = random_gauge(anatomy, 42)
    assert transform_folder(folder, tmp_path / "moved", gauge).moved == (
        "2_Dense/model.safetensors",
    )
    own, there = (embedded(place, case, modes) for place in (folder, tmp_path / "moved"))
    assert (there - own).norm() <= 1e-10 * own.norm()
    for name in (
        "3_Dense/model.safetensors",
        "1_Pooling/config.json",
        "modules.json",
        "2_Dense/config.json",
    ):
        assert (tmp_path / "moved" / name).read_bytes() == (folder / name).read_bytes()
    shutil.copyfile(
        folder / "2_Dense/model.safetensors", tmp_path / "moved/2_Dense/model.safetensors"
    )
    assert (embedded(tmp_path / "moved", case, modes) - own).norm() > 1e-2 * own.norm()


def test_pipelines_that_cannot_follow_are_left_behind_with_their_list(tmp_path):
    case = ("llama", "LlamaModel")
    checkpoint, anatomy = wide(*case)
    signed, units = (
        random_gauge(anatomy, 42, ("residual",)),
        random_gauge(anatomy, 42, ("decoder/block.1/ffn",)),
    )

    def of(name, **changes):
        folder = stored(tmp_path / name, checkpoint)
        pipeline(folder, 12, **changes)
        return folder

    maxima, features = (
        of("max", modes=("mean", "max")),
        of("features", module_input_name="sentence_features"),
    )
    torch_file, other = of("torch"), of("other")
    torch.save({"linear.weight": torch.ones(7, 12)}, torch_file / "2_Dense/pytorch_model.bin")
    (torch_file / "2_Dense/model.safetensors").unlink()
    (other / "modules.json").write_text(
        (other / "modules.json").read_text().replace("models.Dense", "models.LayerNorm", 1)
    )
    for folder, reason, left in (
        (maxima, "pooling by 'max' does not pass this gauge", "1_Pooling/config.json"),
        (features, "it reads 'sentence_features'", "2_Dense/model.safetensors"),
        (
            torch_file,
            "it has no model.safetensors; save it as safetensors",
            "2_Dense/pytorch_model.bin",
        ),
        (other, "LayerNorm is not known to pass this gauge", "2_Dense/model.safetensors"),
    ):
        with pytest.raises(InputError, match=rf"old coordinates: .*{reason}"):
            transform_folder(folder, tmp_path / "moved", signed)
        names = transform_folder(
            folder, tmp_path / f"{folder.name}-moved", signed, leave_behind=True
        ).left
        assert {"modules.json", left} <= {*names}
        # the stream has not moved
        assert transform_folder(folder, tmp_path / f"{folder.name}-units", units).left == ()
    permuted = signed.without_signs()
    assert transform_folder(maxima, tmp_path / "permuted", permuted).moved == (
        "2_Dense/model.safetensors",
    )
    modes = ("mean", "max")
    own, there = (embedded(place, case, modes) for place in (maxima, tmp_path / "permuted"))
    assert (there - own).norm() <= 1e-10 * own.norm()
