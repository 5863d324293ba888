"""Gauges of a model in memory: drawn, and applied."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
from torch import nn

from normgauge.anatomy import describe
from normgauge.errors import InputError
from normgauge.gauge import admissible, random_gauges
from normgauge.gauge import transform as transforms
from normgauge.gauge.model_gauge import Gauge
from normgauge.live.models import Model, checkpoint_of, config_of


def random_gauge(model: Model, seed: int = 42, spaces: Sequence[str] | None = None) -> Gauge:
    """A random change of coordinates that leaves the model's function alone (arXiv 2606.19491 calls
    it a gauge).

    spaces: which to move, by their names in `describe(model)`: a residual stream, feed-forward
    units, or an attention layer; the residual streams when None. The model may also be a
    transformers config. The same seed gives the same gauge. Raises InputError for a space that no
    gauge may move, and for a negative seed.

    >>> import transformers, normgauge
    >>> config = transformers.GPT2Config(
    ...     n_layer=2, n_embd=16, n_head=2, vocab_size=50, n_positions=32
    ... )
    >>> gauge = normgauge.random_gauge(config, seed=1)
    >>> {name: element.size for name, element in gauge.elements.items()}
    {'residual': 16}
    """
    if seed < 0:
        raise InputError(f"seed: expected a whole number from 0, found {seed}")
    anatomy = describe(config_of(model))
    known = admissible.gauge_spaces(anatomy)
    chosen = (
        tuple(dict.fromkeys(stack.space for stack in anatomy.stacks))
        if spaces is None
        else tuple(spaces)
    )
    for name in chosen:
        if name not in known:
            raise InputError(
                f"spaces: no gauge moves {name!r}; expected some of "
                f"{', '.join(known[:8])}{', ...' if len(known) > 8 else ''}"
            )
    return random_gauges.random_gauge(anatomy, seed, chosen)


def transform(model: nn.Module, gauge: Gauge, in_place: bool = False) -> nn.Module:
    """The model in the coordinates that the gauge leads to: the same function from other weights.

    A copy, unless `in_place`: then the model itself is changed, whole or not at all, and returned.
    Weights keep their dtype; permutations, signs and powers of two are exact, all else is rounded
    once. `gauge.inverse()` leads back. Hidden states come out in the new coordinates. Raises
    InputError for what is no gauge, for one that would change the function, and for values that
    leave the range of their dtype.

    >>> import torch, transformers, normgauge
    >>> config = transformers.GPT2Config(
    ...     n_layer=2, n_embd=16, n_head=2, vocab_size=50, n_positions=32
    ... )
    >>> model = transformers.GPT2LMHeadModel(config).eval()
    >>> other = normgauge.transform(model, normgauge.random_gauge(model, seed=1))
    >>> ids = torch.arange(20)[None]
    >>> torch.equal(other.transformer.wte.weight, model.transformer.wte.weight)
    False
    >>> torch.allclose(other(ids).logits, model(ids).logits, atol=1e-5)
    True
    """
    if not isinstance(gauge, Gauge):
        raise InputError(
            f"gauge: expected a Gauge, as random_gauge gives, or the `gauge` of what match finds; "
            f"found {type(gauge).__name__}"
        )
    checkpoint = checkpoint_of(model)
    moved = dict(transforms.transform(describe(checkpoint.config), checkpoint.tensors, gauge))
    for name, value in moved.items():
        if not value.isfinite().all() and checkpoint.tensors[name].isfinite().all():
            raise InputError(
                f"tensor {name} leaves the range of {value.dtype} under the gauge; convert the "
                "model to a wider dtype first"
            )
    target = model if in_place else copy.deepcopy(model)
    with torch.no_grad():
        for name, value in target.state_dict(keep_vars=True).items():
            value.copy_(moved[name])
    return target
