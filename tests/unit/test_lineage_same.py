"""Whether two checkpoints are one: verdicts, the invariant named, the verbs `canonical` and
`same`.
"""

from __future__ import annotations

import importlib
import json
import shutil

import pytest
import torch
import transformers

from normgauge.anatomy import describe
from normgauge.checkpoints.configuration import open_config
from normgauge.command import main
from normgauge.gauge.model_gauge import read_gauge
from normgauge.gauge.random_gauges import random_gauge
from normgauge.lineage.canonical import Canonical
from normgauge.lineage.discrete import random_discrete_gauge
from normgauge.lineage.rounding import Given
from normgauge.lineage.same import Invariant, Verdict, same
from normgauge.transport.folders import transform_folder
from unit.gauge_models import tiny
from unit.test_lineage_canonical import llama, moved
from unit.test_verbs import LLAMA, document, refused, saved, summary


def given(anatomy, tensors, seed=None):
    return Given(anatomy, tensors if seed is None else moved(anatomy, tensors, seed))


def test_copies_are_the_same_and_one_edited_value_is_shown_as_one():
    tensors, anatomy = llama()
    assert same(given(anatomy, tensors), given(anatomy, tensors, 1)).verdict == Verdict.SAME
    edited = {name: value.clone() for name, value in tensors.items()}
    edited["model.norm.weight"][3] *= 1.5  # re-ranks the whole stream
    found = same(given(anatomy, tensors, 1), given(anatomy, edited, 2))
    assert found.verdict == Verdict.ANOTHER
    (only,) = found.differences
    assert (only.invariant, only.tensor, only.count, only.total) == (
        Invariant.VALUES,
        "model.norm.weight",
        1,
        8,
    )


def test_the_first_invariant_that_differs_is_named():
    tensors, anatomy = llama()
    name = "model.layers.0.mlp.up_proj.weight"
    swapped = {key: value.clone() for key, value in tensors.items()}
    swapped[name][0, 0], swapped[name][1, 1] = tensors[name][1, 1], tensors[name][0, 0]
    found = same(given(anatomy, tensors), given(anatomy, swapped, 1))
    assert {each.invariant for each in found.differences} == {Invariant.ROWS}
    assert [each.count for each in found.differences] == [2, 2]
    flipped = {key: value.clone() for key, value in tensors.items()}
    flipped[name][0, 0] *= -1
    found = same(given(anatomy, tensors), given(anatomy, flipped, 1))
    assert [each.invariant for each in found.differences] == [Invariant.FORM]
    wide = {key: value.double() for key, value in tensors.items()}
    found = same(given(anatomy, tensors), given(anatomy, wide))
    assert {each.invariant for each in found.differences} == {Invariant.TENSOR}
    other, stranger = tiny("gpt2", "GPT2LMHeadModel")
    found = same(given(anatomy, tensors), Given(stranger, other.tensors))
    assert [each.invariant for each in found.differences] == [Invariant.ARCHITECTURE]


def test_ties_that_are_not_decided_leave_the_question_open(monkeypatch):
    module = importlib.import_module("normgauge.lineage.same")
    tensors, anatomy = llama()
    flipped = {key: value.clone() for key, value in tensors.items()}
    flipped["model.layers.0.mlp.up_proj.weight"][0, 0] *= -1
    plain = module.canonical

    def undecided(*arguments):
        form = plain(*arguments)
        return Canonical(form.sha256, form.gauge, False, form.leaves)

    monkeypatch.setattr(module, "canonical", undecided)
    found = same(given(anatomy, tensors), given(anatomy, flipped))
    assert found.verdict == Verdict.UNDECIDED
    assert same(given(anatomy, tensors), given(anatomy, tensors)).verdict == Verdict.SAME


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A Llama with a value of -0.0, its copy under a discrete gauge, and an edited one."""
    torch.manual_seed(3)
    base = tmp_path_factory.mktemp("lineage")
    config = transformers.LlamaConfig(
        **LLAMA, num_key_value_heads=2, bos_token_id=0, eos_token_id=0
    )
    model = transformers.LlamaForCausalLM(config)
    model.model.layers[0].mlp.up_proj.weight.data[0, 0] = -0.0
    saved(base / "first", model)
    gauge = random_discrete_gauge(describe(open_config(base / "first")), 4)
    transform_folder(base / "first", base / "copy", gauge)
    model.model.layers[1].mlp.down_proj.weight.data[2, 5] += 1
    model.save_pretrained(base / "edited")
    return base


def test_the_verb_canonical_writes_the_same_bytes_for_every_copy(folders, tmp_path, capsys):
    for name in ("first", "copy"):
        lines = summary(capsys, "canonical", folders / name, tmp_path / name)
        assert lines[0].endswith("LlamaForCausalLM")
    weights = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("first", "copy")]
    assert weights[0] == weights[1] != (folders / "first" / "model.safetensors").read_bytes()
    gauge = read_gauge(tmp_path / "first.gauge.parquet")
    transform_folder(folders / "first", tmp_path / "again", gauge)
    found = document(capsys, "canonical", folders / "edited")
    assert found["proven"]
    assert found["sha256"] != lines[0].split()[0]
    assert "exists" in refused(capsys, "canonical", folders / "first", tmp_path / "first")


def test_the_verb_same(folders, capsys):
    lines = summary(capsys, "same", folders / "first", folders / "copy")
    assert lines[0] == "The same: A and B have one canonical form, byte by byte."
    assert main(["same", str(folders / "first"), str(folders / "edited")]) == 1
    said = capsys.readouterr().out
    assert "model.layers.1.mlp.down_proj.weight, 1 of 384 have no partner" in said
    assert "Nor up to rounding" in said


def test_the_verb_same_sees_copies_under_continuous_gauges_and_other_settings(
    folders, tmp_path, capsys
):
    anatomy = describe(open_config(folders / "first"))
    transform_folder(folders / "first", tmp_path / "turned", random_gauge(anatomy, 5))
    lines = summary(capsys, "same", folders / "first", tmp_path / "turned")
    assert lines[0].startswith("The same up to rounding")
    assert " ulp in every stored value" in lines[1]
    settings = json.loads((folders / "copy" / "config.json").read_text())
    shutil.copytree(folders / "copy", tmp_path / "copy")
    (tmp_path / "copy" / "config.json").write_text(json.dumps({**settings, "rms_norm_eps": 1e-3}))
    assert main(["same", str(folders / "first"), str(tmp_path / "copy")]) == 1
    assert "under other settings: rms_norm_eps" in capsys.readouterr().out
