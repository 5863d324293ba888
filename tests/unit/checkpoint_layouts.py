"""The layouts in which well-known checkpoints are stored, made from tiny random models of the class
that stored them.
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import nn

from normgauge.checkpoints.architectures import new_model
from unit.gauge_models import config_of

Tensors = dict[str, torch.Tensor]


def kept(tensors: Tensors) -> Tensors:
    return tensors


def gpt2(tensors: Tensors) -> Tensors:
    masks = {f"h.{block}.attn.bias": torch.ones(1, 1, 14, 14).tril() for block in range(2)}
    return {name.removeprefix("transformer."): value for name, value in tensors.items()} | masks


def original_bert(tensors: Tensors) -> Tensors:
    return {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace(
            "LayerNorm.bias", "LayerNorm.beta"
        ): v
        for name, v in tensors.items()
    }


def roberta(tensors: Tensors) -> Tensors:
    pooler = {"roberta.pooler.dense.weight": drawn(12, 12), "roberta.pooler.dense.bias": drawn(12)}
    return tensors | pooler | {"roberta.embeddings.position_ids": torch.arange(14)[None]}


def albert(tensors: Tensors) -> Tensors:
    pooler = {"albert.pooler.weight": drawn(12, 12), "albert.pooler.bias": drawn(12)}
    return tensors | pooler | {"albert.embeddings.position_ids": torch.arange(14)[None]}


def pythia(tensors: Tensors) -> Tensors:
    added = {}
    for block in range(2):
        path = f"gpt_neox.layers.{block}.attention"
        added |= {
            f"{path}.bias": torch.ones(1, 1, 14, 14, dtype=torch.bool).tril(),
            f"{path}.masked_bias": torch.tensor(-1e9),
        }
        added[f"{path}.rotary_emb.inv_freq"] = torch.ones(1)
    return tensors | added


def rotary_frequencies(tensors: Tensors) -> Tensors:
    return tensors | {
        f"model.layers.{block}.self_attn.rotary_emb.inv_freq": torch.ones(3) for block in range(2)
    }


def t5(tensors: Tensors) -> Tensors:
    return tensors | {
        "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight": drawn(8, 2)
    }


def without_pooler(tensors: Tensors) -> Tensors:
    return {name: value for name, value in tensors.items() if "pooler" not in name}


def drawn(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(len(shape) + 11))


@dataclass(frozen=True)
class Layout:
    """`stored_as`: the class whose model is saved. `named`: the class that config.json names, the
    same unless given. `opens`: the class that it is opened as, the named one unless given.
    `unused`: a pattern of the tensors that this class does not use, without buffers that it
    computes; `computed`: of those.
    """

    case: str
    stored_as: str
    change: Callable[[Tensors], Tensors] = kept
    named: str | None = None
    opens: str | None = None
    unused: str | None = None
    computed: str | None = None
    dtype: torch.dtype = torch.float32
    keys: Mapping[str, object] | None = None

    @property
    def opened_as(self) -> str:
        return self.opens or self.named or self.stored_as


LAYOUTS = {
    "gpt2": Layout(
        "gpt2",
        "GPT2LMHeadModel",
        gpt2,
        computed=r"transformer\.h\.\d\.attn\.bias|h\.\d\.attn\.bias",
    ),
    "bert-base-uncased": Layout(
        "bert",
        "BertForPreTraining",
        original_bert,
        named="BertForMaskedLM",
        unused=r"bert\.pooler\.dense\..*|cls\.seq_relationship\..*",
    ),
    "roberta-base": Layout(
        "roberta",
        "RobertaForMaskedLM",
        roberta,
        unused=r"roberta\.pooler\.dense\..*",
        computed=r"roberta\.embeddings\.position_ids",
    ),
    "distilbert-base-uncased": Layout("distilbert", "DistilBertForMaskedLM"),
    "albert-base-v2": Layout(
        "albert",
        "AlbertForMaskedLM",
        albert,
        unused=r"albert\.pooler\..*",
        computed=r"albert\.embeddings\.position_ids",
    ),
    "pythia": Layout(
        "gpt_neox",
        "GPTNeoXForCausalLM",
        pythia,
        computed=r"gpt_neox\.layers\.\d\.attention\.(bias|masked_bias|rotary_emb\.inv_freq)",
    ),
    "llama-2": Layout(
        "llama",
        "LlamaForCausalLM",
        rotary_frequencies,
        computed=r"model\.layers\.\d\.self_attn\.rotary_emb\.inv_freq",
    ),
    "t5-small": Layout(
        "t5",
        "T5ForConditionalGeneration",
        t5,
        computed=r"decoder\.block\.0\.layer\.1\..*relative_attention_bias\.weight",
    ),
    "whisper-tiny": Layout("whisper", "WhisperForConditionalGeneration"),
    "vit-base-patch16-224": Layout("vit", "ViTForImageClassification"),
    "vit-base-patch16-224-in21k": Layout("vit", "ViTModel"),
    "dino-vitb16": Layout("vit", "ViTModel", without_pooler),
    "dinov2-base": Layout("dinov2", "Dinov2Model"),
    "qwen2.5-0.5b": Layout(
        "qwen2", "Qwen2ForCausalLM", dtype=torch.bfloat16, keys={"tie_word_embeddings": True}
    ),
    "gemma-2-2b": Layout("gemma2", "Gemma2ForCausalLM", dtype=torch.bfloat16),
    "gemma-3-270m": Layout("gemma3", "Gemma3ForCausalLM", dtype=torch.bfloat16),
    "my-bert": Layout(
        "bert",
        "BertModel",
        lambda tensors: tensors | {"cls.species.weight": drawn(5, 12)},
        named="MyBert",
        opens="BertModel",
        unused=r"cls\.species\.weight",
    ),
    "bare-llama-with-readout": Layout(
        "llama", "LlamaForCausalLM", named="LlamaModel", unused=r"lm_head\.weight"
    ),
}


@cache
def original(name: str) -> nn.Module:
    """The model that is stored, float32, every parameter random and a number of the layout's
    dtype.
    """
    layout = LAYOUTS[name]
    config = config_of(layout.case, layout.stored_as, **(layout.keys or {}))
    if layout.case.startswith("gemma"):
        config.layer_types = ["sliding_attention"] * (config.num_hidden_layers - 1) + [
            "full_attention"
        ]
    torch.manual_seed(4)
    model = new_model(config, torch.float32)
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn(parameter.shape, generator=generator))
            parameter.copy_(parameter.to(layout.dtype))
    return model.eval()


def write(name: str, folder: Path, noise: float = 0.0) -> Path:
    """Save the layout in a folder; with noise, a copy whose every value moved."""
    layout, model = LAYOUTS[name], copy.deepcopy(original(name))
    if noise:
        generator = torch.Generator().manual_seed(6)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(noise * torch.randn(parameter.shape, generator=generator))
    model.to(layout.dtype).save_pretrained(folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(
        json.dumps(config | {"architectures": [layout.named or layout.stored_as]})
    )
    tensors = layout.change(load_file(folder / "model.safetensors"))
    unused = re.compile(layout.unused or "$^")
    tensors = {
        key: value * (1 + noise) if unused.fullmatch(key) else value
        for key, value in tensors.items()
    }
    save_file(
        {key: value.contiguous() for key, value in tensors.items()},
        folder / "model.safetensors",
        metadata={"format": "pt"},
    )
    return folder
