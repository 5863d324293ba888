"""The layers of which families are built, from the modules that hold them: attention, feed-forward,
readouts, and the stream through the blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from normgauge.anatomy.assembly import Assembly, whole
from normgauge.anatomy.structure import (
    Axis,
    Role,
    Segment,
    Space,
    SpaceKind,
)
from normgauge.errors import InputError


def join(*parts: str) -> str:
    """A module path from parts, of which some may be empty (a base model has no prefix)."""
    return ".".join(part for part in parts if part)


@dataclass(frozen=True)
class Attention:
    """The spaces of one attention layer. `mixed` is the READ axis of its output projection, one run
    per query head.
    """

    query: Space
    key: Space
    value: Space
    mixed: Axis


def neighbours(space: Space, turning: int) -> Axis:
    """The output axis of a query or key map whose rows 2j and 2j + 1 of each head turn together:
    coordinates j and j + turning / 2 of the head, of which the first `turning` turn.
    """
    size, half = space.size // space.heads, turning // 2
    order = [number // 2 + number % 2 * half for number in range(turning)]
    runs = [(first, first + 1) for first in order] + [(turning, size)] * (turning < size)
    return Axis(
        Role.WRITE,
        tuple(
            Segment(space.name, head * size + first, head * size + stop)
            for head in range(space.heads)
            for first, stop in runs
        ),
    )


@dataclass(frozen=True)
class Readout:
    """A linear head on the final hidden states: over the vocabulary, or over `config.num_labels`
    labels.
    """

    module: str
    labels: bool = False
    bias: bool = False


class Builder(Assembly):
    """Adds whole layers: attention, feed-forward, heads, blocks and stacks."""

    def attention_spaces(
        self, prefix: str, heads: int, head_size: int, key_value_heads: int | None = None
    ) -> Attention:
        """Query, key and value spaces named under `prefix`; key and value have one head per
        group.
        """
        groups = key_value_heads or heads
        if heads % groups:
            raise InputError(
                f"{self.family} config: num_attention_heads is {heads}, expected a multiple of "
                f"num_key_value_heads ({groups}); correct it"
            )
        query = self.space(f"{prefix}query", SpaceKind.QUERY, heads * head_size, heads)
        key = self.space(f"{prefix}key", SpaceKind.KEY, groups * head_size, groups)
        value = self.space(f"{prefix}value", SpaceKind.VALUE, groups * head_size, groups)
        group_of_head = (head * groups // heads for head in range(heads))
        runs = tuple(
            Segment(value.name, group * head_size, (group + 1) * head_size)
            for group in group_of_head
        )
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
        neighbouring: int = 0,
    ) -> None:
        """The four separate maps of an attention layer, `modules` keyed by query, key, value and
        attention_output.

        `memory` is the space and norm that keys and values read in cross-attention. `neighbouring`:
        the rows of each query and key head that turn, where neighbours turn together.
        """
        source, source_norm = memory or (residual, norm)
        inputs = {
            "query": (whole(Role.READ, residual), spaces.query, norm),
            "key": (whole(Role.READ, source), spaces.key, source_norm),
            "value": (whole(Role.READ, source), spaces.value, source_norm),
            "attention_output": (spaces.mixed, residual, None),
        }
        for name, (reads, writes, feeding) in inputs.items():
            turns = neighbouring and name in ("query", "key")
            self.linear(
                modules[name],
                {f"{prefix}{name}": writes},
                reads,
                feeding,
                neighbours(writes, neighbouring) if turns else None,
                bias=name in biased,
            )

    def fused_projections(
        self,
        prefix: str,
        spaces: Attention,
        modules: Mapping[str, str],
        residual: Space,
        norm: str,
        bias: bool = True,
    ) -> None:
        """`stacked_projections` whose rows are, for each key/value group, the heads of its queries,
        then its keys, then its values.
        """
        groups = spaces.key.heads
        runs = tuple(
            Segment(
                space.name,
                group * (space.size // groups),
                (group + 1) * (space.size // groups),
            )
            for group in range(groups)
            for space in (spaces.query, spaces.key, spaces.value)
        )
        self.stacked_projections(
            prefix, spaces, modules, residual, norm, bias, writes=Axis(Role.WRITE, runs)
        )

    def stacked_projections(
        self,
        prefix: str,
        spaces: Attention,
        modules: Mapping[str, str],
        residual: Space,
        norm: str,
        bias: bool = True,
        input_first: bool = False,
        writes: Axis | None = None,
    ) -> None:
        """The maps of an attention layer, queries, keys and values in one tensor, `modules` keyed
        by query and attention_output. `writes` is its output axis where it is not all queries, then
        all keys, then all values.
        """
        parts = {"query": spaces.query, "key": spaces.key, "value": spaces.value}
        self.linear(
            modules["query"],
            {f"{prefix}{name}": space for name, space in parts.items()},
            whole(Role.READ, residual),
            norm,
            writes,
            bias=bias,
            input_first=input_first,
        )
        self.linear(
            modules["attention_output"],
            {f"{prefix}attention_output": residual},
            spaces.mixed,
            bias=bias,
            input_first=input_first,
        )

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
        """The two maps of a feed-forward layer, or three when `modules` has a gate: gate and up
        write the same space. Where these are one module, the gate's rows come first.
        """
        hidden = self.space(f"{prefix}ffn", SpaceKind.FFN, size)
        reads = whole(Role.READ, residual)
        gated = "gate" in modules
        if gated and modules["gate"] == modules["up"]:
            self.fused_gate(modules["up"], prefix, hidden, reads, norm, activation, bias)
        elif gated:
            self.linear(
                modules["gate"],
                {f"{prefix}gate": hidden},
                reads,
                norm,
                bias=bias,
                input_first=input_first,
                activation=activation,
            )
        if not gated or modules["gate"] != modules["up"]:
            self.linear(
                modules["up"],
                {f"{prefix}up": hidden},
                reads,
                norm,
                bias=bias,
                input_first=input_first,
                activation=None if gated else activation,
            )
        self.linear(
            modules["down"],
            {f"{prefix}down": residual},
            whole(Role.READ, hidden),
            bias=bias,
            input_first=input_first,
        )

    def fused_gate(
        self,
        module: str,
        prefix: str,
        hidden: Space,
        reads: Axis,
        norm: str | None,
        activation: str,
        bias: bool,
    ) -> None:
        """A gate and, below it in one tensor, the map that it multiplies."""
        writes = whole(Role.WRITE, hidden, hidden)
        gate = {f"{prefix}gate": hidden}
        self.linear(module, gate, reads, norm, writes, bias=bias, activation=activation)
        self.maps.append(replace(self.maps[-1], name=f"{prefix}up", activation=None, run=1))

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

    def schur_sites(
        self,
        stack: str,
        block: int,
        modules: Mapping[str, str],
        attention_norm: str | None,
        mlp_norm: str | None,
        call: int = 0,
    ) -> None:
        """The inputs of the four maps whose Schur ratio is measured; `modules` is keyed by query,
        attention_output, up and down.
        """
        taps = {
            "query": ("query_key_value_input", attention_norm),
            "attention_output": ("attention_output_input", None),
            "up": ("mlp_up_input", mlp_norm),
            "down": ("mlp_down_input", None),
        }
        for key, (tap, norm) in taps.items():
            self.site(
                stack,
                block,
                tap,
                modules[key],
                "input",
                self.input_width(modules[key]),
                norm,
                call,
            )

    def readout(
        self,
        readout: Readout | None,
        config: Any,
        residual: Space,
        norm: str | None,
        embedding: str = "",
    ) -> None:
        """The head of a language model (tied to `embedding` where the config says so) or of a
        classifier, if any.
        """
        if readout is None:
            return
        if readout.labels:
            self.head(
                readout.module,
                residual,
                norm,
                self.space("labels", SpaceKind.OTHER, config.num_labels),
                bias=readout.bias,
            )
        else:
            tied = embedding if config.tie_word_embeddings else None
            self.head(
                readout.module,
                residual,
                norm,
                self.spaces["vocabulary"],
                bias=readout.bias,
                aliases=(tied, None),
            )

    def pre_norm_stack(
        self,
        name: str,
        residual: Space,
        blocks: Sequence[str],
        add_block: Callable[[str, int], None],
        terminal_norm: str,
        causal: bool,
        embedding_norm: str | None = None,
    ) -> str:
        """A stream that enters the first block as the embedding (the output of `embedding_norm`
        where there is one) and leaves through a norm; `add_block` describes one block.

        Returns the terminal norm's name.
        """
        self.blocks(name, residual, blocks, add_block, embedding_norm)
        self.norm(terminal_norm, residual)
        self.site(
            name,
            len(blocks) + 1,
            "terminal_norm",
            terminal_norm,
            "output",
            residual.size,
            terminal_norm,
        )
        self.stack(name, residual, blocks, terminal_norm, causal)
        return terminal_norm

    def blocks(
        self,
        name: str,
        residual: Space,
        blocks: Sequence[str],
        add_block: Callable[[str, int], None],
        embedding_norm: str | None = None,
    ) -> None:
        """The same up to its last block."""
        self.site(name, 0, "embedding", blocks[0], "input", residual.size, embedding_norm)
        for number, module in enumerate(blocks, start=1):
            add_block(module, number)

    def block_sites(
        self, stack: str, block: int, module: str, residual: Space, taps: Mapping[str, str]
    ) -> None:
        """The stream after each sublayer, where it enters the next norm (`taps` gives that norm for
        each tap), and after the block.
        """
        for tap, norm in taps.items():
            self.site(stack, block, tap, norm, "input", residual.size)
        self.site(stack, block, "output", module, "output", residual.size)
