"""T5 (1.0 and 1.1): RMSNorm encoder and decoder with relative attention biases, plain or gated
feed-forward.

Both stacks embed with one table, so both residual streams are one space. In 1.0 the readout is tied
to it and reads a scaled input.
"""

from __future__ import annotations

from typing import Any

from normgauge.anatomy.assembly import rms_norm, whole
from normgauge.anatomy.build import Builder, join
from normgauge.anatomy.options import select_architecture
from normgauge.anatomy.structure import Anatomy, Placement, Positions, Role, Space, SpaceKind

CLASSES = {
    "T5Model": (("encoder", "decoder"), False),
    "T5ForConditionalGeneration": (("encoder", "decoder"), True),
    "T5EncoderModel": (("encoder",), False),
}
EMBEDDING = "shared.weight"


def describe(config: Any) -> Anatomy:
    """The anatomy of a T5 config. Raises InputError on an unknown class."""
    stacks, readout = select_architecture(config, CLASSES)
    style = rms_norm(config.layer_norm_epsilon)
    builder = Builder("t5", config.architectures[0], Placement.PRE, Positions.RELATIVE, style)
    residual = builder.space("residual", SpaceKind.RESIDUAL, config.d_model)
    vocabulary = builder.space("vocabulary", SpaceKind.VOCABULARY, config.vocab_size)
    builder.embedding(EMBEDDING, vocabulary, residual)
    memory = None
    for stack in stacks:
        builder.embedding(f"{stack}.embed_tokens.weight", vocabulary, residual, alias_of=EMBEDDING)
        terminal = _stack(builder, config, stack, residual, memory)
        memory = (residual, terminal)
    if readout:
        scale = config.d_model**-0.5 if config.scale_decoder_outputs else 1.0
        alias = EMBEDDING if config.scale_decoder_outputs else None
        builder.head(
            "lm_head",
            residual,
            terminal,
            vocabulary,
            bias=False,
            aliases=(alias, None),
            input_scale=scale,
        )
    return builder.finish()


def _stack(
    builder: Builder, config: Any, stack: str, residual: Space, memory: tuple[Space, str] | None
) -> str:
    """The blocks and terminal norm of one stack; returns the norm's name."""
    length = config.num_decoder_layers if stack == "decoder" else config.num_layers
    blocks = [f"{stack}.block.{index}" for index in range(length)]

    def add_block(module: str, number: int) -> None:
        _block(builder, config, stack, module, number, residual, memory)

    terminal = builder.pre_norm_stack(
        stack, residual, blocks, add_block, f"{stack}.final_layer_norm", causal=stack == "decoder"
    )
    _relative_bias(builder, config, stack, blocks[0])
    return terminal


def _relative_bias(builder: Builder, config: Any, stack: str, first_block: str) -> None:
    """The score bias per distance bucket and head, stored in the first block and used by all."""
    buckets = builder.space(
        "relative bucket", SpaceKind.POSITION, config.relative_attention_num_buckets
    )
    heads = builder.space(f"{stack}/head", SpaceKind.OTHER, config.num_heads)
    name = join(first_block, "layer.0.SelfAttention.relative_attention_bias.weight")
    builder.tensor(name, whole(Role.INDEX, buckets), whole(Role.INDEX, heads))


def _attention_modules(module: str) -> dict[str, str]:
    return {
        "query": f"{module}.q",
        "key": f"{module}.k",
        "value": f"{module}.v",
        "attention_output": f"{module}.o",
    }


def _feed_forward_modules(config: Any, module: str) -> dict[str, str]:
    if config.is_gated_act:
        return {"gate": f"{module}.wi_0", "up": f"{module}.wi_1", "down": f"{module}.wo"}
    return {"up": f"{module}.wi", "down": f"{module}.wo"}


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
    last = f"{module}.layer.{2 if memory else 1}"
    modules = _attention_modules(f"{module}.layer.0.SelfAttention") | _feed_forward_modules(
        config, f"{last}.DenseReluDense"
    )
    attention_norm = builder.norm(f"{module}.layer.0.layer_norm", residual)
    spaces = builder.attention_spaces(prefix, config.num_heads, config.d_kv)
    builder.projections(prefix, spaces, modules, residual, attention_norm, biased=())
    if memory:
        cross_norm = builder.norm(f"{module}.layer.1.layer_norm", residual)
        cross = builder.attention_spaces(f"{prefix}cross_", config.num_heads, config.d_kv)
        cross_modules = _attention_modules(f"{module}.layer.1.EncDecAttention")
        builder.projections(
            f"{prefix}cross_", cross, cross_modules, residual, cross_norm, biased=(), memory=memory
        )
    mlp_norm = builder.norm(f"{last}.layer_norm", residual)
    builder.feed_forward(
        prefix, config.d_ff, residual, mlp_norm, config.dense_act_fn, modules, bias=False
    )
    builder.schur_sites(stack, number, modules, attention_norm, mlp_norm)
    taps = (
        {"after_attention": cross_norm, "after_cross_attention": mlp_norm}
        if memory
        else {"after_attention": mlp_norm}
    )
    builder.block_sites(stack, number, module, residual, taps)
