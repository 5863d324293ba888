"""Tiny checkpoints of every family with random gains and biases, for the tests of the gauge."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import torch

from normgauge.anatomy import describe
from normgauge.checkpoints.architectures import new_model
from normgauge.checkpoints.opening import Checkpoint
from normgauge.checkpoints.sceptr_config import SceptrConfig
from unit.test_anatomy import CASES, PICTURES, make_config, make_inputs

SCEPTR = "sceptr"
HEADED = ("LMHeadModel", "ForCausalLM", "ForMaskedLM", "ForConditionalGeneration")
HEADED += ("ModelWithProjection",)
# one class with an output head per case, and bare models of each norm kind
CLASSES = [
    (
        case,
        stem + next(ending for ending in endings if ending in HEADED),
    )
    for case, (_, _, stem, endings) in CASES.items()
    if not case.startswith(PICTURES)
]
CLASSES += [
    ("vit", "ViTForImageClassification"),
    ("dinov2", "Dinov2ForImageClassification"),
    ("dinov2-gated", "Dinov2Model"),
    ("vit_mae", "ViTMAEModel"),
    ("dinov3-gated", "DINOv3ViTModel"),
    ("siglip", "SiglipVisionModel"),
    ("clip-vision", "CLIPVisionModelWithProjection"),
]
CLASSES += [
    ("llama", "LlamaModel"),
    ("bert", "BertModel"),
    ("bert", "BertForSequenceClassification"),
    ("albert", "AlbertModel"),
]
CLASSES += [
    ("vit", "ViTModel"),
    ("t5", "T5Model"),
    ("whisper", "WhisperModel"),
    ("gpt_neox", "GPTNeoXForSequenceClassification"),
]
CLASSES += [(SCEPTR, "Sceptr")]


def config_of(case: str, architecture: str, **changes):
    if case == SCEPTR:
        return SceptrConfig(12, 2, 2, 20, "CdrSimpleEmbedder")
    config = make_config(case, architecture)
    for name, value in changes.items():
        setattr(config, name, value)
    return config


@cache
def tiny(case: str, architecture: str):
    """(checkpoint, anatomy) of a tiny model, float32, no parameter at a value that could hide a
    mistake.
    """
    return random_checkpoint(config_of(case, architecture))


def random_checkpoint(config, seed=5):
    anatomy = describe(config)
    offsets = {norm.gain: norm.gain_offset for norm in anatomy.norms}
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for tensor in anatomy.tensors:
        if tensor.alias_of:
            continue
        if tensor.name in offsets:
            tensors[tensor.name] = (
                0.5 + torch.rand(tensor.shape, generator=generator) - offsets[tensor.name]
            )
        else:
            tensors[tensor.name] = 0.5 * torch.randn(tensor.shape, generator=generator)
    if config.model_type == SCEPTR:  # its tables are no parameters
        model = new_model(config, torch.float32)
        learned = {name for name, _ in model.named_parameters()}
        tensors |= {
            name: value for name, value in model.state_dict().items() if name not in learned
        }
    return Checkpoint(
        config, tensors, dict.fromkeys(tensors, "F32"), (Path("model.safetensors"),)
    ), anatomy


def inputs_of(case: str, architecture: str) -> dict[str, torch.Tensor]:
    if case == SCEPTR:
        generator = torch.Generator().manual_seed(3)
        grid = [
            torch.randint(low, high, (3, 9), generator=generator)
            for low, high in ((3, 23), (1, 9), (9, 12), (1, 7))
        ]
        return {"input_ids": torch.stack(grid, -1)}
    return make_inputs(case, architecture, torch.float64)
