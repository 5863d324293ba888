"""Faults planted in the anatomy: a tensor's axis, a norm or a stack that is said to live in another
space of the same size.

The gauge that the wrong table dictates is applied in float64. A fault has survived when the outputs
stay what they were.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

import torch
import transformers

from normgauge.anatomy.structure import (
    Anatomy,
    Axis,
    Norm,
    Positions,
    Role,
    Segment,
    Space,
    SpaceKind,
    Stack,
    Tensor,
)
from normgauge.checkpoints.building import build_model
from normgauge.checkpoints.opening import Checkpoint
from normgauge.checkpoints.sceptr_config import SceptrConfig
from normgauge.gauge.admissible import gauge_spaces
from normgauge.gauge.equivalence import CONTROL_FACTOR, TOLERANCES, deviation_from, recorded_outputs
from normgauge.gauge.folding import returns_hidden_states
from normgauge.gauge.model_gauge import HEAD_SPACES, Gauge, attention_of
from normgauge.gauge.random_gauges import random_gauge
from normgauge.gauge.transform import transform, transform_unchecked
from unit.gauge_models import SCEPTR, inputs_of, random_checkpoint
from unit.test_anatomy import CASES, GATED

SEED = 42
GATED_SIZES = {"hidden_size": 24, "intermediate_size": 24}  # keys and values stay half as wide
SAME_SIZES = {  # of as many spaces as the class allows
    "GPT2Config": {"n_inner": 12},
    "GPTNeoXConfig": {"intermediate_size": 12},
    "BertConfig": {"intermediate_size": 12},
    "RobertaConfig": {"intermediate_size": 12},
    "AlbertConfig": {"intermediate_size": 12, "embedding_size": 12},
    "ElectraConfig": {"intermediate_size": 12, "embedding_size": 12},
    "DistilBertConfig": {"hidden_dim": 12},
    "ViTConfig": {"intermediate_size": 12, "pooler_output_size": 12},
    "ViTMAEConfig": {"intermediate_size": 12},
    "SiglipVisionConfig": {"intermediate_size": 12},
    "StableLmConfig": {"intermediate_size": 24},
    "PhiConfig": {"intermediate_size": 24},
    "ModernBertConfig": {"intermediate_size": 12},
    "DebertaV2Config": {"intermediate_size": 12},
    "GPTJConfig": {"n_inner": 24},
    "FalconConfig": {"ffn_hidden_size": 24},
    "BloomConfig": {"n_layer": 2},  # its feed-forwards are four times as wide as the stream
    "GraniteConfig": GATED_SIZES,
    "Phi3Config": GATED_SIZES,
    "CohereConfig": GATED_SIZES,
    "OPTConfig": {"ffn_dim": 12},
    "CLIPTextConfig": {"intermediate_size": 12, "projection_dim": 12},
    "CLIPVisionConfig": {"intermediate_size": 12, "projection_dim": 12},
    "DINOv3ViTConfig": {"intermediate_size": 16},
    "WhisperConfig": {"encoder_ffn_dim": 12, "decoder_ffn_dim": 12},
    "T5Config": {"d_kv": 6, "d_ff": 12},
    "dinov2": {"mlp_ratio": 1},
    "dinov2-gated": {"hidden_size": 16, "mlp_ratio": 1},
}


@dataclass(frozen=True)
class Fault:
    """`wrong` stands where `space` is right: in these parts of the anatomy, as they read then."""

    what: str
    space: str
    wrong: str
    tensors: tuple[Tensor, ...] = ()
    norm: Norm | None = None
    stack: Stack | None = None

    def __str__(self) -> str:
        return f"{self.what}: {self.space} -> {self.wrong}"

    def planted(self, anatomy: Anatomy) -> Anatomy:
        changed = {part.name: part for part in self.tensors}
        return replace(
            anatomy,
            tensors=tuple(changed.get(tensor.name, tensor) for tensor in anatomy.tensors),
            norms=tuple(
                self.norm if self.norm and norm.name == self.norm.name else norm
                for norm in anatomy.norms
            ),
            stacks=tuple(
                self.stack if self.stack and stack.name == self.stack.name else stack
                for stack in anatomy.stacks
            ),
        )


@dataclass
class Survey:
    """What became of the faults of one model. `refused` counts those whose tables the transform
    refuses; `least` is the smallest deviation of the others but the equivalent ones."""

    planted: int = 0
    refused: int = 0
    least: float = float("inf")
    equivalent: list[str] = field(default_factory=list)
    survivors: list[str] = field(default_factory=list)


def config_with_one_size(case: str, architecture: str):
    """A tiny config whose spaces share their sizes wherever the class allows it."""
    if case == SCEPTR:
        return SceptrConfig(12, 2, 2, 12, "CdrSimpleEmbedder")
    name, arguments, _, _ = CASES[case]
    sizes = SAME_SIZES.get(case, SAME_SIZES.get(name, {}))
    if arguments.items() >= (GATED.items() - {"num_labels": 3}.items()):
        sizes = GATED_SIZES
    return getattr(transformers, name)(
        **arguments | sizes | {"num_labels": 12},
        architectures=[architecture],
        attn_implementation="eager",
    )


# ---------------------------------------------------------------- what is planted


def faults(anatomy: Anatomy) -> Iterator[Fault]:
    """Every space on every axis of every stored tensor, every norm with its gain and bias, and
    every stack, in each other space of its size. Axes that only index (vocabulary, positions) move
    with no gauge, whatever their space.
    """
    for tensor in anatomy.tensors:
        if tensor.alias_of:
            continue
        for number, axis in enumerate(tensor.axes):
            here = spaces_of(axis)
            for place, space in enumerate(here):
                for wrong in partners(anatomy, space):
                    if wrong in here[:place]:
                        continue  # the same exchange
                    axes = (
                        *tensor.axes[:number],
                        _exchanged(axis, space, wrong),
                        *tensor.axes[number + 1 :],
                    )
                    yield Fault(
                        f"{tensor.name}, axis {number}", space, wrong, (replace(tensor, axes=axes),)
                    )
    for norm in anatomy.norms:
        for wrong in partners(anatomy, norm.space):
            parts = tuple(
                _in_space(anatomy.tensor(name), norm.space, wrong)
                for name in (norm.gain, norm.bias)
                if name
            )
            yield Fault(norm.name, norm.space, wrong, parts, norm=replace(norm, space=wrong))
    for stack in anatomy.stacks:
        for wrong in partners(anatomy, stack.space):
            if anatomy.space(wrong).kind == SpaceKind.RESIDUAL:
                yield Fault(
                    f"stack {stack.name}", stack.space, wrong, stack=replace(stack, space=wrong)
                )


def spaces_of(axis: Axis) -> tuple[str, ...]:
    """Spaces of an axis that a gauge may move."""
    return (
        ()
        if axis.role == Role.INDEX
        else tuple(dict.fromkeys(segment.space for segment in axis.segments))
    )


def partners(anatomy: Anatomy, space: str) -> list[str]:
    """The other spaces of its size."""
    size = anatomy.space(space).size
    return [each.name for each in anatomy.spaces if each.size == size and each.name != space]


def without_partner(anatomy: Anatomy) -> set[str]:
    """Spaces that a gauge moves and no other space equals in size: no fault can be planted
    there.
    """
    layers = gauge_spaces(anatomy)
    moved = {space.name for space in anatomy.spaces if {space.name, _layer(space)} & set(layers)}
    return {space for space in moved if not partners(anatomy, space)}


def _layer(space: Space) -> str:
    return attention_of(space.name) if space.kind in HEAD_SPACES else space.name


def _exchanged(axis: Axis, space: str, wrong: str) -> Axis:
    """The axis with the two spaces exchanged: where one alone lies there, the other in its
    place.
    """
    names = {space: wrong, wrong: space}
    return Axis(
        axis.role,
        tuple(
            Segment(names.get(each.space, each.space), each.start, each.stop)
            for each in axis.segments
        ),
    )


def _in_space(tensor: Tensor, space: str, wrong: str) -> Tensor:
    return replace(tensor, axes=tuple(_exchanged(axis, space, wrong) for axis in tensor.axes))


# ---------------------------------------------------------------- what no output can show


def proof_of_equivalence(anatomy: Anatomy, fault: Fault) -> str | None:
    """Why a fault changes no output of the model, None where it must."""
    space = anatomy.space(fault.space)
    name = fault.tensors[0].name if len(fault.tensors) == 1 else ""
    if name and 0 in anatomy.tensor(name).shape:
        return "a table without rows: DINOv3's registers where there are none"
    if name.endswith("mask_token"):
        return "mask token: it enters masked inputs alone, and none is masked"
    if (
        fault.stack
        and fault.stack.name == anatomy.primary_stack.name
        and not returns_hidden_states(anatomy)
    ):
        return "stack: the class returns no state of it, and its gauge is drawn as any other"
    key_biases = {item.bias for item in anatomy.maps if item.writes == fault.space}
    on_the_axis = name and fault.wrong in spaces_of(anatomy.tensor(name).axes[0])
    if (
        name in key_biases
        and space.kind == SpaceKind.KEY
        and anatomy.positions != Positions.VECTORS
        and not anatomy.turns(attention_of(fault.space).removesuffix("attention"))
        and not on_the_axis
    ):
        return "key bias: it adds the same to all scores of a query, which softmax does not see"
    if (
        _are_queries_and_keys(anatomy, fault)
        and _only_place(anatomy, fault.space) == _only_place(anatomy, fault.wrong) == name
    ):
        return (
            "queries and keys exchanged in the one tensor that has both: scores are inner "
            "products of the two"
        )
    shared = {norm.gain for norm in anatomy.norms if norm.size < anatomy.space(norm.space).size}
    if name in shared and anatomy.space(fault.wrong).kind in HEAD_SPACES:
        return (
            "gain of a query or key norm: all heads share it, no gauge moves it, and one of "
            "the "
            "two names the layer's group"
        )
    return None


def _are_queries_and_keys(anatomy: Anatomy, fault: Fault) -> bool:
    """Whether a fault exchanges the queries and the keys of one layer."""
    kinds = {anatomy.space(space).kind for space in (fault.space, fault.wrong)}
    return kinds == {SpaceKind.QUERY, SpaceKind.KEY} and attention_of(fault.space) == attention_of(
        fault.wrong
    )


def _only_place(anatomy: Anatomy, space: str) -> str | None:
    """The one tensor that has an axis in a space, None where there are several."""
    names = {
        tensor.name for tensor in anatomy.tensors for axis in tensor.axes if axis.indices(space)
    }
    return names.pop() if len(names) == 1 else None


# ---------------------------------------------------------------- what the outputs show


def survey(case: str, architecture: str, per_space: int | None = None) -> Survey:
    """Plant the faults of a tiny model: all of them, or `per_space` for each space, drawn with a
    fixed seed."""
    checkpoint, anatomy = random_checkpoint(config_with_one_size(case, architecture))
    checkpoint = replace(
        checkpoint, tensors={name: value.double() for name, value in checkpoint.tensors.items()}
    )
    bench = Bench(checkpoint, anatomy, inputs_of(case, architecture))
    planted = list(faults(anatomy))
    if per_space is not None:
        planted = _sample(planted, per_space)
    found = Survey(planted=len(planted))
    for fault in planted:
        shown = bench.shown(fault)
        if shown is None:
            found.refused += 1
        elif shown >= CONTROL_FACTOR * TOLERANCES["float64"]:
            found.least = min(found.least, shown)
        elif proof := proof_of_equivalence(anatomy, fault):
            found.equivalent.append(f"{fault} ({proof})")
        else:
            found.survivors.append(f"{fault}: {shown:.1g}")
    return found


def _sample(planted: list[Fault], per_space: int) -> list[Fault]:
    chooser = random.Random(0)
    by_space: dict[str, list[Fault]] = {}
    for fault in planted:
        by_space.setdefault(fault.space, []).append(fault)
    return [
        fault
        for group in by_space.values()
        for fault in chooser.sample(group, min(per_space, len(group)))
    ]


class Bench:
    """A model whose tensors are set to what a wrong table makes of them, under the gauges of one
    seed.
    """

    def __init__(
        self, checkpoint: Checkpoint, anatomy: Anatomy, inputs: Mapping[str, torch.Tensor]
    ) -> None:
        self.tensors, self.anatomy = checkpoint.tensors, anatomy
        # the model takes them as its own
        copies = {name: value.clone() for name, value in checkpoint.tensors.items()}
        self.model = build_model(replace(checkpoint, tensors=copies), "float64")
        self.recorded = recorded_outputs(self.model, [inputs])
        self.gauge = random_gauge(anatomy, SEED)
        self.right = dict(transform(anatomy, self.tensors, self.gauge))

    def shown(self, fault: Fault) -> float | None:
        """Relative deviation of the outputs under the gauge of the wrong table; None where it is
        refused.
        """
        anatomy = fault.planted(self.anatomy)
        try:
            gauge, names = self._dictated(anatomy, fault)
            part = replace(anatomy, tensors=tuple(anatomy.tensor(name) for name in names))
            wrong = dict(
                transform_unchecked(part, {name: self.tensors[name] for name in names}, gauge)
            )
        except ValueError:  # InputError is one
            return None
        stored = self.model.state_dict()
        with torch.no_grad():
            for name, value in {**self.right, **wrong}.items():
                stored[name].copy_(value)
        return deviation_from(self.recorded, self.model, anatomy, gauge).relative

    def _dictated(self, anatomy: Anatomy, fault: Fault) -> tuple[Gauge, tuple[str, ...]]:
        """The gauge of the wrong table, and the tensors that it moves otherwise: the fault's own
        where the groups are the same, which rest on norms, stacks and the spaces that are written
        in full.
        """
        if fault.norm or fault.stack or gauge_spaces(anatomy) != gauge_spaces(self.anatomy):
            return random_gauge(anatomy, SEED), tuple(self.tensors)
        return self.gauge, tuple(tensor.name for tensor in fault.tensors)
