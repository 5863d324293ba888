"""The verbs that relate two models, move artifacts, audit, and recover: on tiny folders."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
import transformers
from safetensors import safe_open
from safetensors.torch import load_file, save_file

import gguf_files
from normgauge.anatomy import describe
from normgauge.checkpoints.configuration import open_config
from normgauge.checkpoints.opening import open_checkpoint
from normgauge.command import main
from normgauge.fingerprint.directions import FORMAT, read_directions
from normgauge.gauge.admissible import gauge_spaces
from normgauge.gauge.model_gauge import Gauge, read_gauge, write_gauge
from normgauge.gauge.random_gauges import random_gauge
from normgauge.schemas.checkpoint_comparison import tables
from normgauge.tables import read_metadata
from normgauge.transport.folders import transform_folder
from normgauge.transport.origin import Origin, identity_of
from normgauge.transport.sidecar import read_sidecar
from normgauge.verbs.recover import demo_checkpoint
from unit.test_readers import llama_tensors, write_gguf
from unit.test_verbs import GPT2, LLAMA, document, refused, saved, summary


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    """A GPT-2, its copy under a gauge of everything that moves, and the gauge's file."""
    torch.manual_seed(1)
    base = tmp_path_factory.mktemp("pair")
    source = saved(base / "source", transformers.GPT2LMHeadModel(transformers.GPT2Config(**GPT2)))
    anatomy = describe(open_config(source))
    gauge = random_gauge(anatomy, 5)
    write_gauge(base / "g.parquet", gauge, Origin(identity_of(source)).metadata())
    transform_folder(source, base / "target", gauge)
    stream = random_gauge(anatomy, 5, ("residual",))
    write_gauge(base / "stream.parquet", stream, Origin(identity_of(source)).metadata())
    transform_folder(source, base / "turned", stream)
    return base


@pytest.fixture(scope="module")
def other(tmp_path_factory):
    torch.manual_seed(2)
    small = transformers.LlamaConfig(**LLAMA, num_key_value_heads=2, bos_token_id=0, eos_token_id=0)
    return saved(tmp_path_factory.mktemp("other") / "llama", transformers.LlamaForCausalLM(small))


def largest_difference(first, second):
    one, two = (open_checkpoint(folder).tensors for folder in (first, second))
    return max(float((one[name] - two[name]).abs().max()) for name in one)


def test_align_brings_b_into_the_coordinates_of_a(pair, tmp_path, capsys):
    source, target = pair / "source", pair / "target"
    assert largest_difference(source, target) > 0.1
    lines = summary(capsys, "align", source, target, tmp_path / "back")
    assert (
        lines[0]
        == "All of B was matched with certainty. Matched on 8 sequences of 32 (random tokens, seed "
        "0)."
    )
    assert [line.split(":")[0] for line in lines[1:6]] == [
        "  residual stream",
        "  feed-forward units",
        "  attention heads",
        "  value maps",
        "  query and key maps",
    ]
    assert largest_difference(source, tmp_path / "back") < 1e-5


def test_align_of_unrelated_models_writes_the_likeliest_match_and_ends_with_status_1(
    pair, tmp_path, capsys
):
    torch.manual_seed(9)
    stranger = saved(
        tmp_path / "stranger", transformers.GPT2LMHeadModel(transformers.GPT2Config(**GPT2))
    )
    lines = summary(capsys, "align", pair / "source", stranger, tmp_path / "back", status=1)
    assert lines[0].startswith("Not all of B was matched with certainty")
    assert (tmp_path / "back/model.safetensors").is_file()
    found = document(capsys, "align", pair / "source", stranger, tmp_path / "again", status=1)
    assert found["certain"] is False
    assert found["uncertain"]


def test_pairs_that_do_not_match_are_refused_and_leave_nothing(pair, other, tmp_path, capsys):
    source, target, out = pair / "source", pair / "target", tmp_path / "out"
    smaller = saved(
        tmp_path / "smaller",
        transformers.GPT2LMHeadModel(transformers.GPT2Config(**GPT2 | {"n_embd": 8})),
    )
    for verb, end in (("align", [out]), ("compare", ["--out", out])):
        refused(capsys, verb, source, other, *end)
        refused(capsys, verb, source, smaller, *end)
        assert "no such folder" in refused(capsys, verb, source, tmp_path / "absent", *end)
        assert not out.exists()
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/kept.txt").write_text("kept")
    assert "exists" in refused(capsys, "align", source, target, tmp_path / "mine")
    refused(capsys, "align", source, target, target / "inside")
    assert "not overwritten" in refused(
        capsys, "compare", source, target, "--out", tmp_path / "mine"
    )
    assert "identical" in refused(capsys, "compare", source, source)
    assert sorted(path.name for path in (tmp_path / "mine").iterdir()) == ["kept.txt"]


def pickled(folder, place):
    """The folder's model as torch stores it."""
    place.mkdir()
    (place / "config.json").write_bytes((folder / "config.json").read_bytes())
    torch.save(load_file(folder / "model.safetensors"), place / "pytorch_model.bin")
    return place


def test_torch_files_are_moved_and_written_as_safetensors(pair, tmp_path, capsys):
    stored = pickled(pair / "target", tmp_path / "pickled")
    out = tmp_path / "out"
    # a key that says nothing of the function
    main(["align", *map(str, (pair / "source", stored, out, "--config", "initializer_range=0.1"))])
    assert largest_difference(pair / "source", out) < 1e-6
    assert {path.name for path in out.iterdir()} == {"config.json", "model.safetensors"}
    assert json.loads((out / "config.json").read_text())["initializer_range"] == 0.1
    capsys.readouterr()
    source = pickled(pair / "source", tmp_path / "source")
    moved = document(capsys, "gauge", "apply", source, pair / "stream.parquet", tmp_path / "moved")
    assert (moved["rounded_tensors"], moved["left_behind"]) == (0, [])
    back = tmp_path / "back"
    lines = summary(
        capsys, "gauge", "apply", tmp_path / "moved", pair / "stream.parquet", back, "--inverse"
    )
    assert lines == [f"{back}: the weights that the gauge moves, every byte"]
    assert largest_difference(pair / "source", back) == 0


def test_gguf_is_moved_where_nothing_is_lost_and_else_refused(tmp_path, capsys):
    folder = tmp_path / "file"
    folder.mkdir()
    gguf_files.write_model(folder, "llama", gguf_files.make_model("llama"))
    gauge = tmp_path / "g.parquet"
    drawn = document(capsys, "gauge", "random", folder, gauge)
    assert drawn["spaces"] == ["residual"]
    assert "tokenizer" in refused(capsys, "gauge", "apply", folder, gauge, tmp_path / "moved")
    assert not (tmp_path / "moved").exists()
    assert (
        main(["gauge", "apply", str(folder), str(gauge), str(tmp_path / "moved"), "--leave-behind"])
        == 0
    )
    again = open_checkpoint(tmp_path / "moved")
    assert identity_of(tmp_path / "moved").architecture == "LlamaForCausalLM"
    assert describe(again.config) == describe(open_config(folder))
    assert main(["gauge", "check", str(folder), str(tmp_path / "moved")]) == 0


def test_quantised_values_are_refused_by_name(tmp_path, capsys):
    folder, gauge = tmp_path / "file", tmp_path / "g.parquet"
    folder.mkdir()
    write_gguf(folder / "tiny.gguf", llama_tensors(), quantised=("token_embd.weight",))
    document(capsys, "gauge", "random", folder, gauge)
    said = refused(capsys, "gauge", "apply", folder, gauge, tmp_path / "moved")
    assert "model.embed_tokens.weight is stored as Q8_0" in said


def test_compare_takes_the_gauge_out_and_names_what_changed(pair, tmp_path, capsys):
    changed = tmp_path / "changed"
    transform_folder(pair / "source", changed, Gauge({}))
    tensors = load_file(changed / "model.safetensors")
    tensors["transformer.h.1.mlp.c_fc.weight"][:, 7] *= 6
    save_file(tensors, changed / "model.safetensors", {"format": "pt"})
    lines = summary(capsys, "compare", pair / "turned", changed, "--out", tmp_path / "out")
    assert "residual: 1 of 1 renumbered" in lines[1]
    assert "block 2 mlp unit 7" in lines[2]
    assert lines[5].startswith("transformer.h.1.mlp.c_fc.weight")
    assert lines[-1] == f"Written to {tmp_path / 'out'}."
    rows = tables.read(tmp_path / "out/inventory.parquet", "checkpoint_comparison_inventory")
    assert (
        max(
            row["aligned_relative"] or 0
            for row in rows
            if row["status"] == "tensor" and "h.1.mlp.c_fc" not in row["tensor"]
        )
        < 1e-6
    )
    found = document(capsys, "compare", pair / "turned", changed)
    assert found["decision"]["components"][0]["units"] == [7]


def test_audit_says_that_names_do_not_survive(pair, tmp_path, capsys):
    lines = summary(capsys, "audit", pair / "source", "--top", 3, "--out", tmp_path / "out")
    assert (
        lines[2]
        == "No claim keeps more names than by chance: they belong to the basis of this copy, not "
        "to the function."
    )
    assert [line.rpartition(" ")[2] for line in lines[5:9]] == ["100%"] * 4
    assert (tmp_path / "out/audit.pdf").read_bytes().startswith(b"%PDF")
    assert len(document(capsys, "audit", pair / "source", "--top", 3)["audit"]) == 4
    assert "expected between 1" in refused(capsys, "audit", pair / "source", "--top", 17)


def test_gauge_commands_draw_their_own_probes(pair, tmp_path, capsys):
    source, target = str(pair / "source"), str(pair / "target")
    assert main(["gauge", "check", source, target]) == 0
    capsys.readouterr()
    verdict = document(capsys, "gauge", "check", source, target, "--gauge", pair / "g.parquet")
    assert verdict["stored"]["beyond_rounding"] == {}
    assert verdict["outputs_apart"] <= (
        verdict["explained_by_arithmetic"] + 2 * verdict["explained_by_rounding"]
    )
    audited = document(capsys, "gauge", "audit", source, "--top", "3", "--config", "use_cache=true")
    assert len(audited["audit"]) == 4
    found = document(capsys, "gauge", "recover", source, target, tmp_path / "json.parquet")
    assert (found["certain"], found["uncertain"]) == (True, {})
    assert main(["gauge", "recover", source, target, str(tmp_path / "found.parquet")]) == 0
    assert (
        read_gauge(tmp_path / "found.parquet").elements["residual"]
        == read_gauge(pair / "g.parquet").elements["residual"]
    )


def test_directions_are_those_of_the_library_and_rms_norms_have_none(pair, other, tmp_path, capsys):
    out = tmp_path / "dead.safetensors"
    lines = summary(capsys, "directions", pair / "source", out)
    assert (
        lines[0]
        == "GPT2LMHeadModel: 5 of 5 norms have dead directions; 5 unit vectors were written to "
        f"{out}."
    )
    with safe_open(out, "np") as handle:
        header = json.loads(handle.metadata()[FORMAT])
        assert header["weights"] == identity_of(pair / "source").sha256
    vector = read_directions(out)["transformer.ln_f"].kernel
    gain = load_file(pair / "source/model.safetensors")["transformer.ln_f.weight"].double().numpy()
    assert vector.dtype == np.float64
    assert np.allclose(vector[0], (1 / gain) / np.linalg.norm(1 / gain), rtol=1e-14)
    assert "exists" in refused(capsys, "directions", pair / "source", out)
    assert "ends in .safetensors" in refused(
        capsys, "directions", pair / "source", tmp_path / "dead.npz"
    )
    assert (
        "none of its 5 norms"
        in summary(capsys, "directions", other, tmp_path / "none.safetensors")[0]
    )
    assert not (tmp_path / "none.safetensors").exists()
    assert document(capsys, "directions", other, tmp_path / "none.safetensors")["file"] is None


def carried(pair, artifact, output, *way):
    return main(
        ["carry", str(artifact), str(output), "--from", str(pair / "source"), *map(str, way)]
    )


def artifacts(folder):
    """One of each kind on disk: a name -> its path."""
    generator = torch.Generator().manual_seed(3)

    def normal(*shape):
        return torch.randn(shape, generator=generator)

    save_file({"steer": normal(3, 16)}, folder / "vectors.safetensors")
    sae = {
        "W_enc": normal(16, 20),
        "b_enc": normal(20),
        "W_dec": normal(20, 16),
        "b_dec": normal(16),
    }
    save_file(sae, folder / "dictionary.safetensors")
    (folder / "sae").mkdir()
    save_file(sae, folder / "sae/sae_weights.safetensors")
    (folder / "sae/cfg.json").write_text("{}")
    (folder / "lora").mkdir()
    (folder / "lora/adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "r": 2}))
    module = "base_model.model.transformer.h.0.attn.c_attn"
    lora = {f"{module}.lora_A.weight": normal(2, 16), f"{module}.lora_B.weight": normal(48, 2)}
    save_file(lora, folder / "lora/adapter_model.safetensors")
    names = [f"{name}.safetensors" for name in ("vectors", "dictionary")]
    return [folder / name for name in (*names, "sae", "lora")]


def test_carry_recognises_what_it_is_given(pair, tmp_path, capsys):
    kinds = ("vectors", "dictionary", "dictionary folder", "LoRA adapter")
    element = read_gauge(pair / "stream.parquet").elements["residual"]
    for artifact, kind in zip(artifacts(tmp_path), kinds, strict=True):
        out = artifact.with_name(f"moved-{artifact.name}")
        assert carried(pair, artifact, out, "--gauge", pair / "stream.parquet") == 0
        assert capsys.readouterr().out.startswith(f"Carried: {kind}, by the gauge in ")
        again = artifact.with_name(f"found-{artifact.name}")
        assert carried(pair, artifact, again, "--to", pair / "turned") == 0
        record = next(
            (again / "gauge.json" if kind == "LoRA adapter" else path) for path in [again]
        )
        assert record.exists()
        assert capsys.readouterr().out.count("\n") == 1
    before, after, found = (
        load_file(tmp_path / f"{part}vectors.safetensors")["steer"]
        for part in ("", "moved-", "found-")
    )
    assert torch.equal(after, element.apply(before))
    assert torch.equal(found, after)
    assert (
        read_sidecar(tmp_path / "moved-vectors.safetensors").base_sha256
        == identity_of(pair / "turned").sha256
    )
    assert (tmp_path / "moved-sae/cfg.json").read_text() == "{}"


def test_carry_moves_an_optimizers_state_by_the_streams_alone(pair, tmp_path, capsys):
    model = transformers.GPT2LMHeadModel.from_pretrained(pair / "source")
    optimizer = torch.optim.AdamW(list(model.named_parameters()), lr=1e-3)
    model(torch.randint(0, 50, (2, 8)), labels=torch.randint(0, 50, (2, 8))).loss.backward()
    optimizer.step()
    torch.save(optimizer.state_dict(), tmp_path / "state.pt")
    assert carried(pair, tmp_path / "state.pt", tmp_path / "moved.pt", "--to", pair / "turned") == 0
    element = read_gauge(pair / "stream.parquet").elements["residual"]
    states = [
        torch.load(tmp_path / name, weights_only=True)["state"][0]["exp_avg"]
        for name in ("state.pt", "moved.pt")
    ]
    assert torch.equal(states[1], element.apply(states[0]))
    capsys.readouterr()
    arguments = [
        tmp_path / "state.pt",
        tmp_path / "other.pt",
        "--from",
        pair / "source",
        "--to",
        pair / "target",
    ]
    assert "apart; restart the optimizer" in refused(capsys, "carry", *arguments)


def test_carry_refuses_in_one_line_and_leaves_nothing(pair, other, tmp_path, capsys):
    vectors, _, _, lora = artifacts(tmp_path)
    out, own, gauge = (
        tmp_path / "out.safetensors",
        ("--from", pair / "source"),
        ("--gauge", pair / "stream.parquet"),
    )
    (tmp_path / "empty").mkdir()
    (tmp_path / "notes.txt").write_text("none")
    assert "give --gauge, or --to" in refused(capsys, "carry", vectors, out, *own)
    assert "no such file" in refused(capsys, "carry", tmp_path / "absent", out, *own, *gauge)
    assert "adapter_config.json" in refused(capsys, "carry", tmp_path / "empty", out, *own, *gauge)
    assert "unknown ending" in refused(capsys, "carry", tmp_path / "notes.txt", out, *own, *gauge)
    assert "use the gauge of this model" in refused(
        capsys, "carry", vectors, out, "--from", other, *gauge
    )
    assert "no space 'nowhere'" in refused(
        capsys, "carry", vectors, out, *own, *gauge, "--space", "nowhere"
    )
    assert "keeps its format" in refused(
        capsys, "carry", vectors, tmp_path / "out.npz", *own, *gauge
    )
    assert "exists" in refused(capsys, "carry", vectors, tmp_path / "notes.txt", *own, *gauge)
    refused(capsys, "carry", lora, lora / "inside", *own, *gauge)
    assert not out.exists()
    with pytest.raises(SystemExit) as usage:
        main(["carry", str(vectors), str(out)])
    assert usage.value.code == 2


def test_recover_demo_gives_every_bit_that_activations_determine(tmp_path, capsys):
    lines = summary(capsys, "recover", "--demo", "--out", tmp_path / "out")
    assert "0 claimed values are wrong" in lines[1]
    recovered, stored = (
        load_file(tmp_path / "out/recovered.safetensors"),
        demo_checkpoint(0).tensors,
    )
    block = [name for name in stored if name.startswith("h.0.")]
    assert len(block) == 12
    assert all(torch.equal(recovered[name], stored[name]) for name in block)
    assert read_metadata(tmp_path / "out/map.parquet")["model"] == "demo"
    assert "no such folder" in refused(capsys, "recover", tmp_path / "absent")


def test_every_space_that_a_gauge_moves_is_matched(pair):
    assert set(read_gauge(pair / "g.parquet").elements) == set(
        gauge_spaces(describe(open_config(pair / "source")))
    )
