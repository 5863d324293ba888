"""What changed from one model in memory to another, from their weights alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from normgauge.checkpoint_comparison.pair import Pair
from normgauge.checkpoint_comparison.pairing import check_configs, make_pair
from normgauge.checkpoint_comparison.study import Comparison
from normgauge.checkpoint_comparison.study import compare as compare_pair
from normgauge.errors import InputError
from normgauge.live.models import Model, checkpoint_of
from normgauge.schemas.checkpoint_comparison import tables

if TYPE_CHECKING:
    import pandas

KINDS = ("inventory", "alignment", "kernels", "nulls")


@dataclass(frozen=True, eq=False)
class Changes:
    """The tables of a comparison, with the columns of docs/data.md.

    inventory: every tensor, how far it moved and how much of that is rounding. alignment: the gauge
        between A and B
    that was taken out. kernels: what heads and units do, in A and B. nulls: the tests, each against
        its null.
    decision: the components whose change is significant, and why.
    """

    inventory: pandas.DataFrame
    alignment: pandas.DataFrame
    kernels: pandas.DataFrame
    nulls: pandas.DataFrame
    decision: dict[str, Any]


def compare(a: Model, b: Model, draws: int = 999, seed: int = 0) -> Changes:
    """What changed from A to B, in which component, and more than by chance; the gauge between them
    is taken out.

    a, b: models of one class and shape. draws: random changes per test, at least. Raises InputError
    for models of unlike classes or shapes, for equal ones, and for weights that are not finite.

    >>> import copy, torch, transformers, normgauge
    >>> config = transformers.GPT2Config(
    ...     n_layer=1, n_embd=16, n_head=2, vocab_size=50, n_positions=32
    ... )
    >>> first = transformers.GPT2LMHeadModel(config)
    >>> second = copy.deepcopy(first)
    >>> _ = second.transformer.h[0].mlp.c_fc.weight.data.mul_(1.5)
    >>> changes = normgauge.compare(first, second)
    >>> tensors = changes.inventory[changes.inventory.status == "tensor"]
    >>> tensors[tensors.difference > 0].tensor.tolist()
    ['transformer.h.0.mlp.c_fc.weight']
    """
    found = compare_pair(pair_of(a, b), [], draws, seed)
    return Changes(**{kind: _frame(found, kind) for kind in KINDS}, decision=found.decision)


def pair_of(a: Model, b: Model) -> Pair:
    """Two models as a pair. Raises InputError as `compare` does."""
    first, second = checkpoint_of(a), checkpoint_of(b)
    names = [each.config.architectures[0] for each in (first, second)]
    if names[0] != names[1]:
        raise InputError(f"A is a {names[0]} and B a {names[1]}; expected two models of one class")
    check_configs([first.config, second.config])
    pair = make_pair(first, second)
    if all(first.tensors[name].equal(second.tensors[name]) for name in first.tensors):
        raise InputError("A and B hold the same weights; give two different models")
    return pair


def _frame(found: Comparison, kind: str) -> pandas.DataFrame:
    return pa.Table.from_pylist(
        getattr(found, kind), schema=tables.schemas[f"checkpoint_comparison_{kind}"]
    ).to_pandas()
