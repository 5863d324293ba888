"""The verbs of the command on tiny folders: what they say, what they write, and what they
refuse.
"""

from __future__ import annotations

import errno
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import transformers

import normgauge
from hub_server import COMMIT, Hub
from normgauge.command import main
from normgauge.errors import InputError
from normgauge.provenance import atomic_path
from normgauge.schemas.fingerprint import tables
from normgauge.verbs.output import LINES
from normgauge.verbs.places import output_folder
from normgauge.verbs.tokens import documents_in

LIBRARY = Path(normgauge.__file__).parents[1]
GPT2 = {
    "n_layer": 2,
    "n_embd": 16,
    "n_head": 2,
    "vocab_size": 50,
    "n_positions": 32,
    "bos_token_id": 0,
    "eos_token_id": 0,
}
LLAMA = {
    "num_hidden_layers": 2,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_attention_heads": 2,
    "vocab_size": 50,
}


def saved(path, model):
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "ln_" in name or "norm" in name:
                parameter += 0.3 * torch.randn(parameter.shape)
    model.save_pretrained(path)
    return str(path)


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory):
    torch.manual_seed(0)
    return saved(
        tmp_path_factory.mktemp("models") / "gpt2",
        transformers.GPT2LMHeadModel(transformers.GPT2Config(**GPT2)),
    )


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    torch.manual_seed(0)
    small = transformers.LlamaConfig(**LLAMA, num_key_value_heads=2, bos_token_id=0, eos_token_id=0)
    return saved(tmp_path_factory.mktemp("models") / "llama", transformers.LlamaForCausalLM(small))


def summary(capsys, *arguments, status=0):
    """Lines on stdout of a run with this status."""
    assert main(list(map(str, arguments))) == status
    lines = capsys.readouterr().out.splitlines()
    assert 0 < len(lines) <= LINES
    return lines


def document(capsys, *arguments, status=0):
    """The JSON document that a run prints, and nothing beside it."""
    assert main([*map(str, arguments), "--json"]) == status
    return json.loads(
        capsys.readouterr().out, parse_constant=lambda name: pytest.fail(f"{name} is no JSON")
    )


def refused(capsys, *arguments):
    """The one line of bad input."""
    assert main(list(map(str, arguments))) == 1
    said = capsys.readouterr()
    assert said.out == ""
    lines = [line for line in said.err.splitlines() if line.startswith("error: ")]
    assert len(lines) == 1
    assert "Traceback" not in said.err
    return lines[0]


def test_fingerprint_says_where_the_kernel_holds(gpt2, llama, capsys):
    lines = summary(capsys, "fingerprint", gpt2)
    assert (
        lines[0]
        == "GPT2LMHeadModel: 2 decoder blocks of width 16, pre-norm LayerNorm; stored in full "
        "precision."
    )
    assert lines[1].startswith("Inputs: 64 sequences of 32 (random tokens, seed 0); ")
    assert lines[2].startswith("The kernel holds at 5 of 5 LayerNorm outputs: ")
    assert [line.split()[0] for line in lines[5:-2]] == [
        "site",
        "decoder/embedding",
        "decoder/block.1/output",
        "decoder/block.2/output",
        "decoder/terminal_norm",
    ]
    assert lines[-1] == "Nothing was written; --out DIR writes the tables."
    assert (
        "RMSNorm does not subtract the mean and so has no kernel"
        in summary(capsys, "fingerprint", llama)[2]
    )


def test_fingerprint_of_many_blocks_stays_within_the_lines(tmp_path, capsys):
    deep = saved(
        tmp_path / "deep",
        transformers.GPT2LMHeadModel(transformers.GPT2Config(**GPT2 | {"n_layer": 14})),
    )
    lines = summary(capsys, "fingerprint", deep, "--sequences", 20)
    assert [line.split()[0] for line in lines if "/block." in line][::6] == [
        "decoder/block.1/output",
        "decoder/block.14/output",
    ]


def test_fingerprint_as_json_holds_what_the_tables_hold(gpt2, tmp_path, capsys):
    out = tmp_path / "out"
    found = document(capsys, "fingerprint", gpt2, "--out", out, "--sequences", 20)
    assert found["kernel"]["verdicts"]["transformer.ln_f"] == "holds"
    assert [row["site"] for row in found["fingerprint"]] == [
        row["site"] for row in tables.read(out / "fingerprint.parquet", "fingerprint")
    ]
    assert len(tables.read(out / "stacks.parquet", "stacks")) == 1


def test_out_is_never_overwritten_but_by_the_same_run(gpt2, llama, tmp_path, capsys):
    out = tmp_path / "out"
    run = ("fingerprint", gpt2, "--out", out, "--sequences", 20)
    summary(capsys, *run)
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    summary(capsys, *run)
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before
    assert "not overwritten" in refused(capsys, *run, "--seed", 1)
    assert "not overwritten" in refused(capsys, "fingerprint", llama, "--out", out)
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes/mine.txt").write_text("kept")
    assert "not overwritten" in refused(capsys, "fingerprint", gpt2, "--out", tmp_path / "notes")
    assert "exists already" in refused(
        capsys, "fingerprint", gpt2, "--out", tmp_path / "notes/mine.txt"
    )
    assert (tmp_path / "notes/mine.txt").read_text() == "kept"
    assert {path.name for path in out.iterdir()} == set(before)


@pytest.mark.parametrize("verb", ["fingerprint", "compare", "audit", "recover"])
def test_no_table_is_written_into_a_model(gpt2, tmp_path, capsys, verb):
    other = saved(tmp_path / "other", transformers.GPT2LMHeadModel(transformers.GPT2Config(**GPT2)))
    models = (gpt2, other) if verb == "compare" else (gpt2,)
    assert "lies inside" in refused(capsys, verb, *models, "--out", Path(gpt2) / "deep/tables")
    assert not (Path(gpt2) / "deep").exists()


def test_a_full_disk_names_the_folder_that_was_to_be(tmp_path):
    with (
        pytest.raises(
            InputError,
            match=rf"disk full while writing {re.escape(str(tmp_path))}/out/table\.csv: free",
        ),
        output_folder(str(tmp_path / "out"), {}) as place,
        atomic_path(place / "table.csv"),
    ):
        raise OSError(errno.ENOSPC, "No space left on device")
    assert not list(tmp_path.iterdir())


def test_a_damaged_gguf_file_is_named_as_it_was_given(tmp_path, capsys):
    file = tmp_path / "model.gguf"
    file.write_bytes(b"no container")
    assert refused(capsys, "fingerprint", file).startswith(
        f"error: {file}: does not start with 'GGUF'"
    )


def test_an_error_of_the_system_is_a_line_that_terminals_can_take(capsys, monkeypatch):
    def fails(options):
        raise OSError("https://user:secret@hub.example/\x1b[2J" + "x" * 10_000)

    monkeypatch.setattr("normgauge.verbs.fingerprint.run", fails)
    line = refused(capsys, "fingerprint", "any")
    assert line.startswith("error: https://hub.example/\\x1b[2Jx")
    assert len(line) < 600


def test_models_that_cannot_be_used_are_refused_in_one_line(gpt2, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    (tmp_path / "file.txt").write_text("no model")
    (tmp_path / "empty").mkdir()
    (tmp_path / "mpt").mkdir()
    (tmp_path / "mpt/config.json").write_text('{"model_type": "mpt"}')
    (tmp_path / "mpt/model.safetensors").write_bytes(Path(gpt2, "model.safetensors").read_bytes())
    assert "no such folder or file" in refused(capsys, "fingerprint", tmp_path / "absent")
    assert "no such folder or file" in refused(capsys, "fingerprint", "./absent.gguf")
    assert "give the folder" in refused(capsys, "fingerprint", tmp_path / "file.txt")
    assert "no weights" in refused(capsys, "fingerprint", tmp_path / "empty")
    assert "'mpt' is unknown" in refused(capsys, "fingerprint", tmp_path / "mpt")
    assert "--tokens" in refused(capsys, "fingerprint", gpt2, "--tokens", tmp_path / "absent.txt")
    (tmp_path / "empty.txt").write_text("  \n")
    assert "holds no text" in refused(
        capsys, "fingerprint", gpt2, "--tokens", tmp_path / "empty.txt"
    )
    (tmp_path / "bad.jsonl").write_text('{"text": "one"}\n{"words": "two"}\n')
    assert "line 2" in refused(capsys, "fingerprint", gpt2, "--tokens", tmp_path / "bad.jsonl")
    (tmp_path / "good.txt").write_text("words " * 99)
    assert "no tokenizer" in refused(capsys, "fingerprint", gpt2, "--tokens", tmp_path / "good.txt")
    assert "rank deficient" in refused(capsys, "fingerprint", gpt2, "--sequences", 1, "--length", 8)


def test_keys_are_laid_over_a_config_that_lacks_them(gpt2, tmp_path, capsys):
    bare = tmp_path / "bare"
    bare.mkdir()
    stored = json.loads(Path(gpt2, "config.json").read_text())
    (bare / "config.json").write_text(
        json.dumps({key: value for key, value in stored.items() if key != "model_type"})
    )
    (bare / "model.safetensors").write_bytes(Path(gpt2, "model.safetensors").read_bytes())
    assert "model_type" in refused(capsys, "fingerprint", bare)
    assert summary(capsys, "fingerprint", bare, "--config", "model_type=gpt2") == summary(
        capsys, "fingerprint", gpt2
    )
    run = ("fingerprint", bare, "--config", "model_type=gpt2", "--out", tmp_path / "out")
    summary(capsys, *run)
    summary(capsys, *run)
    assert (
        main(["align", str(bare), gpt2, str(tmp_path / "back"), "--config", "model_type=gpt2"]) == 0
    )
    assert "model_type" not in json.loads((bare / "config.json").read_text())


def test_a_place_that_may_not_be_written_is_refused_before_the_work(
    gpt2, tmp_path, capsys, monkeypatch
):
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    assert "may not be written" in refused(capsys, "fingerprint", gpt2, "--out", tmp_path / "out")


def test_text_is_cut_by_the_folders_tokenizer(tmp_path, gpt2, capsys):
    from tokenizers import Tokenizer, models, pre_tokenizers

    folder = tmp_path / "worded"
    folder.mkdir()
    for path in Path(gpt2).iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    words = {"[UNK]": 0} | {f"w{number}": number for number in range(1, 50)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(folder / "tokenizer.json"))
    drawn = torch.randint(1, 50, (2000,), generator=torch.Generator().manual_seed(0)).tolist()
    text = " ".join(f"w{number}" for number in drawn)
    (tmp_path / "text.txt").write_text(text)
    (tmp_path / "text.jsonl").write_text(
        "".join(json.dumps({"text": text[half:][:5000]}) + "\n" for half in (0, 5000))
    )
    for name in ("text.txt", "text.jsonl"):
        lines = summary(
            capsys, "fingerprint", folder, "--tokens", tmp_path / name, "--sequences", 40
        )
        assert lines[1] == f"Inputs: 40 sequences of 32 ({tmp_path / name})."
    assert "corpus too short" in refused(
        capsys, "fingerprint", folder, "--tokens", tmp_path / "text.txt", "--sequences", 400
    )


def test_texts_of_a_jsonl_file_end_at_line_feeds_alone(tmp_path):
    texts = ["one\u2028two", "three\x85\x0cfour", "five"]
    lines = [json.dumps({"text": text}, ensure_ascii=False) for text in texts]
    (tmp_path / "t.jsonl").write_bytes("\r\n".join(lines).encode())
    assert documents_in(tmp_path / "t.jsonl") == texts


def test_a_hub_id_is_resolved_to_its_commit_and_a_local_folder_wins(
    gpt2, tmp_path, capsys, monkeypatch
):
    files = {path.name: path.read_bytes() for path in Path(gpt2).iterdir()}
    monkeypatch.setenv("NORMGAUGE_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    with Hub(files, {"model.safetensors"}) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.endpoint)
        for _ in range(2):
            assert main(["fingerprint", "organisation/model", "--sequences", "20"]) == 0
            said = capsys.readouterr()
            assert f"organisation/model: commit {COMMIT} of the model hub" in said.err
            assert "The kernel holds at 5 of 5" in said.out
        assert len(hub.ranges("model.safetensors")) == 1
        assert "taken as a hub id" in refused(capsys, "fingerprint", "organisation/other")
        asked = len(hub.requests)
        Path("organisation").mkdir()
        Path("organisation/model").symlink_to(gpt2)
        summary(capsys, "fingerprint", "organisation/model", "--sequences", 20)
        assert "did you mean organisation/model?" in refused(
            capsys, "fingerprint", "organisation/modle"
        )
        assert len(hub.requests) == asked
        assert "taken as a hub id" in refused(capsys, "fingerprint", "organisation/other@main")
        assert len(hub.requests) > asked


def test_version_and_usage_load_nothing_heavy():
    script = """if True:
        import sys
        from normgauge.command import main
        try:
            main(sys.argv[1:])
        finally:
            assert not {"torch", "transformers"} & set(sys.modules)"""
    for arguments, status in (
        (["--version"], 0),
        (["--help"], 0),
        (["fingerprint"], 2),
        (["nothing"], 2),
        ([], 2),
    ):
        done = subprocess.run(
            [sys.executable, "-c", script, *arguments], cwd=LIBRARY, capture_output=True, text=True
        )
        assert done.returncode == status, done.stderr
    assert (
        normgauge.__version__
        in subprocess.run(
            [sys.executable, "-c", script, "--version"],
            cwd=LIBRARY,
            capture_output=True,
            text=True,
            check=True,
        ).stdout
    )


def test_a_wrong_line_is_answered_by_the_verb_that_it_names(capsys):
    with pytest.raises(SystemExit, match="2"):
        main([])
    listed = capsys.readouterr().err
    assert all(f"\n    {verb}" in listed for verb in ("fingerprint", "lineage", "gauge"))
    for given, usage in (
        (
            ["fingerprint", "M", "--sites"],
            "normgauge fingerprint: error: unrecognized arguments: --",
        ),
        (["gauge", "apply", "M", "g", "N", "--to", "X"], "normgauge gauge apply: error: unrecog"),
        (["gauge"], "random|apply|recover|check|audit"),
    ):
        with pytest.raises(SystemExit, match="2"):
            main(given)
        assert usage in capsys.readouterr().err
