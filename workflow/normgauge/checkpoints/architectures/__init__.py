"""The class that a config names, one of transformers' or our own, and its empty shell."""

from __future__ import annotations

import copy
from contextlib import nullcontext
from typing import Any

import torch
import transformers
from accelerate import init_empty_weights
from torch import nn
from transformers import PreTrainedModel
from transformers.initialization import no_init_weights

from normgauge.checkpoints.architectures.float64 import KeepFloat64
from normgauge.checkpoints.architectures.masked_pictures import mask_by_content
from normgauge.checkpoints.architectures.sceptr import Sceptr
from normgauge.checkpoints.sceptr_config import SceptrConfig
from normgauge.errors import InputError

DTYPES = {name: getattr(torch, name) for name in ("float32", "float64", "bfloat16", "float16")}


def dtype_named(name: str) -> torch.dtype:
    """The torch dtype of a forward pass; InputError for any other name."""
    if name not in DTYPES:
        raise InputError(f"forward dtype {name!r}; expected one of {', '.join(DTYPES)}")
    return DTYPES[name]


def model_class(config: Any) -> type[nn.Module]:
    """The class named by `config.architectures[0]`; InputError when there is none that takes this
    config.
    """
    name = config.architectures[0]
    if isinstance(config, SceptrConfig):
        return Sceptr
    found: Any = getattr(transformers, name, None)
    if not is_class_of(config, name):
        raise InputError(
            f"config: architectures[0] is {name!r}, which is no {config.model_type} class of "
            "transformers; set config.architectures"
        )
    return found


def is_class_of(config: Any, name: str) -> bool:
    """Whether a name is that of a class which takes this config."""
    if isinstance(config, SceptrConfig):
        return True
    found = getattr(transformers, name, None)
    return (
        isinstance(found, type)
        and issubclass(found, PreTrainedModel)
        and found.config_class is type(config)
    )


def new_model(config: Any, dtype: torch.dtype) -> nn.Module:
    """The class with its own random initialisation, in `dtype`, with eager attention."""
    found = model_class(config)
    if isinstance(config, SceptrConfig):
        return Sceptr(config).to(dtype)
    parts = {} if getattr(config, "add_pooling_layer", True) else {"add_pooling_layer": False}
    model: PreTrainedModel = found._from_config(  # type: ignore[attr-defined]
        copy.deepcopy(config), attn_implementation="eager", dtype=dtype, **parts
    )
    untie(model)
    if isinstance(model, transformers.ViTMAEModel):
        mask_by_content(model)
    return model


def untie(model: PreTrainedModel) -> None:
    """Give every parameter of `free_ties` memory of its own."""
    for name in free_ties(model.config):
        module, _, parameter = name.rpartition(".")
        setattr(
            model.get_submodule(module),
            parameter,
            nn.Parameter(model.get_parameter(name).detach().clone()),
        )
        model.all_tied_weights_keys.pop(name, None)


def free_ties(config: Any) -> dict[str, str]:
    """Parameters that transformers' class always ties (tensor to source), though published
    checkpoints of such a config store both.

    That is the readout of T5 1.1, whose config tells it by not scaling the decoder's output; a copy
    where only one is stored.
    """
    apart = (config.architectures or [""])[
        0
    ] == "T5ForConditionalGeneration" and not config.scale_decoder_outputs
    return {"lm_head.weight": "shared.weight"} if apart else {}


def empty_model(config: Any, dtype: torch.dtype) -> nn.Module:
    """The class with its parameters on the meta device (no memory) and every buffer computed, with
    eager attention.

    In float64 the buffers (rotary frequencies, embedding scales) are computed in float64, not
    rounded to float32 first.
    """
    precise = KeepFloat64() if dtype == torch.float64 else nullcontext()
    try:
        with precise, init_empty_weights(include_buffers=False), no_init_weights():
            return new_model(config, dtype)
    except (
        ValueError,
        TypeError,
        KeyError,
        AttributeError,
        AssertionError,
        RuntimeError,
        ZeroDivisionError,
    ) as error:
        reason = str(error).partition("\n")[0] or type(error).__name__
        raise InputError(
            f"config.json: {config.architectures[0]} refuses these settings ({reason}); mend the "
            "config"
        ) from error
