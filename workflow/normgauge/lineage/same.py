"""Whether two checkpoints are one up to a discrete gauge, and where they first differ if not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

import numpy as np
import torch

from normgauge.lineage.canonical import LEAVES, Canonical, canonical
from normgauge.lineage.invariants import up_to_rounding
from normgauge.lineage.layout import TensorAxis, layout_of
from normgauge.lineage.refinement import Model, model_of
from normgauge.lineage.rounding import Given, Rounding
from normgauge.lineage.words import axis_sums, mixed

OUTSIDE = (
    "maps of values, queries and keys in general",
    "scales of units and gains",
    "signs of a gain against the maps that read it",
    "rotations with absorbed gains",
    "biases moved from map to map",
)
"""Changes of coordinates that may keep a function and that the discrete groups do not hold."""

WITHOUT_EFFECT = {
    *("architectures", "transformers_version", "dtype", "torch_dtype", "tie_word_embeddings"),
    *("use_cache", "id2label", "label2id", "problem_type", "pretraining_tp", "initializer_factor"),
    *("gradient_checkpointing", "chunk_size_feed_forward", "task_specific_params"),
}
"""Keys of a config that change no value of the function."""


class Verdict(StrEnum):
    SAME = "the same"
    SETTINGS = "the same weights under other settings"
    ROUNDED = "the same up to rounding"
    ANOTHER = "not the same under the discrete groups"
    UNDECIDED = "undecided"


class Invariant(StrEnum):
    """What every copy under a discrete gauge shares, in the order in which it is compared."""

    ARCHITECTURE = "class"
    TENSOR = "tensors, their shapes and dtypes"
    VALUES = "absolute values of a tensor"
    ROWS = "absolute values along an axis of a tensor"
    FORM = "arrangement and signs"


@dataclass(frozen=True)
class Difference:
    """An invariant that differs. `count` of `total` values, or rows of the axis, have no partner in
    the other checkpoint.
    """

    invariant: Invariant
    tensor: str = ""
    count: int = 0
    total: int = 0


@dataclass(frozen=True, eq=False)
class Sameness:
    """The verdict on two checkpoints, their forms (None where the classes or tensors differ), and
    what differs: all of the first invariant that does. rounding: what continuous changes of
    coordinates leave to rounding, None where they were not needed or could not be found. settings:
    keys of the configs that differ and may change the function.
    """

    verdict: Verdict
    a: Canonical | None
    b: Canonical | None
    differences: tuple[Difference, ...] = ()
    rounding: Rounding | None = None
    settings: tuple[str, ...] = ()


def same(a: Given, b: Given, leaves: int = LEAVES) -> Sameness:
    """Whether some discrete gauge turns A into B, byte by byte, or any change of coordinates does
    up to the rounding of stored weights.

    leaves: the budget of each canonical form. Where the hashes differ and a tie was not decided,
    the verdict is "undecided". Raises InputError as `canonical`.
    """
    found = _by_form(a, b, leaves)
    if found.verdict != Verdict.SAME and _comparable(a, b):
        rounding = up_to_rounding(a, b)
        explained = rounding is not None and rounding.explained
        verdict = Verdict.ROUNDED if explained else found.verdict
        found = replace(found, verdict=verdict, rounding=rounding)
    other = unlike_settings(a.config, b.config)
    if other and found.verdict in (Verdict.SAME, Verdict.ROUNDED):
        found = replace(found, verdict=Verdict.SETTINGS)
    return replace(found, settings=other)


def unlike_settings(a: Any, b: Any) -> tuple[str, ...]:
    """Keys under which two configs differ and that may change the function: not names, versions,
    dtypes, token ids, ties (which the tensors show), nor what acts in training alone.
    """
    if a is None or b is None:
        return ()
    first, second = (x.to_dict() if hasattr(x, "to_dict") else vars(x) for x in (a, b))
    keys = sorted(first.keys() | second.keys())
    return tuple(
        key
        for key in keys
        if first.get(key) != second.get(key)
        and key not in WITHOUT_EFFECT
        and not key.startswith(("_", "output_", "return_"))
        and not key.endswith(("_token_id", "drop", "dropout", "dropout_prob", "_range"))
    )


def _comparable(a: Given, b: Given) -> bool:
    """Whether both have the class, every tensor, and finite values in all of them."""
    if a.anatomy.architecture != b.anatomy.architecture:
        return False
    shapes = [{t.name: t.shape for t in each.anatomy.tensors} for each in (a, b)]
    finite = all(
        bool(torch.isfinite(value).all()) for each in (a, b) for value in each.tensors.values()
    )
    return shapes[0] == shapes[1] and finite


def _by_form(a: Given, b: Given, leaves: int) -> Sameness:
    if a.anatomy.architecture != b.anatomy.architecture:
        return Sameness(Verdict.ANOTHER, None, None, (Difference(Invariant.ARCHITECTURE),))
    layouts = layout_of(a.anatomy).axes.keys(), layout_of(b.anatomy).axes.keys()
    if layouts[0] != layouts[1]:
        names = sorted(layouts[0] ^ layouts[1])
        found = tuple(Difference(Invariant.TENSOR, name) for name in names)
        return Sameness(Verdict.ANOTHER, None, None, found)
    models = [model_of(each.anatomy, each.tensors) for each in (a, b)]
    if unlike := _unlike(*models):
        return Sameness(Verdict.ANOTHER, None, None, unlike)
    first, second = (canonical(each.anatomy, each.tensors, leaves) for each in (a, b))
    if first.sha256 == second.sha256:
        return Sameness(Verdict.SAME, first, second)
    found = tuple(_values(*models)) or tuple(_rows(*models))
    if found:  # an invariant that needs no form: no tie matters
        return Sameness(Verdict.ANOTHER, first, second, found)
    decided = first.proven and second.proven
    verdict = Verdict.ANOTHER if decided else Verdict.UNDECIDED
    return Sameness(verdict, first, second, (Difference(Invariant.FORM),))


def _unlike(a: Model, b: Model) -> tuple[Difference, ...]:
    return tuple(
        Difference(Invariant.TENSOR, name)
        for name in a.tensors
        if (a.tensors[name].shape, a.tensors[name].dtype)
        != (b.tensors[name].shape, b.tensors[name].dtype)
    )


def _values(a: Model, b: Model) -> Iterator[Difference]:
    """Tensors whose absolute values are not the same ones, whatever their order."""
    for name, value in a.tensors.items():
        first, second = (
            np.sort(each.tensors[name].abs().double().numpy(), axis=None) for each in (a, b)
        )
        if not np.array_equal(first, second):
            unmatched = _unmatched(first, second)
            yield Difference(Invariant.VALUES, name, unmatched, value.numel())


def _unmatched(first: np.ndarray, second: np.ndarray) -> int:
    """Entries of the first, sorted or not, that have no partner in the second."""
    values, inverse = np.unique(np.concatenate([first, second]), return_inverse=True)
    counts = np.bincount(inverse[: len(first)], minlength=len(values))
    others = np.bincount(inverse[len(first) :], minlength=len(values))
    return int(np.maximum(counts - others, 0).sum())


def _rows(a: Model, b: Model) -> Iterator[Difference]:
    """Axes along which the rows do not hold the same absolute values, whatever their order."""
    for name, axes in a.layout.axes.items():
        for number, axis in enumerate(axes):
            if len(axes) > 1:
                first, second = (Counter(_row_words(each, name, number, axis)) for each in (a, b))
                if first != second:
                    count = (first - second).total()
                    yield Difference(Invariant.ROWS, name, count, len(axis.slots))


def _row_words(model: Model, name: str, number: int, axis: TensorAxis) -> list[int]:
    """A word for each row; where nothing moves the axis it knows its place."""
    shape = model.bits[name].shape
    blind = [np.ones(size, dtype=np.uint64) for place, size in enumerate(shape) if place != number]
    words, _ = axis_sums(model.bits[name], number, blind, blind)
    return (mixed(words, axis.slots) if axis.part is None else words).tolist()
