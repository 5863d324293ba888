"""Opening and building: every family comes back bit for bit, strictly; float64 is float64
throughout; twins are reproducible.
"""

from __future__ import annotations

import copy
import json
import math
import sys
from contextlib import contextmanager

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from transformers.models.t5.modeling_t5 import T5Attention

from normgauge.anatomy import FAMILIES, describe
from normgauge.calibration.interfaces import INTERFACES, Interface
from normgauge.calibration.tokenisation import load_tokenizer
from normgauge.checkpoints import building
from normgauge.checkpoints.architectures.sceptr import Sceptr, _relative_position
from normgauge.checkpoints.building import build_model, check_checkpoint, reinitialise
from normgauge.checkpoints.configuration import parse_config
from normgauge.checkpoints.opening import Checkpoint, open_checkpoint
from normgauge.checkpoints.sceptr_config import EMBEDDERS, SceptrConfig
from normgauge.errors import InputError

DECODER = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "vocab_size": 50,
    "max_position_embeddings": 64,
}
GROUPED = {
    **DECODER,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
SLIDING = {"sliding_window": 4, "layer_types": ["sliding_attention", "full_attention"]}
LINEAR = {
    "layer_types": ["linear_attention", "full_attention"],
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
}
IMAGE = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "image_size": 16,
    "patch_size": 4,
}
WHISPER = {
    **{
        "d_model": 32,
        "encoder_layers": 2,
        "decoder_layers": 2,
        "encoder_attention_heads": 4,
        "decoder_attention_heads": 4,
    },
    **{
        "encoder_ffn_dim": 48,
        "decoder_ffn_dim": 48,
        "vocab_size": 50,
        "num_mel_bins": 8,
        "max_source_positions": 12,
        "max_target_positions": 16,
    },
    **{"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1},
}
DISTILBERT = {
    "dim": 32,
    "n_layers": 2,
    "n_heads": 4,
    "hidden_dim": 48,
    "vocab_size": 50,
    "max_position_embeddings": 64,
}
T5 = {
    "d_model": 32,
    "d_kv": 8,
    "d_ff": 48,
    "num_layers": 2,
    "num_heads": 4,
    "vocab_size": 50,
    "decoder_start_token_id": 0,
}

CONFIGS = {
    "gpt2": (
        "GPT2LMHeadModel",
        {"n_embd": 32, "n_layer": 2, "n_head": 4, "vocab_size": 50, "n_positions": 64},
    ),
    "gpt_neox": ("GPTNeoXForCausalLM", {**DECODER, "rotary_pct": 0.25}),
    "bert": ("BertForPreTraining", DECODER),
    "roberta": ("RobertaForMaskedLM", {**DECODER, "max_position_embeddings": 66}),
    "albert": ("AlbertForMaskedLM", {**DECODER, "embedding_size": 16}),
    "distilbert": ("DistilBertForMaskedLM", DISTILBERT),
    "electra": ("ElectraForMaskedLM", {**DECODER, "embedding_size": 16}),
    "vit": ("ViTModel", IMAGE),
    "dinov2": ("Dinov2Model", IMAGE),
    "vit_mae": ("ViTMAEModel", IMAGE),
    "dinov3_vit": ("DINOv3ViTModel", IMAGE),
    "siglip_vision_model": ("SiglipVisionModel", {**IMAGE, "vision_use_head": False}),
    "whisper": ("WhisperForConditionalGeneration", WHISPER),
    "t5": ("T5ForConditionalGeneration", T5),
    "llama": ("LlamaForCausalLM", {**GROUPED, "tie_word_embeddings": True}),
    "mistral": ("MistralForCausalLM", {**GROUPED, "sliding_window": 4}),
    "qwen2": ("Qwen2ForCausalLM", GROUPED),
    "qwen3": ("Qwen3ForCausalLM", GROUPED),
    "gemma": ("GemmaForCausalLM", GROUPED),
    "gemma2": ("Gemma2ForCausalLM", {**GROUPED, **SLIDING}),
    "gemma3_text": ("Gemma3ForCausalLM", {**GROUPED, **SLIDING}),
    "stablelm": ("StableLmForCausalLM", GROUPED),
    "phi": ("PhiForCausalLM", GROUPED),
    "deberta-v2": (
        "DebertaV2ForMaskedLM",
        {**DECODER, "relative_attention": True, "share_att_key": True}
        | {"norm_rel_ebd": "layer_norm", "pos_att_type": "p2c|c2p"},
    ),
    "modernbert": (
        "ModernBertForMaskedLM",
        {**DECODER, "local_attention": 4}
        | {f"{name}_token_id": 1 for name in ("pad", "bos", "eos", "cls", "sep")},
    ),
    "phi3": ("Phi3ForCausalLM", GROUPED),
    "granite": ("GraniteForCausalLM", {**GROUPED, "residual_multiplier": 0.3}),
    "smollm3": ("SmolLM3ForCausalLM", {**GROUPED, "no_rope_layers": [1, 0]}),
    "cohere": ("CohereForCausalLM", GROUPED),
    "falcon": ("FalconForCausalLM", {**DECODER, "ffn_hidden_size": 48}),
    "bloom": (
        "BloomForCausalLM",
        {"hidden_size": 32, "n_layer": 2, "n_head": 4, "vocab_size": 50},
    ),
    "gptj": (
        "GPTJForCausalLM",
        {"n_embd": 32, "n_layer": 2, "n_head": 4, "vocab_size": 50, "rotary_dim": 4},
    ),
    "opt": ("OPTForCausalLM", {**DECODER, "word_embed_proj_dim": 32, "ffn_dim": 48}),
    "clip_text_model": (  # the end is where the largest id stands
        "CLIPTextModelWithProjection",
        {**DECODER, "projection_dim": 16, "eos_token_id": 2},
    ),
    "clip_vision_model": ("CLIPVisionModelWithProjection", {**IMAGE, "projection_dim": 16}),
    "qwen3_5_text": ("Qwen3_5ForCausalLM", {**GROUPED, **LINEAR}),
}
MASK = torch.arange(16).flip(0).expand(2, -1)
# families that round to float32
CAST = (
    "gpt_neox",
    "vit",
    "vit_mae",
    "dinov3_vit",
    "siglip_vision_model",
    "t5",
    "llama",
    "mistral",
    "qwen2",
    "qwen3",
    "gemma",
    "gemma2",
    "gemma3_text",
    "stablelm",
    "phi",
    "deberta-v2",
    "modernbert",
    "phi3",
    "granite",
    "smollm3",
    "cohere",
    "falcon",
    "bloom",
    "gptj",
    "opt",
    "clip_text_model",
    "clip_vision_model",
    "qwen3_5_text",
)


def config_of(family, **changes):
    architecture, keys = CONFIGS[family]
    return parse_config({"model_type": family, "architectures": [architecture], **keys, **changes})


def random_model(family, seed=0, **changes):
    """A transformers model with every parameter random, also the ones that are initialised to 0 or
    1.
    """
    config = config_of(family, **changes)
    kind = getattr(transformers, config.architectures[0])
    model = kind._from_config(config, attn_implementation="eager").eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator))
    return model


def saved(folder, family, **changes):
    model = random_model(family, **changes)
    model.save_pretrained(folder)
    return model


def inputs(family, dtype):
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(3, 50, (2, 9), generator=generator)
    if INTERFACES[family] == Interface.IMAGE:
        pixels = torch.randn(2, 3, 16, 16, generator=generator, dtype=torch.float64).to(dtype)
        # transformers' own draws the noise anew at each pass
        return {"pixel_values": pixels} | ({"noise": MASK} if family == "vit_mae" else {})
    if family == "whisper":
        features = torch.randn(2, 8, 24, generator=generator, dtype=torch.float64)
        return {"input_features": features.to(dtype), "decoder_input_ids": ids}
    return {"input_ids": ids, **({"decoder_input_ids": ids[:, :5]} if family == "t5" else {})}


def first_output(model, family, dtype):
    with torch.no_grad():
        return model(**inputs(family, dtype))[0]


def refused(call, *words):
    with pytest.raises(InputError) as caught:
        call()
    assert "\n" not in str(caught.value)
    for word in words:
        assert word in str(caught.value)


def test_every_known_family_is_tested_here():
    assert {*CONFIGS, "sceptr"} == set(FAMILIES)


# Round trips


@pytest.mark.parametrize("family", CONFIGS)
def test_saved_models_come_back_bit_for_bit(tmp_path, family):
    original = saved(tmp_path, family)
    checkpoint = open_checkpoint(tmp_path)
    model = build_model(checkpoint, "float32")
    assert type(model) is type(original)
    expected = original.state_dict()
    assert set(checkpoint.tensors) <= set(expected)
    assert set(checkpoint.stored.values()) == {"F32"}
    assert [
        name
        for name, tensor in model.state_dict().items()
        if not torch.equal(tensor, expected[name])
    ] == []
    for name, buffer in original.named_buffers():
        assert torch.equal(model.get_buffer(name), buffer), name
    assert not model.training
    assert not any(parameter.requires_grad for parameter in model.parameters())
    assert torch.equal(
        first_output(model, family, torch.float32),
        first_output(_eager(original), family, torch.float32),
    )


def _eager(model):
    model.set_attn_implementation("eager")
    return model


@pytest.mark.parametrize("family", ["gpt2", "llama", "bert", "t5", "whisper"])
def test_tied_weights_stay_tied(tmp_path, family):
    saved(tmp_path, family)
    checkpoint = open_checkpoint(tmp_path)
    model = build_model(checkpoint, "float64")
    assert model.get_output_embeddings().weight is model.get_input_embeddings().weight
    names = dict.fromkeys(name for name, _ in model.named_parameters(remove_duplicate=False))
    assert len(checkpoint.tensors) < len(names)


def test_untied_readout_is_its_own_tensor(tmp_path):
    original = saved(tmp_path, "llama", tie_word_embeddings=False)
    model = build_model(open_checkpoint(tmp_path), "float32")
    assert model.lm_head.weight is not model.model.embed_tokens.weight
    assert torch.equal(model.lm_head.weight, original.lm_head.weight)


def test_the_readout_of_t5_1_1_is_its_own_tensor(tmp_path):
    """Its config says tie_word_embeddings: false, which transformers forces back to true, and its
    files hold both tensors.
    """
    changes = {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}
    original = random_model("t5", **changes)
    readout = original.lm_head.weight.detach() + 1
    original.lm_head.weight = torch.nn.Parameter(readout)
    original.save_pretrained(tmp_path)  # stores one of the two, which it takes for tied
    save_file(
        {**load_file(tmp_path / "model.safetensors"), "lm_head.weight": readout},
        tmp_path / "model.safetensors",
    )
    stored = json.loads((tmp_path / "config.json").read_text()) | changes
    (tmp_path / "config.json").write_text(json.dumps(stored))
    checkpoint = open_checkpoint(tmp_path)
    check_checkpoint(checkpoint)
    model = build_model(checkpoint, "float32")
    reference = transformers.T5ForConditionalGeneration.from_pretrained(
        tmp_path, attn_implementation="eager"
    ).eval()
    assert torch.equal(model.lm_head.weight, readout)
    assert not torch.equal(model.lm_head.weight, model.shared.weight)
    assert model.decoder.embed_tokens.weight is model.shared.weight
    assert torch.equal(
        first_output(model, "t5", torch.float32), first_output(reference, "t5", torch.float32)
    )
    assert not describe(checkpoint.config).tensor("lm_head.weight").alias_of
    twin = reinitialise(checkpoint, 42, "float32")
    assert twin.lm_head.weight.shape == readout.shape
    tensors = load_file(tmp_path / "model.safetensors")
    for absent, other in (("lm_head.weight", "shared.weight"), ("shared.weight", "lm_head.weight")):
        save_file(
            {name: tensor for name, tensor in tensors.items() if name != absent},
            tmp_path / "model.safetensors",
        )
        copied = open_checkpoint(tmp_path)
        assert torch.equal(copied.tensors[absent], tensors[other])
        assert torch.equal(build_model(copied, "float32").state_dict()[absent], tensors[other])


@pytest.mark.parametrize(
    ("family", "key"),
    [
        *(
            ("gpt2", "n_layer"),
            ("qwen2", "num_hidden_layers"),
            ("t5", "num_layers"),
            ("whisper", "encoder_layers"),
        ),
        ("albert", "inner_group_num"),
    ],
)
def test_an_impossible_number_of_blocks_is_refused_before_they_are_made(family, key):
    for number in (0, 10**9, 10**400, 1e300):
        refused(
            lambda number=number: config_of(family, **{key: number}),
            f"{key} is {str(number)[:20]}, expected 1 to 2000",
        )


@pytest.mark.parametrize(
    ("family", "key", "number"),
    [
        *(
            ("gpt2", "n_head", 0),
            ("llama", "num_key_value_heads", 0),
            ("gpt2", "n_embd", 10**400),
            ("t5", "vocab_size", -3),
        ),
        *(
            ("llama", "rope_theta", float("nan")),
            ("llama", "rope_theta", -1e4),
            ("gpt_neox", "rotary_emb_base", 0),
        ),
        *(
            ("llama", "rope_theta", float("inf")),
            ("gemma3_text", "rope_local_base_freq", -1.0),
            ("gpt_neox", "rotary_pct", -0.25),
        ),
        *(
            ("gpt2", "layer_norm_epsilon", float("nan")),
            ("llama", "rms_norm_eps", -1e-5),
            ("bert", "layer_norm_eps", float("inf")),
        ),
    ],
)
def test_numbers_that_make_no_model_are_named(family, key, number):
    refused(
        lambda: config_of(family, **{key: number}),
        f"config.json: {key} is {str(number)[:20]}, expected",
    )


@pytest.mark.parametrize(
    ("group", "value", "key"),
    [
        ("rope_parameters", {"rope_type": "default", "rope_theta": float("nan")}, "rope_theta"),
        ("rope_scaling", {"type": "linear", "factor": -2.0}, "factor"),
        (
            "rope_parameters",
            {"full_attention": {"rope_type": "default", "rope_theta": -5.0}},
            "rope_theta",
        ),
    ],
)
def test_rotary_numbers_in_groups_are_named(group, value, key):
    refused(
        lambda: config_of("llama", **{group: value}),
        f"config.json: {key} is ",
        "expected a positive number",
    )


# float64


def rounded(tensor):
    """Whether a tensor is float32 and holds more than positions, or BLOOM's slopes of four heads
    times them, which are multiples of 1/1024 and exact in it.
    """
    steps = 1024 * tensor.double()
    return tensor.dtype == torch.float32 and not torch.equal(steps, steps.round())


class Float32Results(TorchDispatchMode):
    """Records the operations that yield rounded float32 tensors."""

    def __init__(self):
        super().__init__()
        self.operations = []
        self.recording = True

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        tensors = [
            value
            for value in (result if isinstance(result, tuple | list) else (result,))
            if isinstance(value, torch.Tensor)
        ]
        if self.recording and any(rounded(tensor) for tensor in tensors):
            self.operations.append(str(func))
        return result

    @contextmanager
    def paused(self):
        self.recording = False
        yield
        self.recording = True


def float32_operations(model, family, monkeypatch):
    """The operations of one float64 forward pass that yield float32. T5's position buckets are
    integers and may.
    """
    recorder = Float32Results()
    buckets = T5Attention._relative_position_bucket

    def unrecorded(*args, **kwargs):
        with recorder.paused():
            return buckets(*args, **kwargs)

    monkeypatch.setattr(T5Attention, "_relative_position_bucket", staticmethod(unrecorded))
    with recorder:
        output = first_output(model, family, torch.float64)
    assert output.dtype == torch.float64
    return recorder.operations


def put_back(monkeypatch):
    """For the rest of a test, the functions of transformers that float64 models had replaced."""
    for module in list(sys.modules.values()):
        if getattr(module, "__name__", "").startswith("transformers.models."):
            for name, value in list(vars(module).items()):
                if "exact_from" in getattr(value, "__dict__", {}):
                    monkeypatch.setattr(module, name, value.exact_from)


@pytest.mark.parametrize("family", CONFIGS)
def test_no_operation_of_a_float64_forward_pass_rounds_to_float32(tmp_path, monkeypatch, family):
    original = saved(tmp_path, family)
    model = build_model(open_checkpoint(tmp_path), "float64")
    assert {
        tensor.dtype
        for tensor in (*model.parameters(), *model.buffers())
        if tensor.is_floating_point()
    } == {torch.float64}
    assert float32_operations(model, family, monkeypatch) == []
    put_back(monkeypatch)
    stock = first_output(_eager(original).double(), family, torch.float64)
    monkeypatch.undo()
    deviation = (first_output(model, family, torch.float64) - stock).norm() / stock.norm()
    assert deviation < 1e-5  # the same mathematics
    # and only where transformers rounds is there a difference
    assert (deviation > 0) == (family in CAST)


@pytest.mark.parametrize("family", CAST)
def test_the_recorder_sees_the_rounding_of_transformers(tmp_path, monkeypatch, family):
    saved(tmp_path, family)
    put_back(monkeypatch)
    monkeypatch.setattr(building, "exact_float64", lambda model: None)
    model = build_model(open_checkpoint(tmp_path), "float64")
    assert float32_operations(model, family, monkeypatch)


@pytest.mark.parametrize(
    ("family", "module"),
    [
        ("llama", "model.norm"),
        ("t5", "decoder.final_layer_norm"),
        ("gemma", "model.norm"),
        ("qwen3", "model.norm"),
    ],
)
def test_rms_norms_normalise_to_float64_accuracy(tmp_path, family, module):
    model = saved(tmp_path, family)
    norm = build_model(open_checkpoint(tmp_path), "float64").get_submodule(module)
    nn.init.constant_(norm.weight, 0.0 if family == "gemma" else 1.0)
    hidden = 1e6 * torch.randn(
        50, 32, dtype=torch.float64, generator=torch.Generator().manual_seed(0)
    )
    assert ((norm(hidden) ** 2).mean(-1) - 1).abs().max() < 1e-14
    stock = copy.deepcopy(model.double().get_submodule(module))
    stock.weight.data = norm.weight
    assert ((stock(hidden) ** 2).mean(-1) - 1).abs().max() > 1e-10


def test_rotary_frequencies_are_computed_in_float64(tmp_path):
    saved(tmp_path, "llama")
    checkpoint = open_checkpoint(tmp_path)
    exact = 10000.0 ** (-torch.arange(0, 8, 2, dtype=torch.float64) / 8)
    model = build_model(checkpoint, "float64").model.rotary_emb
    assert (model.inv_freq / exact - 1).abs().max() < 1e-15
    cosines, _ = model(torch.zeros(1, 9, 32, dtype=torch.float64), torch.arange(9)[None])
    assert (cosines[0, :, :4] - (torch.arange(9)[:, None] * exact).cos()).abs().max() < 1e-14
    single = build_model(checkpoint, "float32").model.rotary_emb.inv_freq
    assert single.dtype == torch.float32
    assert 0 < (single / exact - 1).abs().max() < 1e-6


def test_resampled_image_positions_are_float64(tmp_path, monkeypatch):
    saved(tmp_path, "dinov2")
    model = build_model(open_checkpoint(tmp_path), "float64")
    monkeypatch.setitem(
        globals(),
        "inputs",
        lambda family, dtype: {"pixel_values": torch.ones(1, 3, 24, 24, dtype=dtype)},
    )
    assert float32_operations(model, "dinov2", monkeypatch) == []


def test_a_hook_in_a_float64_forward_pass_may_still_ask_for_float32(tmp_path):
    saved(tmp_path, "llama")
    model = build_model(open_checkpoint(tmp_path), "float64")
    seen = []
    for name in (
        "model.norm",
        "model.layers.0",
        "model.layers.0.self_attn.o_proj",
        "model.layers.1.input_layernorm",
    ):
        model.get_submodule(name).register_forward_hook(
            lambda module, args, output: seen.append(args[0].float().dtype)
        )
    first_output(model, "llama", torch.float64)
    assert seen == [torch.float32] * 4


# Strictness


def altered(folder, change):
    """Rewrite a saved checkpoint's tensors through `change` and open it."""
    path = folder / "model.safetensors"
    tensors = load_file(path)
    save_file(change({name: tensor.clone() for name, tensor in tensors.items()}), path)
    return open_checkpoint(folder)


def replaced(tensors, name, value):
    return {**tensors, name: value}


def without(tensors, name):
    return {key: tensor for key, tensor in tensors.items() if key != name}


NORM = "model.layers.1.input_layernorm.weight"
FAULTS = {
    "missing": (lambda tensors: without(tensors, NORM), (NORM, "missing", "1 in all")),
    "two missing": (
        lambda tensors: without(without(tensors, NORM), "model.norm.weight"),
        (NORM, "2 in all"),
    ),
    "extra": (
        lambda tensors: replaced(tensors, "model.layers.2.mlp.up_proj.weight", torch.ones(2)),
        ("model.layers.2.mlp.up_proj.weight", "no place"),
    ),
    "shape": (
        lambda tensors: replaced(tensors, NORM, torch.ones(31)),
        (NORM, "shape [31]", "asks for [32]"),
    ),
    "rank": (lambda tensors: replaced(tensors, NORM, torch.ones(1, 32)), (NORM, "shape [1, 32]")),
    "nan": (
        lambda tensors: replaced(tensors, NORM, torch.full((32,), math.nan)),
        (NORM, "32 values", "NaN or infinite"),
    ),
    "infinite": (
        lambda tensors: replaced(tensors, NORM, torch.tensor([math.inf] + [1.0] * 31)),
        (NORM, "1 values"),
    ),
    "integers": (
        lambda tensors: replaced(tensors, NORM, torch.ones(32, dtype=torch.int8)),
        (NORM, "stored as I8"),
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_faulty_tensors_are_refused_by_name(tmp_path, fault):
    change, words = FAULTS[fault]
    saved(tmp_path, "llama")
    refused(lambda: build_model(altered(tmp_path, change), "float32"), "model.safetensors", *words)


def test_a_tied_tensor_may_be_stored_twice_or_under_the_other_name(tmp_path):
    original = saved(tmp_path, "llama")
    embedding = original.model.embed_tokens.weight
    twice = altered(
        tmp_path, lambda tensors: replaced(tensors, "lm_head.weight", embedding.clone())
    )
    other = altered(tmp_path, lambda tensors: without(tensors, "model.embed_tokens.weight"))
    for checkpoint in (twice, other):
        model = build_model(checkpoint, "float32")
        assert torch.equal(model.lm_head.weight, embedding)
        assert model.lm_head.weight is model.model.embed_tokens.weight


@pytest.mark.parametrize(
    ("family", "name"),
    [
        ("gpt2", "transformer.h.0.attn.bias"),
        ("gpt2", "transformer.h.1.attn.masked_bias"),
        ("gpt_neox", "gpt_neox.layers.0.attention.bias"),
        ("gpt_neox", "gpt_neox.layers.0.attention.rotary_emb.inv_freq"),
        ("bert", "bert.embeddings.position_ids"),
        ("llama", "model.layers.0.self_attn.rotary_emb.inv_freq"),
        ("t5", "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight"),
    ],
)
def test_superfluous_tensors_are_left_out(tmp_path, family, name):
    saved(tmp_path, family)
    checkpoint = altered(tmp_path, lambda tensors: replaced(tensors, name, torch.arange(4)))
    assert name not in checkpoint.tensors
    assert str(checkpoint.unused[name].reason) == "computed by the class itself"
    build_model(checkpoint, "float32")
    refused(
        lambda: altered(tmp_path, lambda tensors: replaced(tensors, f"{name}s", torch.ones(4))),
        f"{name}s",
        "no place",
    )


def test_values_beyond_the_forward_dtype_are_not_called_infinite(tmp_path):
    saved(tmp_path, "llama")
    for stored, forward, dtype in (
        (torch.bfloat16, "float16", "torch.float16"),
        (torch.float64, "bfloat16", "torch.bfloat16"),
    ):
        value = torch.ones(32, dtype=stored)
        value[:2] = {"float16": 1e5, "bfloat16": 1e300}[forward]
        checkpoint = altered(tmp_path, lambda tensors, value=value: replaced(tensors, NORM, value))
        refused(
            lambda c=checkpoint, f=forward: build_model(c, f),
            NORM,
            "2 values beyond",
            dtype,
            "choose another forward dtype",
        )
        build_model(checkpoint, "float64")


@pytest.mark.parametrize(
    "name", ["model.safetensors", "pytorch_model.bin", "config.json", "tokenizer.json"]
)
def test_a_git_lfs_pointer_is_called_one(tmp_path, name):
    saved(tmp_path, "llama")
    if name == "pytorch_model.bin":
        (tmp_path / "model.safetensors").unlink()
    pointer = f"version https://git-lfs.github.com/spec/v1\noid sha256:{'0' * 64}\nsize 13\n"
    (tmp_path / name).write_text(pointer)
    refused(lambda: open_checkpoint(tmp_path), name, "a git-lfs pointer", "git lfs pull")
    if name == "tokenizer.json":
        refused(lambda: load_tokenizer(tmp_path), name, "a git-lfs pointer")


def test_unknown_forward_dtype(tmp_path):
    saved(tmp_path, "gpt2")
    refused(lambda: build_model(open_checkpoint(tmp_path), "float8"), "'float8'", "float64")


def test_half_precision_forward(tmp_path):
    saved(tmp_path, "llama")
    assert (
        first_output(
            build_model(open_checkpoint(tmp_path), "bfloat16"), "llama", torch.bfloat16
        ).dtype
        == torch.bfloat16
    )


# Names


def test_base_model_names_open_in_the_head_class_and_back(tmp_path):
    original = saved(tmp_path, "gpt2")
    checkpoint = altered(
        tmp_path,
        lambda tensors: {
            name.removeprefix("transformer."): tensor for name, tensor in tensors.items()
        },
    )
    assert torch.equal(
        build_model(checkpoint, "float32").transformer.wte.weight, original.transformer.wte.weight
    )
    base = altered(
        tmp_path,
        lambda tensors: {f"transformer.{name}": tensor for name, tensor in tensors.items()},
    )
    reopened = open_checkpoint(tmp_path, {"architectures": ["GPT2Model"]})
    assert set(reopened.tensors) == {name.removeprefix("transformer.") for name in base.tensors}
    build_model(reopened, "float32")


def test_head_tensors_are_not_dropped_silently(tmp_path, capsys):
    original = saved(tmp_path, "bert")
    checkpoint = open_checkpoint(tmp_path, {"architectures": ["BertModel"]})
    heads = {
        name: tensor for name, tensor in original.state_dict().items() if name.startswith("cls.")
    }
    # those are tied
    stored = {name for name in heads if not name.startswith("cls.predictions.decoder")}
    assert checkpoint.unused.keys() == stored
    assert all(torch.equal(checkpoint.unused[name].tensor, heads[name]) for name in stored)
    said = capsys.readouterr().err
    assert "opened as BertModel, which does not use cls.predictions.bias" in said
    assert torch.equal(
        build_model(checkpoint, "float32").pooler.dense.weight, original.bert.pooler.dense.weight
    )


def test_legacy_norm_names(tmp_path):
    original = saved(tmp_path, "bert")

    def legacy(name):
        return name.replace("LayerNorm.weight", "LayerNorm.gamma").replace(
            "LayerNorm.bias", "LayerNorm.beta"
        )

    tensors = {legacy(name): tensor for name, tensor in original.state_dict().items()}
    (tmp_path / "model.safetensors").unlink()
    torch.save(tensors, tmp_path / "pytorch_model.bin")
    assert "bert.embeddings.LayerNorm.gamma" in tensors
    model = build_model(open_checkpoint(tmp_path), "float32")
    assert torch.equal(
        model.bert.embeddings.LayerNorm.weight, original.bert.embeddings.LayerNorm.weight
    )


def test_two_names_for_one_tensor(tmp_path):
    saved(tmp_path, "gpt2")
    refused(
        lambda: altered(
            tmp_path, lambda tensors: replaced(tensors, "wte.weight", torch.ones(50, 32))
        ),
        "wte.weight",
        "both stand for transformer.wte",
    )


# Folders and configs


def test_safetensors_come_before_other_files(tmp_path):
    original = saved(tmp_path, "gpt2")
    (tmp_path / "pytorch_model.bin").write_bytes(b"not read")
    (tmp_path / "model.bin").write_bytes(b"not read")
    checkpoint = open_checkpoint(tmp_path)
    assert [path.name for path in checkpoint.files] == ["model.safetensors"]
    assert torch.equal(
        checkpoint.tensors["transformer.wpe.weight"], original.transformer.wpe.weight
    )


def test_sharded_folder(tmp_path):
    original = random_model("llama")
    original.save_pretrained(tmp_path, max_shard_size="20KB")
    checkpoint = open_checkpoint(tmp_path)
    assert len(checkpoint.files) > 1
    assert torch.equal(
        build_model(checkpoint, "float32").model.norm.weight, original.model.norm.weight
    )
    checkpoint.files[0].unlink()
    refused(lambda: open_checkpoint(tmp_path), checkpoint.files[0].name, "shard missing")


def test_folder_without_weights(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    refused(lambda: open_checkpoint(tmp_path), "no weights", "model.safetensors")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, "missing"),
        ("{", "not valid JSON"),
        ("[" * 100_000, "not valid JSON"),
        ("[]", "JSON object"),
        ("{}", "model_type None is unknown"),
        ('{"model_type": ["gpt2"]}', "model_type ['gpt2'] is unknown"),
        (
            '{"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "text_config": {"a": 1}}',
            "GPT2LMHeadModel refuses these settings",
        ),
    ],
)
def test_faulty_config_files(tmp_path, text, words):
    saved(tmp_path, "gpt2")
    (tmp_path / "config.json").unlink()
    if text is not None:
        (tmp_path / "config.json").write_text(text)
    refused(lambda: open_checkpoint(tmp_path), "config.json", words)


def test_config_overrides_and_default_architecture(tmp_path):
    model = random_model("bert", architectures=["BertModel"])
    model.save_pretrained(tmp_path)
    keys = json.loads((tmp_path / "config.json").read_text())
    del keys["architectures"], keys["model_type"]
    (tmp_path / "config.json").write_text(json.dumps(keys))
    checkpoint = open_checkpoint(tmp_path, {"model_type": "bert"})
    assert checkpoint.config.architectures == ["BertModel"]
    assert type(build_model(checkpoint, "float32")).__name__ == "BertModel"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model_type": "mamba"}, ("'mamba' is unknown", "gpt2, gpt_neox", "sceptr")),
        ({"model_type": "sceptr"}, ("'sceptr' is unknown",)),
        ({"quantization_config": {"quant_method": "gptq"}}, ("quantization_config",)),
        ({"hidden_size": "wide"}, ("refuses these values for llama",)),
    ],
)
def test_faulty_configs(changes, words):
    refused(
        lambda: (
            config_of("llama", **changes) if "model_type" not in changes else parse_config(changes)
        ),
        *words,
    )


@pytest.mark.parametrize("architecture", ["BertModel", "NoSuchModel", "AutoModel", "LlamaConfig"])
def test_the_body_decides_where_the_class_is_not_one_of_its_family(tmp_path, capsys, architecture):
    original = saved(tmp_path, "llama", tie_word_embeddings=False)
    checkpoint = open_checkpoint(tmp_path, {"architectures": [architecture]})
    assert checkpoint.config.architectures == ["LlamaForCausalLM"]
    assert torch.equal(build_model(checkpoint, "float32").lm_head.weight, original.lm_head.weight)
    assert (
        f"architectures names {architecture}, which is not a described llama class"
        in capsys.readouterr().err
    )
    # no tensor speaks for a readout that is the embeddings
    saved(tmp_path, "llama", tie_word_embeddings=True)
    assert open_checkpoint(tmp_path, {"architectures": [architecture]}).config.architectures == [
        "LlamaModel"
    ]


# Twins


def test_twins_are_the_class_s_own_initialisation_and_reproducible():
    config = config_of("llama")
    state = torch.random.get_rng_state()
    twin = reinitialise(config, 42, "float32").state_dict()
    assert torch.equal(torch.random.get_rng_state(), state)
    torch.manual_seed(42)
    expected = transformers.LlamaForCausalLM(config_of("llama")).state_dict()
    again, other = (
        reinitialise(config, 42, "float32").state_dict(),
        reinitialise(config, 43, "float32").state_dict(),
    )
    double = reinitialise(config, 42, "float64")
    for name, tensor in expected.items():
        assert torch.equal(twin[name], tensor), name
        assert again[name].numpy().tobytes() == tensor.numpy().tobytes()
        assert torch.equal(double.state_dict()[name], tensor.double())
    assert not torch.equal(other["model.embed_tokens.weight"], twin["model.embed_tokens.weight"])
    assert double.lm_head.weight is double.model.embed_tokens.weight
    exact = 10000.0 ** (-torch.arange(0, 8, 2, dtype=torch.float64) / 8)
    assert (double.model.rotary_emb.inv_freq / exact - 1).abs().max() < 1e-15


# SCEPTR


def sceptr_keys(
    embedder="CdrSimpleEmbedder", stack="SelfAttentionStackWithInitialProjection", **sizes
):
    arguments = {"num_layers": 2, "d_model": 16, "nhead": 4, **sizes}
    return {
        "model": {
            "token_embedder": {"class": embedder},
            "self_attention_stack": {"class": stack, "initargs": arguments},
        }
    }


def receptors(compartments=6):
    long = [
        [2, 0, 0, 0],
        *[[3 + i, i + 1, 6, 1] for i in range(6)],
        *[[12 + i, i + 1, 4, compartments] for i in range(4)],
    ]
    short = [[2, 0, 0, 0], [7, 1, 1, 2]]
    return torch.tensor([long, short + [[0, 0, 0, 0]] * (len(long) - len(short))])


@pytest.mark.parametrize("forward_dtype", ["float32", "float64"])
def test_sceptr_equals_torch_s_encoder(forward_dtype):
    config = parse_config(sceptr_keys())
    model = reinitialise(config, 3, forward_dtype)
    dtype = getattr(torch, forward_dtype)
    layer = nn.TransformerEncoderLayer(16, 4, 64, batch_first=True, dtype=dtype)
    reference = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()
    reference.load_state_dict(
        model._self_attention_stack._standard_stack._self_attention_stack.state_dict()
    )
    hidden = torch.randn(2, 11, 16, dtype=dtype, generator=torch.Generator().manual_seed(0))
    padding = receptors()[..., 0] == 0
    ours = model._self_attention_stack._standard_stack(hidden, padding)
    theirs = reference(hidden, src_key_padding_mask=padding)
    bound = {"float32": 1e-5, "float64": 1e-13}[forward_dtype]
    assert (ours - theirs)[~padding].abs().max() < bound
    # padding matters
    assert (ours - model._self_attention_stack._standard_stack(hidden, torch.zeros_like(padding)))[
        1
    ].abs().max() > 1e-3


def test_sceptr_s_maps_are_visible_to_hooks():
    model = reinitialise(parse_config(sceptr_keys()), 3, "float64")
    layer = model.get_submodule(
        "_self_attention_stack._standard_stack._self_attention_stack.layers.0"
    )
    seen = {}
    for name in ("self_attn", "self_attn.out_proj", "linear1", "linear2", "norm1"):
        layer.get_submodule(name).register_forward_hook(
            lambda module, args, output, name=name: seen.update({name: (args[0], output)})
        )
    stream = []
    layer.register_forward_hook(lambda module, args, output: stream.extend((args[0], output)))
    model(input_ids=receptors())
    before, after = stream
    attention = layer.self_attn
    assert torch.equal(seen["self_attn"][0], before)
    assert torch.equal(attention.out_proj(seen["self_attn.out_proj"][0]), seen["self_attn"][1])
    assert torch.equal(layer.norm1(before + seen["self_attn"][1]), seen["linear1"][0])
    assert torch.equal(layer.norm2(seen["norm1"][1] + seen["linear2"][1]), after)


def test_sceptr_embeds_its_columns():
    model = reinitialise(parse_config(sceptr_keys()), 3, "float64")
    embedded = model._token_embedder(receptors())
    assert embedded.shape == (2, 11, 29)
    assert embedded[1, 2:].eq(0).all()  # padding
    opening, single, middle = embedded[0, 0], embedded[1, 1], embedded[0, 3]
    assert opening.nonzero().flatten().tolist() == [1]  # token 2, no position, no compartment
    assert (single[6], single[22], single[24]) == (1, 0.5, 1)  # token 7, alone, compartment 2
    # token 5, third of six, compartment 1
    assert (middle[4], middle[22], middle[23]) == (1, 0.4, 1)
    positions = _relative_position(torch.arange(7), torch.tensor([0] + [6] * 6))
    assert torch.allclose(
        positions, torch.tensor([0, 0, 0.2, 0.4, 0.6, 0.8, 1]).double(), atol=1e-15
    )


@pytest.mark.parametrize("embedder", EMBEDDERS)
def test_sceptr_variants_round_trip(tmp_path, embedder):
    stack = (
        "SelfAttentionStackWithBuiltins"
        if embedder == "CdrEmbedder"
        else "SelfAttentionStackWithInitialProjection"
    )
    keys = sceptr_keys(embedder, stack)
    original = Sceptr(SceptrConfig.from_stored(keys)).eval()
    for name, buffer in original.named_buffers():
        if "blosum" in name:
            buffer.copy_(torch.randn(buffer.shape))
    torch.save(original.state_dict(), tmp_path / "state_dict.pt")
    (tmp_path / "config.json").write_text(json.dumps(keys))
    checkpoint = open_checkpoint(tmp_path)
    ids = receptors(checkpoint.config.compartments)
    assert torch.equal(
        build_model(checkpoint, "float32")(input_ids=ids).logits, original(input_ids=ids).logits
    )
    config = checkpoint.config.to_dict()
    assert (
        config["model_type"],
        config["architectures"],
        config["hidden_size"],
        config["intermediate_size"],
    ) == (
        "sceptr",
        ["Sceptr"],
        16,
        64,
    )
    twin = reinitialise(checkpoint, 42, "float64")
    assert torch.equal(
        twin(input_ids=ids).logits, reinitialise(checkpoint, 42, "float64")(input_ids=ids).logits
    )
    anatomy = describe(checkpoint.config)
    assert {tensor.name: tensor.shape for tensor in anatomy.tensors} == {
        name: tuple(tensor.shape) for name, tensor in checkpoint.tensors.items()
    }
    assert all(original.get_submodule(site.module) for site in anatomy.sites)
    learned = {name for name, _ in original.named_parameters()}
    assert all(
        torch.equal(tensor.float(), checkpoint.tensors[name])
        for name, tensor in twin.state_dict().items()
        if name not in learned
    )


def test_a_blosum_twin_needs_the_checkpoint_s_matrix():
    refused(
        lambda: reinitialise(parse_config(sceptr_keys("CdrBlosumEmbedder")), 42, "float32"),
        "_blosum_embeddings",
        "NaN",
    )


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        (sceptr_keys("NewEmbedder"), ("NewEmbedder", "CdrSimpleEmbedder")),
        (sceptr_keys("CdrEmbedder"), ("CdrEmbedder with SelfAttentionStackWithInitialProjection",)),
        (sceptr_keys(nhead=5), ("5 heads",)),
        (sceptr_keys(num_layers=0), ("0 layers",)),
        ({"model": {"token_embedder": {}}}, ("not a SCEPTR config",)),
        (
            {"model": {"token_embedder": {"class": "CdrEmbedder"}, "self_attention_stack": 3}},
            ("not a SCEPTR config",),
        ),
    ],
)
def test_faulty_sceptr_configs(keys, words):
    refused(lambda: parse_config(keys), *words)


def test_checkpoint_is_immutable(tmp_path):
    saved(tmp_path, "gpt2")
    checkpoint = open_checkpoint(tmp_path)
    assert isinstance(checkpoint, Checkpoint)
    with pytest.raises(AttributeError):
        checkpoint.config = None
