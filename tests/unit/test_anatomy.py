"""Every family's anatomy against the real transformers class, at sizes that take milliseconds.

The decisive test moves each space by a random element of its group, reading nothing but the axes of
the table, and asks that the model's outputs do not change: a tensor that is missing from the table,
or has a wrong role, axis or segment, changes them.
"""

from __future__ import annotations

import dataclasses
import itertools
from types import SimpleNamespace

import pytest
import torch
import transformers
from torch.func import functional_call
from transformers.activations import ACT2FN

from normgauge.anatomy import FAMILIES, describe
from normgauge.anatomy.lookup import rows_of
from normgauge.anatomy.structure import (
    Anatomy,
    Axis,
    NormKind,
    Placement,
    Positions,
    Role,
    SpaceKind,
)
from normgauge.checkpoints.architectures import new_model
from normgauge.checkpoints.architectures.float64 import exact_float64
from normgauge.errors import InputError
from unit.tiny_sceptr import VARIANTS, TinySceptr

TEXT = {
    "hidden_size": 12,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 20,
    "vocab_size": 17,
    "pad_token_id": 0,
}
ENCODER = TEXT | {"max_position_embeddings": 14, "num_labels": 3}
GATED = TEXT | {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 6, "num_labels": 3}
VISION = {
    "hidden_size": 12,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "image_size": 8,
    "patch_size": 4,
    "num_labels": 3,
}
GPT2 = {
    "n_embd": 12,
    "n_layer": 2,
    "n_head": 2,
    "vocab_size": 17,
    "n_positions": 14,
    "pad_token_id": 0,
    "num_labels": 3,
}
WHISPER = {
    "d_model": 12,
    "encoder_layers": 2,
    "decoder_layers": 3,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 3,
    "encoder_ffn_dim": 20,
    "decoder_ffn_dim": 16,
    "vocab_size": 17,
    "num_mel_bins": 5,
    "max_source_positions": 6,
    "max_target_positions": 14,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 1,
}
T5 = {
    "d_model": 12,
    "d_kv": 5,
    "d_ff": 20,
    "num_layers": 2,
    "num_decoder_layers": 3,
    "num_heads": 2,
    "vocab_size": 17,
    "relative_attention_num_buckets": 8,
}
BERT_HEADS = (
    "Model",
    "ForMaskedLM",
    "ForPreTraining",
    "ForNextSentencePrediction",
    "ForSequenceClassification",
)
BERT_HEADS += ("ForMultipleChoice", "ForTokenClassification", "ForQuestionAnswering")
DISTILBERT = {
    "dim": 12,
    "n_layers": 2,
    "n_heads": 2,
    "hidden_dim": 20,
    "vocab_size": 17,
    "pad_token_id": 0,
}
DISTILBERT |= {"max_position_embeddings": 14, "num_labels": 3}
ALBERT = ENCODER | {"embedding_size": 8, "num_hidden_layers": 4}
CAUSAL = ("Model", "ForCausalLM", "ForSequenceClassification")
PICTURES = (
    "vit",
    "dinov2",
    "dinov3",
    "siglip",
    "clip-vision",
)  # what the names of image cases begin with

PARTLY = GATED | {  # four of six coordinates of each head turn
    "hidden_size": 24,
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 10000.0,
        "partial_rotary_factor": 0.67,
    },
}
ONE = {"num_hidden_layers": 1}
FALCON = TEXT | ONE | {"hidden_size": 24, "num_attention_heads": 4, "ffn_hidden_size": 20}
FALCON |= {"num_labels": 3}
MODERN = ENCODER | {  # a block that sees two positions beside its own, after one that sees all
    "local_attention": 4,
    "layer_types": ["full_attention", "sliding_attention"],
    **{f"{name}_token_id": number for number, name in enumerate(("bos", "eos", "cls", "sep"), 1)},
}
DEBERTA = (
    ENCODER
    | ONE
    | {
        "relative_attention": True,
        "share_att_key": True,
        "norm_rel_ebd": "layer_norm",
        "pos_att_type": "p2c|c2p",
        "position_biased_input": False,
        "max_relative_positions": 5,
    }
)
GPTJ = {
    "n_embd": 24,
    "n_layer": 1,
    "n_head": 4,
    "n_inner": 20,
    "rotary_dim": 4,  # of six
    "vocab_size": 17,
    "n_positions": 14,
    "pad_token_id": 0,
    "num_labels": 3,
}
OPT = {
    "hidden_size": 12,
    "word_embed_proj_dim": 12,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "ffn_dim": 20,
    "vocab_size": 17,
    "max_position_embeddings": 14,
    "pad_token_id": 0,
    "num_labels": 3,
}
CLIP_TEXT = TEXT | {
    "num_hidden_layers": 1,
    "max_position_embeddings": 14,
    "projection_dim": 7,
    "eos_token_id": 2,  # the end is where the largest id stands
}
TOWER = ("Model", "ModelWithProjection")
ENCODERS = (
    "bert",
    "deberta",
    "roberta",
    "distilbert",
    "electra",
    "modernbert",
    "sceptr",
    *PICTURES,
)
SHALLOW = (
    "deberta",
    "modernbert-biased",
    "phi3",
    "gptj",
    "opt",
    "clip",
    "granite",
    "cohere",
    "falcon",
    "bloom",
)  # what the names of cases with one block begin with
LINEAR = {
    "layer_types": ["linear_attention", "full_attention"],
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 3,
    "linear_value_head_dim": 5,
}

# id: (config class, its arguments, stem of the class names, their endings)
CASES = {
    "gpt2": (
        "GPT2Config",
        GPT2,
        "GPT2",
        ("Model", "LMHeadModel", "ForSequenceClassification", "ForTokenClassification"),
    ),
    "gpt2-untied": (
        "GPT2Config",
        GPT2 | {"n_inner": 20, "tie_word_embeddings": False},
        "GPT2",
        ("LMHeadModel",),
    ),
    "gpt_neox": ("GPTNeoXConfig", TEXT, "GPTNeoX", (*CAUSAL, "ForTokenClassification")),
    "gpt_neox-sequential": (
        "GPTNeoXConfig",
        TEXT | {"use_parallel_residual": False, "attention_bias": False},
        "GPTNeoX",
        ("ForCausalLM",),
    ),
    "bert": ("BertConfig", ENCODER, "Bert", BERT_HEADS),
    "bert-untied": (
        "BertConfig",
        ENCODER | {"tie_word_embeddings": False},
        "Bert",
        ("ForMaskedLM",),
    ),
    "roberta": (
        "RobertaConfig",
        ENCODER | {"pad_token_id": 1},
        "Roberta",
        tuple(set(BERT_HEADS) - set(BERT_HEADS[2:4])),
    ),
    "albert": (
        "AlbertConfig",
        ALBERT,
        "Albert",
        tuple(set(BERT_HEADS) - {"ForNextSentencePrediction"}),
    ),
    "albert-untied": (
        "AlbertConfig",
        ALBERT | {"tie_word_embeddings": False},
        "Albert",
        ("ForMaskedLM",),
    ),
    "albert-groups": (
        "AlbertConfig",
        ALBERT | {"num_hidden_groups": 2, "inner_group_num": 2},
        "Albert",
        ("ForMaskedLM",),
    ),
    "distilbert": (
        "DistilBertConfig",
        DISTILBERT,
        "DistilBert",
        tuple(set(BERT_HEADS) - set(BERT_HEADS[2:4])),
    ),
    "distilbert-untied": (
        "DistilBertConfig",
        DISTILBERT | {"tie_word_embeddings": False},
        "DistilBert",
        ("ForMaskedLM",),
    ),
    "electra": (
        "ElectraConfig",
        ENCODER | {"embedding_size": 8},
        "Electra",
        ("Model", "ForMaskedLM", "ForPreTraining", *BERT_HEADS[4:5], *BERT_HEADS[6:]),
    ),
    "electra-wide": (
        "ElectraConfig",
        ENCODER | {"embedding_size": 12},
        "Electra",
        ("ForMaskedLM",),
    ),
    "electra-untied": (
        "ElectraConfig",
        ENCODER | {"embedding_size": 8, "tie_word_embeddings": False},
        "Electra",
        ("ForMaskedLM",),
    ),
    "vit": (
        "ViTConfig",
        VISION | {"intermediate_size": 20},
        "ViT",
        ("Model", "ForImageClassification"),
    ),
    "vit-odd": (
        "ViTConfig",
        VISION
        | {
            "intermediate_size": 20,
            "qkv_bias": False,
            "image_size": [8, 12],
            "patch_size": [2, 4],
            "pooler_output_size": 5,
        },
        "ViT",
        ("Model",),
    ),
    "dinov2": (
        "Dinov2Config",
        VISION | {"mlp_ratio": 2},
        "Dinov2",
        ("Model", "ForImageClassification"),
    ),
    "dinov2-gated": (
        "Dinov2Config",
        VISION | {"mlp_ratio": 2, "use_swiglu_ffn": True, "use_mask_token": False},
        "Dinov2",
        ("Model",),
    ),
    "vit_mae": ("ViTMAEConfig", VISION | {"intermediate_size": 20}, "ViTMAE", ("Model",)),
    "dinov3": (
        "DINOv3ViTConfig",
        VISION | {"hidden_size": 16, "num_register_tokens": 2, "intermediate_size": 20},
        "DINOv3ViT",
        ("Model",),
    ),
    "dinov3-gated": (
        "DINOv3ViTConfig",
        VISION
        | {"hidden_size": 16, "intermediate_size": 20, "use_gated_mlp": True, "key_bias": True},
        "DINOv3ViT",
        ("Model",),
    ),
    "siglip": (
        "SiglipVisionConfig",
        VISION | {"intermediate_size": 20, "vision_use_head": False},
        "SiglipVision",
        ("Model",),
    ),
    "whisper": ("WhisperConfig", WHISPER, "Whisper", ("Model", "ForConditionalGeneration")),
    "t5": ("T5Config", T5, "T5", ("Model", "ForConditionalGeneration", "EncoderModel")),
    "t5-gated": (
        "T5Config",
        T5 | {"feed_forward_proj": "gated-gelu"},
        "T5",
        ("ForConditionalGeneration",),
    ),
    "t5-untied": (
        "T5Config",
        T5 | {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False},
        "T5",
        ("ForConditionalGeneration",),
    ),
    "llama": ("LlamaConfig", GATED, "Llama", CAUSAL),
    "llama-biased": (
        "LlamaConfig",
        GATED | {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True},
        "Llama",
        ("ForCausalLM",),
    ),
    "mistral": ("MistralConfig", GATED, "Mistral", CAUSAL),
    "qwen2": ("Qwen2Config", GATED, "Qwen2", CAUSAL),
    "qwen3": ("Qwen3Config", GATED, "Qwen3", CAUSAL),
    "gemma": ("GemmaConfig", GATED, "Gemma", CAUSAL),
    "gemma2": ("Gemma2Config", GATED, "Gemma2", CAUSAL),
    "stablelm": ("StableLmConfig", PARTLY, "StableLm", CAUSAL),
    "stablelm-parallel": (
        "StableLmConfig",
        PARTLY | {"use_parallel_residual": True, "use_qkv_bias": True},
        "StableLm",
        ("ForCausalLM",),
    ),
    "phi": ("PhiConfig", PARTLY, "Phi", CAUSAL),
    "phi3": ("Phi3Config", GATED | ONE, "Phi3", CAUSAL),
    "deberta": (
        "DebertaV2Config",
        DEBERTA,
        "DebertaV2",
        ("Model", "ForMaskedLM", "ForSequenceClassification", "ForTokenClassification"),
    ),
    "modernbert": (
        "ModernBertConfig",
        MODERN,
        "ModernBert",
        ("Model", "ForMaskedLM", "ForSequenceClassification", "ForTokenClassification"),
    ),
    "modernbert-biased": (
        "ModernBertConfig",
        MODERN
        | ONE
        | {
            "layer_types": ["full_attention"],
            "norm_bias": True,
            "attention_bias": True,
            "mlp_bias": True,
            "tie_word_embeddings": False,
        },
        "ModernBert",
        ("ForMaskedLM",),
    ),
    "granite": (
        "GraniteConfig",
        GATED | ONE | {"residual_multiplier": 0.3, "embedding_multiplier": 3.0},
        "Granite",
        CAUSAL[:2],
    ),
    "smollm3": (
        "SmolLM3Config",
        GATED | {"no_rope_layers": [1, 0]},
        "SmolLM3",
        CAUSAL,
    ),
    "cohere": ("CohereConfig", GATED | ONE | {"logit_scale": 0.5}, "Cohere", CAUSAL[:2]),
    "falcon": ("FalconConfig", FALCON, "Falcon", (*CAUSAL, "ForTokenClassification")),
    "falcon-groups": (
        "FalconConfig",
        FALCON | {"new_decoder_architecture": True, "num_kv_heads": 2},
        "Falcon",
        ("ForCausalLM",),
    ),
    "falcon-alibi": (
        "FalconConfig",
        FALCON | {"alibi": True, "parallel_attn": False, "multi_query": False, "bias": True},
        "Falcon",
        ("ForCausalLM",),
    ),
    "bloom": (
        "BloomConfig",
        {"hidden_size": 12, "n_layer": 1, "n_head": 2, "vocab_size": 17, "num_labels": 3},
        "Bloom",
        (*CAUSAL[:2], "ForTokenClassification"),
    ),
    "gptj": ("GPTJConfig", GPTJ, "GPTJ", CAUSAL),
    "opt": ("OPTConfig", OPT, "OPT", CAUSAL),
    "clip-text": ("CLIPTextConfig", CLIP_TEXT, "CLIPText", TOWER),
    "clip-vision": (
        "CLIPVisionConfig",
        VISION | {"intermediate_size": 20, "projection_dim": 7, "num_hidden_layers": 1},
        "CLIPVision",
        TOWER,
    ),
    "qwen3_5": ("Qwen3_5TextConfig", GATED | LINEAR, "Qwen3_5", ("TextModel", "ForCausalLM")),
    "gemma3": ("Gemma3TextConfig", GATED, "Gemma3", ("TextModel", "ForCausalLM")),
}
SCEPTR = tuple(f"sceptr-{variant}" for variant in VARIANTS)
ALL_CLASSES = [
    (case, stem + ending)
    for case, (_, _, stem, endings) in CASES.items()
    for ending in sorted(endings)
]
ALL_CLASSES += [(case, "Sceptr") for case in SCEPTR]
# another input shape, nothing new
FORWARD = [(case, name) for case, name in ALL_CLASSES if not name.endswith("ForMultipleChoice")]


IN_FLOAT32 = ("cohere", "bloom", "modernbert")  # families that round between their maps too


def make_config(case: str, architecture: str):
    if case in SCEPTR:
        return VARIANTS[case.removeprefix("sceptr-")]
    name, arguments, _, _ = CASES[case]
    if architecture.endswith("ForQuestionAnswering"):
        arguments = arguments | {"num_labels": 2}  # start and end
    return getattr(transformers, name)(
        **arguments, architectures=[architecture], attn_implementation="eager"
    )


def make_model(case: str, architecture: str, anatomy: Anatomy, dtype: torch.dtype):
    """The real class with random parameters, none of them at a value (0 or 1) that could hide a
    mistake.
    """
    torch.manual_seed(1)
    config = make_config(case, architecture)
    model = TinySceptr(config) if case in SCEPTR else new_model(config, torch.float32)
    offsets = {norm.gain: norm.gain_offset for norm in anatomy.norms}
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for name, tensor in model.state_dict().items():
            if name in offsets:
                tensor.copy_(0.5 + torch.rand(tensor.shape, generator=generator) - offsets[name])
            else:
                tensor.copy_(0.5 * torch.randn(tensor.shape, generator=generator))
    return model.eval().to(dtype)


def make_inputs(case: str, architecture: str, dtype: torch.dtype) -> dict:
    generator = torch.Generator().manual_seed(3)
    ids = torch.randint(3, 17, (3, 9), generator=generator)
    if case in SCEPTR:
        return VARIANTS[case.removeprefix("sceptr-")].inputs(generator)
    if case.startswith(PICTURES):
        size = make_config(case, architecture).image_size
        height, width = (size, size) if isinstance(size, int) else size
        return {
            "pixel_values": torch.randn((3, 3, height, width), generator=generator, dtype=dtype)
        }
    if case.startswith("whisper"):
        return {
            "input_features": torch.randn((3, 5, 12), generator=generator, dtype=dtype),
            "decoder_input_ids": ids,
        }
    if case.startswith("t5") and architecture != "T5EncoderModel":
        return {"input_ids": ids, "decoder_input_ids": ids.flip(1)[:, :7]}
    return {"input_ids": ids}


def use_exact_norms(model, anatomy: Anatomy) -> None:
    """RMSNorm modules in transformers work in fp32, and so does Cohere's attention; put the norm
    that the table describes in their place.
    """
    if anatomy.family in IN_FLOAT32:
        exact_float64(model)
        return
    for norm in anatomy.norms:
        if norm.kind == NormKind.RMS_NORM:
            module = model.get_submodule(norm.name)
            module.forward = lambda x, module=module, norm=norm: (
                x
                / torch.sqrt(x.square().mean(-1, keepdim=True) + norm.eps)
                * (norm.gain_offset + module.weight)
            )


@pytest.fixture(scope="module")
def prepared():
    """case, architecture, dtype -> (anatomy, model, inputs), made once."""
    made: dict = {}

    def get(case: str, architecture: str, dtype: torch.dtype = torch.float32):
        key = (case, architecture, dtype)
        if key not in made:
            anatomy = describe(make_config(case, architecture))
            model = make_model(case, architecture, anatomy, dtype)
            if dtype == torch.float64:
                use_exact_norms(model, anatomy)
            made[key] = (anatomy, model, make_inputs(case, architecture, dtype))
        return made[key]

    return get


def first_tensor(value, argument: str, keywords: dict):
    """What a hook sees as its tensor: the first of a tuple, or the keyword where nothing is
    positional.
    """
    if isinstance(value, tuple):
        return value[0] if value else keywords[argument]
    return value


def watch(model, anatomy: Anatomy, inputs: dict):
    """Run once; return site id -> (activation, its norm's latest output), calls per module, and all
    norm outputs.
    """
    seen: dict = {}
    calls: dict = {}
    latest: dict = {}
    everything: dict = {}
    handles = []

    def on_norm(name):
        def hook(module, args, output):
            latest[name] = output
            everything.setdefault(name, []).append(output)

        return hook

    def on_site(key, sites):
        def take(tensor):
            call = calls.get(key, 0)
            calls[key] = call + 1
            for site in sites:
                if site.call == call:  # a copy: Falcon adds to what its feed-forward gave
                    seen[site.id] = (tensor * site.factor, latest.get(site.norm))

        def on_input(module, args, kwargs):
            take(first_tensor(args, sites[0].argument, kwargs))

        def on_output(module, args, kwargs, output):
            take(first_tensor(output, "", {}))

        return on_input if key[1] == "input" else on_output

    for norm in anatomy.norms:
        handles.append(model.get_submodule(norm.name).register_forward_hook(on_norm(norm.name)))
    places: dict = {}
    for site in anatomy.sites:
        places.setdefault((site.module, site.hook), []).append(site)
    for key, sites in places.items():
        module = model.get_submodule(key[0])
        register = (
            module.register_forward_pre_hook if key[1] == "input" else module.register_forward_hook
        )
        handles.append(register(on_site(key, sites), with_kwargs=True))
    with torch.no_grad():
        model(**inputs)
    for handle in handles:
        handle.remove()
    return seen, calls, everything


# ---------------------------------------------------------------- what is listed


@pytest.mark.parametrize(("case", "architecture"), ALL_CLASSES)
def test_every_tensor_is_listed_with_its_shape_and_ties(prepared, case, architecture):
    anatomy, model, _ = prepared(case, architecture)
    stored = model.state_dict()
    assert {tensor.name: tensor.shape for tensor in anatomy.tensors} == {
        name: tuple(value.shape) for name, value in stored.items()
    }
    assert len(anatomy.tensors) == len(stored)
    real = {
        frozenset(group)
        for group in groups_by(stored, lambda name: stored[name].data_ptr()).values()
    }
    listed = groups_by(
        [tensor.name for tensor in anatomy.tensors],
        lambda name: anatomy.tensor(name).alias_of or name,
    )
    assert {frozenset(group) for group in listed.values()} == real
    read = {item.weight for item in anatomy.maps}
    assert anatomy.tied == any(
        len(group) > 1 and group & read for group in real
    )  # a readout; T5's stacks share their embedding in any case


def groups_by(names, key) -> dict:
    groups: dict = {}
    for name in names:
        groups.setdefault(key(name), []).append(name)
    return groups


@pytest.mark.parametrize(("case", "architecture"), ALL_CLASSES)
def test_the_parts_refer_to_each_other(prepared, case, architecture):
    anatomy, model, _ = prepared(case, architecture)
    for items in (anatomy.spaces, anatomy.tensors, anatomy.maps, anatomy.norms, anatomy.stacks):
        assert len({item.name for item in items}) == len(items)
    for segment in [
        segment for tensor in anatomy.tensors for axis in tensor.axes for segment in axis.segments
    ]:
        assert 0 <= segment.start < segment.stop <= anatomy.space(segment.space).size
    for item in anatomy.maps:
        weight = anatomy.tensor(item.weight)
        assert {segment.space for segment in weight.axes[item.input_axis].segments} == {item.reads}
        assert weight.axes[1 - item.input_axis].indices(item.writes)
        assert item.bias is None or anatomy.tensor(item.bias).axes[0].indices(
            item.writes
        ) == weight.axes[1 - item.input_axis].indices(item.writes)
        assert item.norm is None or item.name in anatomy.norm(item.norm).feeds
        model.get_submodule(item.module)
    for norm in anatomy.norms:
        module = model.get_submodule(norm.name)
        assert norm.eps == getattr(module, "eps", None) or norm.eps == module.variance_epsilon
        assert anatomy.tensor(norm.gain).axes[0].role == Role.NORMALISE
        named = [anatomy.tensor(name).axes[0] for name in (norm.gain, norm.bias) if name]
        assert {segment.space for axis in named for segment in axis.segments} == {norm.space}
        assert all(item.norm == norm.name for item in anatomy.maps if item.name in norm.feeds)


def expected_sites(anatomy: Anatomy, depths: dict[str, int]) -> set[str]:
    """Site ids as the design lists them."""
    expected = set()
    for stack, depth in depths.items():
        expected.add(f"{stack}/embedding")
        taps = [
            "output",
            "query_key_value_input",
            "attention_output_input",
            "mlp_up_input",
            "mlp_down_input",
        ]
        if anatomy.placement != Placement.PARALLEL:
            taps.append("after_attention")
        if stack == "decoder" and "encoder" in depths:
            taps.append("after_cross_attention")
        expected |= {
            f"{stack}/block.{number}/{tap}"
            for number, tap in itertools.product(range(1, depth + 1), taps)
        }
        if anatomy.placement != Placement.POST:
            if anatomy.stack(stack).terminal_norm:
                expected.add(f"{stack}/terminal_norm")
            crossed = ["cross_attention"] if stack == "decoder" and "encoder" in depths else []
            expected |= {
                f"{stack}/block.{number}/{sublayer}_delta"
                for number in range(1, depth + 1)
                for sublayer in ("attention", *crossed, "mlp")
            }
    return expected


def depths_of(case: str, architecture: str) -> dict[str, int]:
    if case.startswith(("whisper", "t5")):
        return {"encoder": 2} if architecture == "T5EncoderModel" else {"encoder": 2, "decoder": 3}
    if case.startswith("albert"):
        return {"encoder": 8 if case == "albert-groups" else 4}
    return {
        "encoder" if case.startswith(ENCODERS) else "decoder": 1 if case.startswith(SHALLOW) else 2
    }


# ---------------------------------------------------------------- what the sites see


@pytest.mark.parametrize(("case", "architecture"), FORWARD)
def test_every_site_fires_as_often_as_its_module_is_listed_and_is_as_wide_as_said(
    prepared, case, architecture
):
    anatomy, model, inputs = prepared(case, architecture)
    seen, calls, _ = watch(model, anatomy, inputs)
    depths = depths_of(case, architecture)
    assert {stack.name: len(stack.blocks) for stack in anatomy.stacks} == depths
    assert [site.id for site in anatomy.sites if site.id not in seen] == []
    assert {site.id for site in anatomy.sites} == expected_sites(anatomy, depths)
    assert len(anatomy.sites) == len({site.id for site in anatomy.sites})
    for site in anatomy.sites:
        assert seen[site.id][0].shape[-1] == site.width, site.id
        expected_block = {"embedding": 0, "terminal_norm": depths[site.stack] + 1}.get(
            site.tap, site.block
        )
        assert site.block == expected_block
    for (module, hook), count in calls.items():
        blocks = [block for stack in anatomy.stacks for block in stack.blocks]
        runs = max(
            [blocks.count(block) for block in blocks if f"{module}.".startswith(f"{block}.")],
            default=1,
        )
        listed = [site.call for site in anatomy.sites if (site.module, site.hook) == (module, hook)]
        assert listed == list(range(count)) or (len(listed) == 1 and count == runs), module


@pytest.mark.parametrize(("case", "architecture"), FORWARD)
def test_a_site_sees_exactly_the_output_of_its_norm_and_a_bare_one_of_none(
    prepared, case, architecture
):
    anatomy, model, inputs = prepared(case, architecture)
    seen, _, outputs = watch(model, anatomy, inputs)
    for site in anatomy.sites:
        activation, normed = seen[site.id]
        if site.norm:
            assert torch.equal(activation, normed), site.id
        else:
            others = [
                value
                for values in outputs.values()
                for value in values
                if value.shape == activation.shape
            ]
            assert not any(torch.equal(activation, other) for other in others), site.id
    pre_norm = anatomy.placement != Placement.POST
    for site in anatomy.sites:
        if site.tap in ("mlp_up_input", "terminal_norm") or (
            site.tap == "query_key_value_input" and pre_norm
        ):
            assert site.norm is not None, site.id


@pytest.mark.parametrize(
    ("case", "architecture"), [("qwen3", "Qwen3Model"), ("gemma3", "Gemma3TextModel")]
)
def test_a_query_or_key_norm_takes_what_the_map_of_its_space_writes(prepared, case, architecture):
    anatomy, model, inputs = prepared(case, architecture)
    seen: dict = {}
    norms = [norm for norm in anatomy.norms if norm.size < anatomy.space(norm.space).size]
    writers = {
        norm.name: next(item.module for item in anatomy.maps if item.writes == norm.space)
        for norm in norms
    }
    handles = [
        model.get_submodule(name).register_forward_hook(
            lambda _, args, output, name=name: seen.update({name: (args[0], output)})
        )
        for name in (*writers, *writers.values())
    ]
    with torch.no_grad():
        model(**inputs)
    for handle in handles:
        handle.remove()
    assert len(norms) == 4
    for norm, writer in writers.items():
        taken, written = (
            value.flatten().sort().values for value in (seen[norm][0], seen[writer][1])
        )
        assert torch.equal(taken, written), norm  # some classes put the heads first


@pytest.mark.parametrize(("case", "architecture"), FORWARD)
def test_the_inverse_gain_is_a_kernel_after_layer_norm_and_only_there(prepared, case, architecture):
    anatomy, model, inputs = prepared(case, architecture, torch.float64)
    seen, _, _ = watch(model, anatomy, inputs)
    tensors = model.state_dict()
    for site in anatomy.sites:
        if site.norm is None:
            continue
        norm = anatomy.norm(site.norm)
        activations = seen[site.id][0].reshape(-1, site.width)
        centred = activations - activations.mean(0)
        direction = 1 / (norm.gain_offset + tensors[norm.gain])
        ratio = (centred @ direction).norm() / (centred.norm() * direction.norm())
        assert (ratio < 1e-13) if norm.kind == NormKind.LAYER_NORM else (ratio > 1e-2), site.id


@pytest.mark.parametrize(("case", "architecture"), FORWARD)
def test_a_block_is_its_input_and_its_deltas(prepared, case, architecture):
    """Their sum is the output up to the rounding of float64, and without any of them it is not."""
    anatomy, model, inputs = prepared(case, architecture, torch.float64)
    seen, _, _ = watch(model, anatomy, inputs)
    deltas = [site for site in anatomy.sites if site.group == "deltas"]
    assert bool(deltas) == (anatomy.placement != Placement.POST)
    for stack in anatomy.stacks:
        for number in range(1, len(stack.blocks) + 1):
            own = [site.id for site in deltas if (site.stack, site.block) == (stack.name, number)]
            if not own:
                continue
            before = f"{stack.name}/" + (
                "embedding" if number == 1 else f"block.{number - 1}/output"
            )
            after = seen[f"{stack.name}/block.{number}/output"][0]
            rest = after - seen[before][0]
            rest -= sum(seen[site][0].reshape(rest.shape) for site in own)  # OPT flattens
            assert rest.abs().max() < 1e-12 * after.abs().max()
            assert all(seen[site][0].abs().max() > 1e-6 * after.abs().max() for site in own)


def stack_states(outputs, stack: str, anatomy: Anatomy):
    """transformers' own hidden states of a stack."""
    return (
        outputs[f"{stack}_hidden_states"] if len(anatomy.stacks) > 1 else outputs["hidden_states"]
    )


@pytest.mark.parametrize(
    ("case", "architecture"), [pair for pair in FORWARD if pair[0] not in SCEPTR]
)
def test_the_residual_stream_is_the_one_transformers_reports(prepared, case, architecture):
    anatomy, model, inputs = prepared(case, architecture)
    seen, _, _ = watch(model, anatomy, inputs)
    with torch.no_grad():
        outputs = model(**inputs, output_hidden_states=True)
    for stack in anatomy.stacks:
        states = stack_states(outputs, stack.name, anatomy)
        assert torch.equal(seen[f"{stack.name}/embedding"][0], states[0])
        # the last of transformers' states may be normalised
        for number in range(1, len(stack.blocks)):
            assert torch.equal(seen[f"{stack.name}/block.{number}/output"][0], states[number])


@pytest.mark.parametrize(("case", "architecture"), FORWARD)
def test_each_block_output_enters_the_next_block(prepared, case, architecture):
    anatomy, model, inputs = prepared(case, architecture)
    seen, _, _ = watch(model, anatomy, inputs)
    entered: list = []
    modules = {
        block: model.get_submodule(block) for stack in anatomy.stacks for block in stack.blocks
    }
    handles = [
        module.register_forward_pre_hook(
            lambda module, args, kwargs: entered.append(
                first_tensor(args, "hidden_states", kwargs)
            ),
            with_kwargs=True,
        )
        for module in modules.values()
    ]
    with torch.no_grad():
        model(**inputs)
    for handle in handles:
        handle.remove()
    for stack in anatomy.stacks:
        inputs_of_stack, entered = entered[: len(stack.blocks)], entered[len(stack.blocks) :]
        assert torch.equal(inputs_of_stack[0], seen[f"{stack.name}/embedding"][0])
        for number, value in enumerate(inputs_of_stack[1:], start=1):
            assert torch.equal(value, seen[f"{stack.name}/block.{number}/output"][0])
    assert entered == []


@pytest.mark.parametrize(
    ("case", "architecture"),
    [pair for pair in FORWARD if pair[1].endswith("Model") and "LMHead" not in pair[1]],
)
def test_the_terminal_site_is_the_last_hidden_state(prepared, case, architecture):
    anatomy, model, inputs = prepared(case, architecture)
    seen, _, _ = watch(model, anatomy, inputs)
    with torch.no_grad():
        outputs = model(**inputs)
    stack = anatomy.primary_stack
    last = (
        f"{stack.name}/terminal_norm"
        if stack.terminal_norm
        else f"{stack.name}/block.{len(stack.blocks)}/output"
    )
    assert torch.equal(seen[last][0], outputs.last_hidden_state)
    if len(anatomy.stacks) > 1:
        assert torch.equal(seen["encoder/terminal_norm"][0], outputs.encoder_last_hidden_state)


def test_the_embedding_site_holds_everything_that_is_added_before_the_first_block(prepared):
    anatomy, model, inputs = prepared("gpt2", "GPT2LMHeadModel")
    seen, _, _ = watch(model, anatomy, inputs)
    tensors = model.state_dict()
    expected = (
        tensors["transformer.wte.weight"][inputs["input_ids"]]
        + tensors["transformer.wpe.weight"][:9]
    )
    assert torch.equal(seen["decoder/embedding"][0], expected)
    anatomy, model, inputs = prepared("gemma2", "Gemma2ForCausalLM")
    seen, _, _ = watch(model, anatomy, inputs)
    expected = model.state_dict()["model.embed_tokens.weight"][inputs["input_ids"]] * torch.tensor(
        12**0.5
    )
    assert torch.equal(seen["decoder/embedding"][0], expected)


# ---------------------------------------------------------------- what the maps compute


@pytest.mark.parametrize(("case", "architecture"), FORWARD)
def test_maps_compute_what_they_say_from_what_they_say(prepared, case, architecture):
    anatomy, model, inputs = prepared(case, architecture)
    tensors = model.state_dict()
    runs: dict = {}
    latest: dict = {}
    handles = [
        model.get_submodule(norm.name).register_forward_hook(
            lambda module, args, output, name=norm.name: latest.update({name: output})
        )
        for norm in anatomy.norms
    ]
    for module in {item.module for item in anatomy.maps}:
        handles.append(
            model.get_submodule(module).register_forward_hook(
                # a copy: Falcon adds to what a map gave in its place
                lambda _, args, output, module=module: runs.setdefault(module, []).append(
                    (args[0], output.clone(), dict(latest))
                )
            )
        )
    with torch.no_grad():
        model(**inputs)
    for handle in handles:
        handle.remove()
    for item in anatomy.maps:
        axes = anatomy.tensor(item.weight).axes
        if len(axes) > 2:  # convolutions: shape and roles are held by the other tests
            continue
        rows = torch.tensor(axes[1 - item.input_axis].indices(item.writes))
        weight = tensors[item.weight].index_select(1 - item.input_axis, rows)
        weight = weight if item.input_axis == 1 else weight.T
        assert runs[item.module], item.name
        for entered, left, norms in runs[item.module]:
            # not so for SCEPTR's attention module, which is more than the map
            if left.shape[-1] == axes[1 - item.input_axis].size:
                expected = entered @ weight.T + (tensors[item.bias][rows] if item.bias else 0)
                torch.testing.assert_close(left[..., rows], expected, rtol=1e-4, atol=1e-5)
            if item.norm:
                assert rows_are_among(entered, norms[item.norm] * item.input_scale), item.name
        always = [
            all(
                rows_are_among(entered, norms.get(norm.name))
                for entered, _, norms in runs[item.module]
            )
            for norm in anatomy.norms
        ]
        always.append(item.input_scale != 1)
        assert any(always) == (item.norm is not None), item.name
    check_activations(anatomy, runs)


def rows_are_among(part, whole) -> bool:
    """Whether every vector of `part` is, bit for bit, a vector of `whole` (poolers and labels read
    a few positions).
    """
    if whole is None or part.shape[-1] != whole.shape[-1]:
        return False
    vectors = {tuple(row) for row in whole.reshape(-1, whole.shape[-1]).tolist()}
    return all(tuple(row) in vectors for row in part.reshape(-1, part.shape[-1]).tolist())


def check_activations(anatomy: Anatomy, runs: dict) -> None:
    for item in anatomy.maps:
        if anatomy.space(item.reads).kind != SpaceKind.FFN:
            continue
        writers = [writer for writer in anatomy.maps if writer.writes == item.reads]
        for call, (entered, _, _) in enumerate(runs[item.module]):
            product = 1
            for writer in writers:
                written = runs[writer.module][call][1][..., rows_of(anatomy, writer)]
                product = product * (
                    ACT2FN[writer.activation](written) if writer.activation else written
                )
            torch.testing.assert_close(entered, product)
        assert [writer.activation for writer in writers if writer.activation] == [
            anatomy.activation
        ]


# ---------------------------------------------------------------- what the roles mean

UNCHANGED = 1e-10  # relative; outputs in fp64 that differ by less are the same


@dataclasses.dataclass(frozen=True)
class Move:
    """A signed permutation of one space: coordinate c goes to target[c] with sign[c]."""

    target: torch.Tensor
    sign: torch.Tensor

    def apply(self, activations: torch.Tensor) -> torch.Tensor:
        moved = torch.empty_like(activations)
        moved[..., self.target] = activations * self.sign
        return moved


def occurrences(axis: Axis, space: str) -> dict[int, list[int]]:
    """Coordinate of the space -> its positions along the axis."""
    found: dict[int, list[int]] = {}
    offset = 0
    for segment in axis.segments:
        for step in range(segment.stop - segment.start):
            if segment.space == space:
                found.setdefault(segment.start + step, []).append(offset + step)
        offset += segment.stop - segment.start
    return found


def transform(value: torch.Tensor, axes: tuple[Axis, ...], moves: dict[str, Move]) -> torch.Tensor:
    """What the table says happens to a tensor when spaces move."""
    for dimension, axis in enumerate(axes):
        if axis.role == Role.INDEX:
            continue
        source = torch.arange(axis.size)
        sign = torch.ones(axis.size, dtype=value.dtype)
        for space in {segment.space for segment in axis.segments} & set(moves):
            places = occurrences(axis, space)
            shared = axis.role in (Role.NORMALISE, Role.SCALE) and len(places) < len(
                moves[space].target
            )
            for coordinate, positions in places.items():
                target = int(moves[space].target[coordinate])
                # a query/key norm serves every head
                target = target % len(places) if shared else target
                for here, there in zip(positions, places[target], strict=True):
                    source[there] = here
                    if axis.role in (Role.READ, Role.WRITE):
                        sign[there] = moves[space].sign[coordinate]
        shape = [1] * value.ndim
        shape[dimension] = -1
        value = value.index_select(dimension, source) * sign.reshape(shape)
    return value


def random_signs(size: int, generator: torch.Generator) -> torch.Tensor:
    return torch.randint(0, 2, (size,), generator=generator).double() * 2 - 1


def admissible_moves(anatomy: Anatomy, generator: torch.Generator) -> dict[str, Move]:
    """A random element of every space's group, all of it read off the table."""
    moves: dict[str, Move] = {}
    for space in anatomy.spaces:
        if space.kind == SpaceKind.RESIDUAL:
            moves[space.name] = residual_move(anatomy, space, generator)
        elif space.kind == SpaceKind.FFN:
            moves[space.name] = Move(
                torch.randperm(space.size, generator=generator), torch.ones(space.size).double()
            )
        elif space.kind == SpaceKind.QUERY:
            moves |= attention_moves(anatomy, space.name.removesuffix("query"), generator)
    return moves


def residual_move(anatomy: Anatomy, space, generator: torch.Generator) -> Move:
    kinds = {norm.kind for norm in anatomy.norms if norm.space == space.name}
    assert len(kinds) == 1
    if any(item.activation for item in anatomy.maps if item.writes == space.name):
        # an activation on the way commutes with permutations alone
        sign = torch.ones(space.size).double()
    elif kinds == {NormKind.RMS_NORM}:
        sign = random_signs(space.size, generator)
    else:
        sign = -torch.ones(space.size).double()
    return Move(torch.randperm(space.size, generator=generator), sign)


def attention_moves(anatomy: Anatomy, prefix: str, generator: torch.Generator) -> dict[str, Move]:
    """Groups of heads change places; inside a head, values move freely and queries move with their
    keys.
    """
    query, key, value = (anatomy.space(f"{prefix}{part}") for part in ("query", "key", "value"))
    groups, size, repeats = key.heads, key.size // key.heads, query.heads // key.heads
    # its bias is per head and shared by all blocks
    relative = anatomy.positions == Positions.RELATIVE
    order = torch.arange(groups) if relative else torch.randperm(groups, generator=generator)
    rotary = anatomy.turns(prefix)
    inner = torch.arange(size) if rotary else torch.randperm(size, generator=generator)
    signs = [
        random_signs(1, generator).expand(size) if rotary else random_signs(size, generator)
        for _ in range(groups)
    ]
    value_inner = [torch.randperm(size, generator=generator) for _ in range(groups)]

    def assemble(copies: int, inside: list[torch.Tensor], sign: list[torch.Tensor]) -> Move:
        heads = [(group, copy) for group in range(groups) for copy in range(copies)]
        target = torch.cat(
            [(int(order[group]) * copies + copy) * size + inside[group] for group, copy in heads]
        )
        return Move(target, torch.cat([sign[group] for group, _ in heads]))

    return {
        query.name: assemble(repeats, [inner] * groups, signs),
        key.name: assemble(1, [inner] * groups, signs),
        value.name: assemble(
            1, value_inner, [random_signs(size, generator) for _ in range(groups)]
        ),
    }


def run(model, tensors: dict, anatomy: Anatomy, inputs: dict) -> dict[str, torch.Tensor]:
    """The outputs that can be compared, by field."""
    with torch.no_grad():
        outputs = functional_call(model, tensors, kwargs=inputs)
    names = (
        "logits",
        "prediction_logits",
        "seq_relationship_logits",
        "sop_logits",
        "start_logits",
        "end_logits",
    )
    names += ("last_hidden_state", "encoder_last_hidden_state")
    names += ("pooler_output", "text_embeds", "image_embeds")
    return {name: outputs[name] for name in names if name in outputs and outputs[name] is not None}


def moved_outputs(
    outputs: dict, anatomy: Anatomy, moves: dict[str, Move]
) -> dict[str, torch.Tensor]:
    """Outputs as they should be after the move: hidden states move with their stream, all else
    stays.
    """
    spaces = {
        "last_hidden_state": anatomy.primary_stack.space,
        "encoder_last_hidden_state": anatomy.stacks[0].space,
    }
    if all(space.name != "pooled" for space in anatomy.spaces):
        spaces["pooler_output"] = anatomy.primary_stack.space
    return {
        name: moves[spaces[name]].apply(value) if name in spaces else value
        for name, value in outputs.items()
    }


def distance(found: dict, expected: dict) -> float:
    """Largest difference relative to the largest entry, over the fields."""
    assert found.keys() == expected.keys()
    assert found
    return max(
        float((found[name] - expected[name]).abs().max() / expected[name].abs().max())
        for name in found
    )


def transformed(
    tensors: dict,
    anatomy: Anatomy,
    moves: dict[str, Move],
    axes: dict[str, tuple[Axis, ...]] | None = None,
) -> dict:
    """All tensors, moved; `axes` overrides the table."""
    axes = axes or {}
    stored = [tensor for tensor in anatomy.tensors if tensor.alias_of is None]
    return {
        tensor.name: transform(tensors[tensor.name], axes.get(tensor.name, tensor.axes), moves)
        for tensor in stored
    }


@pytest.mark.parametrize(("case", "architecture"), FORWARD)
def test_moving_every_space_by_its_group_changes_no_output(prepared, case, architecture):
    anatomy, model, inputs = prepared(case, architecture, torch.float64)
    tensors = model.state_dict()
    moves = admissible_moves(anatomy, torch.Generator().manual_seed(4))
    before = run(model, transformed(tensors, anatomy, {}), anatomy, inputs)
    after = run(model, transformed(tensors, anatomy, moves), anatomy, inputs)
    assert distance(after, moved_outputs(before, anatomy, moves)) < UNCHANGED
    for tensor in anatomy.tensors:  # a tied tensor must not be asked to move in two ways
        if tensor.alias_of:
            twin = anatomy.tensor(tensor.alias_of)
            assert torch.equal(
                transform(tensors[tensor.name], tensor.axes, moves),
                transform(tensors[twin.name], twin.axes, moves),
            )


def without_effect(anatomy: Anatomy) -> set[str]:
    """Tensors that no output depends on: mask tokens without a mask, and key biases, which shift
    all of a query's scores alike.

    A rotation between bias and score undoes the latter, so rotary key biases do count.
    """
    keys = {item.bias for item in anatomy.maps if anatomy.space(item.writes).kind == SpaceKind.KEY}
    fused = {
        item.bias for item in anatomy.maps if anatomy.space(item.writes).kind == SpaceKind.QUERY
    }
    idle = {tensor.name for tensor in anatomy.tensors if tensor.name.endswith("mask_token")}
    seen = anatomy.positions in (Positions.ROTARY, Positions.VECTORS)
    return idle if seen else idle | (keys - fused)


@pytest.mark.parametrize(
    ("case", "architecture"),
    [
        pair
        for pair in FORWARD
        if pair[1].endswith(
            (
                "LMHeadModel",
                "ForCausalLM",
                "ForMaskedLM",
                "Generation",
                "ImageClassification",
                "WithProjection",
                "Sceptr",
            )
        )
    ],
)
def test_a_wrong_role_on_any_axis_is_seen(prepared, case, architecture):
    anatomy, model, inputs = prepared(case, architecture, torch.float64)
    tensors = model.state_dict()
    moves = admissible_moves(anatomy, torch.Generator().manual_seed(4))
    expected = moved_outputs(
        run(model, transformed(tensors, anatomy, {}), anatomy, inputs), anatomy, moves
    )
    right = transformed(tensors, anatomy, moves)
    skipped = without_effect(anatomy)
    planted = 0
    for tensor in anatomy.tensors:
        if tensor.alias_of or tensor.name in skipped:
            continue
        for axes in wrong_axes(tensor.axes, moves):
            wrong = transform(tensors[tensor.name], axes, moves)
            # this element of the group leaves the axis alone
            if torch.equal(wrong, right[tensor.name]):
                continue
            planted += 1
            assert (
                distance(run(model, right | {tensor.name: wrong}, anatomy, inputs), expected)
                > UNCHANGED
            ), (tensor.name, axes)
    assert planted > len(anatomy.tensors) // 2


def wrong_axes(axes: tuple[Axis, ...], moves: dict[str, Move]):
    """The table's axes with one of them not transformed, or with signs where there are none, or
    none where there are.
    """
    other = {
        Role.READ: Role.SCALE,
        Role.WRITE: Role.SCALE,
        Role.NORMALISE: Role.WRITE,
        Role.SCALE: Role.WRITE,
    }
    for number, axis in enumerate(axes):
        if {segment.space for segment in axis.segments} & set(moves) and axis.role != Role.INDEX:
            whole = axis.size >= len(moves[axis.segments[0].space].target)
            for role in (Role.INDEX, other[axis.role]) if whole else (Role.INDEX,):
                yield (*axes[:number], Axis(role, axis.segments), *axes[number + 1 :])


@pytest.mark.parametrize(
    ("case", "architecture"),
    [("llama", "LlamaForCausalLM"), ("gemma3", "Gemma3ForCausalLM"), ("t5", "T5Model")],
)
def test_the_described_rms_norm_is_the_real_one(prepared, case, architecture):
    anatomy, model, inputs = prepared(case, architecture)
    exact_anatomy, exact, _ = prepared(case, architecture, torch.float64)
    real = run(model, transformed(model.state_dict(), anatomy, {}), anatomy, inputs)
    described = run(
        exact, transformed(exact.state_dict(), exact_anatomy, {}), exact_anatomy, inputs
    )
    assert distance({name: value.double() for name, value in real.items()}, described) < 1e-4


# ---------------------------------------------------------------- facts that studies ask for


def test_facts_of_each_family():
    def facts(case, architecture):
        anatomy = describe(make_config(case, architecture))
        primary = anatomy.primary_stack
        return (
            anatomy.placement,
            anatomy.norm_kind,
            anatomy.positions,
            primary.terminal_norm is not None,
            primary.causal,
        )

    layer, rms = NormKind.LAYER_NORM, NormKind.RMS_NORM
    absolute, rotary, relative = Positions.ABSOLUTE, Positions.ROTARY, Positions.RELATIVE
    assert facts("gpt2", "GPT2Model") == (Placement.PRE, layer, absolute, True, True)
    assert facts("gpt_neox", "GPTNeoXModel") == (Placement.PARALLEL, layer, rotary, True, True)
    assert facts("gpt_neox-sequential", "GPTNeoXForCausalLM") == (
        Placement.PRE,
        layer,
        rotary,
        True,
        True,
    )
    for case, architecture in (
        ("bert", "BertModel"),
        ("roberta", "RobertaModel"),
        ("albert", "AlbertModel"),
        ("electra", "ElectraModel"),
        (SCEPTR[0], "Sceptr"),
    ):
        assert facts(case, architecture) == (Placement.POST, layer, absolute, False, False)
    for case, architecture in (
        ("vit", "ViTModel"),
        ("vit_mae", "ViTMAEModel"),
        ("dinov2", "Dinov2Model"),
        ("siglip", "SiglipVisionModel"),
    ):
        assert facts(case, architecture) == (Placement.PRE, layer, absolute, True, False)
    vectors = Positions.VECTORS
    assert facts("deberta", "DebertaV2Model") == (Placement.POST, layer, vectors, False, False)
    assert facts("modernbert", "ModernBertModel") == (Placement.PRE, layer, rotary, True, False)
    assert facts("dinov3", "DINOv3ViTModel") == (Placement.PRE, layer, rotary, True, False)
    assert facts("whisper", "WhisperModel") == (Placement.PRE, layer, absolute, True, True)
    assert facts("t5", "T5Model") == (Placement.PRE, rms, relative, True, True)
    for case, architecture in (
        ("llama", "LlamaModel"),
        ("mistral", "MistralModel"),
        ("qwen2", "Qwen2Model"),
        ("qwen3", "Qwen3Model"),
        ("qwen3_5", "Qwen3_5TextModel"),
    ):
        assert facts(case, architecture) == (Placement.PRE, rms, rotary, True, True)
    assert facts("stablelm", "StableLmModel") == (Placement.PRE, layer, rotary, True, True)
    assert facts("stablelm-parallel", "StableLmForCausalLM")[0] == Placement.PARALLEL
    assert facts("phi", "PhiModel") == (Placement.PARALLEL, layer, rotary, True, True)
    for case, architecture in (
        ("granite", "GraniteModel"),
        ("smollm3", "SmolLM3Model"),
        ("phi3", "Phi3Model"),
    ):
        assert facts(case, architecture) == (Placement.PRE, rms, rotary, True, True)
    assert facts("cohere", "CohereModel") == (Placement.PARALLEL, layer, rotary, True, True)
    assert facts("falcon", "FalconModel") == (Placement.PARALLEL, layer, rotary, True, True)
    assert facts("falcon-alibi", "FalconForCausalLM")[:3] == (Placement.PRE, layer, relative)
    assert facts("bloom", "BloomModel") == (Placement.PRE, layer, relative, True, True)
    assert facts("gptj", "GPTJModel") == (Placement.PARALLEL, layer, rotary, True, True)
    assert facts("opt", "OPTModel") == (Placement.PRE, layer, absolute, True, True)
    assert facts("clip-text", "CLIPTextModel") == (Placement.PRE, layer, absolute, True, True)
    assert facts("clip-vision", "CLIPVisionModel") == (Placement.PRE, layer, absolute, False, False)
    assert facts("gemma", "GemmaModel") == (Placement.PRE, rms, rotary, True, True)
    assert facts("gemma2", "Gemma2Model") == (Placement.SANDWICH, rms, rotary, True, True)
    assert facts("gemma3", "Gemma3TextModel") == (Placement.SANDWICH, rms, rotary, True, True)


def test_gemma_gain_offset_and_head_norms():
    gemma = describe(make_config("gemma3", "Gemma3ForCausalLM"))
    assert {norm.gain_offset for norm in gemma.norms} == {1.0}
    head_norms = [
        norm
        for norm in gemma.norms
        if gemma.space(norm.space).kind in (SpaceKind.QUERY, SpaceKind.KEY)
    ]
    assert len(head_norms) == 4
    assert {norm.size for norm in head_norms} == {6}
    assert {norm.gain_offset for norm in describe(make_config("qwen3", "Qwen3Model")).norms} == {
        0.0
    }


def test_grouped_query_heads():
    anatomy = describe(make_config("llama", "LlamaModel"))
    heads = {
        kind: {space.heads for space in anatomy.spaces if space.kind == kind}
        for kind in (SpaceKind.QUERY, SpaceKind.KEY, SpaceKind.VALUE)
    }
    assert heads == {SpaceKind.QUERY: {4}, SpaceKind.KEY: {2}, SpaceKind.VALUE: {2}}


def test_only_the_first_call_of_a_shared_layer_is_not_fed_by_a_norm():
    anatomy = describe(make_config("albert", "AlbertModel"))
    norms = [site.norm for site in anatomy.sites if site.tap == "query_key_value_input"]
    layer = "encoder.albert_layer_groups.0.albert_layers.0"
    assert norms == [None, *[f"{layer}.full_layer_layer_norm"] * 3]
    assert [site.call for site in anatomy.sites if site.tap == "output"] == [0, 1, 2, 3]
    shared = {item.name: item.norm for item in anatomy.maps}
    assert shared["encoder/block.1/query"] is None
    assert shared["encoder/block.1/up"] == f"{layer}.attention.LayerNorm"


# ---------------------------------------------------------------- refusals


def config_with(case: str, architecture: str | None, **changes):
    config = make_config(case, architecture) if architecture else make_config(case, "unused")
    for key, value in changes.items():
        setattr(config, key, value)
    return config


@pytest.mark.parametrize(
    ("config", "fragments"),
    [
        (
            SimpleNamespace(model_type="mamba"),
            ("'mamba'", "gpt2", "gemma3_text", "sceptr", "docs/anatomy.md"),
        ),
        (SimpleNamespace(), ("None", "gpt2")),
        (
            config_with("gpt2", "GPT2LMHeadModel", add_cross_attention=True),
            ("gpt2", "add_cross_attention"),
        ),
        (config_with("bert", "BertModel", is_decoder=True), ("bert", "is_decoder")),
        (
            config_with("roberta", "RobertaModel", add_cross_attention=True),
            ("roberta", "add_cross_attention"),
        ),
        (
            config_with("llama", "LlamaForCausalLM", num_local_experts=8),
            ("llama", "num_local_experts=8"),
        ),
        (config_with("qwen3", "Qwen3Model", num_experts=4), ("qwen3", "num_experts=4")),
        (config_with("bert", "BertForMagic"), ("BertForMagic", "BertForMaskedLM")),
        (
            config_with("t5", "T5ForQuestionAnswering"),
            ("T5ForQuestionAnswering", "T5ForConditionalGeneration"),
        ),
        (
            config_with("gpt2", None, architectures=None),
            ("gpt2", "architectures", "GPT2LMHeadModel"),
        ),
        (config_with("gpt2", "GPT2Model", n_layer=0), ("gpt2", "num_hidden_layers is 0")),
        (
            SimpleNamespace(model_type="sceptr", num_hidden_layers=3, token_embedder="Other"),
            ("token_embedder", "'Other'", "CdrSimpleEmbedder"),
        ),
    ],
)
def test_what_is_not_described_is_refused_by_name(config, fragments):
    with pytest.raises(InputError) as refusal:
        describe(config)
    message = str(refusal.value)
    assert "\n" not in message
    for fragment in fragments:
        assert fragment in message


def test_heads_that_do_not_divide_are_refused():
    config = config_with("gpt2", "GPT2Model", n_head=5)
    with pytest.raises(InputError, match="width is 12"):
        describe(config)
    config = config_with("whisper", "WhisperModel", decoder_attention_heads=5)
    with pytest.raises(InputError, match="width is 12"):
        describe(config)
    config = config_with("llama", "LlamaModel", num_key_value_heads=3)
    with pytest.raises(InputError, match="num_key_value_heads"):
        describe(config)


def test_every_family_has_a_case():
    assert {make_config(case, name).model_type for case, name in ALL_CLASSES} == set(FAMILIES)
