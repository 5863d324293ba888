"""The effective factors of each block: queries, keys, values, outputs and feed-forward units as
plain float64 matrices.

Every factor that reads has one more column than the stream has coordinates: what it adds for a
constant input, its bias. Two modes: `raw`, the stored matrices, and `folded`, where the gain, bias
and centring of the norm that feeds a map belong to the map, the gain of the norm behind a branch
(sandwich, terminal) to what it writes, and what is written to a stream that LayerNorms alone read
is centred. Folded constants of values and of keys that no score sees are zero: attention weights
sum to one, so that the first are constants of the layer (`constants`), and softmax does not see
the others.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from normgauge.anatomy.lookup import effective_gain, holder, matrix_of, rows_of
from normgauge.anatomy.structure import (
    Anatomy,
    LinearMap,
    Norm,
    NormKind,
    Placement,
    SpaceKind,
)
from normgauge.checkpoint_comparison.pair import Side
from normgauge.redundancy.readers import blind_coordinates
from normgauge.redundancy.streams import shiftable


class Mode(StrEnum):
    RAW = "raw"
    FOLDED = "folded"


@dataclass(frozen=True)
class Layer:
    """Names of one attention or feed-forward layer: its block's number (from 1), the prefix of its
    spaces and its maps by part.
    """

    block: int
    prefix: str
    maps: dict[str, LinearMap]


@dataclass(frozen=True, eq=False)
class AttentionFactors:
    """One attention layer. `query` (H, d_h, n + 1), `key` (G, d_h, n + 1), `value` (G, d_v, n + 1),
    `output` (H, n, d_v); head h belongs to group h // (H / G). The score of a pair is key . query,
    what it moves is output @ value.
    """

    query: np.ndarray
    key: np.ndarray
    value: np.ndarray
    output: np.ndarray

    @property
    def heads(self) -> int:
        return len(self.query)

    def group(self, head: int) -> int:
        return head * len(self.key) // self.heads


@dataclass(frozen=True, eq=False)
class FeedForwardFactors:
    """One feed-forward layer, a row per unit. `reads`: (up,) or (gate, up), each (f, n + 1); `down`
    (f, n), what the unit writes.
    """

    reads: tuple[np.ndarray, ...]
    down: np.ndarray


def attention_layers(anatomy: Anatomy) -> list[Layer]:
    """Layers of self-attention over a residual stream, in order."""
    layers = []
    for space in anatomy.spaces:
        if space.kind != SpaceKind.QUERY:
            continue
        prefix = space.name.removesuffix("query")
        maps = {part: _writer(anatomy, f"{prefix}{part}") for part in ("query", "key", "value")}
        maps["attention_output"] = next(
            item for item in anatomy.maps if item.reads == f"{prefix}value"
        )
        layers.append(Layer(_block(prefix), prefix, maps))
    return layers


def feed_forward_layers(anatomy: Anatomy) -> list[Layer]:
    """Feed-forward layers over a residual stream, in order."""
    layers = []
    for space in anatomy.spaces:
        if space.kind != SpaceKind.FFN:
            continue
        writers = [item for item in anatomy.maps if item.writes == space.name]
        maps = {item.name.rpartition("/")[2]: item for item in writers}
        maps["down"] = next(item for item in anatomy.maps if item.reads == space.name)
        prefix = space.name.removesuffix("ffn")
        layers.append(Layer(_block(prefix), prefix, maps))
    return layers


def _writer(anatomy: Anatomy, space: str) -> LinearMap:
    return next(item for item in anatomy.maps if item.writes == space)


def _block(prefix: str) -> int:
    return int(prefix.partition("block.")[2].partition("/")[0])


def matrix(side: Side, item: LinearMap, floor: bool = False) -> np.ndarray:
    """The map's own matrix, out x in, float64; with `floor` the rounding variance of its values as
    stored.
    """
    weight = side.floor(item.weight) if floor else side.tensor(item.weight)
    return matrix_of(side.anatomy, item, weight)


def bias(side: Side, item: LinearMap, floor: bool = False) -> np.ndarray:
    """The map's own bias, float64 (out,), zeros without one; with `floor` the rounding variance of
    its values as stored.
    """
    rows = rows_of(side.anatomy, item)
    if not item.bias:
        return np.zeros(len(rows))
    return (side.floor(item.bias) if floor else side.tensor(item.bias))[rows]


def gain(side: Side, norm: Norm) -> np.ndarray:
    """The norm's effective gain in the pair's gauge, float64 (size,)."""
    return effective_gain(norm, side).numpy()


def read_factor(side: Side, item: LinearMap, mode: Mode) -> np.ndarray:
    """(out, in + 1): what the map reads of the stream and, in the last column, of a constant.

    Folded: W n + b with n = gain * x / scale + norm bias, x centred first by a LayerNorm, is W
    diag(gain) (I - 11^T/n) x / scale + (W norm bias + b).
    """
    weight, constant = matrix(side, item), bias(side, item)
    if mode == Mode.FOLDED and item.norm is not None:
        norm = side.anatomy.norm(item.norm)
        if norm.bias:
            constant = constant + weight @ side.tensor(norm.bias)
        weight = weight * gain(side, norm)
        if norm.kind == NormKind.LAYER_NORM:
            weight = weight - weight.mean(1, keepdims=True)
    return np.column_stack([weight, constant])


def write_factor(side: Side, item: LinearMap, mode: Mode, after: Norm | None) -> np.ndarray:
    """(out, in): what the map writes to the stream; folded: behind the norm `after` on its branch,
    if any, and without what is written along ones where LayerNorm takes that away.
    """
    weight = matrix(side, item)
    if mode == Mode.RAW:
        return weight
    if after is not None:
        weight = gain(side, after)[:, None] * weight
    return weight - weight.mean(0) if centred(side.anatomy, item.weight) else weight


def centred(anatomy: Anatomy, name: str) -> bool:
    """Whether multiples of ones in what a tensor writes are seen by nothing: LayerNorm's null
    line.
    """
    return holder(anatomy, name) in shiftable(anatomy)


def final_norm(anatomy: Anatomy) -> Norm | None:
    """The norm between the stream and the readout: the primary stack's terminal norm; None in
    post-norm models.
    """
    name = anatomy.primary_stack.terminal_norm
    return anatomy.norm(name) if name and anatomy.placement != Placement.POST else None


def branch_norm(anatomy: Anatomy, layer: Layer, part: str) -> Norm | None:
    """The norm that a sandwich block puts on the branch behind this layer (`attention` or `mlp`):
    of its norms that feed no map, the first and the last.
    """
    if anatomy.placement != Placement.SANDWICH:
        return None
    module = anatomy.primary_stack.blocks[layer.block - 1]
    unread = [
        norm
        for norm in anatomy.norms
        if norm.name.startswith(f"{module}.")
        and norm.space == anatomy.primary_stack.space
        and not norm.feeds
    ]
    return unread[0 if part == "attention" else -1]


def unseen_constants(anatomy: Anatomy, item: LinearMap) -> np.ndarray:
    """bool (outputs,): the outputs of a query, key or value map whose constants no head tells from
    others.
    """
    space = anatomy.space(item.writes)
    if space.kind == SpaceKind.KEY:
        return blind_coordinates(anatomy, space.name)
    return np.full(space.size, space.kind == SpaceKind.VALUE)


def head_norm(anatomy: Anatomy, space: str) -> Norm | None:
    """The query or key norm of a space of heads, if it has one."""
    return next((norm for norm in anatomy.norms if norm.space == space), None)


def attention_factors(side: Side, layer: Layer, mode: Mode) -> AttentionFactors:
    """The factors of one attention layer; folded queries and keys carry the gains of their norms
    too.
    """
    anatomy, maps = side.anatomy, layer.maps
    parts = {}
    for part in ("query", "key", "value"):
        factor = read_factor(side, maps[part], mode)
        space = anatomy.space(maps[part].writes)
        by_head = factor.reshape(space.heads, -1, factor.shape[1])
        if mode == Mode.FOLDED:
            unseen = unseen_constants(anatomy, maps[part]).reshape(space.heads, -1)
            by_head[..., -1] = np.where(unseen, 0.0, by_head[..., -1])
            if norm := head_norm(anatomy, space.name):
                by_head = by_head * gain(side, norm)[:, None]
        parts[part] = by_head
    output = write_factor(
        side, maps["attention_output"], mode, branch_norm(anatomy, layer, "attention")
    )
    heads = len(parts["query"])
    return AttentionFactors(
        **parts, output=output.reshape(len(output), heads, -1).transpose(1, 0, 2)
    )


def feed_forward_factors(side: Side, layer: Layer, mode: Mode) -> FeedForwardFactors:
    """The factors of one feed-forward layer."""
    reads = tuple(
        read_factor(side, layer.maps[part], mode) for part in ("gate", "up") if part in layer.maps
    )
    down = write_factor(side, layer.maps["down"], mode, branch_norm(side.anatomy, layer, "mlp"))
    return FeedForwardFactors(reads, down.T)


def rotary_frequencies(side: Side, block: int) -> np.ndarray | None:
    """Radians per position of each rotary pair of a block's heads, float64 (rotary size / 2,); None
    where its heads do not turn.
    """
    if not side.anatomy.turns(f"{side.anatomy.primary_stack.name}/block.{block}/"):
        return None
    config, size = side.config, side.anatomy.rotary_size
    # GPT-J has no key for it
    parameters, layer_type = getattr(config, "rope_parameters", {"rope_theta": 1e4}), None
    kinds = getattr(config, "layer_types", None)
    if kinds and kinds[block - 1] in parameters:
        layer_type = kinds[block - 1]
        parameters = parameters[layer_type]
    if parameters.get("rope_type", "default") == "default":
        return parameters["rope_theta"] ** (-np.arange(0, size, 2, dtype=np.float64) / size)
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    frequencies, _ = ROPE_INIT_FUNCTIONS[parameters["rope_type"]](
        config, device=None, layer_type=layer_type
    )
    return frequencies.double().numpy()


def blocks(anatomy: Anatomy) -> Iterator[tuple[int, Layer | None, Layer | None]]:
    """(block, attention layer, feed-forward layer) of every block of the primary stack that has
    them, in order.
    """
    stack = anatomy.primary_stack.name
    attention = {
        layer.block: layer
        for layer in attention_layers(anatomy)
        if layer.prefix == f"{stack}/block.{layer.block}/"
    }
    feed_forward = {
        layer.block: layer
        for layer in feed_forward_layers(anatomy)
        if layer.prefix == f"{stack}/block.{layer.block}/"
    }
    for block in sorted(attention.keys() | feed_forward.keys()):
        yield block, attention.get(block), feed_forward.get(block)
