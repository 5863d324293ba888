"""Llama, Mistral, Qwen2, Qwen3, Gemma 1-3, StableLM, Granite, SmolLM3 and Cohere: one decoder with
rotary positions and a gated feed-forward, told apart by facts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from normgauge.anatomy.assembly import NormStyle, layer_norm, rms_norm
from normgauge.anatomy.build import Builder, Readout, join
from normgauge.anatomy.options import head_size, refuse_options, rotary_size, select_architecture
from normgauge.anatomy.structure import Anatomy, Placement, Positions, Space, SpaceKind

STACK = "decoder"
EXPERT_OPTIONS = ("num_experts", "num_local_experts", "n_routed_experts", "add_cross_attention")


@dataclass(frozen=True)
class Facts:
    """What distinguishes one family of gated decoders.

    `classes` is the stem of its class names, `base` its headless class. `biased` gives the
    attention maps that have a bias. `sandwich` adds a norm after each sublayer, `head_norms` a norm
    on each query and key head. `gain_offset` is 1 where the stored gain w stands for 1 + w.
    `activation` is the config key that holds the activation's name. `style` gives the norms,
    RMSNorm where it is None. `parallel` says whether attention and feed-forward read one norm side
    by side, `neighbours` whether positions turn neighbouring coordinates together, `turns` whether
    they turn those of a block at all, by its index. `delta_factor` multiplies what the sublayers
    write. `labelled`: there is a class with labels. `refused` are options that add what is not
    described.
    """

    classes: str
    base: str
    biased: Callable[[Any], tuple[str, ...]]
    mlp_bias: Callable[[Any], bool] = lambda config: False
    gain_offset: float = 0.0
    sandwich: bool = False
    head_norms: bool = False
    activation: str = "hidden_act"
    style: Callable[[Any], NormStyle] | None = None
    parallel: Callable[[Any], bool] = lambda config: False
    neighbours: bool = False
    turns: Callable[[Any, int], bool] = lambda config, index: True
    delta_factor: Callable[[Any], float] = lambda config: 1.0
    labelled: bool = True
    refused: tuple[str, ...] = ()


def _all_if_attention_bias(config: Any) -> tuple[str, ...]:
    return ("query", "key", "value", "attention_output") if config.attention_bias else ()


FACTS = {
    "llama": Facts(
        "Llama", "LlamaModel", _all_if_attention_bias, mlp_bias=lambda config: config.mlp_bias
    ),
    "mistral": Facts("Mistral", "MistralModel", lambda config: ()),
    "qwen2": Facts("Qwen2", "Qwen2Model", lambda config: ("query", "key", "value")),
    "qwen3": Facts("Qwen3", "Qwen3Model", _all_if_attention_bias, head_norms=True),
    "gemma": Facts("Gemma", "GemmaModel", _all_if_attention_bias, gain_offset=1.0),
    "gemma2": Facts(
        "Gemma2",
        "Gemma2Model",
        _all_if_attention_bias,
        gain_offset=1.0,
        sandwich=True,
        activation="hidden_activation",
    ),
    "gemma3_text": Facts(
        "Gemma3",
        "Gemma3TextModel",
        _all_if_attention_bias,
        gain_offset=1.0,
        sandwich=True,
        head_norms=True,
        activation="hidden_activation",
    ),
    "stablelm": Facts(
        "StableLm",
        "StableLmModel",
        lambda config: ("query", "key", "value") if config.use_qkv_bias else (),
        style=lambda config: layer_norm(config.layer_norm_eps),
        parallel=lambda config: config.use_parallel_residual,
        refused=("qk_layernorm",),
    ),
    "granite": Facts(
        "Granite",
        "GraniteModel",
        _all_if_attention_bias,
        mlp_bias=lambda config: config.mlp_bias,
        delta_factor=lambda config: config.residual_multiplier,
        labelled=False,
    ),
    "smollm3": Facts(
        "SmolLM3",
        "SmolLM3Model",
        _all_if_attention_bias,
        mlp_bias=lambda config: config.mlp_bias,
        turns=lambda config, index: bool(config.no_rope_layers[index]),
    ),
    "cohere": Facts(
        "Cohere",
        "CohereModel",
        _all_if_attention_bias,
        style=lambda config: layer_norm(config.layer_norm_eps, bias=False),
        parallel=lambda config: True,
        neighbours=True,
        labelled=False,
        refused=("use_qk_norm",),
    ),
}


def describe(config: Any) -> Anatomy:
    """The anatomy of a gated decoder's config. Raises InputError on experts, cross-attention or an
    unknown class.
    """
    facts = FACTS[config.model_type]
    refuse_options(config, (*EXPERT_OPTIONS, *facts.refused))
    prefix, readout = select_architecture(config, classes(config.model_type))
    builder = Builder(
        config.model_type,
        config.architectures[0],
        _placement(config, facts),
        Positions.ROTARY,
        facts.style(config) if facts.style else rms_norm(config.rms_norm_eps, facts.gain_offset),
        rotary_size(config),
        facts.delta_factor(config),
    )
    residual = builder.space("residual", SpaceKind.RESIDUAL, config.hidden_size)
    embedding = f"{join(prefix, 'embed_tokens')}.weight"
    builder.embedding(
        embedding, builder.space("vocabulary", SpaceKind.VOCABULARY, config.vocab_size), residual
    )
    blocks = [join(prefix, f"layers.{index}") for index in range(config.num_hidden_layers)]

    def add_block(module: str, number: int) -> None:
        _block(builder, config, facts, module, number, residual)

    terminal = builder.pre_norm_stack(
        STACK,
        residual,
        blocks,
        add_block,
        join(prefix, "norm"),
        causal=not getattr(config, "use_bidirectional_attention", False),
    )
    builder.readout(readout, config, residual, terminal, embedding)
    return builder.finish()


def _placement(config: Any, facts: Facts) -> Placement:
    if facts.parallel(config):
        return Placement.PARALLEL
    return Placement.SANDWICH if facts.sandwich else Placement.PRE


def classes(family: str) -> dict[str, tuple[str, Readout | None]]:
    """Prefix and readout of each class of a family, the bare one first."""
    facts = FACTS[family]
    found: dict[str, tuple[str, Readout | None]] = {
        facts.base: ("", None),
        f"{facts.classes}ForCausalLM": ("model", Readout("lm_head")),
    }
    if facts.labelled:
        name = f"{facts.base.removesuffix('Model')}ForSequenceClassification"
        found[name] = ("model", Readout("score", labels=True))
    return found


def _block(
    builder: Builder, config: Any, facts: Facts, module: str, number: int, residual: Space
) -> None:
    prefix = f"{STACK}/block.{number}/"
    attention, mlp = f"{module}.self_attn", f"{module}.mlp"
    modules = {
        "query": f"{attention}.q_proj",
        "key": f"{attention}.k_proj",
        "value": f"{attention}.v_proj",
        "attention_output": f"{attention}.o_proj",
        "gate": f"{mlp}.gate_proj",
        "up": f"{mlp}.up_proj",
        "down": f"{mlp}.down_proj",
    }
    size = head_size(config)
    attention_norm = builder.norm(f"{module}.input_layernorm", residual)
    spaces = builder.attention_spaces(
        prefix, config.num_attention_heads, size, config.num_key_value_heads
    )
    builder.projections(
        prefix,
        spaces,
        modules,
        residual,
        attention_norm,
        biased=facts.biased(config),
        neighbouring=builder.rotary_size if facts.neighbours else 0,
    )
    if not facts.turns(config, number - 1):
        builder.still.append(prefix)
    if facts.head_norms:
        builder.norm(f"{attention}.q_norm", spaces.query, size)
        builder.norm(f"{attention}.k_norm", spaces.key, size)
    if facts.sandwich:
        builder.norm(f"{module}.post_attention_layernorm", residual)
    parallel = facts.parallel(config)
    between = f"{module}.{'pre_feedforward' if facts.sandwich else 'post_attention'}_layernorm"
    mlp_norm = attention_norm if parallel else builder.norm(between, residual)
    activation = getattr(config, facts.activation)
    builder.feed_forward(
        prefix,
        config.intermediate_size,
        residual,
        mlp_norm,
        activation,
        modules,
        bias=facts.mlp_bias(config),
    )
    if facts.sandwich:
        builder.norm(f"{module}.post_feedforward_layernorm", residual)
    builder.schur_sites(STACK, number, modules, attention_norm, mlp_norm)
    # in parallel, the stream after attention alone exists nowhere
    taps = {} if parallel else {"after_attention": mlp_norm}
    builder.block_sites(STACK, number, module, residual, taps)
