"""Adapters that PEFT itself has written, loaded by PEFT on the moved model: they act as before, and
each of their tensors counts.
"""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from peft import LoraConfig, PeftModel, TrainableTokensConfig, get_peft_model
from safetensors.torch import load_file, save_file

from normgauge.anatomy import describe
from normgauge.checkpoints.building import build_model
from normgauge.errors import InputError
from normgauge.gauge.admissible import gauge_spaces
from normgauge.gauge.groups import AttentionGauge, Monomial
from normgauge.gauge.model_gauge import Gauge
from normgauge.gauge.random_gauges import random_gauge
from normgauge.gauge.transform import apply_moves, tensor_moves, transformed
from normgauge.transport.adapters import moved_adapter, transport_adapter
from normgauge.transport.sidecar import Sidecar
from unit.gauge_models import config_of, inputs_of, random_checkpoint

LLAMA, GPT2 = ("llama", "LlamaForCausalLM"), ("gpt2", "GPT2LMHeadModel")
WHISPER, SCORED = (
    ("whisper", "WhisperForConditionalGeneration"),
    ("llama", "LlamaForSequenceClassification"),
)
BASE, ORIGIN = "b" * 64, "a" * 64
EMBEDDING = "base_model.model.model.embed_tokens"


def model_of(case):
    checkpoint, anatomy = random_checkpoint(config_of(*case))
    return dataclasses.replace(
        checkpoint, tensors={name: value.double() for name, value in checkpoint.tensors.items()}
    ), anatomy


def written(folder: Path, model: torch.nn.Module, config) -> Path:
    """An adapter as PEFT saves it, every tensor of it drawn anew so that none acts as if it were
    absent.
    """
    get_peft_model(model, config).save_pretrained(folder)
    generator = torch.Generator().manual_seed(3)
    path = folder / "adapter_model.safetensors"
    arrays = {}
    for name, value in load_file(path).items():
        drawn = 0.3 * torch.randn(value.shape, generator=generator, dtype=torch.float64)
        arrays[name] = drawn.abs() + 0.5 if "magnitude" in name or "norm.weight" in name else drawn
    save_file(arrays, path, metadata={"format": "pt"})
    return folder


@torch.no_grad()
def outputs(checkpoint, folder: Path, case, bare=False) -> torch.Tensor:
    model = build_model(checkpoint, "float64")
    loaded = PeftModel.from_pretrained(
        model.base_model if bare else model, folder, autocast_adapter_dtype=False
    )
    found = (model if bare else loaded)(**inputs_of(*case))
    return found.logits


def monomial_gauge(anatomy) -> Gauge:
    """Signed permutations of every space, attention layers included: what magnitudes follow."""
    elements = {}
    for name, element in random_gauge(anatomy, 42).elements.items():
        if isinstance(element, AttentionGauge):
            eyes = AttentionGauge.identity(
                element.groups,
                element.repeats,
                *(m.shape[-1] for m in (element.query_maps, element.value_maps)),
            )
            signs = np.where(
                np.random.default_rng(1).random(eyes.value_maps.shape[:2]) < 0.5, -1.0, 1.0
            )
            elements[name] = dataclasses.replace(
                eyes,
                group_order=np.arange(element.groups)[::-1],
                value_maps=eyes.value_maps * signs[..., None],
            )
        else:
            elements[name] = Monomial(element.target, np.sign(element.factors))
    return Gauge(elements)


# id: (model, PEFT's config, the gauge, tensors that must be among what PEFT saved)
CASES = {
    "readout": (
        LLAMA,
        {"target_modules": ["q_proj", "down_proj", "gate_proj", "lm_head"]},
        "full",
        ["lm_head.base_layer.weight"],
    ),
    "embedding": (
        LLAMA,
        {"target_modules": ["embed_tokens"]},
        "full",
        ["embed_tokens.base_layer.weight", "lora_embedding_A"],
    ),
    "bias of B": (
        LLAMA,
        {"target_modules": ["q_proj", "gate_proj", "o_proj"], "lora_bias": True},
        "full",
        ["q_proj.lora_B.bias"],
    ),
    "all biases": (
        GPT2,
        {"target_modules": ["c_attn"], "bias": "all", "fan_in_fan_out": True},
        "full",
        ["c_attn.base_layer.bias", "ln_1.bias", "mlp.c_fc.bias"],
    ),
    "own biases": (
        GPT2,
        {"target_modules": ["c_fc"], "bias": "lora_only", "fan_in_fan_out": True},
        "full",
        ["c_fc.base_layer.bias"],
    ),
    "tokens": (
        LLAMA,
        {"target_modules": ["q_proj"], "trainable_token_indices": [*range(9)]},
        "full",
        ["embed_tokens.token_adapter.trainable_tokens_delta"],
    ),
    "tied tokens": (
        GPT2,
        {
            "target_modules": ["c_attn"],
            "trainable_token_indices": [*range(9)],
            "fan_in_fan_out": True,
        },
        "full",
        ["wte.token_adapter.trainable_tokens_delta"],
    ),
    "tied readout": (GPT2, {"target_modules": ["lm_head"]}, "full", ["lm_head.lora_A"]),
    "whole modules": (
        LLAMA,
        {"target_modules": ["v_proj"], "modules_to_save": ["lm_head", "norm"]},
        "full",
        ["lm_head.weight", "norm.weight"],
    ),
    "classifier": (
        SCORED,
        {"target_modules": ["v_proj"], "task_type": "SEQ_CLS"},
        "full",
        ["score.weight"],
    ),
    "magnitudes": (
        LLAMA,
        {"target_modules": ["q_proj", "up_proj", "down_proj", "embed_tokens"], "use_dora": True},
        "signed",
        ["q_proj.lora_magnitude_vector", "embed_tokens.lora_magnitude_vector"],
    ),
    "magnitudes of rows": (
        GPT2,
        {"target_modules": ["c_attn", "c_fc"], "use_dora": True, "fan_in_fan_out": True},
        "signed",
        ["c_attn.lora_magnitude_vector"],
    ),
    "encoder and decoder": (
        WHISPER,
        {"target_modules": ["q_proj", "v_proj", "fc2"]},
        "full",
        ["fc2.lora_A", "q_proj.lora_B", "v_proj.lora_A"],
    ),
}


@pytest.mark.parametrize("kind", CASES)
def test_what_peft_saves_acts_on_the_moved_model_as_on_its_own(kind, tmp_path):
    case, config, group, expected = CASES[kind]
    checkpoint, anatomy = model_of(case)
    gauge = random_gauge(anatomy, 42) if group == "full" else monomial_gauge(anatomy)
    folder = written(
        tmp_path / "adapter", build_model(checkpoint, "float64"), LoraConfig(r=2, **config)
    )
    own = load_file(folder / "adapter_model.safetensors")
    assert all(any(name.endswith((each, f"{each}.weight")) for name in own) for each in expected)
    transport_adapter(folder, tmp_path / "moved", anatomy, gauge, Sidecar.of(gauge, BASE, ORIGIN))
    there = transformed(checkpoint, anatomy, gauge)
    before, after = outputs(checkpoint, folder, case), outputs(there, tmp_path / "moved", case)
    assert (after - before).norm() <= 1e-10 * before.norm()
    shutil.copytree(tmp_path / "moved", tmp_path / "control")
    moved = load_file(tmp_path / "moved/adapter_model.safetensors")
    for part in expected:  # each kind of tensor, left as it was, changes what the adapter does
        held = {name: own[name] if part in name else value for name, value in moved.items()}
        save_file(held, tmp_path / "control/adapter_model.safetensors", metadata={"format": "pt"})
        if part != "lora_embedding_A":  # its rows are tokens, which no gauge moves
            assert (
                outputs(there, tmp_path / "control", case) - before
            ).norm() > 1e-4 * before.norm(), part


def test_trainable_tokens_alone(tmp_path):
    checkpoint, anatomy = model_of(LLAMA)
    gauge = random_gauge(anatomy, 42)
    config = TrainableTokensConfig(token_indices=[*range(9)], target_modules=["embed_tokens"])
    folder = written(tmp_path / "adapter", build_model(checkpoint, "float64"), config)
    transport_adapter(folder, tmp_path / "moved", anatomy, gauge, Sidecar.of(gauge, BASE, ORIGIN))
    before, after = (
        outputs(checkpoint, folder, LLAMA),
        outputs(transformed(checkpoint, anatomy, gauge), tmp_path / "moved", LLAMA),
    )
    assert (after - before).norm() <= 1e-10 * before.norm()


@pytest.mark.parametrize("case", [LLAMA, GPT2])
def test_an_adapter_of_the_bare_model_fits_the_whole_one_and_back(case, tmp_path):
    """Its names lack the model's prefix, all of them; what is ambiguous or of another model is
    refused.
    """
    checkpoint, anatomy = model_of(case)
    gauge = random_gauge(anatomy, 42)
    targets = {"llama": ["q_proj", "up_proj"], "gpt2": ["c_attn"]}[case[0]]
    model = build_model(checkpoint, "float64")
    config = LoraConfig(r=2, target_modules=targets, fan_in_fan_out=case == GPT2)
    folder = written(tmp_path / "adapter", model.base_model, config)
    assert any(
        name.startswith(("base_model.model.layers.0", "base_model.model.h.0"))
        for name in load_file(folder / "adapter_model.safetensors")
    )
    transport_adapter(folder, tmp_path / "moved", anatomy, gauge, Sidecar.of(gauge, BASE, ORIGIN))
    there = transformed(checkpoint, anatomy, gauge)
    before, after = (
        outputs(checkpoint, folder, case, bare=True),
        outputs(there, tmp_path / "moved", case, bare=True),
    )
    assert (after - before).norm() <= 1e-10 * before.norm()
    assert (outputs(there, folder, case, bare=True) - before).norm() > 1e-4 * before.norm()
    bare_config = config_of(case[0], {"llama": "LlamaModel", "gpt2": "GPT2Model"}[case[0]])
    bare = describe(bare_config)
    arrays = load_file(folder / "adapter_model.safetensors")
    prefix = {"llama": "model.", "gpt2": "transformer."}[case[0]]
    long = {
        f"base_model.model.{prefix}{name.removeprefix('base_model.model.')}": value
        for name, value in arrays.items()
    }
    only = Gauge({name: gauge.elements[name] for name in gauge_spaces(bare)})
    for name, value in moved_adapter(long, bare, only).items():
        assert torch.equal(value, moved_adapter(arrays, bare, only)[name.replace(prefix, "", 1)])


def test_names_that_other_savers_write_belong_to_the_same_weights():
    _, anatomy = model_of(LLAMA)
    gauge = random_gauge(anatomy, 42)
    a, head, module = torch.randn(2, 12), torch.randn(17, 12), "model.layers.0.mlp.up_proj"
    one = moved_adapter(
        {f"base_model.model.{module}.lora_A.weight": a, "base_model.model.lm_head.weight": head},
        anatomy,
        gauge,
    )
    two = moved_adapter(
        {f"{module}.lora_A.default.weight": a, "lm_head.modules_to_save.default.weight": head},
        anatomy,
        gauge,
    )
    three = moved_adapter(
        {f"{module}.lora_A.weight": a, "lm_head.modules_to_save.weight": torch.cat([head, head])},
        anatomy,
        gauge,
    )
    first, second, third = ([*each.values()] for each in (one, two, three))
    assert torch.equal(first[0], second[0])
    assert torch.equal(first[1], second[1])
    assert torch.equal(third[1][17:], first[1])  # a vocabulary that was resized


def test_factors_of_a_convolution_move_as_their_product():
    _, anatomy = model_of(WHISPER)
    gauge, weight = random_gauge(anatomy, 42), "model.encoder.conv2.weight"
    out, inside, window = anatomy.tensor(weight).shape
    a, b = (
        torch.randn(2, inside, window, dtype=torch.float64),
        torch.randn(out, 2, 1, dtype=torch.float64),
    )
    names = [f"base_model.model.model.encoder.conv2.lora_{part}.weight" for part in "AB"]
    moved = moved_adapter(dict(zip(names, (a, b), strict=True)), anatomy, gauge)
    product = torch.einsum("or,riw->oiw", moved[names[1]][..., 0], moved[names[0]])
    expected = apply_moves(
        torch.einsum("or,riw->oiw", b[..., 0], a), tensor_moves(anatomy, gauge)[weight]
    )
    torch.testing.assert_close(product, expected, rtol=1e-12, atol=1e-12)


def test_what_does_not_follow_is_refused_with_the_reason():
    _, anatomy = model_of(LLAMA)
    mlp, attention = (
        "base_model.model.model.layers.0.mlp",
        "base_model.model.model.layers.0.self_attn",
    )
    scales = Gauge(
        {"decoder/block.1/ffn": Monomial(np.arange(20), np.exp2(np.arange(20) % 5 - 2.0))}
    )
    heads = random_gauge(anatomy, 42, ("decoder/block.1/attention",))
    magnitude = {f"{mlp}.up_proj.lora_magnitude_vector": torch.ones(20)}
    assert torch.equal(
        moved_adapter(magnitude, anatomy, scales)[next(iter(magnitude))],
        2.0 ** (torch.arange(20) % 5 - 2),
    )
    half = torch.full((2, 20), 60000.0, dtype=torch.float16)
    for arrays, gauge, message in (
        (
            {f"{mlp}.down_proj.lora_magnitude_vector": torch.ones(12)},
            scales,
            r"down_proj.*changes the lengths of the weight's rows",
        ),
        (
            {f"{attention}.q_proj.lora_magnitude_vector": torch.ones(24)},
            heads,
            r"q_proj.*mixes the weight's rows",
        ),
        (
            {f"{attention}.o_proj.lora_magnitude_vector": torch.ones(12)},
            heads,
            r"o_proj.*changes the lengths",
        ),
        (
            {f"{mlp}.down_proj.lora_A.weight": half},
            scales,
            r"down_proj.lora_A.weight leaves the range of torch.float16",
        ),
        (
            {"base_model.model.score.weight": torch.ones(2, 12)},
            scales,
            r"LlamaForCausalLM has no tensor score\.weight; use the model, of",
        ),
        (
            {f"{mlp}.up_proj.lora_E": torch.ones(2, 1)},
            scales,
            r"has no tensor model\.layers\.0\.mlp\.up_proj\.lora_E",
        ),
        (
            {f"{mlp}.up_proj.lora_B.bias": torch.ones(12)},
            scales,
            r"shape \[12\] does not fit model.layers.0.mlp.up_proj.weight",
        ),
        (
            {
                f"{EMBEDDING}.token_adapter.trainable_tokens_delta": torch.ones(2, 9),
            },
            scales,
            "does not fit",
        ),
    ):
        with pytest.raises(InputError, match=message):
            moved_adapter(arrays, anatomy, gauge)
