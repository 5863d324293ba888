"""SCEPTR: a post-norm transformer encoder over the residues of T-cell receptors.

Nagano et al., "Contrastive learning of T cell receptor representations", Cell Systems 2025; the
weights come with the package `sceptr`. The modules are written out so that every input and output
can be hooked: torch's own TransformerEncoder skips its submodules in evaluation. Parameter names
are those of the stored state dictionaries.

An input is an integer tensor (batch, positions, 4) with the columns token, position in its
compartment (from 1), length of the compartment, compartment. Token 0 pads; 1 masks, 2 opens the
sequence (position, length and compartment 0), 3..22 are the amino acids in alphabetical order.
"""

from __future__ import annotations

import math

import torch
from torch import nn
from transformers.modeling_outputs import MaskedLMOutput

from normgauge.checkpoints.sceptr_config import AMINO_ACIDS, SPECIAL_TOKENS, TOKENS, SceptrConfig

LONGEST_COMPARTMENT = 100


class OneHot(nn.Module):
    """Index i to the unit vector i - 1, index 0 to zero."""

    _token_embeddings: torch.Tensor

    def __init__(self, count: int) -> None:
        super().__init__()
        self.register_buffer(
            "_token_embeddings", torch.cat([torch.zeros(1, count), torch.eye(count)])
        )

    def forward(self, indices: torch.Tensor) -> torch.Tensor:
        return self._token_embeddings[indices]


class Blosum(nn.Module):
    """Rows of the BLOSUM62 matrix (scaled, stored) for amino acids, learned vectors for the special
    tokens.
    """

    _blosum_embeddings: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self._special_token_embeddings = nn.Embedding(SPECIAL_TOKENS, AMINO_ACIDS, padding_idx=0)
        # Filled from a checkpoint: a model that was never given the matrix must not look usable.
        self.register_buffer("_blosum_embeddings", torch.full((TOKENS, AMINO_ACIDS), math.nan))

    def forward(self, indices: torch.Tensor) -> torch.Tensor:
        special = indices.where(indices < SPECIAL_TOKENS, 0)
        return self._blosum_embeddings[indices] + self._special_token_embeddings(special)


class ConcatenatedEmbedder(nn.Module):
    """Token, relative position in the compartment, and compartment, side by side: (batch,
    positions, embedding_size).
    """

    def __init__(self, config: SceptrConfig) -> None:
        super().__init__()
        if config.embedding == "blosum":
            self._blosum_embedding = Blosum()
        else:
            self._token_embedding = OneHot(config.vocab_size - 1)
        self._compartment_embedding = OneHot(config.compartments)

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        tokens, position, length, compartment = input_ids.unbind(-1)
        token_embedding = (
            self._blosum_embedding if hasattr(self, "_blosum_embedding") else self._token_embedding
        )
        compartments = self._compartment_embedding(compartment)
        place = _relative_position(position, length).to(compartments.dtype)
        return torch.cat([token_embedding(tokens), place.unsqueeze(-1), compartments], dim=-1)


def _relative_position(position: torch.Tensor, length: torch.Tensor) -> torch.Tensor:
    """From 0 at the first residue to 1 at the last, 1/2 for a single one, 0 for tokens outside
    every compartment.
    """
    steps = (length - 1).clamp(min=1)
    relative = torch.where(length == 1, 0.5, (position - 1).double() / steps)
    return torch.where(position == 0, 0.0, relative)


class SinusoidalPosition(nn.Module):
    """Sines and cosines of the position, wavelengths up to 30; row 0, of tokens without a position,
    is zero.
    """

    position_embedding_matrix: torch.Tensor

    def __init__(self, width: int) -> None:
        super().__init__()
        wavelengths = 30.0 ** (torch.arange(0, width, 2) / width)
        angles = torch.arange(LONGEST_COMPARTMENT).unsqueeze(1) / wavelengths
        rows = torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(1)
        self.register_buffer("position_embedding_matrix", torch.cat([torch.zeros(1, width), rows]))

    def forward(self, position: torch.Tensor) -> torch.Tensor:
        return self.position_embedding_matrix[position]


class SummedEmbedder(nn.Module):
    """Learned token and compartment vectors and a sinusoidal position, summed and scaled by
    sqrt(width).
    """

    def __init__(self, config: SceptrConfig) -> None:
        super().__init__()
        self.token_embedding = nn.Embedding(config.vocab_size, config.hidden_size, padding_idx=0)
        self.position_embedding = SinusoidalPosition(config.hidden_size)
        self.compartment_embedding = nn.Embedding(
            config.compartments + 1, config.hidden_size, padding_idx=0
        )

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        tokens, position, _, compartment = input_ids.unbind(-1)
        summed = (
            self.token_embedding(tokens)
            + self.position_embedding(position)
            + self.compartment_embedding(compartment)
        )
        return summed * math.sqrt(summed.shape[-1])


class Attention(nn.Module):
    """Multi-head self-attention; its input is the input of the fused query/key/value map, that of
    `out_proj` the mixed values.
    """

    def __init__(self, config: SceptrConfig) -> None:
        super().__init__()
        width = config.hidden_size
        self.heads = config.num_attention_heads
        self.in_proj_weight = nn.Parameter(torch.empty(3 * width, width))
        self.in_proj_bias = nn.Parameter(torch.zeros(3 * width))
        self.out_proj = nn.Linear(width, width)
        nn.init.xavier_uniform_(self.in_proj_weight)
        nn.init.zeros_(self.out_proj.bias)

    def forward(self, hidden_states: torch.Tensor, padding: torch.Tensor) -> torch.Tensor:
        projected = nn.functional.linear(hidden_states, self.in_proj_weight, self.in_proj_bias)
        query, key, value = (
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for part in projected.chunk(3, dim=-1)
        )
        scores = query @ key.mT / math.sqrt(query.shape[-1])
        probabilities = scores.masked_fill(padding[:, None, None, :], -math.inf).softmax(dim=-1)
        return self.out_proj((probabilities @ value).transpose(1, 2).flatten(2))


class Layer(nn.Module):
    """x -> norm1(x + attention(x)) -> norm2(. + linear2(relu(linear1(.))))."""

    def __init__(self, config: SceptrConfig) -> None:
        super().__init__()
        self.self_attn = Attention(config)
        self.linear1 = nn.Linear(config.hidden_size, config.intermediate_size)
        self.linear2 = nn.Linear(config.intermediate_size, config.hidden_size)
        self.norm1 = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.norm2 = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)

    def forward(self, hidden_states: torch.Tensor, padding: torch.Tensor) -> torch.Tensor:
        hidden_states = self.norm1(hidden_states + self.self_attn(hidden_states, padding))
        return self.norm2(hidden_states + self.linear2(self.linear1(hidden_states).relu()))


class Layers(nn.Module):
    """The layers in order."""

    def __init__(self, config: SceptrConfig) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.num_hidden_layers))

    def forward(self, hidden_states: torch.Tensor, padding: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            hidden_states = layer(hidden_states, padding)
        return hidden_states


class Encoder(nn.Module):
    """The layers, under the stored name."""

    def __init__(self, config: SceptrConfig) -> None:
        super().__init__()
        self._self_attention_stack = Layers(config)

    def forward(self, hidden_states: torch.Tensor, padding: torch.Tensor) -> torch.Tensor:
        return self._self_attention_stack(hidden_states, padding)


class ProjectedEncoder(nn.Module):
    """A bias-free projection into the residual stream, then the layers."""

    def __init__(self, config: SceptrConfig) -> None:
        super().__init__()
        self._initial_projector = nn.Linear(config.embedding_size, config.hidden_size, bias=False)
        self._standard_stack = Encoder(config)

    def forward(self, hidden_states: torch.Tensor, padding: torch.Tensor) -> torch.Tensor:
        return self._standard_stack(self._initial_projector(hidden_states), padding)


class Readout(nn.Module):
    """Amino acid logits from the residual stream."""

    def __init__(self, config: SceptrConfig) -> None:
        super().__init__()
        self.projector = nn.Linear(config.hidden_size, AMINO_ACIDS)

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        return self.projector(hidden_states)


class Sceptr(nn.Module):
    """One SCEPTR variant. `forward(input_ids)` takes (batch, positions, 4) integers and returns
    amino acid logits (batch, positions, 20).

    Initialisation is torch's own for a TransformerEncoder's parts, drawn independently for every
    layer.
    """

    def __init__(self, config: SceptrConfig) -> None:
        super().__init__()
        self.config = config
        self._token_embedder = (
            SummedEmbedder(config)
            if config.embedding == "learned"
            else ConcatenatedEmbedder(config)
        )
        self._self_attention_stack = (
            ProjectedEncoder(config) if config.embedding != "learned" else Encoder(config)
        )
        self._mlm_token_prediction_projector = Readout(config)

    def forward(self, input_ids: torch.Tensor) -> MaskedLMOutput:
        padding = input_ids[..., 0] == 0
        hidden_states = self._self_attention_stack(self._token_embedder(input_ids), padding)
        return MaskedLMOutput(logits=self._mlm_token_prediction_projector(hidden_states))
