"""Local folders and random initialisation, and the dispatch over kinds of source."""

import json
import os
from functools import partial
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from normgauge.capture.checkpoint import check_configuration
from normgauge.checkpoints import local, shards
from normgauge.checkpoints.acquire import acquire
from normgauge.checkpoints.local import initialise, initialise_by_tensor, link_folder
from normgauge.checkpoints.opening import open_checkpoint
from normgauge.errors import InputError

GPT2 = {
    "model_type": "gpt2",
    "n_layer": 1,
    "n_embd": 8,
    "n_head": 2,
    "n_positions": 8,
    "vocab_size": 11,
    "bos_token_id": 0,
    "eos_token_id": 0,
}
SMALL = {
    "hidden_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 16,
    "vocab_size": 11,
    "pad_token_id": 0,
}
SMALL |= {"bos_token_id": 0, "eos_token_id": 0}
SHAPES = {
    "GPT2LMHeadModel": GPT2,
    "GPTNeoXForCausalLM": {"model_type": "gpt_neox", **SMALL},
    "BertForMaskedLM": {"model_type": "bert", **SMALL},
    "LlamaForCausalLM": {"model_type": "llama", "num_key_value_heads": 1, **SMALL},
    "Qwen2ForCausalLM": {"model_type": "qwen2", "num_key_value_heads": 1, **SMALL},
    "Gemma3ForCausalLM": {
        "model_type": "gemma3_text",
        "num_key_value_heads": 1,
        "head_dim": 4,
        **SMALL,
    },
    "T5ForConditionalGeneration": {
        "model_type": "t5",
        "d_model": 8,
        "d_kv": 4,
        "d_ff": 16,
        "num_layers": 1,
        "num_heads": 2,
        "vocab_size": 11,
    },
    "ViTModel": {"model_type": "vit", "image_size": 8, "patch_size": 4, **SMALL},
    "Dinov2Model": {"model_type": "dinov2", "image_size": 8, "patch_size": 4, **SMALL},
}


@pytest.fixture
def origin(tmp_path):
    folder = tmp_path / "mine"
    folder.mkdir()
    folder.joinpath("config.json").write_text(json.dumps(GPT2))
    folder.joinpath("tokenizer.json").write_text("{}")
    folder.joinpath("training_args.bin").write_bytes(b"a pickle")
    save_file({"weight": torch.ones(2)}, folder / "model.safetensors")
    return folder


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_a_folder_is_linked_without_what_does_not_belong(origin, tmp_path):
    acquire("mine", "local", {"source": {"path": "mine"}}, tmp_path / "out", directory=tmp_path)
    assert names(tmp_path / "out") == {"config.json", "tokenizer.json", "model.safetensors"}
    assert os.path.samefile(origin / "model.safetensors", tmp_path / "out" / "model.safetensors")


def test_a_relative_path_starts_at_the_working_directory(origin, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    acquire("mine", "v2", {"source": {"path": "mine", "revision": "v2"}}, tmp_path / "out")
    assert "model.safetensors" in names(tmp_path / "out")


def test_symbolic_links_are_followed(origin, tmp_path):
    cache = tmp_path / "cache"
    cache.mkdir()
    for name in names(origin):
        cache.joinpath(name).symlink_to(origin / name)
    link_folder(cache, tmp_path / "out")
    assert not any(path.is_symlink() for path in tmp_path.joinpath("out").iterdir())
    assert load_file(tmp_path / "out" / "model.safetensors")["weight"].tolist() == [1, 1]


def test_copies_where_hard_links_are_impossible(origin, tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError(18, "Invalid cross-device link")

    monkeypatch.setattr(local.os, "link", refuse)
    link_folder(origin, tmp_path / "out")
    assert (
        tmp_path.joinpath("out/model.safetensors").read_bytes()
        == origin.joinpath("model.safetensors").read_bytes()
    )


@pytest.mark.parametrize(
    "shards",
    [
        ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"),
        (
            "model.safetensors-00001-of-00002.safetensors",
            "model.safetensors-00002-of-00002.safetensors",
        ),
        ("consolidated-000001.safetensors", "part b.safetensors"),
    ],
)
def test_the_index_says_what_shards_are_called(origin, tmp_path, shards):
    origin.joinpath("model.safetensors").unlink()
    index = {"weight_map": {f"weight{number}": shard for number, shard in enumerate(shards)}}
    origin.joinpath("model.safetensors.index.json").write_text(json.dumps(index))
    for shard in (*shards, "model-00001-of-00003.safetensors"):  # a stale set beside it
        save_file({"weight": torch.ones(2)}, origin / shard)
    link_folder(origin, tmp_path / "out")
    assert {name for name in names(tmp_path / "out") if name.endswith(".safetensors")} == set(
        shards
    )
    origin.joinpath(shards[0]).unlink()
    with pytest.raises(InputError, match=f"the shard {shards[0]} is missing"):
        link_folder(origin, tmp_path / "again")
    for index, words in (
        ({}, "weight_map"),
        ({"weight_map": {"a": "../b"}}, "plain file name"),
        ({"weight_map": {"a": 3}}, "weight_map"),
    ):
        origin.joinpath("model.safetensors.index.json").write_text(json.dumps(index))
        with pytest.raises(InputError, match=words):
            link_folder(origin, tmp_path / "again")


@pytest.mark.parametrize(
    ("removed", "message"),
    [("config.json", r"no config\.json there"), ("model.safetensors", "no weights there")],
)
def test_an_incomplete_folder_is_refused(origin, tmp_path, removed, message):
    origin.joinpath(removed).unlink()
    with pytest.raises(InputError, match=message):
        link_folder(origin, tmp_path / "out")
    assert not tmp_path.joinpath("out").exists()


def test_a_missing_folder_is_refused_and_the_old_one_kept(origin, tmp_path):
    link_folder(origin, tmp_path / "out")
    with pytest.raises(InputError, match="no such folder"):
        link_folder(tmp_path / "absent", tmp_path / "out")
    assert "model.safetensors" in names(tmp_path / "out")


def random_init(tmp_path: Path, settings: dict, seed: int = 42, name: str = "out") -> Path:
    tmp_path.joinpath("file.json").write_text(json.dumps(settings))
    initialise(tmp_path / "file.json", seed, tmp_path / name)
    return tmp_path / name


@pytest.mark.parametrize("architecture", SHAPES)
def test_random_initialisation_is_the_class_own_state(tmp_path, architecture):
    out = random_init(tmp_path, {**SHAPES[architecture], "architectures": [architecture]})
    assert names(out) == {"config.json", "model.safetensors"}
    stored = load_file(out / "model.safetensors")
    torch.manual_seed(42)
    model_class = getattr(transformers, architecture)
    model = model_class(
        model_class.config_class.from_dict(json.loads(out.joinpath("config.json").read_text()))
    )
    state = model.state_dict()
    assert stored.keys() <= state.keys()
    assert all(
        torch.equal(tensor, state[name]) and tensor.dtype == torch.float32
        for name, tensor in stored.items()
    )
    # What is not stored is tied to something that is.
    shared = {state[name].data_ptr() for name in stored}
    assert all(state[name].data_ptr() in shared for name in state.keys() - stored.keys())


def test_same_seed_same_bytes_other_seed_other_weights(tmp_path):
    files = [
        random_init(tmp_path, GPT2, seed, f"out{run}") / "model.safetensors"
        for run, seed in enumerate((42, 42, 43))
    ]
    assert files[0].read_bytes() == files[1].read_bytes() != files[2].read_bytes()


def test_the_global_generator_is_left_alone(tmp_path):
    torch.manual_seed(7)
    before = torch.get_rng_state()
    random_init(tmp_path, GPT2)
    assert torch.equal(torch.get_rng_state(), before)


def test_without_architectures_the_base_model_is_built_and_recorded(tmp_path):
    out = random_init(tmp_path, GPT2)
    assert json.loads(out.joinpath("config.json").read_text())["architectures"] == ["GPT2Model"]
    assert "wte.weight" in load_file(out / "model.safetensors")


def test_the_readout_of_t5_1_1_is_stored_apart(tmp_path):
    keys = {
        "model_type": "t5",
        "d_model": 8,
        "d_kv": 4,
        "d_ff": 8,
        "num_layers": 1,
        "num_heads": 2,
        "vocab_size": 11,
    }
    keys |= {
        "feed_forward_proj": "gated-gelu",
        "tie_word_embeddings": False,
        "architectures": ["T5ForConditionalGeneration"],
    }
    tensors = load_file(random_init(tmp_path, keys) / "model.safetensors")
    assert torch.equal(tensors["lm_head.weight"], tensors["shared.weight"])


def test_half_precision_configurations_are_still_initialised_in_float32(tmp_path):
    out = random_init(tmp_path, {**GPT2, "dtype": "bfloat16"})
    assert {tensor.dtype for tensor in load_file(out / "model.safetensors").values()} == {
        torch.float32
    }


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not valid JSON"),
        ("[" * 100_000, "not valid JSON"),
        ("[]", "expected a JSON object"),
        ("{}", "model_type None is unknown to transformers"),
        (
            '{"model_type": "gtp2"}',
            "model_type gtp2 is unknown to transformers .*; did you mean gpt2",
        ),
        ('{"model_type": ["gpt2"]}', "is unknown to transformers"),
        ('{"model_type": "gpt2", "n_layer": "many"}', "not a configuration of gpt2"),
        (
            '{"model_type": "gpt2", "n_layer": 1, "n_embd": 10, "n_head": 3}',
            "GPT2Model cannot be built from it",
        ),
        (
            '{"model_type": "gpt2", "n_layer": 1, "n_embd": 8, "n_head": 0}',
            "n_head is 0, expected 1 to",
        ),
        ('{"model_type": "gpt2", "id2label": "x"}', "not a configuration of gpt2"),
        (
            '{"model_type": "gpt2", "architectures": ["BertModel"]}',
            "architectures names 'BertModel'",
        ),
        ('{"model_type": "gpt2", "architectures": ["Trainer"]}', "architectures names 'Trainer'"),
        ('{"model_type": "gpt2", "architectures": ["Nothing"]}', "architectures names 'Nothing'"),
    ],
)
def test_a_bad_configuration_is_named(tmp_path, text, message):
    tmp_path.joinpath("file.json").write_text(text)
    with pytest.raises(InputError, match=message) as caught:
        initialise(tmp_path / "file.json", 42, tmp_path / "out")
    assert "file.json" in str(caught.value)
    assert names(tmp_path) == {"file.json"}


@pytest.mark.parametrize(
    ("keys", "modality", "words"),
    [
        (
            {"model_type": "gpt2", "n_layer": 1, "n_embd": 8, "n_head": 0},
            "text",
            "n_head is 0, expected 1 to",
        ),
        ({**GPT2, "n_embd": 10, "n_head": 3}, "text", "refuses these settings"),
        ({"model_type": "mixtral"}, "text", "model_type 'mixtral' is unknown; known families"),
        (
            {"model_type": "bert", "is_decoder": True, "architectures": ["BertLMHeadModel"]},
            "text",
            "is_decoder=True adds parts",
        ),
        (GPT2, "image", "modality image: a gpt2 model takes"),
        (
            {"model_type": "vit", "image_size": [8, 12]},
            "image",
            "image_size is .8, 12.; calibration makes square pictures only",
        ),
    ],
)
@pytest.mark.parametrize("source", ["path", "random_init"])
def test_a_configuration_that_the_pipeline_cannot_use_costs_no_weights(
    tmp_path, monkeypatch, source, keys, modality, words
):
    """Nothing is linked or initialised."""
    folder = tmp_path / "mine"
    folder.mkdir()
    folder.joinpath("config.json").write_text(json.dumps(keys))
    folder.joinpath("model.safetensors").touch()
    given = (
        {"path": "mine"}
        if source == "path"
        else {"random_init": {"config": "mine/config.json", "seed": 42}}
    )
    entry = {
        "source": given,
        "modality": modality,
        "calibration": "images" if modality == "image" else "kjv",
    }
    monkeypatch.setattr(
        "normgauge.provenance.os.replace", lambda *paths: pytest.fail("something was written")
    )
    with pytest.raises(InputError, match=words):
        acquire(
            "mine",
            "local" if source == "path" else "seed42",
            entry,
            tmp_path / "out",
            directory=tmp_path,
            check=partial(check_configuration, entry),
        )
    assert names(tmp_path) == {"mine"}


def test_a_missing_configuration_is_named(tmp_path):
    entry = {"source": {"random_init": {"config": "absent.json", "seed": 42}}}
    with pytest.raises(InputError, match=r"absent\.json: cannot be read"):
        acquire("shape", "seed42", entry, tmp_path / "out", directory=tmp_path)


def test_acquire_takes_the_seed_from_the_revision(tmp_path):
    tmp_path.joinpath("file.json").write_text(json.dumps(GPT2))
    entry = {"source": {"random_init": {"config": "file.json", "seed": [1, 2]}}}
    acquire("shape", "seed2", entry, tmp_path / "acquired", directory=tmp_path)
    assert (
        tmp_path.joinpath("acquired/model.safetensors").read_bytes()
        == (random_init(tmp_path, GPT2, 2) / "model.safetensors").read_bytes()
    )


def test_acquire_refuses_other_revisions_and_what_is_trained_here(tmp_path):
    with pytest.raises(
        InputError, match=r"models\.nano: no revision seed7; the model table lists seed42"
    ):
        acquire(
            "nano",
            "seed7",
            {"source": {"trained": {"recipe": "gpt2-nano", "seed": 42}}},
            tmp_path / "out",
        )
    with pytest.raises(InputError, match="trained by the pipeline"):
        acquire(
            "nano",
            "seed42",
            {"source": {"trained": {"recipe": "gpt2-nano", "seed": 42}}},
            tmp_path / "out",
        )


def test_drawn_vectors_leave_the_matrices_as_initialised(tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(GPT2))
    initialise(path, 5, tmp_path / "plain")
    initialise(path, 5, tmp_path / "drawn", draw_vectors=True)
    plain, drawn = (load_file(tmp_path / name / "model.safetensors") for name in ("plain", "drawn"))
    for name, tensor in drawn.items():
        assert torch.equal(tensor, plain[name]) == (tensor.dim() == 2), name
    gains = torch.cat(
        [tensor for name, tensor in drawn.items() if tensor.dim() == 1 and name.endswith("weight")]
    )
    assert gains.min() > 0
    assert gains.unique().numel() == gains.numel()


def test_a_large_shape_is_drawn_tensor_by_tensor(tmp_path, monkeypatch):
    """Shards that transformers' own loader reads; gains one, biases zero, matrices of the stated
    deviation, independent of each other; the same seed gives the same bytes.
    """
    monkeypatch.setattr(shards, "SHARD_BYTES", 1000)
    path = tmp_path / "config.json"
    path.write_text(json.dumps(GPT2 | {"n_layer": 2, "architectures": ["GPT2LMHeadModel"]}))
    for folder in ("one", "other"):
        initialise_by_tensor(path, 5, tmp_path / folder, "bfloat16")
    initialise_by_tensor(path, 6, tmp_path / "another seed", "bfloat16")
    files = sorted((tmp_path / "one").glob("*.safetensors"))
    assert len(files) > 1
    for file in files:
        assert file.read_bytes() == (tmp_path / "other" / file.name).read_bytes()
    tensors = open_checkpoint(tmp_path / "one").tensors
    other = open_checkpoint(tmp_path / "another seed").tensors
    model = transformers.GPT2LMHeadModel.from_pretrained(tmp_path / "one", dtype=torch.bfloat16)
    loaded = model.state_dict()
    matrices = []
    for name, tensor in tensors.items():
        assert torch.equal(tensor, loaded[name])
        if tensor.dim() > 1:
            assert not torch.equal(tensor, other[name])
            matrices.append(tensor.float())
        else:
            assert (tensor == (1 if name.endswith("weight") else 0)).all()
    values = torch.cat([matrix.flatten() for matrix in matrices])
    assert values.std().item() == pytest.approx(0.02, rel=0.05)
    same_shape = [matrix for matrix in matrices if matrix.shape == matrices[2].shape]
    assert len(same_shape) > 1
    assert not torch.equal(same_shape[0], same_shape[1])
