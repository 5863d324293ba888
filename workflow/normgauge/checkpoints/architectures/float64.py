"""Forward passes that stay in float64.

transformers computes RMS norms, rotary tables and attention probabilities in float32 whatever the
model's dtype, so a float64 model would carry float32 rounding noise. The functions here make the
built model, and nothing else, compute them in float64.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from transformers import AttentionInterface, PreTrainedModel
from transformers.masking_utils import AttentionMaskInterface, eager_mask

ATTENTION = "eager_float64"


class KeepFloat64(TorchFunctionMode):
    """Within this context a request for float32 (`.float()`, `.to(torch.float32)`,
    `dtype=torch.float32`) is one for float64.
    """

    def __torch_function__(self, func, types, args=(), kwargs=None):
        function = torch.Tensor.double if func is torch.Tensor.float else func
        return function(
            *map(_promoted, args),
            **{key: _promoted(value) for key, value in (kwargs or {}).items()},
        )


def _promoted(value: Any) -> Any:
    return torch.float64 if value is torch.float32 else value


def exact_float64(model: PreTrainedModel) -> None:
    """Make every operation of a transformers model's forward pass keep float64, in place.

    Wrapped are the leaf modules of transformers (norms, rotary tables, scaled embeddings), the
    resampling of image positions, and each family's own eager attention function. Hooks run outside
    all of these, so the dtype requests of a hook mean what they say. T5's position buckets keep
    their float32 logarithm: they are integers, and must be the ones that the model was trained
    with.
    """
    modules: Iterable[Any] = model.modules()
    for module in modules:
        own = type(module).__module__.startswith("transformers.")
        # gated linear attention casts between its maps, outside every leaf
        whole = not any(module.children()) or type(module).__name__.endswith("GatedDeltaNet")
        if own and whole:
            module.forward = functools.partial(_in_float64, module.forward)
        if hasattr(module, "interpolate_pos_encoding"):
            module.interpolate_pos_encoding = functools.partial(
                _in_float64, module.interpolate_pos_encoding
            )
        defined: Any = sys.modules[type(module).__module__]
        if type(module).__name__ == "DINOv3ViTRopePositionEmbedding":
            _forget_coordinates(defined)
        if type(module).__name__ in ("CohereAttention", "ModernBertAttention"):
            defined.apply_rotary_pos_emb = _keeping(defined.apply_rotary_pos_emb)
        if type(module).__name__ == "DisentangledSelfAttention":
            defined.scaled_size_sqrt = _keeping(defined.scaled_size_sqrt)
        if type(module).__name__ == "BloomAttention":
            defined.F = _Functional(torch.nn.functional)
    model.set_attn_implementation(ATTENTION)


def _forget_coordinates(defined: Any) -> None:
    """Let DINOv3 compute the places of its patches at every pass: its cache does not tell float64
    ones from float32 ones, so that each would be handed what the other computed first.
    """
    cached = defined.get_patches_center_coordinates
    defined.get_patches_center_coordinates = getattr(cached, "__wrapped__", cached)


def _keeping(function: Callable) -> Callable:
    """The function, in which what is float64 stays float64; what it makes of others is unchanged,
    for all models of the family share it.
    """
    own = getattr(function, "exact_from", function)

    @functools.wraps(own)
    def kept(first: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if first.dtype == torch.float64:
            return _in_float64(own, first, *args, **kwargs)
        return own(first, *args, **kwargs)

    kept.exact_from = own  # type: ignore[attr-defined]
    return kept


class _Functional:
    """torch.nn.functional for modules that ask for a softmax in float32 between their maps."""

    def __init__(self, functional: Any) -> None:
        self.exact_from = functional
        self.softmax = _keeping(functional.softmax)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.exact_from, name)


def _in_float64(function: Callable, *args: Any, **kwargs: Any) -> Any:
    with KeepFloat64():
        return function(*args, **kwargs)


def _attention(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
    """The eager attention of the module's own family, with its softmax in float64."""
    return _in_float64(
        sys.modules[type(module).__module__].eager_attention_forward, module, *args, **kwargs
    )


AttentionInterface.register(ATTENTION, _attention)
AttentionMaskInterface.register(ATTENTION, eager_mask)
