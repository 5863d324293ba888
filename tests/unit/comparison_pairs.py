"""Pairs of tiny checkpoints in float64, random gauges of one group, and probe sets, for the tests
of the comparison.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import torch

from normgauge.anatomy.structure import SpaceKind
from normgauge.checkpoint_comparison.factors import attention_layers, feed_forward_layers
from normgauge.checkpoint_comparison.folds import fold_steps, foldable_norms
from normgauge.checkpoint_comparison.pair import Pair
from normgauge.checkpoint_comparison.pairing import make_pair
from normgauge.checkpoint_comparison.probes import ProbeSet
from normgauge.checkpoint_comparison.study import kernel_rows
from normgauge.checkpoints.opening import Checkpoint
from normgauge.gauge.admissible import Group, admissible
from normgauge.gauge.groups import AttentionGauge, Monomial
from normgauge.gauge.model_gauge import Gauge
from normgauge.gauge.random_gauges import random_element
from normgauge.gauge.transform import transform
from unit.gauge_models import config_of, random_checkpoint

FAMILIES = {
    "gemma3": ("gemma3", "Gemma3ForCausalLM"),
    "llama": ("llama", "LlamaForCausalLM"),
    "gpt2": ("gpt2", "GPT2LMHeadModel"),
    "bert": ("bert", "BertForMaskedLM"),
}
PROBES = (
    ProbeSet("five", ("0", "1", "2", "3", "4"), (2, 3, 5, 7, 11), True, "other"),
    ProbeSet("other", ("a", "b", "c", "d", "e"), (1, 4, 6, 8, 9), False, "five", "five", "five"),
)


def checkpoint(family: str, seed: int, **changes: Any) -> Checkpoint:
    """A random tiny checkpoint, float64."""
    config = config_of(*FAMILIES[family], **changes)
    if getattr(config, "layer_types", None):
        config.layer_types = ["sliding_attention"] * (config.num_hidden_layers - 1) + [
            "full_attention"
        ]
    found, _ = random_checkpoint(config, seed)
    tensors = {name: value.double() for name, value in found.tensors.items()}
    return Checkpoint(found.config, tensors, dict.fromkeys(tensors, "F64"), found.files)


def nearby(source: Checkpoint, seed: int, share: float = 0.4) -> Checkpoint:
    """The checkpoint with noise of this share of every tensor's own spread added."""
    generator = torch.Generator().manual_seed(seed)
    tensors = {
        name: value
        + share
        * (value.std() if value.numel() > 1 else 1.0)
        * torch.randn(value.shape, generator=generator, dtype=value.dtype)
        for name, value in source.tensors.items()
    }
    return changed(source, tensors)


def changed(source: Checkpoint, tensors: dict[str, torch.Tensor]) -> Checkpoint:
    return Checkpoint(source.config, {**source.tensors, **tensors}, source.stored, source.files)


@cache
def pair_of(family: str) -> Pair:
    first = checkpoint(family, 1)
    return make_pair(first, nearby(first, 2))


@cache
def rows_of(family: str) -> list[dict[str, Any]]:
    """The kernel rows of `pair_of`; not to be changed."""
    return kernel_rows(pair_of(family), PROBES, {})


def gauged(pair: Pair, group: str, seed: int = 7) -> Pair | None:
    """The pair with B moved by a random element of one group; None where the group is trivial."""
    anatomy = pair.anatomy
    if group == "folds":
        generator = np.random.default_rng(seed)
        scales = {
            norm.name: np.exp2(generator.uniform(-1, 1, norm.size))
            for norm in foldable_norms(anatomy)
        }
        return Pair(pair.a, pair.b.with_steps(fold_steps(anatomy, scales))) if scales else None
    elements = {}
    for number, space in enumerate(_spaces(pair, group)):
        element = _element(pair, group, space, seed + number)
        if element is None:
            return None
        elements[space] = element
    source = Checkpoint(pair.b.config, pair.b.tensors, pair.b.stored, pair.b.files)
    moved = dict(transform(anatomy, source.tensors, Gauge(elements)))
    return make_pair(
        Checkpoint(pair.a.config, pair.a.tensors, pair.a.stored, pair.a.files),
        changed(source, moved),
    )


def _spaces(pair: Pair, group: str) -> list[str]:
    if group == "residual":
        return [space.name for space in pair.anatomy.spaces if space.kind == SpaceKind.RESIDUAL]
    if group in ("units", "scales"):
        return [f"{layer.prefix}ffn" for layer in feed_forward_layers(pair.anatomy)]
    return [f"{layer.prefix}attention" for layer in attention_layers(pair.anatomy)]


def _element(pair: Pair, group: str, space: str, seed: int) -> Monomial | AttentionGauge | None:
    element = random_element(pair.anatomy, space, seed)
    if isinstance(element, AttentionGauge):
        size = element.query_maps.shape[-1], element.value_maps.shape[-1]
        still = AttentionGauge.identity(element.groups, element.repeats, *size)
        if group == "heads":
            order, within = np.roll(still.group_order, 1), np.roll(still.head_order, 1, axis=1)
            return AttentionGauge(order, within, still.query_maps, still.value_maps)
        maps = {
            "queries": (element.query_maps, still.value_maps),
            "values": (still.query_maps, element.value_maps),
        }[group]
        return AttentionGauge(still.group_order, still.head_order, *maps)
    if group == "units":
        return Monomial(element.target, np.ones(element.size))
    if group == "scales":
        scaled = admissible(pair.anatomy, space).group in (Group.MONOMIAL, Group.POSITIVE_MONOMIAL)
        return Monomial(np.arange(element.size), element.factors**3) if scaled else None
    return element
