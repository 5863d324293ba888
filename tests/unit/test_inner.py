"""The model inside a checkpoint of several computes by itself what it computes in the whole."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from normgauge.anatomy import FAMILIES
from normgauge.checkpoints.building import build_model, check_checkpoint
from normgauge.checkpoints.inner import INNER, PREFIXES
from normgauge.checkpoints.opening import open_checkpoint
from normgauge.errors import InputError
from unit.test_anatomy import GATED, LINEAR, VISION

TOWER = {**VISION, "intermediate_size": 20}
TEXT = {**GATED, "vocab_size": 40, "sliding_window": 4}
SEEN = {"input_ids": torch.tensor([[3, 4, 5, 6, 7]])}

# model_type of the whole: (class, its config, inputs, the field that both return, what is not used)
WHOLES = {
    "gemma3": (
        "Gemma3ForConditionalGeneration",
        {"text_config": TEXT, "vision_config": TOWER, "mm_tokens_per_image": 4},
        SEEN,
        "logits",
        ("vision_tower", "multi_modal_projector"),
    ),
    "qwen3_5": (
        "Qwen3_5ForConditionalGeneration",
        {
            "text_config": {**TEXT, **LINEAR},
            "vision_config": {
                **{"depth": 1, "hidden_size": 12, "num_heads": 2, "intermediate_size": 20},
                **{"out_hidden_size": 12, "patch_size": 4, "num_position_embeddings": 16},
            },
        },
        SEEN,
        "logits",
        ("visual",),
    ),
    "siglip": (
        "SiglipModel",
        {
            "text_config": {
                **{"hidden_size": 12, "num_hidden_layers": 1, "num_attention_heads": 2},
                **{"intermediate_size": 20, "vocab_size": 17, "projection_size": 12},
            },
            "vision_config": TOWER,
        },
        {"pixel_values": torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(3))},
        "last_hidden_state",
        ("text_model", "logit_scale", "head.probe"),
    ),
    "clip": (
        "CLIPModel",
        {
            "text_config": {
                **{"hidden_size": 12, "num_hidden_layers": 1, "num_attention_heads": 2},
                **{"intermediate_size": 20, "vocab_size": 17},
            },
            "vision_config": TOWER,
            "projection_dim": 9,
        },
        {"pixel_values": torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(3))},
        "last_hidden_state",
        ("text_model", "logit_scale", "text_projection"),
    ),
}


def saved(family: str, folder: Path) -> torch.nn.Module:
    name, keys, *_ = WHOLES[family]
    config = transformers.CONFIG_MAPPING[family](**keys)
    torch.manual_seed(1)
    whole = getattr(transformers, name)._from_config(config, attn_implementation="eager").eval()
    whole.save_pretrained(folder)
    return whole


def test_every_model_that_is_known_inside_another_is_tested_here():
    assert WHOLES.keys() == INNER.keys()
    assert PREFIXES.keys() <= FAMILIES.keys()


@pytest.mark.parametrize("family", WHOLES)
def test_it_returns_what_the_whole_returns(tmp_path, family):
    _, _, inputs, field, unused = WHOLES[family]
    whole = saved(family, tmp_path)
    checkpoint = open_checkpoint(tmp_path)
    with torch.no_grad():
        own = build_model(checkpoint, "float32")(**inputs)[field]
        part = whole.vision_model if field == "last_hidden_state" else whole
        expected = part(**inputs)[field]
    assert torch.equal(own, expected)
    left = checkpoint.unused
    assert all(any(part in name for name in left) for part in unused)
    assert not any(name in left for name in checkpoint.tensors)


def test_a_tensor_that_the_body_lacks_is_refused_by_name(tmp_path):
    saved("gemma3", tmp_path)
    path = tmp_path / "model.safetensors"
    tensors = load_file(path)
    gone = next(name for name in tensors if "language_model" in name and "q_norm" in name)
    del tensors[gone]
    save_file(tensors, path, {"format": "pt"})
    with pytest.raises(InputError, match="q_norm"):
        check_checkpoint(open_checkpoint(tmp_path))
