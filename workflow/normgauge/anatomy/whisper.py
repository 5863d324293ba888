"""Whisper: pre-norm encoder over two convolutions, pre-norm decoder with cross-attention, readout
tied to the token embedding.
"""

from __future__ import annotations

from typing import Any

from normgauge.anatomy.assembly import layer_norm, whole
from normgauge.anatomy.build import Builder, Readout, join
from normgauge.anatomy.options import select_architecture, split_evenly
from normgauge.anatomy.structure import Anatomy, Placement, Positions, Role, Space, SpaceKind

CLASSES = {
    "WhisperModel": ("", None),
    "WhisperForConditionalGeneration": ("model", Readout("proj_out")),
}
BIASED = ("query", "value", "attention_output")
EPS = 1e-5  # the config has no key for it


def describe(config: Any) -> Anatomy:
    """The anatomy of a Whisper config. Raises InputError on an unknown class."""
    prefix, readout = select_architecture(config, CLASSES)
    builder = Builder(
        "whisper", config.architectures[0], Placement.PRE, Positions.ABSOLUTE, layer_norm(EPS)
    )
    memory = _encoder(builder, config, join(prefix, "encoder"))
    decoder = join(prefix, "decoder")
    residual = builder.space("decoder/residual", SpaceKind.RESIDUAL, config.d_model)
    embedding = f"{decoder}.embed_tokens.weight"
    builder.embedding(
        embedding, builder.space("vocabulary", SpaceKind.VOCABULARY, config.vocab_size), residual
    )
    positions = builder.space("decoder/position", SpaceKind.POSITION, config.max_target_positions)
    builder.embedding(f"{decoder}.embed_positions.weight", positions, residual)
    terminal = _blocks(builder, config, "decoder", decoder, residual, memory)
    builder.readout(readout, config, residual, terminal, embedding)
    return builder.finish()


def _encoder(builder: Builder, config: Any, encoder: str) -> tuple[Space, str]:
    """The encoder; returns its residual space and terminal norm, which cross-attention reads."""
    residual = builder.space("encoder/residual", SpaceKind.RESIDUAL, config.d_model)
    mel = builder.space("mel", SpaceKind.PATCH, config.num_mel_bins)
    features = builder.space("encoder/features", SpaceKind.OTHER, config.d_model)
    window = (builder.space("frame", SpaceKind.PATCH, 3),)
    builder.linear(
        f"{encoder}.conv1",
        {"encoder/convolution.1": features},
        whole(Role.INDEX, mel),
        activation="gelu",
        window=window,
    )
    builder.linear(
        f"{encoder}.conv2",
        {"encoder/convolution.2": residual},
        whole(Role.READ, features),
        activation="gelu",
        window=window,
    )
    positions = builder.space("encoder/position", SpaceKind.POSITION, config.max_source_positions)
    builder.embedding(f"{encoder}.embed_positions.weight", positions, residual)
    return residual, _blocks(builder, config, "encoder", encoder, residual, memory=None)


def _blocks(
    builder: Builder,
    config: Any,
    stack: str,
    path: str,
    residual: Space,
    memory: tuple[Space, str] | None,
) -> str:
    """The blocks and terminal norm of one stack; returns the norm's name."""
    blocks = [f"{path}.layers.{index}" for index in range(getattr(config, f"{stack}_layers"))]

    def add_block(module: str, number: int) -> None:
        _block(builder, config, stack, module, number, residual, memory)

    return builder.pre_norm_stack(
        stack, residual, blocks, add_block, f"{path}.layer_norm", causal=stack == "decoder"
    )


def _attention_modules(module: str) -> dict[str, str]:
    return {
        "query": f"{module}.q_proj",
        "key": f"{module}.k_proj",
        "value": f"{module}.v_proj",
        "attention_output": f"{module}.out_proj",
    }


def _block(
    builder: Builder,
    config: Any,
    stack: str,
    module: str,
    number: int,
    residual: Space,
    memory: tuple[Space, str] | None,
) -> None:
    prefix = f"{stack}/block.{number}/"
    heads = getattr(config, f"{stack}_attention_heads")
    size = split_evenly(config, config.d_model, heads)
    modules = _attention_modules(f"{module}.self_attn") | {
        "up": f"{module}.fc1",
        "down": f"{module}.fc2",
    }
    attention_norm = builder.norm(f"{module}.self_attn_layer_norm", residual)
    spaces = builder.attention_spaces(prefix, heads, size)
    builder.projections(prefix, spaces, modules, residual, attention_norm, BIASED)
    if memory:
        cross_norm = builder.norm(f"{module}.encoder_attn_layer_norm", residual)
        cross = builder.attention_spaces(f"{prefix}cross_", heads, size)
        cross_modules = _attention_modules(f"{module}.encoder_attn")
        builder.projections(
            f"{prefix}cross_", cross, cross_modules, residual, cross_norm, BIASED, memory
        )
    mlp_norm = builder.norm(f"{module}.final_layer_norm", residual)
    hidden = getattr(config, f"{stack}_ffn_dim")
    builder.feed_forward(prefix, hidden, residual, mlp_norm, config.activation_function, modules)
    builder.schur_sites(stack, number, modules, attention_norm, mlp_norm)
    taps = (
        {"after_attention": cross_norm, "after_cross_attention": mlp_norm}
        if memory
        else {"after_attention": mlp_norm}
    )
    builder.block_sites(stack, number, module, residual, taps)
