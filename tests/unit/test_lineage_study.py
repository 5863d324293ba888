"""The study of lineage on tiny folders: every attack, the tables, and the figures drawn."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest
import torch
import transformers

from normgauge.checkpoints.opening import open_checkpoint
from normgauge.errors import InputError
from normgauge.lineage.evasion import ATTACKS, KEEPING, evaded
from normgauge.lineage.study import Hiding, write_study
from normgauge.lineage.tiny import tiny_config, tiny_tensors
from normgauge.render.drawing import draw
from normgauge.schemas.lineage import tables

BEYOND = set(ATTACKS) - set(KEEPING)


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A model, one trained on from it, and a stranger."""
    base = tmp_path_factory.mktemp("study")
    first = tiny_tensors(0, 3)
    for name, tensors in (
        ("first", first),
        ("child", tiny_tensors(9, 3, first, rate=1e-3)),
        ("stranger", tiny_tensors(1, 3)),
    ):
        model = transformers.LlamaForCausalLM(tiny_config())
        model.load_state_dict(tensors)
        model.save_pretrained(base / name)
    return base


def test_the_mean_is_taken_with_a_model_of_the_same_shapes(folders, tmp_path):
    first, third = (open_checkpoint(folders / name) for name in ("first", "stranger"))
    ((_, mean, _),) = evaded(first, 0, ("mean with an unrelated model",), third)
    name = "model.norm.weight"
    assert torch.allclose(mean.tensors[name], (first.tensors[name] + third.tensors[name]) / 2)
    other = replace(third, tensors={**third.tensors, name: torch.ones(3)})
    with pytest.raises(InputError, match=f"no tensor {name} of shape"):
        next(evaded(first, 0, third=other))


@cache
def _changes(folder):
    return {name: change for name, _, change in evaded(open_checkpoint(folder), 0)}


def test_what_is_called_keeping_keeps_the_function_and_nothing_else_does(folders):
    found = _changes(str(folders / "child"))
    assert set(found) == set(ATTACKS)
    assert max(found[name] for name in KEEPING) < 1e-4
    assert min(found[name] for name in BEYOND) > 1e-3


def test_an_attack_that_a_model_does_not_admit_is_left_out(tmp_path):
    config = transformers.BertConfig(
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=40,
        vocab_size=50,
        max_position_embeddings=32,
    )
    torch.manual_seed(0)
    transformers.BertForMaskedLM(config).save_pretrained(tmp_path / "bert")
    names = [name for name, _, _ in evaded(open_checkpoint(tmp_path / "bert"), 0)]
    assert "rotation, gains absorbed" not in names
    assert len(names) == len(ATTACKS) - 1


def test_the_study_finds_the_child_before_and_behind_what_keeps_the_function(folders, tmp_path):
    stored = {name: (folders / name, None) for name in ("first", "child", "stranger")}
    outputs = {kind: tmp_path / f"{kind}.parquet" for kind in ("pairs", "evasions", "origins")}
    hiding = Hiding("first", "child", [0], third="stranger")
    write_study(stored, [list(stored)], [hiding], 999, outputs)
    pairs = tables.read(outputs["pairs"], "lineage_pairs")
    assert [row["verdict"] for row in pairs] == [
        "related",
        "unrelated by this evidence",
        "unrelated by this evidence",
    ]
    rows = {row["attack"]: row for row in tables.read(outputs["evasions"], "lineage_evasions")}
    assert all(rows[name]["verdict"] == "related" for name in KEEPING)
    assert len({rows[name]["agreements"] for name in KEEPING}) == 1
    # a renumbering takes the power of its own exact test, and of no other
    assert rows["none"]["units_p"] == rows["none"]["stream_p"] == 0.001
    assert rows["gauge of units"]["units_p"] > 0.001 == rows["gauge of units"]["stream_p"]
    places = {
        (row["attack"], row["layer"]): row["source"]
        for row in tables.read(outputs["origins"], "lineage_origins")
        if row["kind"] == "units"
    }
    first, second = (f"decoder/block.{number}/ffn" for number in (1, 2))
    for attack in ("none", "every gauge"):
        assert [places[attack, layer] for layer in (first, second)] == [first, second]
    anew = [places["every other block anew, every gauge", layer] for layer in (first, second)]
    assert anew == [first, ""]
    for figure, kind in (("matrix", "pairs"), ("evasions", "evasions"), ("origins", "origins")):
        draw(f"lineage_{figure}", outputs[kind], [tmp_path / f"{figure}.svg"])
        assert (tmp_path / f"{figure}.svg").read_text().count("<use") > 50
        assert outputs[kind].with_suffix(".csv").read_text().startswith("a,b,")
