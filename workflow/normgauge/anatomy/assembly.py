"""The single parts of an anatomy while it is put together: spaces, tensors, norms, linear modules,
sites and stacks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from normgauge.anatomy.deltas import delta_sites
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


@dataclass(frozen=True)
class NormStyle:
    """What the norms of one family have in common: kind, eps, gain offset and whether they have a
    bias.
    """

    kind: NormKind
    eps: float
    bias: bool = True
    gain_offset: float = 0.0


@dataclass
class Assembly:
    """Collects the parts of one anatomy; `finish` returns the immutable result. `delta_factor`:
    what the model multiplies the outputs of its sublayers by. `still`: see `Anatomy`.
    """

    family: str
    architecture: str
    placement: Placement
    positions: Positions
    style: NormStyle
    rotary_size: int = 0
    delta_factor: float = 1.0
    still: list[str] = field(default_factory=list)
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

    def norm(
        self, name: str, space: Space, size: int | None = None, style: NormStyle | None = None
    ) -> str:
        """A norm module on `space` (or, with `size`, on the first `size` coordinates shared by its
        heads). Returns its name.
        """
        style = style or self.style
        length = size or space.size
        segments = (Segment(space.name, 0, length),)
        gain, bias = f"{name}.weight", f"{name}.bias" if style.bias else None
        self.tensor(gain, Axis(Role.NORMALISE, segments))
        if bias:
            self.tensor(bias, Axis(Role.WRITE, segments))
        self.norms.append(
            Norm(name, style.kind, space.name, length, gain, bias, style.eps, style.gain_offset)
        )
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

        `maps` gives each logical map's name and the space that it writes; `writes` is the output
        axis where it is not simply those spaces in order. `input_first` is for weights stored in x
        out. `parameters` names weight and bias where they are not `<module>.weight` and
        `<module>.bias`; `aliases` names the tensors that they are tied to. `window` lists the
        spaces of a convolution's window axes.
        """
        weight, bias_name = parameters or (f"{module}.weight", f"{module}.bias")
        writes = writes or whole(Role.WRITE, *maps.values())
        axes = (reads, writes) if input_first else (writes, reads)
        self.tensor(
            weight, *axes, *(whole(Role.INDEX, space) for space in window), alias_of=aliases[0]
        )
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
        self.sites.append(
            Site(identifier, GROUPS[tap], stack, block, tap, module, hook, width, norm, call)
        )

    def stack(
        self,
        name: str,
        residual: Space,
        blocks: Sequence[str],
        terminal_norm: str | None,
        causal: bool,
    ) -> None:
        self.stacks.append(
            Stack(name, residual.name, residual.size, tuple(blocks), terminal_norm, causal)
        )

    def input_width(self, module: str) -> int:
        held = next(item for item in self.maps if item.module == module)
        weight = next(tensor for tensor in self.tensors if tensor.name == held.weight)
        return weight.axes[held.input_axis].size

    def finish(self) -> Anatomy:
        """The anatomy. Each norm's `feeds` is read off the maps, sites of deltas off the rest."""
        norms = tuple(
            replace(norm, feeds=tuple(item.name for item in self.maps if item.norm == norm.name))
            for norm in self.norms
        )
        anatomy = Anatomy(
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
            tied=any(
                tensor.alias_of
                for tensor in self.tensors
                if tensor.name in {item.weight for item in self.maps}
            ),
            rotary_size=self.rotary_size,
            still=tuple(self.still),
        )
        deltas = (replace(site, factor=self.delta_factor) for site in delta_sites(anatomy))
        return replace(anatomy, sites=(*anatomy.sites, *deltas))


def layer_norm(eps: float, bias: bool = True) -> NormStyle:
    return NormStyle(NormKind.LAYER_NORM, eps, bias)


def rms_norm(eps: float, gain_offset: float = 0.0) -> NormStyle:
    return NormStyle(NormKind.RMS_NORM, eps, bias=False, gain_offset=gain_offset)
