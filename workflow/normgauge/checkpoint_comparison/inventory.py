"""What changed, tensor by tensor: bits, norms, the floor of storage rounding, and the same after
the gauge is taken out (analysis 1).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from normgauge.anatomy.lookup import fed_maps
from normgauge.anatomy.structure import Anatomy, Role, SpaceKind, Tensor
from normgauge.checkpoint_comparison.folds import foldable_norms
from normgauge.checkpoint_comparison.kernels import ratio
from normgauge.checkpoint_comparison.pair import Pair
from normgauge.checkpoint_comparison.statistics import GROUPS
from normgauge.gauge.model_gauge import HEAD_SPACES


@dataclass
class Sums:
    """Sums over the values of one tensor or several."""

    values: int = 0
    changed: int = 0
    difference: float = 0.0
    mean: float = 0.0
    first: float = 0.0
    floor: float = 0.0
    aligned: float = 0.0
    aligned_mean: float = 0.0

    def add(self, other: Sums) -> None:
        for name in self.__dict__:
            setattr(self, name, getattr(self, name) + getattr(other, name))


@dataclass(frozen=True)
class _Place:
    block: int | None
    part: str


@dataclass
class _Totals:
    sums: dict[tuple[str, int | None, str], Sums] = field(default_factory=dict)

    def add(self, label: str, block: int | None, part: str, sums: Sums) -> None:
        self.sums.setdefault((label, block, part), Sums()).add(sums)


def inventory_rows(stored: Pair, aligned: Pair) -> list[dict[str, Any]]:
    """Rows of schema `checkpoint_comparison_inventory`: each tensor, then totals by block and part,
    of the block matrices, and of all, then tensors that the class does not use, then those that one
    side alone has.
    """
    anatomy, totals, rows = stored.anatomy, _Totals(), []
    tensors = stored.tensors()
    measured = [(tensor, _measure(stored, aligned, tensor)) for tensor in tensors]
    whole = sum(sums.difference for _, sums in measured)
    for tensor, sums in measured:
        place = place_of(anatomy, tensor)
        names = [side.held(tensor.name) for side in (stored.a, stored.b)]
        stores = {
            "stored_a": stored.a.stored.get(names[0]),
            "stored_b": stored.b.stored.get(names[1]),
        }
        grids = [side.grid_bits(tensor.name) for side in (stored.a, stored.b)]
        bits = {"bits_a": grids[0], "bits_b": grids[1]}
        rows.append(
            _row(
                tensor.name,
                "tensor",
                place.block,
                place.part,
                sums,
                whole,
                untouched_by(anatomy, tensor),
                **stores,
                **bits,
            )
        )
        totals.add(
            f"block {place.block} {place.part}" if place.block else place.part,
            place.block,
            place.part,
            sums,
        )
        if place.block and len(tensor.axes) > 1:
            totals.add("matrices of all blocks", None, "blocks", sums)
        totals.add("all tensors", None, "all", sums)
    for (label, block, part), sums in totals.sums.items():
        rows.append(_row(label, "total", block, part, sums, whole, []))
    rows += [_unused_row(stored, aligned, name) for name in stored.unused]
    for name, side in stored.unmatched.items():
        rows.append(_row(name, f"{side} only", None, "other", Sums(), 0.0, []))
    return rows


def _unused_row(stored: Pair, aligned: Pair, name: str) -> dict[str, Any]:
    """A tensor that both sides store and their class does not use: measured by itself, in no total.

    Where what it reads is not known, no gauge is taken out of it.
    """
    tensor = stored.anatomy.tensor(name)
    read = any(axis.role != Role.INDEX for axis in tensor.axes)
    sums = _measure(stored, aligned, tensor)
    stores = {f"stored_{side.label.lower()}": side.stored[name] for side in (stored.a, stored.b)}
    bits = {f"bits_{side.label.lower()}": side.grid_bits(name) for side in (stored.a, stored.b)}
    untouched = untouched_by(stored.anatomy, tensor) if read else []
    return _row(name, "not used", None, "other", sums, 0.0, untouched, **stores, **bits)


def _measure(stored: Pair, aligned: Pair, tensor: Tensor) -> Sums:
    """Sums of one tensor; tables are read in runs of rows."""
    sums = Sums()
    name = tensor.name
    if _by_rows(stored.anatomy, tensor):
        parts = zip(
            stored.a.rows(name),
            stored.b.rows(name),
            stored.a.floor_rows(name),
            stored.b.floor_rows(name),
            strict=True,
        )
        for part in parts:
            sums.add(_sums(*part))
        pairs: Iterable[tuple[np.ndarray, np.ndarray]] = zip(
            aligned.a.rows(name), aligned.b.rows(name), strict=True
        )
    else:
        sums.add(
            _sums(
                *(
                    read(name)
                    for read in (stored.a.tensor, stored.b.tensor, stored.a.floor, stored.b.floor)
                )
            )
        )
        pairs = [(aligned.a.tensor(name), aligned.b.tensor(name))]
    for before, after in pairs:
        sums.aligned += float(((after - before) ** 2).sum())
        sums.aligned_mean += float(((after + before) ** 2).sum()) / 4
    return sums


def _by_rows(anatomy: Anatomy, tensor: Tensor) -> bool:
    """Whether no gauge acts along the first axis of a matrix: it is looked up, or the
    vocabulary.
    """
    first = tensor.axes[0]
    still = (
        first.role == Role.INDEX
        or anatomy.space(first.segments[0].space).kind == SpaceKind.VOCABULARY
    )
    return len(tensor.axes) == 2 and still


def _sums(
    before: np.ndarray, after: np.ndarray, floor_before: np.ndarray, floor_after: np.ndarray
) -> Sums:
    """Sums of one array. Rounding is expected of the values that differ: equal ones carry none, or
    the same on both sides.
    """
    moved = after - before
    differ = moved != 0
    return Sums(
        values=moved.size,
        changed=int(np.count_nonzero(differ)),
        difference=float((moved**2).sum()),
        mean=float(((before + after) ** 2).sum()) / 4,
        first=float((before**2).sum()),
        floor=float((floor_before + floor_after)[differ].sum()),
    )


def _row(
    name: str,
    status: str,
    block: int | None,
    part: str,
    sums: Sums,
    whole: float,
    untouched: list[str],
    **stored: Any,
) -> dict[str, Any]:
    return {
        "tensor": name,
        "status": status,
        "block": block,
        "part": part,
        "stored_a": stored.get("stored_a"),
        "stored_b": stored.get("stored_b"),
        "bits_a": stored.get("bits_a"),
        "bits_b": stored.get("bits_b"),
        "values": sums.values,
        "changed": ratio(sums.changed, sums.values),
        "difference": sums.difference**0.5,
        "relative": ratio(sums.difference, sums.mean) ** 0.5,
        "relative_to_a": ratio(sums.difference, sums.first) ** 0.5,
        "floor": ratio(sums.floor, sums.mean) ** 0.5,
        "above_floor": max(ratio(sums.difference - sums.floor, sums.difference), 0.0),
        "squared_share": ratio(sums.difference, whole),
        "aligned_relative": ratio(sums.aligned, sums.aligned_mean) ** 0.5,
        "invariant_under": untouched,
    }


def place_of(anatomy: Anatomy, tensor: Tensor) -> _Place:
    """The block (from 1) and part of a tensor."""
    module = next(
        (
            (number, path)
            for stack in anatomy.stacks
            for number, path in enumerate(stack.blocks, 1)
            if tensor.name.startswith(f"{path}.")
        ),
        None,
    )
    norms = {name for norm in anatomy.norms for name in (norm.gain, norm.bias)}
    kinds = {anatomy.space(segment.space).kind for axis in tensor.axes for segment in axis.segments}
    biases = {item.bias: item.name for item in anatomy.maps if item.bias}
    block = module[0] if module else None
    if tensor.name in norms:
        return _Place(block, "norm")
    if block and (
        kinds & set(HEAD_SPACES) or biases.get(tensor.name, "").endswith("attention_output")
    ):
        return _Place(block, "attention")
    if block and (SpaceKind.FFN in kinds or biases.get(tensor.name, "").endswith("down")):
        return _Place(block, "mlp")
    if tensor.axes[0].role == Role.INDEX and block is None:
        return _Place(None, "embedding")
    return _Place(block, "other")


def untouched_by(anatomy: Anatomy, tensor: Tensor) -> list[str]:
    """The groups of gauges that have no axis of the tensor to act on."""
    kinds = {
        anatomy.space(segment.space).kind
        for axis in tensor.axes
        if axis.role != Role.INDEX
        for segment in axis.segments
    }
    folded = {
        name
        for norm in foldable_norms(anatomy)
        for name in (
            norm.gain,
            norm.bias,
            *(item.weight for item in fed_maps(anatomy, norm)),
        )
    }
    touched = {
        "residual": kinds & {SpaceKind.RESIDUAL, SpaceKind.OTHER},
        "folds": tensor.name in folded,
        "units": SpaceKind.FFN in kinds,
        "scales": SpaceKind.FFN in kinds,
        "heads": kinds & set(HEAD_SPACES),
        "values": SpaceKind.VALUE in kinds,
        "queries": kinds & {SpaceKind.QUERY, SpaceKind.KEY},
    }
    return [group for group in GROUPS if not touched[group]]
