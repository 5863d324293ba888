"""The vocabulary in which a model is described: spaces, tensors, maps, norms, blocks, sites.

Everything here is plain immutable data. Every axis of every stored tensor lives in a named space;
the role says what the tensor does there: it READS from the space, WRITES to it, NORMALISES it (the
elementwise gain of a norm), SCALES it (an elementwise factor that belongs to no norm), or merely
INDEXES it (vocabulary, positions). Biases, norm biases included, WRITE.

A signed permutation G of a space therefore acts on READ and WRITE axes by G and on NORMALISE and
SCALE axes by |G|.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Role(StrEnum):
    READ = "read"
    WRITE = "write"
    NORMALISE = "normalise"
    SCALE = "scale"
    INDEX = "index"


class Positions(StrEnum):
    """How token positions enter: with the embedding, by rotating queries and keys, as a bias on
    attention scores, or as vectors of relative positions that queries and keys meet.
    """

    ABSOLUTE = "absolute"
    ROTARY = "rotary"
    RELATIVE = "relative"
    VECTORS = "relative vectors"


class NormKind(StrEnum):
    LAYER_NORM = "LayerNorm"
    RMS_NORM = "RMSNorm"


class Placement(StrEnum):
    """Where a block's norms sit relative to the residual stream."""

    PRE = "pre-norm"
    POST = "post-norm"
    SANDWICH = "sandwich"
    PARALLEL = "parallel pre-norm"


class SpaceKind(StrEnum):
    RESIDUAL = "residual"
    QUERY = "query"
    KEY = "key"
    VALUE = "value"
    FFN = "ffn"
    VOCABULARY = "vocabulary"
    POSITION = "position"
    PATCH = "patch"
    OTHER = "other"


@dataclass(frozen=True)
class Space:
    """A named vector space. `heads` > 1 when its coordinates split evenly into attention heads (KV
    groups for key and value).
    """

    name: str
    kind: SpaceKind
    size: int
    heads: int = 1


@dataclass(frozen=True)
class Segment:
    """Coordinates [start, stop) of a space, as a run along one tensor axis."""

    space: str
    start: int
    stop: int


@dataclass(frozen=True)
class Axis:
    """One axis of a stored tensor: its role and the runs of coordinates laid along it, in order.

    A fused query/key/value axis is one Axis of several segments; an interleaved one (GPT-NeoX) has
    one segment per head and part. Where positions turn neighbouring rows together (GPT-J), runs are
    single coordinates: rows 2j and 2j + 1 of a head hold its coordinates j and j + half of those
    that turn. The lengths of runs sum to the axis length. A run may occur twice: with
    grouped-query attention each query head's part of the output projection reads its group's
    coordinates of the value space. A NORMALISE axis shorter than its space (query/key norms) is
    shared by the heads of that space.
    """

    role: Role
    segments: tuple[Segment, ...]

    @property
    def size(self) -> int:
        return sum(segment.stop - segment.start for segment in self.segments)

    def indices(self, space: str) -> tuple[int, ...]:
        """Positions along this axis that lie in `space`, in axis order: the rows of one map in a
        fused tensor.
        """
        found: list[int] = []
        offset = 0
        for segment in self.segments:
            length = segment.stop - segment.start
            if segment.space == space:
                found.extend(range(offset, offset + length))
            offset += length
        return tuple(found)

    def coordinates(self, space: str) -> tuple[int, ...]:
        """The coordinate of `space` at each of its `indices`."""
        return tuple(
            coordinate
            for segment in self.segments
            if segment.space == space
            for coordinate in range(segment.start, segment.stop)
        )


@dataclass(frozen=True)
class Tensor:
    """A stored tensor: its name in the class's state_dict and one Axis per dimension. `alias_of`
    names the tensor it is tied to.
    """

    name: str
    axes: tuple[Axis, ...]
    alias_of: str | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(axis.size for axis in self.axes)


@dataclass(frozen=True)
class LinearMap:
    """A linear map, whatever its storage: `weight[rows]` of an out x in tensor, or the columns of
    an in x out one.

    `name` is logical, e.g. `decoder/block.3/query`; blocks count from 1. `reads`/`writes` are space
    names; the rows are `axes[1 - input_axis].indices(writes)` of the weight's Tensor. `module` is
    the module whose forward input is the map's input. `norm` is the name of the norm whose output
    that input is at every call, times `input_scale` (not 1 in T5's readout alone), or None.
    `activation` is the elementwise function applied to the map's output before it reaches the
    space, None for the identity. A convolution is a map of its window: the weight's axes beyond the
    second are the window. `run`: which of the runs over its space along the output axis is the
    map's, where one tensor holds two maps of one space (Phi-3's gate and up).
    """

    name: str
    module: str
    weight: str
    bias: str | None
    reads: str
    writes: str
    norm: str | None
    input_axis: int = 1
    activation: str | None = None
    input_scale: float = 1.0
    run: int = 0


@dataclass(frozen=True)
class Norm:
    """A normalisation layer: module path, kind, the space it lives on, the size it normalises and
    the maps it feeds.

    `size` is below the size of the space for query/key norms, which act on each head alone.
    effective gain = gain_offset + stored gain (Gemma stores w and applies 1 + w).
    """

    name: str
    kind: NormKind
    space: str
    size: int
    gain: str | None
    bias: str | None
    eps: float
    gain_offset: float = 0.0
    feeds: tuple[str, ...] = ()


@dataclass(frozen=True)
class Site:
    """A place where activations are read.

    `block` is 0 for the embedding, 1..L for blocks, L + 1 for the terminal norm. `module` (path),
    `hook` ("input" or "output") and `call` (which call of that module within one forward pass,
    counted from 0) locate it. `argument` names the keyword under which the tensor may be passed
    when hook == "input". `norm` is the norm whose output the activation is, or None. `factor`: what
    the model multiplies the module's tensor by, which the activation then is (Granite's deltas).
    """

    id: str
    group: str
    stack: str
    block: int
    tap: str
    module: str
    hook: str
    width: int
    norm: str | None = None
    call: int = 0
    argument: str = "hidden_states"
    factor: float = 1.0


@dataclass(frozen=True)
class Stack:
    """One residual stream: its blocks' module paths in order, its space, terminal norm (name or
    None).
    """

    name: str
    space: str
    width: int
    blocks: tuple[str, ...]
    terminal_norm: str | None
    causal: bool


@dataclass(frozen=True)
class Anatomy:
    """A model: spaces, tensors, maps, norms, stacks and sites, each listed once, in forward order.

    Two spaces whose coordinates a tied tensor forces to agree are one space. With rotary positions
    the first `rotary_size` coordinates of each query and key head turn, coordinate j together with
    j + rotary_size / 2, in all layers but those whose prefixes (of the names of their spaces) are
    `still`.
    """

    family: str
    architecture: str
    placement: Placement
    spaces: tuple[Space, ...]
    tensors: tuple[Tensor, ...]
    maps: tuple[LinearMap, ...]
    norms: tuple[Norm, ...]
    stacks: tuple[Stack, ...]
    sites: tuple[Site, ...]
    positions: Positions
    tied: bool = False
    rotary_size: int = 0
    still: tuple[str, ...] = ()

    def turns(self, layer: str) -> bool:
        """Whether positions turn the queries and keys of the attention layer of that prefix."""
        return self.positions == Positions.ROTARY and layer not in self.still

    def norm(self, name: str) -> Norm:
        return next(norm for norm in self.norms if norm.name == name)

    def space(self, name: str) -> Space:
        return next(space for space in self.spaces if space.name == name)

    def tensor(self, name: str) -> Tensor:
        return next(tensor for tensor in self.tensors if tensor.name == name)

    def stack(self, name: str) -> Stack:
        return next(stack for stack in self.stacks if stack.name == name)

    @property
    def primary_stack(self) -> Stack:
        """The stack that ends in the model's output: the decoder of an encoder-decoder."""
        return self.stacks[-1]

    @property
    def norm_kind(self) -> NormKind:
        """The kind of the norms on the primary residual stream (query/key norms are not on it)."""
        space = self.primary_stack.space
        return next(norm.kind for norm in self.norms if norm.space == space)

    @property
    def activation(self) -> str:
        """The feed-forward activation's name, as transformers spells it; of the gate where the
        feed-forward is gated.
        """
        kinds = {space.name: space.kind for space in self.spaces}
        return next(
            item.activation
            for item in self.maps
            if item.activation and kinds[item.writes] == SpaceKind.FFN
        )

    def sites_in(self, groups: tuple[str, ...]) -> tuple[Site, ...]:
        return tuple(site for site in self.sites if site.group in groups)
