"""GGUF models open as what they were made of, and a key that changes the function is never passed
over.
"""

from __future__ import annotations

import math
from functools import partial

import gguf
import numpy as np
import pytest
import torch
import transformers

from gguf_files import (
    HEADS,
    MODELS,
    STORED_AS,
    VOCABULARY,
    make_model,
    stated_keys,
    stored_tensors,
    write_file,
    write_model,
)
from normgauge.capture.checkpoint import check_configuration, describe_checkpoint
from normgauge.checkpoints.acquire import acquire
from normgauge.checkpoints.building import build_model
from normgauge.checkpoints.layout import checkpoint_files, read_json
from normgauge.checkpoints.manifest import Manifest
from normgauge.checkpoints.opening import open_checkpoint
from normgauge.checkpoints.readers import gguf_reader
from normgauge.checkpoints.readers.gguf_container import check_header
from normgauge.checkpoints.readers.gguf_keys import known_architectures
from normgauge.errors import InputError

IDS = torch.randint(0, VOCABULARY, (2, 14), generator=torch.Generator().manual_seed(0))


def logits(model):
    inputs = {"input_ids": IDS} | (
        {"decoder_input_ids": IDS.flip(1)} if model.config.model_type == "t5" else {}
    )
    with torch.no_grad():
        return model(**inputs).logits


def opened(folder):
    return build_model(open_checkpoint(folder), "float32")


def difference(first, second):
    """Largest difference of the logits over their spread."""
    return float((logits(first) - logits(second)).abs().max() / logits(second).std())


def refused(folder, *words):
    with pytest.raises(InputError) as caught:
        open_checkpoint(folder)
    for word in words:
        assert word in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("family", MODELS)
def test_a_file_opens_as_the_model_that_it_was_made_of(tmp_path, family):
    model = make_model(family)
    write_model(tmp_path, family, model)
    assert difference(opened(tmp_path), model) < 1e-5
    # the comparison sees two rows of the queries that changed places
    for tensor in ("q_proj", "c_attn", "q.weight"):
        for name, parameter in model.named_parameters():
            if tensor in name and parameter.ndim == 2:
                parameter.data[[0, 1]] = parameter.data[[1, 0]]
    assert difference(opened(tmp_path), model) > 1e-3


@pytest.mark.parametrize("family", MODELS)
def test_transformers_own_loader_reads_the_same_model(tmp_path, family):
    """With its own reading of the keys where that is whole, else with ours: its table has no place
    for the others' keys.
    """
    # it names as many blocks as the encoder has
    depth = {"num_decoder_layers": 2} if family == "t5" else {}
    model = make_model(family, **depth)
    path = write_model(tmp_path, family, model, name="mistral" if family == "mistral" else "tiny")
    checkpoint = open_checkpoint(tmp_path)
    own = {} if family in ("llama", "qwen2") else {"config": checkpoint.config}
    model_class = getattr(transformers, checkpoint.config.architectures[0])
    theirs = model_class.from_pretrained(
        tmp_path, gguf_file=path.name, attn_implementation="eager", trust_remote_code=False, **own
    )
    if family == "t5":  # the class ties what the file holds apart
        assert torch.equal(theirs.lm_head.weight, checkpoint.tensors["lm_head.weight"])
    assert difference(build_model(checkpoint, "float32"), theirs.eval()) < 1e-6


def test_the_architectures_known_are_those_that_both_sides_know():
    assert set(known_architectures()) == {STORED_AS.get(family, family) for family in MODELS} | {
        "t5encoder"
    }


def test_the_first_generation_of_t5_and_an_encoder_alone(tmp_path):
    model = make_model("t5", feed_forward_proj="relu", tie_word_embeddings=True)
    model.lm_head.weight = model.shared.weight
    tensors = stored_tensors("t5", model)
    del tensors["output.weight"]
    # stored beside some, used by none
    tensors["dec.blk.0.cross_attn_rel_b.weight"] = np.zeros((8, HEADS), np.float32)
    keys = {
        "attention.head_count": HEADS,
        "block_count": 2,
        "embedding_length": 16,
        "feed_forward_length": 24,
        "context_length": 64,
    }
    keys |= {
        "attention.key_length": 6,
        "attention.layer_norm_rms_epsilon": 1e-6,
        "attention.relative_buckets_count": 8,
    }
    write_file(
        tmp_path / "tiny.gguf",
        "t5",
        {**keys, "decoder_block_count": 3, "decoder_start_token_id": 0},
        tensors,
    )
    assert difference(opened(tmp_path), model) < 1e-5
    encoder = {name: values for name, values in tensors.items() if not name.startswith("dec.")}
    write_file(tmp_path / "tiny.gguf", "t5encoder", keys, encoder)
    with torch.no_grad():
        found, expected = (
            stack(input_ids=IDS).last_hidden_state for stack in (opened(tmp_path), model.encoder)
        )
    assert torch.allclose(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", [np.float16, "bfloat16"])
def test_half_precision_is_kept_where_it_holds_the_values(tmp_path, dtype):
    """Matrices stay as stored, in another order; a gain less one does not fit into half precision
    and becomes fp32.
    """
    model = make_model("gemma2")
    tensors = stored_tensors("gemma2", model)
    kind = gguf.GGMLQuantizationType.F16 if dtype is np.float16 else gguf.GGMLQuantizationType.BF16
    writer = gguf.GGUFWriter(tmp_path / "tiny.gguf", "gemma2")
    for key, value in stated_keys("gemma2", model.config).items():
        (writer.add_float32 if isinstance(value, float) else writer.add_uint32)(
            f"gemma2.{key}", value
        )
    for name, values in tensors.items():
        writer.add_tensor(name, gguf.quantize(values, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    weights = gguf_reader.read(tmp_path)
    half = torch.float16 if dtype is np.float16 else torch.bfloat16
    matrix, gain = "model.layers.0.mlp.up_proj.weight", "model.layers.0.input_layernorm.weight"
    state = model.state_dict()
    assert weights.tensors[matrix].dtype == half
    assert torch.equal(weights.tensors[matrix], state[matrix].to(half))
    assert torch.equal(weights.tensors[gain].float(), (state[gain] + 1).to(half).float() - 1)


# Keys that change the function


HONOURED = {
    "linear scaling in its old name": (
        "llama",
        {"rope_type": "linear", "factor": 4.0},
        {"rope__scale_linear": 4.0},
    ),
    "a factor without a type": (
        "llama",
        {"rope_type": "linear", "factor": 4.0},
        {"rope__scaling__factor": 4.0},
    ),
    "a factor and a type": (
        "qwen2",
        {"rope_type": "linear", "factor": 2.0},
        {"rope__scaling__factor": 2.0, "rope__scaling__type": "linear"},
    ),
    "a factor that its type switches off": (
        "llama",
        {"rope_type": "default"},
        {"rope__scaling__factor": 2.0, "rope__scaling__type": "none"},
    ),
    "no scaling in its old name": ("llama", {"rope_type": "default"}, {"rope__scale_linear": 0.0}),
}


@pytest.mark.parametrize("case", HONOURED)
def test_scaled_rotation_is_honoured(tmp_path, case):
    family, rope, keys = HONOURED[case]
    model = make_model(family, rope_parameters={"rope_theta": 10000.0, **rope})
    write_model(tmp_path, family, model, **keys)
    assert difference(opened(tmp_path), model) < 1e-5
    plain = make_model(family, rope_parameters={"rope_theta": 10000.0, "rope_type": "default"})
    if rope["rope_type"] != "default":
        assert difference(plain, model) > 1e-3  # passing the key over would show


def test_windows_caps_and_scales_are_honoured(tmp_path):
    mistral = make_model("mistral", sliding_window=5)
    write_model(tmp_path, "mistral", mistral, attention__sliding_window=5)
    assert difference(opened(tmp_path), mistral) < 1e-5
    assert difference(make_model("mistral"), mistral) > 1e-3
    gemma = make_model(
        "gemma2", attn_logit_softcapping=2.0, final_logit_softcapping=3.0, query_pre_attn_scalar=5
    )
    write_model(tmp_path, "gemma2", gemma, attention__scale=5**-0.5)
    assert difference(opened(tmp_path), gemma) < 1e-5
    gemma = make_model(
        "gemma2",
        attn_logit_softcapping=None,
        sliding_window=3,
        layer_types=["full_attention", "sliding_attention"],
    )
    keys = {"attn_logit_softcapping": 0.0, "attention__sliding_window_pattern": [False, True]}
    write_model(tmp_path, "gemma2", gemma, **keys)
    assert difference(opened(tmp_path), gemma) < 1e-5
    rope = {"full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6}}
    rope["sliding_attention"] = {"rope_type": "default", "rope_theta": 500.0}
    gemma = make_model("gemma3", rope_parameters=rope)
    write_model(
        tmp_path,
        "gemma3",
        gemma,
        rope__scaling__factor=8.0,
        rope__scaling__type="linear",
        rope__freq_base_swa=500.0,
    )
    assert difference(opened(tmp_path), gemma) < 1e-5


def test_biases_follow_from_the_tensors(tmp_path):
    model = make_model("llama", attention_bias=True, mlp_bias=True)
    write_model(tmp_path, "llama", model)
    assert difference(opened(tmp_path), model) < 1e-5


def test_defaults_are_those_of_llama_cpp(tmp_path):
    model = make_model(
        "llama",
        num_key_value_heads=HEADS,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
    )
    tensors = stored_tensors("llama", model)
    key = model.state_dict()["model.layers.0.self_attn.k_proj.weight"].numpy()
    assert tensors["blk.0.attn_k.weight"].shape == key.shape
    for block in range(2):  # the helper's order of keys is that of one head
        key = model.state_dict()[f"model.layers.{block}.self_attn.k_proj.weight"].numpy()
        tensors[f"blk.{block}.attn_k.weight"] = np.ascontiguousarray(
            key.reshape(HEADS, 2, -1, 16).swapaxes(1, 2).reshape(key.shape)
        )
    keys = {
        "context_length": 64,
        "block_count": 2,
        "embedding_length": 16,
        "feed_forward_length": 24,
        "attention.head_count": HEADS,
    }
    keys["attention.layer_norm_rms_epsilon"] = 1e-6
    write_file(tmp_path / "tiny.gguf", "llama", keys, tensors)
    assert difference(opened(tmp_path), model) < 1e-5
    one_per_block = {"attention.head_count_kv": [HEADS] * 2, "feed_forward_length": [24, 24]}
    write_file(tmp_path / "tiny.gguf", "llama", {**keys, **one_per_block}, tensors)
    assert difference(opened(tmp_path), model) < 1e-5
    write_file(
        tmp_path / "tiny.gguf", "llama", {**keys, "attention.head_count_kv": [HEADS, 1]}, tensors
    )
    refused(tmp_path, "llama.attention.head_count_kv is [2 1]")


REFUSED = {
    "partial rotation": (
        "llama",
        {"rope__dimension_count": 4},
        "llama.rope.dimension_count is 4; expected 8",
    ),
    "yarn": (
        "llama",
        {"rope__scaling__type": "yarn", "rope__scaling__factor": 4.0},
        "llama.rope.scaling.type is yarn",
    ),
    "a scale of scores": ("llama", {"attention__scale": 0.5}, "llama.attention.scale is 0.5"),
    "a scale of logits": ("llama", {"logit_scale": 0.5}, "llama.logit_scale is 0.5"),
    "clamped activations": (
        "llama",
        {"attention__clamp_kqv": 8.0},
        "llama.attention.clamp_kqv is 8.0",
    ),
    "experts": ("llama", {"expert_count": 4}, "llama.expert_count is 4"),
    "a window": ("qwen2", {"attention__sliding_window": 8}, "qwen2.attention.sliding_window is 8"),
    "a soft cap": (
        "qwen3",
        {"final_logit_softcapping": 30.0},
        "qwen3.final_logit_softcapping is 30.0",
    ),
    "an unknown key": ("gpt2", {"attention__sinks": 4}, "gpt2.attention.sinks is 4"),
    "both directions": ("gpt2", {"attention__causal": False}, "gpt2.attention.causal is False"),
    "values of another size": (
        "gemma3",
        {"attention__value_length": 8},
        "gemma3.attention.value_length is 8; expected 12",
    ),
    "an infinite base": ("llama", {"rope__freq_base": math.inf}, "llama.rope.freq_base is inf"),
    "no number for a base": ("llama", {"rope__freq_base": math.nan}, "llama.rope.freq_base is nan"),
    "a vocabulary of another size": (
        "llama",
        {"vocab_size": 33},
        "llama.vocab_size is 33; expected 32",
    ),
    "blocks without tensors": ("llama", {"block_count": 3}, "llama.block_count is 3; expected 2"),
    "thousands of blocks": (
        "t5",
        {"decoder_block_count": 30},
        "t5.decoder_block_count is 30; expected 3",
    ),
    "more heads than anything": (
        "llama",
        {"attention__head_count": 1 << 30},
        "llama.attention.head_count is 1073741824",
    ),
    "two epsilons": (
        "t5",
        {"attention__layer_norm_rms_epsilon": 1e-5},
        "t5.attention.layer_norm_rms_epsilon is 9.99",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_changes_the_function_otherwise_is_refused_by_its_key(tmp_path, case):
    family, keys, words = REFUSED[case]
    model = make_model(family)
    write_model(tmp_path, family, model, **keys)
    refused(tmp_path, words)


@pytest.mark.parametrize(
    "keys",
    [
        {
            "expert_count": 0,
            "logit_scale": 1.0,
            "attention__clamp_kqv": 0.0,
            "attention__causal": True,
            "attention__scale": 8**-0.5,
        },
        {
            "pooling_type": 3,
            "rope__scaling__finetuned": True,
            "tensor_data_layout": "Meta AI original pth",
        },
    ],
)
def test_values_that_change_nothing_are_taken(tmp_path, keys):
    model = make_model("llama")
    write_model(tmp_path, "llama", model, **keys)
    assert difference(opened(tmp_path), model) < 1e-5


def test_an_architecture_that_is_no_text(tmp_path):
    path = write_model(tmp_path, "llama", make_model("llama"))
    content = path.read_bytes()
    path.write_bytes(content.replace(b"general.architecture", b"general.architectura"))
    refused(tmp_path, "GGUF architecture None")


def test_arrays_are_not_read_item_by_item(tmp_path):
    """Arrays of numbers are views of the file, and no text of a vocabulary is made."""
    write_file(
        tmp_path / "tiny.gguf", "llama", {"scores": [0.5] * 1000}, {"a": np.ones(4, np.float32)}
    )
    fields = check_header(tmp_path / "tiny.gguf").fields
    assert isinstance(fields["llama.scores"], np.ndarray)
    assert not fields["llama.scores"].flags.owndata
    assert fields["tokenizer.ggml.tokens"].count == VOCABULARY


def test_a_folder_with_the_name_of_a_file(tmp_path):
    (tmp_path / "x.gguf").mkdir()
    refused(tmp_path, "no weights")


# Local files


def test_a_local_folder_with_one_file_and_the_file_itself(tmp_path):
    origin = tmp_path / "mine"
    origin.mkdir()
    model = make_model("qwen2")
    path = write_model(origin, "qwen2", model)
    origin.joinpath("README.md").write_text("mine")
    for number, named in enumerate((origin, path)):
        folder = tmp_path / f"out{number}"
        acquire("mine", "local", {"source": {"path": str(named)}}, folder)
        assert [file.name for file in folder.iterdir()] == ["tiny.gguf"]
        assert difference(opened(folder), model) < 1e-5


def test_several_files_need_a_name(tmp_path):
    origin = tmp_path / "mine"
    origin.mkdir()
    path = write_model(origin, "gpt2", make_model("gpt2"))
    origin.joinpath("other.gguf").write_bytes(path.read_bytes())
    entry = {"source": {"path": str(origin)}}
    with pytest.raises(InputError, match=r"2 GGUF files \(other\.gguf, tiny\.gguf"):
        acquire("mine", "local", entry, tmp_path / "out")
    acquire("mine", "local", {"source": {"path": str(path)}}, tmp_path / "out")
    assert [file.name for file in tmp_path.joinpath("out").iterdir()] == ["tiny.gguf"]
    with pytest.raises(InputError, match="no such folder"):
        acquire(
            "mine", "local", {"source": {"path": str(origin / "third.gguf")}}, tmp_path / "none"
        )


def test_weights_of_transformers_come_before_a_file_beside_them(tmp_path):
    names = {"config.json", "model.safetensors", "tiny.gguf", "tokenizer.json"}
    assert checkpoint_files(names, "here", read_json) == (
        "config.json",
        "model.safetensors",
        "tokenizer.json",
    )
    assert checkpoint_files(names - {"model.safetensors"}, "here", read_json) == (
        "config.json",
        "tiny.gguf",
        "tokenizer.json",
    )


def test_a_local_file_is_acquired_with_its_tokenizer_and_manifest(tmp_path):
    """What the first rule does with a GGUF file of the user's."""
    path = write_model(tmp_path, "gpt2", make_model("gpt2"))
    entry = {"source": {"path": str(path)}, "modality": "text", "calibration": "random-tokens"}
    acquire("mine", "local", entry, tmp_path / "out", check=partial(check_configuration, entry))
    describe_checkpoint("mine", "local", entry, tmp_path / "out", tmp_path / "checkpoint.json")
    manifest = Manifest.read(tmp_path / "checkpoint.json")
    assert (manifest.family, manifest.architecture, manifest.precision) == (
        "gpt2",
        "GPT2LMHeadModel",
        "full",
    )
