"""Assembling an anatomy: one place that turns modules into spaces, tensors, maps, norms and sites."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from normgauge.anatomy.structure import (
    Anatomy,
    Axis,
    LinearMap,
    Norm,
    NormKind,
    Placement,
    Positions,
    Role,
    Segment,
    Site,
    Space,
    SpaceKind,
    Stack,
    Tensor,
)
from normgauge.errors import InputError

GROUPS = {
    "embedding": "residual",
    "output": "residual",
    "terminal_norm": "terminal",
    "after_attention": "taps",
    "after_cross_attention": "taps",
    "query_key_value_input": "schur",
    "attention_output_input": "schur",
    "mlp_up_input": "schur",
    "mlp_down_input": "schur",
}


def whole(role: Role, *spaces: Space) -> Axis:
    """An axis along which whole spaces are laid one after the other."""
    return Axis(role, tuple(Segment(space.name, 0, space.size) for space in spaces))


def join(*parts: str) -> str:
    """A module path from parts, of which some may be empty (a base model has no prefix)."""
    return ".".join(part for part in parts if part)


@dataclass(frozen=True)
class Attention:
    """The spaces of one attention layer. `mixed` is the READ axis of its output projection, one run per query head."""

    query: Space
    key: Space
    value: Space
    mixed: Axis


@dataclass(frozen=True)
class NormStyle:
    """What the norms of one family have in common: kind, eps, gain offset and whether they have a bias."""

    kind: NormKind
    eps: float
    bias: bool = True
    gain_offset: float = 0.0


@dataclass(frozen=True)
class Readout:
    """A linear head on the final hidden states: over the vocabulary, or over `config.num_labels` labels."""

    module: str
    labels: bool = False
    bias: bool = False


@dataclass
class Builder:
    """Collects the parts of one anatomy; `finish` returns the immutable result."""

    family: str
    architecture: str
    placement: Placement
    positions: Positions
    style: NormStyle
    rotary_size: int = 0
    spaces: dict[str, Space] = field(default_factory=dict)
    tensors: list[Tensor] = field(default_factory=list)
    maps: list[LinearMap] = field(default_factory=list)
    norms: list[Norm] = field(default_factory=list)
    stacks: list[Stack] = field(default_factory=list)
    sites: list[Site] = field(default_factory=list)

    def space(self, name: str, kind: SpaceKind, size: int, heads: int = 1) -> Space:
        """The space of that name, made on first use."""
        return self.spaces.setdefault(name, Space(name, kind, size, heads))

    def singleton(self) -> Space:
        """The space of axes of length 1 that only serve broadcasting."""
        return self.space("singleton", SpaceKind.OTHER, 1)

    def tensor(self, name: str, *axes: Axis, alias_of: str | None = None) -> None:
        self.tensors.append(Tensor(name, axes, alias_of))

    def embedding(self, name: str, rows: Space, space: Space, alias_of: str | None = None) -> None:
        """A lookup table: rows are indexed, the looked-up vector is written to `space`."""
        self.tensor(name, whole(Role.INDEX, rows), whole(Role.WRITE, space), alias_of=alias_of)

    def norm(self, name: str, space: Space, size: int | None = None, style: NormStyle | None = None) -> str:
        """A norm module on `space` (or, with `size`, on the first `size` coordinates shared by its heads). Returns its name."""
        style = style or self.style
        length = size or space.size
        segments = (Segment(space.name, 0, length),)
        gain, bias = f"{name}.weight", f"{name}.bias" if style.bias else None
        self.tensor(gain, Axis(Role.NORMALISE, segments))
        if bias:
            self.tensor(bias, Axis(Role.WRITE, segments))
        self.norms.append(Norm(name, style.kind, space.name, length, gain, bias, style.eps, style.gain_offset))
        return name

    def linear(
        self,
        module: str,
        maps: Mapping[str, Space],
        reads: Axis,
        norm: str | None = None,
        writes: Axis | None = None,
        bias: bool = True,
        input_first: bool = False,
        activation: str | None = None,
        parameters: tuple[str, str] | None = None,
        aliases: tuple[str | None, str | None] = (None, None),
        window: Sequence[Space] = (),
        input_scale: float = 1.0,
    ) -> None:
        """A linear module and the logical maps that its weight holds.

        `maps` gives each logical map's name and the space that it writes; `writes` is the output axis where it is not simply
        those spaces in order. `input_first` is for weights stored in x out. `parameters` names weight and bias where
        they are not `<module>.weight` and `<module>.bias`; `aliases` names the tensors that they are tied to.
        `window` lists the spaces of a convolution's window axes.
        """
        weight, bias_name = parameters or (f"{module}.weight", f"{module}.bias")
        writes = writes or whole(Role.WRITE, *maps.values())
        axes = (reads, writes) if input_first else (writes, reads)
        self.tensor(weight, *axes, *(whole(Role.INDEX, space) for space in window), alias_of=aliases[0])
        if bias:
            self.tensor(bias_name, writes, alias_of=aliases[1])
        for name, space in maps.items():
            self.maps.append(
                LinearMap(
                    name=name,
                    module=module,
                    weight=weight,
                    bias=bias_name if bias else None,
                    reads=reads.segments[0].space,
                    writes=space.name,
                    norm=norm,
                    input_axis=0 if input_first else 1,
                    activation=activation,
                    input_scale=input_scale,
                )
            )

    def attention_spaces(self, prefix: str, heads: int, head_size: int, key_value_heads: int | None = None) -> Attention:
        """Query, key and value spaces named under `prefix`; key and value have one head per group."""
        groups = key_value_heads or heads
        if heads % groups:
            raise InputError(
                f"{self.family} config: num_attention_heads is {heads}, expected a multiple of num_key_value_heads ({groups}); correct it"
            )
        query = self.space(f"{prefix}query", SpaceKind.QUERY, heads * head_size, heads)
        key = self.space(f"{prefix}key", SpaceKind.KEY, groups * head_size, groups)
        value = self.space(f"{prefix}value", SpaceKind.VALUE, groups * head_size, groups)
        group_of_head = (head * groups // heads for head in range(heads))
        runs = tuple(Segment(value.name, group * head_size, (group + 1) * head_size) for group in group_of_head)
        return Attention(query, key, value, Axis(Role.READ, runs))

    def projections(
        self,
        prefix: str,
        spaces: Attention,
        modules: Mapping[str, str],
        residual: Space,
        norm: str | None,
        biased: Sequence[str] = ("query", "key", "value", "attention_output"),
        memory: tuple[Space, str] | None = None,
    ) -> None:
        """The four separate maps of an attention layer, `modules` keyed by query, key, value and attention_output.

        `memory` is the space and norm that keys and values read in cross-attention.
        """
        source, source_norm = memory or (residual, norm)
        inputs = {
            "query": (whole(Role.READ, residual), spaces.query, norm),
            "key": (whole(Role.READ, source), spaces.key, source_norm),
            "value": (whole(Role.READ, source), spaces.value, source_norm),
            "attention_output": (spaces.mixed, residual, None),
        }
        for name, (reads, writes, feeding) in inputs.items():
            self.linear(modules[name], {f"{prefix}{name}": writes}, reads, feeding, bias=name in biased)

    def feed_forward(
        self,
        prefix: str,
        size: int,
        residual: Space,
        norm: str | None,
        activation: str,
        modules: Mapping[str, str],
        bias: bool = True,
        input_first: bool = False,
    ) -> None:
        """The two maps of a feed-forward layer, or three when `modules` has a gate: gate and up write the same space."""
        hidden = self.space(f"{prefix}ffn", SpaceKind.FFN, size)
        reads = whole(Role.READ, residual)
        gated = "gate" in modules
        if gated:
            self.linear(modules["gate"], {f"{prefix}gate": hidden}, reads, norm, bias=bias, input_first=input_first, activation=activation)
        self.linear(
            modules["up"],
            {f"{prefix}up": hidden},
            reads,
            norm,
            bias=bias,
            input_first=input_first,
            activation=None if gated else activation,
        )
        self.linear(modules["down"], {f"{prefix}down": residual}, whole(Role.READ, hidden), bias=bias, input_first=input_first)

    def head(
        self,
        module: str,
        reads: Space,
        norm: str | None,
        writes: Space,
        bias: bool = True,
        activation: str | None = None,
        aliases: tuple[str | None, str | None] = (None, None),
        input_scale: float = 1.0,
    ) -> None:
        """A map outside the blocks, named after its module."""
        self.linear(
            module,
            {module: writes},
            whole(Role.READ, reads),
            norm,
            bias=bias,
            activation=activation,
            aliases=aliases,
            input_scale=input_scale,
        )

    def site(
        self,
        stack: str,
        block: int,
        tap: str,
        module: str,
        hook: str,
        width: int,
        norm: str | None = None,
        call: int = 0,
    ) -> None:
        names = {"embedding": f"{stack}/embedding", "terminal_norm": f"{stack}/terminal_norm"}
        identifier = names.get(tap, f"{stack}/block.{block}/{tap}")
        self.sites.append(Site(identifier, GROUPS[tap], stack, block, tap, module, hook, width, norm, call))

    def schur_sites(
        self,
        stack: str,
        block: int,
        modules: Mapping[str, str],
        attention_norm: str | None,
        mlp_norm: str | None,
        call: int = 0,
    ) -> None:
        """The inputs of the four maps whose Schur ratio is measured; `modules` is keyed by query, attention_output, up and down."""
        taps = {
            "query": ("query_key_value_input", attention_norm),
            "attention_output": ("attention_output_input", None),
            "up": ("mlp_up_input", mlp_norm),
            "down": ("mlp_down_input", None),
        }
        for key, (tap, norm) in taps.items():
            self.site(stack, block, tap, modules[key], "input", self._input_width(modules[key]), norm, call)

    def _input_width(self, module: str) -> int:
        held = next(item for item in self.maps if item.module == module)
        weight = next(tensor for tensor in self.tensors if tensor.name == held.weight)
        return weight.axes[held.input_axis].size

    def readout(self, readout: Readout | None, config: Any, residual: Space, norm: str | None, embedding: str = "") -> None:
        """The head of a language model (tied to `embedding` where the config says so) or of a classifier, if any."""
        if readout is None:
            return
        if readout.labels:
            self.head(readout.module, residual, norm, self.space("labels", SpaceKind.OTHER, config.num_labels), bias=readout.bias)
        else:
            tied = embedding if config.tie_word_embeddings else None
            self.head(readout.module, residual, norm, self.spaces["vocabulary"], bias=False, aliases=(tied, None))

    def pre_norm_stack(
        self,
        name: str,
        residual: Space,
        blocks: Sequence[str],
        add_block: Callable[[str, int], None],
        terminal_norm: str,
        causal: bool,
    ) -> str:
        """A stream that enters the first block as the embedding and leaves through a norm; `add_block` describes one block.

        Returns the terminal norm's name.
        """
        self.site(name, 0, "embedding", blocks[0], "input", residual.size)
        for number, module in enumerate(blocks, start=1):
            add_block(module, number)
        self.norm(terminal_norm, residual)
        self.site(name, len(blocks) + 1, "terminal_norm", terminal_norm, "output", residual.size, terminal_norm)
        self.stack(name, residual, blocks, terminal_norm, causal)
        return terminal_norm

    def block_sites(self, stack: str, block: int, module: str, residual: Space, taps: Mapping[str, str]) -> None:
        """The stream after each sublayer, where it enters the next norm (`taps` gives that norm for each tap), and after the block."""
        for tap, norm in taps.items():
            self.site(stack, block, tap, norm, "input", residual.size)
        self.site(stack, block, "output", module, "output", residual.size)

    def stack(self, name: str, residual: Space, blocks: Sequence[str], terminal_norm: str | None, causal: bool) -> None:
        self.stacks.append(Stack(name, residual.name, residual.size, tuple(blocks), terminal_norm, causal))

    def finish(self) -> Anatomy:
        """The anatomy. Each norm's `feeds` is read off the maps."""
        norms = tuple(replace(norm, feeds=tuple(item.name for item in self.maps if item.norm == norm.name)) for norm in self.norms)
        return Anatomy(
            family=self.family,
            architecture=self.architecture,
            placement=self.placement,
            spaces=tuple(self.spaces.values()),
            tensors=tuple(self.tensors),
            maps=tuple(self.maps),
            norms=norms,
            stacks=tuple(self.stacks),
            sites=tuple(self.sites),
            positions=self.positions,
            tied=any(tensor.alias_of for tensor in self.tensors if tensor.name in {item.weight for item in self.maps}),
            rotary_size=self.rotary_size,
        )


def layer_norm(eps: float) -> NormStyle:
    return NormStyle(NormKind.LAYER_NORM, eps)


def rms_norm(eps: float, gain_offset: float = 0.0) -> NormStyle:
    return NormStyle(NormKind.RMS_NORM, eps, bias=False, gain_offset=gain_offset)


def head_size(config: Any) -> int:
    """Coordinates per attention head: the config's head_dim where it has one, else the width split evenly."""
    return getattr(config, "head_dim", None) or split_evenly(config, config.hidden_size, config.num_attention_heads)


def rotary_size(config: Any) -> int:
    """Coordinates of each head that turn with the position, an even number: all of them unless the config rotates a part."""
    part = int(head_size(config) * config.rope_parameters.get("partial_rotary_factor", 1.0))
    return part + part % 2


def split_evenly(config: Any, width: int, heads: int) -> int:
    """Coordinates per head; InputError when the heads do not divide the width."""
    if width % heads:
        raise InputError(f"{config.model_type} config: width is {width}, expected a multiple of the attention heads ({heads}); correct it")
    return width // heads


def select_architecture(config: Any, known: Mapping[str, Any]) -> Any:
    """The entry of `known` for `config.architectures[0]`; InputError that lists the classes known when there is none."""
    named = (getattr(config, "architectures", None) or [None])[0]
    if named not in known:
        found = f"class {named} is not described" if named else "architectures is missing"
        raise InputError(f"{config.model_type} config: {found}; expected architectures to name one of {', '.join(known)}")
    return known[named]


def refuse_options(config: Any, options: Sequence[str]) -> None:
    """InputError naming the first of `options` that the config switches on: each adds parts that are not described."""
    for option in options:
        if getattr(config, option, None):
            raise InputError(
                f"{config.model_type} config: {option}={getattr(config, option)!r} adds parts that the anatomy does not describe; "
                f"expected it unset, choose a checkpoint without it"
            )
