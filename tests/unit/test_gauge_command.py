"""The commands on a tiny folder, and the check that names the block where a function first
differs.
"""

from __future__ import annotations

import copy
import dataclasses
import json
import re
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from normgauge.calibration.prepare import prepare
from normgauge.calibration.settings import Settings
from normgauge.checkpoints.building import build_model
from normgauge.checkpoints.opening import untied
from normgauge.command import main
from normgauge.gauge.absorb import absorb_gains
from normgauge.gauge.admissible import gauge_spaces
from normgauge.gauge.groups import Monomial, Orthogonal
from normgauge.gauge.model_gauge import Gauge, read_gauge, write_gauge
from normgauge.gauge.model_matching import Part
from normgauge.gauge.rounding import ulp
from normgauge.tables import read_metadata
from normgauge.transport.origin import Origin, identity_of
from normgauge.transport.sidecar import read_sidecar
from unit.gauge_models import config_of, random_checkpoint, tiny

LLAMA = ("llama", "LlamaForCausalLM")


def stored(path, checkpoint, **changes):
    """A checkpoint folder at `path`; `changes` are keys of its config."""
    path.mkdir()
    config = copy.deepcopy(checkpoint.config)
    for name, value in changes.items():
        setattr(config, name, value)
    config.save_pretrained(path)
    save_file(dict(checkpoint.tensors), path / "model.safetensors")
    return path


def calibrated(folder, checkpoint, sequences=6, length=64):
    """Random tokens for a checkpoint, beside its folder; the arguments that name them."""
    entry, path = (
        {"modality": "tokens", "calibration": "random-tokens"},
        folder.with_name("calibration.parquet"),
    )
    prepare(
        entry, folder, None, path, config=checkpoint.config, settings=Settings(sequences, length)
    )
    return ["--calibration", str(path)]


@pytest.fixture
def folder(tmp_path):
    checkpoint, _ = tiny(*LLAMA)
    path = stored(tmp_path / "model", checkpoint)
    calibrated(path, checkpoint)
    return path


def test_random_apply_recover_and_back(folder, tmp_path, capsys):
    probes = ["--calibration", str(tmp_path / "calibration.parquet"), "--batches", "4"]
    paths = {name: str(tmp_path / name) for name in ("g.parquet", "moved", "found.parquet", "back")}
    assert main(["gauge", "random", str(folder), paths["g.parquet"], "--seed", "45"]) == 0
    assert read_gauge(paths["g.parquet"]) == Gauge({"residual": Monomial.random(12, 45)})
    assert main(["gauge", "apply", str(folder), paths["g.parquet"], paths["moved"]]) == 0
    assert "nothing was rounded; --inverse brings back every byte" in capsys.readouterr().out
    assert main(["gauge", "check", str(folder), paths["moved"], *probes]) == 0
    assert capsys.readouterr().out.startswith("the same function: outputs differ by ")
    assert (
        main(["gauge", "recover", str(folder), paths["moved"], paths["found.parquet"], *probes])
        == 0
    )
    said = capsys.readouterr().out.splitlines()
    assert said[0].startswith("residual stream: all 12 coordinates certain (")
    assert "certified" in said[0]
    assert said[1].startswith("feed-forward units: all 40 units in 2 places certain (")
    assert said[2].startswith("attention heads: all 8 heads in 2 places certain (")
    assert said[-2] == "weights: equal under this gauge; 1.4 apart without it"
    assert said[-1].startswith("not looked for: ")
    found = read_gauge(paths["found.parquet"]).elements
    assert found["residual"] == read_gauge(paths["g.parquet"]).elements["residual"]
    assert found["decoder/block.2/ffn"] == Monomial.identity(20)
    assert (
        main(["gauge", "apply", paths["moved"], paths["found.parquet"], paths["back"], "--inverse"])
        == 0
    )
    assert (tmp_path / "back/model.safetensors").read_bytes() == (
        folder / "model.safetensors"
    ).read_bytes()
    assert "the weights that the gauge moves, every byte" in capsys.readouterr().out
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
    stored(tmp_path / "bert", tiny("bert", "BertModel")[0])
    assert main(["gauge", "check", str(folder), str(tmp_path / "bert"), *probes]) == 1
    assert "compare checkpoints of one class and shape" in capsys.readouterr().err
    assert main(["gauge", "random", str(folder), str(tmp_path / "g"), "--space", "vocabulary"]) == 1
    assert "error: --space vocabulary" in capsys.readouterr().err
    assert (
        main(["gauge", "apply", str(folder), str(tmp_path / "absent"), str(tmp_path / "moved")])
        == 1
    )
    assert "absent" in capsys.readouterr().err


def test_hidden_states_that_are_outputs_need_the_gauge(tmp_path, capsys):
    checkpoint, _ = tiny("llama", "LlamaModel")
    probes = calibrated(stored(tmp_path / "model", checkpoint), checkpoint, 2, 16)
    names = [str(tmp_path / name) for name in ("model", "g.parquet", "moved")]
    assert main(["gauge", "random", *names[:2]]) == 0
    assert main(["gauge", "apply", *names]) == 0
    pair = [names[0], names[2], *probes]
    assert main(["gauge", "check", *pair]) == 1
    assert "need the --gauge between" in capsys.readouterr().out
    assert main(["gauge", "check", *pair, "--gauge", names[1]]) == 0
    assert (
        "the gauge's copy: every stored value is the gauge's own\nthe same function: "
        in capsys.readouterr().out
    )


def test_what_is_not_certain_is_said_and_changes_the_status(folder, tmp_path, capsys):
    """Another model of the same shape is no gauged copy, and two coordinates that no probe tells
    apart are not found again.
    """
    probes = ["--calibration", str(tmp_path / "calibration.parquet"), "--batches", "4"]
    _, anatomy = tiny(*LLAMA)
    stranger = stored(tmp_path / "stranger", random_checkpoint(config_of(*LLAMA), seed=6)[0])
    assert (
        main(["gauge", "recover", str(folder), str(stranger), str(tmp_path / "g.parquet"), *probes])
        == 1
    )
    said = capsys.readouterr().out
    assert "residual: uncertain are " in said
    assert re.search(
        r"^residual stream: \d+ of 12 coordinates certain, \d+ uncertain, 0 not determined",
        said,
        re.MULTILINE,
    )
    metadata = read_metadata(tmp_path / "g.parquet")
    assert len(json.loads(metadata["uncertain"])["residual"]["residual stream"]) > 6
    assert {"residual", "decoder/block.1/ffn", "decoder/block.1/attention"} <= json.loads(
        metadata["margins"]
    ).keys()
    assert (
        main(
            ["gauge", "apply", str(folder), str(tmp_path / "g.parquet"), str(tmp_path / "likened")]
        )
        == 0
    )
    capsys.readouterr()
    twin = dict(tiny(*LLAMA)[0].tensors)
    for tensor in anatomy.tensors:
        for number, axis in enumerate(tensor.axes):
            if axis.segments[0].space == "residual":
                twin[tensor.name] = twin[tensor.name].index_copy(
                    number, torch.tensor([7]), twin[tensor.name].narrow(number, 4, 1)
                )
    tied = stored(tmp_path / "tied", dataclasses.replace(tiny(*LLAMA)[0], tensors=twin))
    assert main(["gauge", "random", str(tied), str(tmp_path / "h.parquet")]) == 0
    assert (
        main(["gauge", "apply", str(tied), str(tmp_path / "h.parquet"), str(tmp_path / "moved")])
        == 0
    )
    assert (
        main(
            [
                "gauge",
                "recover",
                str(tied),
                str(tmp_path / "moved"),
                str(tmp_path / "i.parquet"),
                *probes,
            ]
        )
        == 1
    )
    assert "residual: uncertain are 4, 7;" in capsys.readouterr().out


def test_two_layer_norm_models_get_one_sign_and_a_gauge_that_applies(tmp_path, capsys):
    """Free signs would be refused: the match is made inside the group."""
    shape = ("gpt2", "GPT2LMHeadModel")
    checkpoint, _ = tiny(*shape)
    one = stored(tmp_path / "one", checkpoint)
    probes = calibrated(one, checkpoint, 8, 14)
    other = stored(tmp_path / "other", random_checkpoint(config_of(*shape), seed=6)[0])
    gauge, moved = str(tmp_path / "g.parquet"), str(tmp_path / "moved")
    assert main(["gauge", "recover", str(one), str(other), gauge, *probes, "--batches", "8"]) == 1
    factors = read_gauge(gauge).elements["residual"].factors
    assert (factors == factors[0]).all()
    assert main(["gauge", "apply", str(one), gauge, moved]) == 0
    assert main(["gauge", "check", str(one), moved, *probes]) == 0
    capsys.readouterr()


def test_a_copy_in_which_everything_moved_is_recovered_applied_and_checked(tmp_path, capsys):
    shape = ("gpt2", "GPT2LMHeadModel")
    checkpoint, anatomy = tiny(*shape)
    one = stored(tmp_path / "one", checkpoint)
    probes = calibrated(one, checkpoint, 8, 14)
    spaces = [argument for space in gauge_spaces(anatomy) for argument in ("--space", space)]
    names = {name: str(tmp_path / name) for name in ("g.parquet", "copy", "found.parquet", "moved")}
    assert main(["gauge", "random", str(one), names["g.parquet"], *spaces]) == 0
    assert main(["gauge", "apply", str(one), names["g.parquet"], names["copy"]]) == 0
    capsys.readouterr()
    assert (
        main(
            [
                "gauge",
                "recover",
                str(one),
                names["copy"],
                names["found.parquet"],
                *probes,
                "--batches",
                "8",
            ]
        )
        == 0
    )
    recovered = capsys.readouterr().out.splitlines()
    assert main(["gauge", "apply", str(one), names["found.parquet"], names["moved"]]) == 0
    assert [line.split(":")[0] for line in recovered] == [
        *map(str, list(Part)[:5]),
        "weights",
        "not looked for",
    ]
    assert all("all " in line for line in recovered[:5])
    assert main(["gauge", "check", str(one), names["moved"], *probes]) == 0
    assert main(["gauge", "check", names["copy"], names["moved"], *probes]) == 0
    assert "the same function up to the rounding of its stored weights" in capsys.readouterr().out


def test_probes_and_models_that_do_not_fit_are_one_line(folder, tmp_path, capsys):
    checkpoint, _ = tiny(*LLAMA)
    probes = ["--calibration", str(tmp_path / "calibration.parquet")]

    def refusal(*arguments):
        assert main(["gauge", *map(str, arguments)]) == 1
        err = capsys.readouterr().err
        assert err.startswith("error: ")
        assert err.count("\n") == 1
        return err

    narrow = {
        name: value[:16] if value.shape[0] == 17 else value
        for name, value in checkpoint.tensors.items()
    }
    small = stored(
        tmp_path / "small", dataclasses.replace(checkpoint, tensors=narrow), vocab_size=16
    )
    assert "holds token 16" in refusal("audit", small, *probes)
    assert "the model has 16 tokens" in refusal(
        "recover", folder, small, tmp_path / "g.parquet", *probes
    )
    assert "and 14 positions" in refusal(
        "audit", stored(tmp_path / "short", checkpoint, max_position_embeddings=14), *probes
    )
    (tmp_path / "other").mkdir()
    fewer = calibrated(
        folder.rename(tmp_path / "other/model"),
        dataclasses.replace(checkpoint, config=config_of(*LLAMA, vocab_size=16)),
    )
    assert "output logits: [1, 64, 16] of one model" in refusal(
        "check", tmp_path / "other/model", small, *fewer
    )
    write_gauge(tmp_path / "wide.parquet", Gauge({"residual": Monomial.random(13, 1)}), {})
    assert main(["gauge", "random", str(small), str(tmp_path / "h.parquet")]) == 0
    write_gauge(tmp_path / "unnamed.parquet", Gauge({"residual": Monomial.random(12, 1)}), {})
    assert "unnamed.parquet names no model" in refusal(
        "apply", small, tmp_path / "unnamed.parquet", tmp_path / "moved"
    )
    assert "h.parquet moves LlamaForCausalLM" in refusal(
        "apply", tmp_path / "other/model", tmp_path / "h.parquet", tmp_path / "moved"
    )
    assert not (tmp_path / "moved").exists()
    pair = (small, small, *fewer, "--gauge", tmp_path / "wide.parquet")
    assert "13 coordinates, the model has 12" in refusal("check", *pair)
    assert "13 coordinates" in refusal(
        "apply", small, tmp_path / "wide.parquet", tmp_path / "moved"
    )
    assert "expected two at least" in refusal("audit", small, *fewer, "--batches", 1)
    assert "decoder/embedding: 0 samples" in refusal(
        "recover", small, small, tmp_path / "g.parquet", *fewer, "--batches", 0
    )
    assert "top 0 of 12" in refusal("audit", small, *fewer, "--top", 0)
    assert "cannot be read as parquet" in refusal(
        "audit", small, "--calibration", small / "config.json"
    )
    (tmp_path / "file").write_text("")
    # as a folder that may not be written
    assert "file" in refusal("random", small, tmp_path / "file/g.parquet")
    assert "exists already" in refusal("apply", small, tmp_path / "wide.parquet", small)
    with pytest.raises(SystemExit, match="2"):
        main(["gauge", "random", str(small), str(tmp_path / "g"), "--seed", "-1"])
    assert "--seed" in capsys.readouterr().err


def test_a_rounded_copy_is_the_same_up_to_rounding_and_a_changed_one_is_not(tmp_path, capsys):
    """In bfloat16, over head maps: what `check` says with and without the gauge, and what
    `--inverse` brings back.
    """
    checkpoint, _ = tiny(*LLAMA)
    half = {name: value.bfloat16() for name, value in checkpoint.tensors.items()}
    model = stored(tmp_path / "model", dataclasses.replace(checkpoint, tensors=half))
    probes = calibrated(model, checkpoint, 2, 32)
    gauge, moved, back, other = (
        str(tmp_path / name) for name in ("g.parquet", "moved", "back", "other")
    )
    assert main(["gauge", "random", str(model), gauge, "--space", "decoder/block.1/attention"]) == 0
    assert main(["gauge", "apply", str(model), gauge, moved]) == 0
    assert (
        "4 tensors were rounded, once; --inverse brings them back up to rounding"
        in capsys.readouterr().out
    )
    assert main(["gauge", "check", str(model), moved, *probes]) == 0
    assert capsys.readouterr().out.startswith(
        "the same function up to the rounding of its stored weights: "
    )
    assert main(["gauge", "check", str(model), moved, *probes, "--gauge", gauge]) == 0
    assert capsys.readouterr().out.startswith(
        "the gauge's copy up to rounding: stored values err by 0.50 ulp at most"
    )
    assert main(["gauge", "apply", moved, gauge, back, "--inverse"]) == 0
    said = re.search(
        r"off by ([0-9.]+) ulp, in root mean square over 4 rounded tensors", capsys.readouterr().out
    )
    returned = {
        name: value
        for name, value in load_file(tmp_path / "back/model.safetensors").items()
        if "layers.0.self_attn" in name
    }
    errors = torch.cat(
        [(value.double() - half[name].double()).reshape(-1) for name, value in returned.items()]
    )
    units = torch.cat([ulp(value, value.dtype).reshape(-1) for value in returned.values()])
    assert float(said[1]) == pytest.approx(float(errors.norm() / units.norm()), rel=0.3)
    tensors = load_file(tmp_path / "moved/model.safetensors")
    tensors["model.layers.0.self_attn.o_proj.weight"][3, 5] *= 1 + 2**-6
    stored(tmp_path / "other", dataclasses.replace(checkpoint, tensors=tensors))
    assert main(["gauge", "check", str(model), other, *probes, "--gauge", gauge]) == 1
    said = capsys.readouterr().out
    assert said.startswith(
        "not the gauge's copy, first in model.layers.0.self_attn.o_proj.weight: 1 values err by up "
        "to "
    )
    assert "the outputs do not show it" in said


def test_a_rotation_is_checked_from_the_model_and_from_its_folded_copy(tmp_path, capsys):
    checkpoint, anatomy = tiny(*LLAMA)
    model = stored(tmp_path / "model", checkpoint)
    probes = calibrated(model, checkpoint, 2, 32)
    folded = stored(tmp_path / "folded", absorb_gains(untied(checkpoint), anatomy))
    turn = Gauge({"residual": Orthogonal.random(12, 1)})
    gauge, named, moved = (str(tmp_path / name) for name in ("g.parquet", "h.parquet", "moved"))
    write_gauge(gauge, turn, Origin(identity_of(folded)).metadata())
    write_gauge(named, turn, Origin(identity_of(model)).metadata())
    assert main(["gauge", "apply", str(folded), gauge, moved]) == 0
    assert main(["gauge", "check", str(folded), moved, *probes, "--gauge", gauge]) == 0
    assert (
        "the gauge's copy up to rounding: stored values err by 0.50 ulp at most"
        in capsys.readouterr().out
    )
    assert main(["gauge", "check", str(model), moved, *probes, "--gauge", named]) == 0
    said = capsys.readouterr().out
    assert said.startswith("the same function up to the rounding of its stored weights: ")
    assert "stored values are not compared: gauge of residual" in said


def test_what_inverse_brings_back_is_the_gauges_model_or_refused(folder, tmp_path, capsys):
    gauge, moved = str(tmp_path / "g.parquet"), str(tmp_path / "moved")
    spaces = ["--space", "residual", "--space", "decoder/block.2/attention"]
    assert main(["gauge", "random", str(folder), gauge, *spaces]) == 0
    assert main(["gauge", "apply", str(folder), gauge, moved]) == 0
    stranger = stored(tmp_path / "stranger", random_checkpoint(config_of(*LLAMA), seed=6)[0])
    capsys.readouterr()
    before = sorted(path.name for path in tmp_path.iterdir())
    assert main(["gauge", "apply", str(stranger), gauge, str(tmp_path / "back"), "--inverse"]) == 1
    assert "stranger: comes back as LlamaForCausalLM " in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.iterdir()) == before
    assert (
        main(
            ["gauge", "apply", str(stranger), gauge, str(tmp_path / "back"), "--inverse", "--force"]
        )
        == 0
    )
    assert capsys.readouterr().out.startswith("overridden: ")
    assert main(["gauge", "apply", str(stranger), gauge, str(tmp_path / "forced")]) == 1
    assert main(["gauge", "apply", str(stranger), gauge, str(tmp_path / "forced"), "--force"]) == 0
    assert (
        main(
            [
                "gauge",
                "check",
                str(stranger),
                str(stranger),
                "--gauge",
                gauge,
                "--calibration",
                str(tmp_path / "calibration.parquet"),
            ]
        )
        == 1
    )
    assert "g.parquet moves LlamaForCausalLM" in capsys.readouterr().err


def test_the_documented_example_of_carried_files_runs(folder, tmp_path, monkeypatch):
    text = (Path(__file__).parents[2] / "docs/signed_permutation.md").read_text()
    (example,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    folder.rename(tmp_path / "MODEL")
    monkeypatch.chdir(tmp_path)
    assert main(["gauge", "random", "MODEL", "g.parquet"]) == 0
    assert main(["gauge", "apply", "MODEL", "g.parquet", "MOVED"]) == 0
    save_file({"direction": torch.randn(12)}, "steering.safetensors")
    save_file({"W_enc": torch.randn(12, 30), "W_dec": torch.randn(30, 12)}, "sae.safetensors")
    module = "base_model.model.model.layers.0.mlp.up_proj"
    Path("ADAPTER").mkdir()
    Path("ADAPTER/adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "r": 2}))
    factors = {
        f"{module}.lora_A.weight": torch.randn(2, 12),
        f"{module}.lora_B.weight": torch.randn(20, 2),
    }
    save_file(factors, "ADAPTER/adapter_model.safetensors")
    model = build_model(tiny(*LLAMA)[0], "float32").requires_grad_(True)
    optimizer = torch.optim.AdamW(list(model.named_parameters()))
    model(input_ids=torch.ones(1, 3, dtype=torch.int64)).logits.sum().backward()
    optimizer.step()
    torch.save(optimizer.state_dict(), "optimizer.pt")
    exec(example, {})
    element = read_gauge("g.parquet").elements["residual"]
    for name in ("steering.safetensors", "sae.safetensors", "ADAPTER", "optimizer.pt"):
        found = read_sidecar(Path("moved") / name)
        assert found.groups == {"residual": "signed permutation"}
        assert found.base_sha256 != found.origin_sha256
    assert torch.equal(
        load_file("moved/steering.safetensors")["direction"],
        element.apply(load_file("steering.safetensors")["direction"]),
    )
    moved = load_file("moved/ADAPTER/adapter_model.safetensors")
    assert torch.equal(
        moved[f"{module}.lora_A.weight"], element.apply(factors[f"{module}.lora_A.weight"])
    )


@pytest.mark.parametrize(
    ("named", "said"),
    [
        ("./absent", "./absent: no such folder or file; give a checkpoint folder"),
        ("file.txt", "file.txt: a file that is no checkpoint; give the folder that holds"),
    ],
)
def test_what_is_no_folder_is_named_so(tmp_path, monkeypatch, capsys, named, said):
    monkeypatch.chdir(tmp_path)
    Path("file.txt").touch()
    assert main(["gauge", "random", named, "g.parquet"]) == 1
    assert said in capsys.readouterr().err
    assert main(["gauge", "apply", named, "absent.parquet", "out"]) == 1
    assert "absent.parquet: no such file" in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file.txt"]
