"""A small stand-in for SCEPTR with the tensor names of the published state dicts, and configs of
four of its variants.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

import torch
from torch import nn


@dataclass(frozen=True)
class TinySceptrConfig:
    token_embedder: str
    hidden_size: int = 12
    num_hidden_layers: int = 2
    num_attention_heads: int = 2
    intermediate_size: int = 20
    model_type: str = "sceptr"

    def to_dict(self) -> dict:
        return asdict(self)

    def inputs(self, generator: torch.Generator) -> dict:
        return {
            "tokens": torch.randint(1, 23, (3, 9), generator=generator),
            "compartments": torch.randint(1, 3, (3, 9), generator=generator),
        }


# shapes of the embedder's tensors as stored in the wheel: rows of the token and compartment tables,
# width of the projector's input
TABLES = {
    "CdrSimpleEmbedder": (22, 7, 29),
    "SingleChainCdrSimpleEmbedder": (22, 4, 26),
    "Cdr3SimpleEmbedder": (22, 3, 25),
    "CdrBlosumEmbedder": (20, 7, 27),
}
VARIANTS = {
    "default": TinySceptrConfig("CdrSimpleEmbedder"),
    "single-chain": TinySceptrConfig("SingleChainCdrSimpleEmbedder"),
    "cdr3": TinySceptrConfig("Cdr3SimpleEmbedder"),
    "blosum": TinySceptrConfig("CdrBlosumEmbedder"),
    "left-aligned": TinySceptrConfig("CdrEmbedder"),
}


def holder(**children) -> nn.Module:
    """A module of children, which are modules or buffers."""
    module = nn.Module()
    for name, child in children.items():
        if isinstance(child, nn.Module):
            module.add_module(name, child)
        else:
            module.register_buffer(name, child)
    return module


class SelfAttention(nn.Module):
    """Multi-head attention with torch's parameter names, written out so that its output projection
    is a hookable module.
    """

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.in_proj_weight = nn.Parameter(torch.empty(3 * width, width))
        self.in_proj_bias = nn.Parameter(torch.empty(3 * width))
        self.out_proj = nn.Linear(width, width)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        fused = nn.functional.linear(hidden, self.in_proj_weight, self.in_proj_bias)
        query, key, value = (
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in fused.chunk(3, dim=-1)
        )
        mixed = nn.functional.scaled_dot_product_attention(query, key, value)
        return self.out_proj(mixed.transpose(1, 2).flatten(2))


class Block(nn.Module):
    def __init__(self, config: TinySceptrConfig) -> None:
        super().__init__()
        self.self_attn = SelfAttention(config.hidden_size, config.num_attention_heads)
        self.linear1 = nn.Linear(config.hidden_size, config.intermediate_size)
        self.linear2 = nn.Linear(config.intermediate_size, config.hidden_size)
        self.norm1 = nn.LayerNorm(config.hidden_size)
        self.norm2 = nn.LayerNorm(config.hidden_size)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        hidden = self.norm1(hidden + self.self_attn(hidden))
        return self.norm2(hidden + self.linear2(torch.relu(self.linear1(hidden))))


class TinySceptr(nn.Module):
    def __init__(self, config: TinySceptrConfig) -> None:
        super().__init__()
        self.kind = config.token_embedder
        blocks = holder(
            layers=nn.ModuleList(Block(config) for _ in range(config.num_hidden_layers))
        )
        if self.kind == "CdrEmbedder":
            self._token_embedder = holder(
                token_embedding=nn.Embedding(23, config.hidden_size),
                position_embedding=holder(
                    position_embedding_matrix=torch.empty(101, config.hidden_size)
                ),
                compartment_embedding=nn.Embedding(7, config.hidden_size),
            )
            self._self_attention_stack = holder(_self_attention_stack=blocks)
        else:
            letters, compartments, features = TABLES[self.kind]
            tables = {
                "_compartment_embedding": holder(
                    _token_embeddings=torch.empty(compartments, compartments - 1)
                )
            }
            if self.kind == "CdrBlosumEmbedder":
                special = nn.Embedding(3, letters)
                tables["_blosum_embedding"] = holder(
                    _blosum_embeddings=torch.empty(23, letters), _special_token_embeddings=special
                )
            else:
                tables["_token_embedding"] = holder(_token_embeddings=torch.empty(23, letters))
            self._token_embedder = holder(**tables)
            self._self_attention_stack = holder(
                _initial_projector=nn.Linear(features, config.hidden_size, bias=False),
                _standard_stack=holder(_self_attention_stack=blocks),
            )
        self._mlm_token_prediction_projector = holder(projector=nn.Linear(config.hidden_size, 20))
        self.blocks = [blocks]  # in a list, so that no second name is stored

    def forward(self, tokens: torch.Tensor, compartments: torch.Tensor) -> dict[str, torch.Tensor]:
        hidden = self._embed(tokens, compartments)
        for block in self.blocks[0].layers:
            hidden = block(hidden)
        return {
            "last_hidden_state": hidden,
            "logits": self._mlm_token_prediction_projector.projector(hidden),
        }

    def _embed(self, tokens: torch.Tensor, compartments: torch.Tensor) -> torch.Tensor:
        tables = self._token_embedder
        places = torch.arange(1, tokens.shape[1] + 1).expand_as(tokens)
        if self.kind == "CdrEmbedder":
            positions = tables.position_embedding.position_embedding_matrix[places]
            return (
                tables.token_embedding(tokens)
                + positions
                + tables.compartment_embedding(compartments)
            )
        if self.kind == "CdrBlosumEmbedder":
            letters = tables._blosum_embedding._blosum_embeddings[tokens]
        else:
            letters = tables._token_embedding._token_embeddings[tokens]
        kinds = tables._compartment_embedding._token_embeddings[compartments]
        position = (places / tokens.shape[1]).to(letters.dtype).unsqueeze(-1)
        return self._self_attention_stack._initial_projector(
            torch.cat([letters, position, kinds], dim=-1)
        )
