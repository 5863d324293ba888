"""Small checkpoints with seeded random weights, gains and biases in every tensor, as folders."""

import json
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import BertConfig, GPT2Config

from normgauge.checkpoints.architectures import empty_model


def gpt2_config(**changes) -> GPT2Config:
    shape = {
        "n_layer": 2,
        "n_embd": 32,
        "n_head": 4,
        "vocab_size": 101,
        "n_positions": 24,
        **changes,
    }
    return GPT2Config(architectures=["GPT2LMHeadModel"], bos_token_id=0, eos_token_id=0, **shape)


def bert_config(**changes) -> BertConfig:
    shape = {
        "num_hidden_layers": 2,
        "hidden_size": 32,
        "num_attention_heads": 4,
        "intermediate_size": 64,
        "vocab_size": 101,
        **changes,
    }
    return BertConfig(architectures=["BertForMaskedLM"], max_position_embeddings=24, **shape)


def write(folder: Path, config, seed=0, dtype=torch.float32) -> Path:
    """A checkpoint folder of that config; gains are log-normal, everything else is Gaussian. Tied
    tensors are stored once.
    """
    folder.mkdir(parents=True, exist_ok=True)
    model = empty_model(config, torch.float32)
    ties = set(model.all_tied_weights_keys)
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for name, tensor in model.state_dict().items():
        if name in ties:
            continue
        values = torch.randn(tensor.shape, generator=generator)
        is_gain = tensor.dim() == 1 and name.endswith("weight")
        tensors[name] = ((values * 0.5).exp() if is_gain else values * 0.14).to(dtype).contiguous()
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config.to_dict()))
    return folder
