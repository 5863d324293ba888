"""The layouts of well-known checkpoints open as what they store, and go through the studies:
docs/checkpoints.md says which.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from normgauge.anatomy import describe
from normgauge.calibration.batches import Batch
from normgauge.capture.hooks import capture
from normgauge.capture.norms import norm_rows
from normgauge.checkpoint_comparison.alignment import align
from normgauge.checkpoint_comparison.inventory import inventory_rows
from normgauge.checkpoint_comparison.pairing import open_pair
from normgauge.checkpoints.building import build_model, check_checkpoint
from normgauge.checkpoints.opening import open_checkpoint
from normgauge.checkpoints.placing import Reason
from normgauge.errors import InputError
from normgauge.exact_recovery import solve
from normgauge.exact_recovery.arithmetic import arithmetic
from normgauge.exact_recovery.compare import compare
from normgauge.exact_recovery.observe import observe
from normgauge.gauge.check import Verdict, check
from normgauge.gauge.groups import Monomial
from normgauge.gauge.model_gauge import Gauge
from normgauge.gauge.random_gauges import random_gauge
from normgauge.gauge.stored import stored_errors
from normgauge.transport.folders import folder_anatomy, transform_folder
from unit.checkpoint_layouts import LAYOUTS, original, write
from unit.gauge_models import inputs_of

PAGE = Path(__file__).parents[2] / "docs" / "checkpoints.md"


def batch_of(name, checkpoint):
    layout = LAYOUTS[name]
    return Batch(
        inputs_of(layout.case, layout.stored_as),
        {stack.name: None for stack in describe(checkpoint.config).stacks},
    )


def outputs_of(model, name):
    layout = LAYOUTS[name]
    inputs = inputs_of(layout.case, layout.stored_as)
    with torch.no_grad():
        return model(
            **{
                key: value.to(next(model.parameters()).dtype)
                if value.is_floating_point()
                else value
                for key, value in inputs.items()
            }
        )


def names_of(checkpoint, computed):
    return {
        name
        for name, each in checkpoint.unused.items()
        if (each.reason == Reason.COMPUTED) == computed
    }


def matching(pattern, names):
    return {name for name in names if pattern and re.fullmatch(pattern, name)}


@pytest.mark.parametrize("name", LAYOUTS)
def test_layouts_open_as_what_they_store(tmp_path, name, capsys):
    layout, stored = LAYOUTS[name], original(name)
    checkpoint = open_checkpoint(write(name, tmp_path))
    check_checkpoint(checkpoint)
    assert checkpoint.config.architectures == [layout.opened_as]
    files = load_file(tmp_path / "model.safetensors")
    assert len(checkpoint.tensors) + len(checkpoint.unused) == len(files)
    for pattern, computed in ((layout.unused, False), (layout.computed, True)):
        found = names_of(checkpoint, computed)
        assert matching(pattern, found) == found
        assert bool(found) == bool(pattern)
    for unused in names_of(checkpoint, False):
        assert torch.equal(checkpoint.unused[unused].tensor, files[unused])
    said = capsys.readouterr().err
    assert ("does not use" in said) == bool(layout.unused)
    own, given = (
        outputs_of(build_model(checkpoint, "float32"), name),
        dict(outputs_of(stored, name)),
    )
    # BERT's pre-training has two heads
    given |= {"logits": given["prediction_logits"]} if "prediction_logits" in given else {}
    shared = [key for key in own.keys() & given.keys() if isinstance(own[key], torch.Tensor)]
    assert shared or layout.named == "LlamaModel"
    assert all(torch.equal(own[key], given[key]) for key in shared)


@pytest.mark.parametrize("name", LAYOUTS)
def test_layouts_go_through_the_fingerprint(tmp_path, name):
    checkpoint = open_checkpoint(write(name, tmp_path))
    anatomy = describe(checkpoint.config)
    norms = {row["norm"]: row for row in norm_rows(anatomy, checkpoint.tensors)}
    sites = [
        site for site in anatomy.sites if site.norm and norms[site.norm]["kind"] == "LayerNorm"
    ]
    sites = sites or [site for site in anatomy.sites if site.group == "residual"]
    batches = [batch_of(name, checkpoint)] * 3
    moments = capture(build_model(checkpoint, "float64"), sites, batches, "cov64")
    for site in sites:
        # gain times a centred vector: 1/gain is dead
        if site.norm and norms[site.norm]["kind"] == "LayerNorm":
            dead = 1 / torch.tensor(norms[site.norm]["gain"]).double().numpy()
            scatter = moments[site.id].matrix
            spread = [
                direction @ scatter @ direction / (direction @ direction) / scatter.trace()
                for direction in (dead, dead[::-1])
            ]
            assert abs(spread[0]) < 1e-13
            assert spread[1] > 1e-5  # another direction is not


def index_gauge(anatomy, seed):
    """Permutations and signs of every residual stream that admits them."""
    return random_gauge(
        anatomy, seed, tuple(dict.fromkeys(stack.space for stack in anatomy.stacks))
    )


@pytest.mark.parametrize("name", [name for name in LAYOUTS if name != "my-bert"])
def test_layouts_go_through_a_gauge_and_its_check(tmp_path, name):
    folder = write(name, tmp_path / "stored")
    anatomy = folder_anatomy(folder)
    gauge = index_gauge(anatomy, 42)
    assert transform_folder(folder, tmp_path / "moved", gauge).rounded == ()
    source, target = open_checkpoint(folder), open_checkpoint(tmp_path / "moved")
    assert source.unused.keys() == target.unused.keys()
    found = check(source, target, [batch_of(name, source)], gauge)
    assert found.verdict == Verdict.SAME
    errors = stored_errors(source, target, gauge)
    assert {error.tensor for error in errors} >= names_of(source, False)
    assert not any(error.largest for error in errors)
    transform_folder(tmp_path / "moved", tmp_path / "back", gauge.inverse())
    assert (tmp_path / "back/model.safetensors").read_bytes() == (
        folder / "model.safetensors"
    ).read_bytes()


@pytest.mark.parametrize("name", LAYOUTS)
def test_layouts_are_compared_with_a_perturbed_copy(tmp_path, name):
    folders = write(name, tmp_path / "a"), write(name, tmp_path / "b", noise=0.05)
    pair = open_pair(folders)
    assert set(pair.unused) == names_of(open_checkpoint(folders[0]), False)
    rows = inventory_rows(pair, align(pair).pair)
    by_name = {row["tensor"]: row for row in rows}
    total = by_name["all tensors"]
    assert 0 < total["relative"] < 1
    for unused in pair.unused:
        row = by_name[unused]
        assert (row["status"], row["changed"]) == ("not used", 1.0)
        noised = unused in original(name).state_dict()  # else scaled alone
        assert (
            row["relative"] > 0.04
            if noised
            else row["relative"] == pytest.approx(0.05 / 1.025, rel=0.02)
        )
    used = [row["values"] for row in rows if row["status"] == "tensor"]
    assert total["values"] == sum(used)


def test_exact_recovery_marks_what_is_not_used_as_not_observed(tmp_path):
    checkpoint = open_checkpoint(write("bert-base-uncased", tmp_path / "stored"))
    observe(checkpoint, tmp_path / "observations", 60, seed=32)
    solve.write(
        tmp_path / "recovered", *solve.solve_folder(tmp_path / "observations", arithmetic("torch"))
    )
    rows = {row["tensor"]: row for row in compare(checkpoint, tmp_path / "recovered")}
    unused = names_of(checkpoint, False)
    assert unused < rows.keys()
    for name, row in rows.items():
        assert (row["reason"] == "the class does not use it") == (name in unused)
        if name in unused:
            assert (row["population"], row["recovered"], row["misses"]) == ("not observed", 0, 0)
    assert sum(row["recovered"] for row in rows.values()) > 0


# What moves with a gauge, what is refused


def pooled(checkpoint, name, prefix):
    """What the unused pooler makes of the first token's state."""
    model = build_model(checkpoint, "float64")
    weights = checkpoint.heads()
    state = outputs_of(model.base_model, name).last_hidden_state[:, 0]
    return torch.tanh(
        state @ weights[f"{prefix}weight"].double().T + weights[f"{prefix}bias"].double()
    )


@pytest.mark.parametrize(
    ("name", "prefix"),
    [("bert-base-uncased", "bert.pooler.dense."), ("albert-base-v2", "albert.pooler.")],
)
def test_an_unused_pooler_computes_the_same_on_the_moved_stream(tmp_path, name, prefix):
    folder = write(name, tmp_path / "stored")
    gauge = index_gauge(folder_anatomy(folder), 42)
    transform_folder(folder, tmp_path / "moved", gauge)
    source, target = open_checkpoint(folder), open_checkpoint(tmp_path / "moved")
    before, after = (pooled(checkpoint, name, prefix) for checkpoint in (source, target))
    assert (before - after).abs().max() < 1e-12
    tensors = load_file(tmp_path / "moved/model.safetensors")
    kept = load_file(folder / "model.safetensors")
    save_file(
        {**tensors, f"{prefix}weight": kept[f"{prefix}weight"]},
        tmp_path / "moved/model.safetensors",
    )
    left = open_checkpoint(tmp_path / "moved")
    # a pooler that stayed behind shows
    assert (before - pooled(left, name, prefix)).abs().max() > 1e-2
    assert next(
        error for error in stored_errors(source, left, gauge) if error.tensor == f"{prefix}weight"
    ).beyond


def test_an_unused_pooler_is_compared_with_the_gauge_taken_out(tmp_path):
    folder = write("bert-base-uncased", tmp_path / "a")
    transform_folder(folder, tmp_path / "b", index_gauge(folder_anatomy(folder), 42))
    pair = open_pair((folder, tmp_path / "b"))
    rows = {row["tensor"]: row for row in inventory_rows(pair, align(pair).pair)}
    pooler, relation = rows["bert.pooler.dense.weight"], rows["cls.seq_relationship.weight"]
    assert pooler["relative"] > 0.5
    assert pooler["aligned_relative"] < 1e-12
    assert "residual" not in pooler["invariant_under"]
    assert relation["relative"] == 0  # it reads the pooler, which has not moved


@pytest.mark.parametrize("labels", [3, 7])
def test_a_classifier_of_any_number_of_labels_follows_a_bare_model(tmp_path, labels):
    folder = write("vit-base-patch16-224", tmp_path / "stored")
    changed_config(folder, architectures=["ViTModel"])
    head = {"classifier.weight": torch.randn(labels, 12), "classifier.bias": torch.ones(labels)}
    changed_tensors(folder, lambda tensors: tensors | head)
    assert {each.reason for each in open_checkpoint(folder).unused.values()} == {Reason.HEAD}
    gauge = index_gauge(folder_anatomy(folder), 42)
    transform_folder(folder, tmp_path / "moved", gauge)
    moved = load_file(tmp_path / "moved/model.safetensors")["classifier.weight"]
    assert torch.equal(moved, gauge.elements["residual"].dual().apply(head["classifier.weight"], 1))


def test_a_head_whose_input_is_not_known_is_refused_by_name_where_it_could_read_what_moves(
    tmp_path,
):
    folder = write("my-bert", tmp_path / "stored")
    anatomy = folder_anatomy(folder)
    with pytest.raises(
        InputError,
        match=r"tensor cls\.species\.weight \[5, 12\] is not used by BertModel.*store the "
        r"checkpoint without it",
    ):
        transform_folder(folder, tmp_path / "moved", index_gauge(anatomy, 42))
    assert not (tmp_path / "moved").exists()
    # 20 units: no axis of the head is as long
    units = Gauge({"encoder/block.1/ffn": Monomial.random(20, 3, signed=False)})
    transform_folder(folder, tmp_path / "moved", units)
    before, after = (
        load_file(path / "model.safetensors")["cls.species.weight"]
        for path in (folder, tmp_path / "moved")
    )
    assert torch.equal(before, after)


def test_a_head_through_which_no_sign_passes_refuses_the_sign(tmp_path):
    """A bare BERT with the masked-LM head of its pre-training: that head writes the tied space
    through a GELU.
    """
    folder = write("bert-base-uncased", tmp_path / "stored")
    changed_config(folder, architectures=["BertModel"])
    assert {"cls.predictions.bias", "cls.seq_relationship.weight"} <= names_of(
        open_checkpoint(folder), False
    )
    negative = Gauge(
        {"residual": Monomial(Monomial.random(12, 1).target, -torch.ones(12).double().numpy())}
    )
    with pytest.raises(
        InputError,
        match=r"tensor cls\.predictions\.\S+ is not used by BertModel, and cannot follow: .*gelu",
    ):
        transform_folder(folder, tmp_path / "moved", negative)
    transform_folder(folder, tmp_path / "moved", index_gauge(folder_anatomy(folder), 42))
    changed_config(tmp_path / "moved", architectures=["BertForPreTraining"])
    whole = build_model(open_checkpoint(tmp_path / "moved"), "float64")
    for key, value in outputs_of(
        original("bert-base-uncased").double(), "bert-base-uncased"
    ).items():
        assert (outputs_of(whole, "bert-base-uncased")[key] - value).abs().max() < 1e-10
    original.cache_clear()


def test_a_classifier_that_two_classes_read_differently_is_not_moved(tmp_path):
    folder = write("my-bert", tmp_path / "stored")
    changed_tensors(
        folder,
        lambda tensors: (
            rename(tensors, "cls.species", "classifier") | {"classifier.bias": torch.ones(5)}
        ),
    )
    with pytest.raises(InputError, match=r"tensor classifier\.weight"):
        transform_folder(folder, tmp_path / "moved", index_gauge(folder_anatomy(folder), 42))
    changed_tensors(
        folder,
        lambda tensors: {name: value for name, value in tensors.items() if "pooler" not in name},
    )
    # without a pooler it reads the stream
    transform_folder(folder, tmp_path / "moved", index_gauge(folder_anatomy(folder), 42))


# Strictness


def changed_tensors(folder, change):
    path = folder / "model.safetensors"
    save_file(
        {name: value.contiguous() for name, value in change(load_file(path)).items()},
        path,
        metadata={"format": "pt"},
    )


def changed_config(folder, **keys):
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | keys))


def rename(tensors, old, new):
    return {name.replace(old, new): value for name, value in tensors.items()}


BODY = {
    "a block more": ("bert-base-uncased", "bert.encoder.layer.2.output.dense.weight"),
    "a block more, without the prefix": ("roberta-base", "encoder.layer.2.output.dense.weight"),
    "a bias that the config denies": ("llama-2", "model.layers.0.self_attn.q_proj.bias"),
    "an embedding inside the body": (
        "distilbert-base-uncased",
        "distilbert.embeddings.token_type_embeddings.weight",
    ),
    "a block of T5's decoder": ("t5-small", "decoder.block.3.layer.0.layer_norm.weight"),
}


@pytest.mark.parametrize("fault", BODY)
def test_tensors_of_a_larger_body_are_refused(tmp_path, fault):
    name, tensor = BODY[fault]
    folder = write(name, tmp_path)
    changed_tensors(folder, lambda tensors: tensors | {tensor: torch.ones(12)})
    with pytest.raises(
        InputError, match=rf"tensor {re.escape(tensor)} has no place in {LAYOUTS[name].opened_as}"
    ):
        open_checkpoint(folder)


@pytest.mark.parametrize(
    ("name", "tensor"),
    [
        *(
            ("bert-base-uncased", "bert.encoder.layer.1.output.dense.weight"),
            ("my-bert", "encoder.layer.0.attention.self.query.bias"),
        ),
        *(
            ("gpt2", "ln_f.weight"),
            ("dino-vitb16", "layernorm.weight"),
            ("bare-llama-with-readout", "model.norm.weight"),
        ),
        # a head of the class that the config names
        *(("bert-base-uncased", "cls.predictions.bias"), ("llama-2", "lm_head.weight")),
    ],
)
def test_a_missing_tensor_is_refused(tmp_path, name, tensor):
    folder = write(name, tmp_path)
    changed_tensors(
        folder, lambda tensors: {key: value for key, value in tensors.items() if key != tensor}
    )
    with pytest.raises(InputError, match=r"is missing"):
        check_checkpoint(open_checkpoint(folder))


# Shards


ODD_SHARDS = ("model.safetensors-00001-of-00002.safetensors", "consolidated-000002.safetensors")


def test_the_index_decides_which_files_are_opened_and_moved(tmp_path):
    folder = write("llama-2", tmp_path / "stored")
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    names = list(tensors)
    weight_map = {name: ODD_SHARDS[number % 2] for number, name in enumerate(names)}
    for shard in ODD_SHARDS:
        save_file(
            {name: tensors[name] for name in names if weight_map[name] == shard}, folder / shard
        )
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    opened = open_checkpoint(folder)
    assert {path.name for path in opened.files} == set(ODD_SHARDS)
    gauge = index_gauge(folder_anatomy(folder), 42)
    transform_folder(folder, tmp_path / "moved", gauge)
    assert not any(
        error.largest for error in stored_errors(opened, open_checkpoint(tmp_path / "moved"), gauge)
    )
    stale = folder / "model-00001-of-00003.safetensors"
    save_file({"model.norm.weight": torch.ones(12)}, stale)
    assert open_checkpoint(folder).files == opened.files
    with pytest.raises(InputError, match=re.escape(stale.name)):
        transform_folder(folder, tmp_path / "again", gauge)


# Classes that are not described


@pytest.mark.parametrize(
    ("layout", "named"),
    [
        *(
            ("bert-base-uncased", "BertLMHeadModel"),
            ("roberta-base", "RobertaForCausalLM"),
            ("gpt2", "GPT2DoubleHeadsModel"),
        ),
        *(
            ("llama-2", "LlamaForTokenClassification"),
            ("distilbert-base-uncased", "CustomDistilBert"),
            ("vit-base-patch16-224", "MyViT"),
        ),
    ],
)
def test_a_class_that_is_not_described_opens_as_the_one_that_is_stored(tmp_path, layout, named):
    folder = write(layout, tmp_path)
    before = open_checkpoint(folder)
    changed_config(folder, architectures=[named])
    found = open_checkpoint(folder)
    whole = {
        "bert-base-uncased": "BertForPreTraining",
        "gpt2": "GPT2Model",
        "vit-base-patch16-224": "ViTModel",
    }
    assert found.config.architectures == [whole.get(layout, LAYOUTS[layout].opened_as)]
    check_checkpoint(found)
    assert len(found.tensors) + len(found.unused) == len(before.tensors) + len(before.unused)
    own, given = (
        outputs_of(build_model(each, "float64").base_model, layout) for each in (found, before)
    )
    key = "encoder_last_hidden_state" if "encoder_last_hidden_state" in own else "last_hidden_state"
    assert torch.equal(own[key], given[key])


# Prefixes and ties


@pytest.mark.parametrize(
    "wrapped",
    [
        lambda name: f"_orig_mod.{name}",
        lambda name: f"module.{name}",
        lambda name: f"module._orig_mod.{name}",
        lambda name: name.replace("model.layers.1.", "model.layers.1._checkpoint_wrapped_module."),
        lambda name: name.replace("self_attn", "self_attn._orig_mod"),
    ],
)
def test_prefixes_of_torch_s_wrappers_are_dropped_and_said(tmp_path, wrapped, capsys):
    folder = write("llama-2", tmp_path)
    before = open_checkpoint(folder).tensors
    capsys.readouterr()
    changed_tensors(
        folder, lambda tensors: {wrapped(name): value for name, value in tensors.items()}
    )
    after = open_checkpoint(folder).tensors
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert "prefixes of" in capsys.readouterr().err


def test_a_readout_that_is_stored_with_other_values_opens_untied(tmp_path, capsys):
    for number, name in enumerate(("llama-2", "gpt2", "whisper-tiny")):
        folder = write(name, tmp_path / str(number))
        source = {
            "llama-2": "model.embed_tokens",
            "gpt2": "wte",
            "whisper-tiny": "model.decoder.embed_tokens",
        }[name]
        readout = "proj_out.weight" if name == "whisper-tiny" else "lm_head.weight"
        changed_config(folder, tie_word_embeddings=True)
        changed_tensors(
            folder, lambda tensors, s=source, r=readout: tensors | {r: tensors[f"{s}.weight"] + 1}
        )
        checkpoint = open_checkpoint(folder)
        assert "both are stored and differ: opened untied" in capsys.readouterr().err
        assert not describe(checkpoint.config).tied
        model = build_model(checkpoint, "float32")
        assert torch.equal(
            model.get_output_embeddings().weight, model.get_input_embeddings().weight + 1
        )
        changed_tensors(
            folder,
            lambda tensors, s=source, r=readout: tensors | {r: tensors[f"{s}.weight"].clone()},
        )
        assert describe(open_checkpoint(folder).config).tied  # the same values twice are tied


def test_a_masked_head_s_own_decoder_opens_untied(tmp_path):
    folder = write("bert-base-uncased", tmp_path)
    changed_tensors(
        folder,
        lambda tensors: (
            tensors
            | {
                "cls.predictions.decoder.weight": tensors["bert.embeddings.word_embeddings.weight"]
                + 1
            }
        ),
    )
    model = build_model(open_checkpoint(folder), "float32")
    assert torch.equal(
        model.cls.predictions.decoder.weight, model.bert.embeddings.word_embeddings.weight + 1
    )
    assert torch.equal(model.cls.predictions.decoder.bias, model.cls.predictions.bias)


# The page


def table_row(name, checkpoint):
    """One row of the table in docs/checkpoints.md, from the opened checkpoint."""
    layout = LAYOUTS[name]

    def listed(computed):
        names = sorted(
            {re.sub(r"\.\d+\.", ".N.", unused) for unused in names_of(checkpoint, computed)}
        )
        return ", ".join(f"`{unused}`" for unused in names) or "-"

    follows = (
        "fingerprint, gauge, comparison"
        if name != "my-bert"
        else "fingerprint, comparison; a gauge of the stream is refused"
    )
    noted = (
        f" (config.json names {layout.named})"
        if layout.named and layout.named != layout.stored_as
        else ""
    )
    return (
        f"| {name}{noted} | {checkpoint.config.architectures[0]} | {listed(False)} | "
        f"{listed(True)} | {follows} |"
    )


def test_the_page_says_what_opens(tmp_path):
    rows = [table_row(name, open_checkpoint(write(name, tmp_path / name))) for name in LAYOUTS]
    shown = [
        line
        for line in PAGE.read_text().splitlines()
        if line.startswith("| ") and line.split(" ")[1] in LAYOUTS
    ]
    assert shown == rows
