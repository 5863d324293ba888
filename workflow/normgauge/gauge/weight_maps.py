"""The continuous parts of a gauge, read off the weights of two models whose coordinates are in
place.

Activations in float32 blur a scale or a map by what their spread amplifies; stored weights are
blurred by their own rounding alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from normgauge.anatomy.lookup import (
    effective_gain,
    gate_runs,
    matrix_of,
    rows_of,
    runs_of,
    stored_name,
)
from normgauge.anatomy.structure import Anatomy, LinearMap, Role
from normgauge.gauge.admissible import QueryMaps, admissible
from normgauge.gauge.model_gauge import Gauge
from normgauge.gauge.product_maps import FittedMap, fit_map, fit_turns
from normgauge.gauge.transform import apply_moves, axis_moves


class Weights:
    """The tensors of a checkpoint, float64, by the names of the class, moved by a gauge as they are
    read.
    """

    def __init__(self, anatomy: Anatomy, tensors: Mapping[str, torch.Tensor], gauge: Gauge) -> None:
        self.anatomy, self.tensors, self.gauge = anatomy, tensors, gauge
        self.gates = gate_runs(anatomy)

    def stored(self, name: str) -> torch.Tensor:
        """The stored tensor of that name, or one that it is tied to."""
        return self.tensors[stored_name(self.anatomy, name, self.tensors)]

    def __getitem__(self, name: str) -> torch.Tensor:
        moved = self.stored(name).double()
        for number, axis in enumerate(self.anatomy.tensor(name).axes):
            gates = self.gates.get(name, ())
            moved = apply_moves(moved, axis_moves(self.anatomy, self.gauge, number, axis, gates))
        return moved

    def factor(self, item: LinearMap) -> np.ndarray:
        """(out, in + 1): what a map gives of the output of the norm before it without gain and
        bias, and its constant.
        """
        matrix = matrix_of(self.anatomy, item, self[item.weight])
        constant = (
            self[item.bias][rows_of(self.anatomy, item)]
            if item.bias
            else torch.zeros(len(matrix), dtype=torch.float64)
        )
        if item.norm:
            norm = self.anatomy.norm(item.norm)
            if norm.bias:
                constant = constant + matrix @ self[norm.bias]
            matrix = matrix * effective_gain(norm, self)
        return torch.cat([matrix, constant[:, None]], 1).numpy()


@dataclass(frozen=True, eq=False)
class AttentionMaps:
    """The fitted maps of one attention layer, by the target's key/value group."""

    values: tuple[FittedMap, ...]
    queries: tuple[FittedMap, ...]


@dataclass(frozen=True, eq=False)
class HeadFactors:
    """The maps of an attention layer cut by heads, float64: `query` (heads, size, in + 1), `key`
    and `value` (groups, size, in + 1), `output` (heads, size, out), what is made of each head.
    """

    query: np.ndarray
    key: np.ndarray
    value: np.ndarray
    output: np.ndarray

    @property
    def repeats(self) -> int:
        return len(self.query) // len(self.key)


def head_factors(anatomy: Anatomy, name: str, weights: Weights) -> HeadFactors:
    """The factors of a layer. A key's constant adds the same to all scores of a query."""
    items = head_maps(anatomy, name)
    prefix = name.removesuffix("attention")
    query, key = (anatomy.space(f"{prefix}{kind}") for kind in ("query", "key"))

    def cut(kind: str, heads: int) -> np.ndarray:
        matrix = weights.factor(items[kind])
        return matrix.reshape(heads, -1, matrix.shape[1])

    output = weights.factor(items["attention_output"])[:, :-1].T
    return HeadFactors(
        cut("query", query.heads),
        cut("key", key.heads),
        cut("value", key.heads),
        output.reshape(query.heads, -1, output.shape[1]),
    )


def head_maps(anatomy: Anatomy, name: str) -> dict[str, LinearMap]:
    """The maps around the heads of a layer, by what they write: query, key, value,
    attention_output.
    """
    prefix = name.removesuffix("attention")
    return {
        each.name.removeprefix(prefix): each
        for each in anatomy.maps
        if each.name.startswith(prefix)
    }


def attention_maps(anatomy: Anatomy, name: str, source: Weights, target: Weights) -> AttentionMaps:
    """Value and query maps of a layer whose streams and heads are in place."""
    sides = [head_factors(anatomy, name, weights) for weights in (source, target)]
    stored = head_maps(anatomy, name)["value"].weight
    roundoff = max(
        float(torch.finfo(weights.stored(stored).dtype).eps) for weights in (source, target)
    )

    def products(
        side: HeadFactors, group: int
    ) -> tuple[tuple[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]:
        """The two factors of the values' and of the scores' product of one group."""
        heads = slice(group * side.repeats, (group + 1) * side.repeats)
        value = side.value[group].T, np.concatenate(list(side.output[heads]), 1)
        score = np.concatenate([each.T for each in side.query[heads]]), side.key[group, :, :-1]
        return value, score

    rule = admissible(anatomy, name).query_maps
    values, queries = [], []
    for group in range(len(sides[0].key)):
        (value, score), (value_target, score_target) = (products(side, group) for side in sides)
        values.append(fit_map(value, value_target, roundoff))
        if rule == QueryMaps.GENERAL:
            queries.append(fit_map(score, score_target, roundoff))
        else:
            queries.append(
                fit_turns(
                    score, score_target, anatomy.rotary_size, rule == QueryMaps.SIGNS, roundoff
                )
            )
    return AttentionMaps(tuple(values), tuple(queries))


def unit_scales(anatomy: Anatomy, space: str, source: Weights, target: Weights) -> np.ndarray:
    """float64 (d,), positive, by the target's coordinate: what brings the weights of each
    coordinate nearest to the target's.

    What writes the space is multiplied by it and what reads it divided: the geometric mean of what
    both ask for. One, or the nearest power of two, where that is as near. NaN where neither is
    there.
    """
    pairs: dict[Role, list[list[np.ndarray]]] = {Role.WRITE: [], Role.READ: []}
    for tensor in anatomy.tensors:
        for number, axis in enumerate(tensor.axes):
            if tensor.alias_of or axis.role not in pairs or not axis.indices(space):
                continue
            for run, places in enumerate(runs_of(axis, space)):
                if axis.role == Role.WRITE and run in source.gates.get(tensor.name, ()):
                    continue
                rows = (
                    weights[tensor.name].movedim(number, 0)[places] for weights in (source, target)
                )
                pairs[axis.role].append([each.reshape(len(places), -1).numpy() for each in rows])
    written, read = (
        [np.concatenate(side, 1) for side in zip(*pairs[role], strict=True)]
        for role in (Role.WRITE, Role.READ)
    )
    return _scales(written, read)


def _scales(written: Sequence[np.ndarray], read: Sequence[np.ndarray]) -> np.ndarray:
    """The scales from what writes each coordinate and what reads it, (d, n) of source and
    target.
    """
    lengths = [[np.linalg.norm(side, axis=1) for side in pair] for pair in (written, read)]
    logarithms, count = np.zeros(len(written[0])), np.zeros(len(written[0]))
    for (before, after), power in zip(lengths, (1, -1), strict=True):
        there = (before > 0) & (after > 0)
        logarithms += power * np.log(np.where(there, after, 1.0) / np.where(there, before, 1.0))
        count += there
    best = np.exp(logarithms / np.maximum(count, 1))

    def left(scale: np.ndarray) -> np.ndarray:
        shares = [
            np.square(written[0] * scale[:, None] - written[1]).sum(1),
            np.square(read[0] / scale[:, None] - read[1]).sum(1),
        ]
        return sum(
            share / np.maximum(pair[1] ** 2, 1e-300)
            for share, pair in zip(shares, lengths, strict=True)
        )

    candidates = np.stack([np.ones_like(best), np.exp2(np.round(np.log2(best))), best])
    chosen = candidates[
        np.argmin([left(scale) for scale in candidates], axis=0), np.arange(len(best))
    ]
    return np.where(count > 0, chosen, np.nan)
