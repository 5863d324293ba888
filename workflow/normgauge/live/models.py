"""A transformers model in memory, read as a checkpoint is."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import torch
from torch import nn

from normgauge import anatomy
from normgauge.anatomy.structure import Anatomy
from normgauge.checkpoints.opening import Checkpoint
from normgauge.errors import InputError

STORED = {torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16"}

Model = nn.Module | Checkpoint
"""A transformers model, or a checkpoint that `open_checkpoint` read from a folder."""


def describe(model: Any) -> Anatomy:
    """The anatomy of a model, a checkpoint or a transformers config: its spaces, tensors, maps,
    norms and sites.

    From the configuration alone: no weights are read. Of a config without `architectures` the
    family's bare model is described. Raises InputError for a family or class that is not known,
    naming what is.

    >>> import transformers, normgauge
    >>> anatomy = normgauge.describe(transformers.GPT2Config(n_layer=2, n_embd=16, n_head=2))
    >>> anatomy.architecture, str(anatomy.norm_kind), str(anatomy.placement)
    ('GPT2Model', 'LayerNorm', 'pre-norm')
    >>> [site.id for site in anatomy.sites if site.tap == "terminal_norm"]
    ['decoder/terminal_norm']
    """
    return anatomy.describe(config_of(model))


def config_of(model: Any) -> Any:
    """A copy of the config of a model, checkpoint or config, with `architectures` naming the
    class.
    """
    if isinstance(model, Checkpoint):
        return model.config
    own = getattr(model, "config", None) if isinstance(model, nn.Module) else model
    if not hasattr(own, "model_type"):
        raise InputError(
            f"{type(model).__name__}: expected a transformers model, whose `config` names its "
            "family; give the model itself"
        )
    config: Any = copy.deepcopy(own)
    if isinstance(model, nn.Module):
        config.architectures = [type(model).__name__]
    elif not config.architectures:
        from transformers.models.auto.modeling_auto import MODEL_MAPPING

        if type(config) not in MODEL_MAPPING:
            raise InputError(
                f"config of {config.model_type}: `architectures` is empty; name the model's class "
                "there"
            )
        bare: Any = MODEL_MAPPING[type(config)]
        config.architectures = [bare.__name__]
    return config


def checkpoint_of(model: Model) -> Checkpoint:
    """The model's tensors on the CPU, by the names of its class, as a checkpoint.

    The tensors of a model on the CPU share its memory: nothing here writes to them. Raises
    InputError for what is no transformers model, and weights that are no floating-point numbers
    (quantised ones).
    """
    if isinstance(model, Checkpoint):
        return model
    if not isinstance(model, nn.Module):
        raise InputError(
            f"{type(model).__name__}: expected a transformers model in memory; `normgauge --help` "
            "shows what reads folders"
        )
    config = config_of(model)
    anatomy.describe(config)  # refuses families and classes that are not known
    tensors = {name: value.detach().cpu() for name, value in model.state_dict().items()}
    for name, value in tensors.items():
        if value.dtype not in STORED:
            raise InputError(
                f"{type(model).__name__}: tensor {name} is {value.dtype}; load the model "
                "unquantised, in floating point"
            )
    stored = {name: STORED[value.dtype] for name, value in tensors.items()}
    return Checkpoint(config, tensors, stored, (Path(type(model).__name__),))


def name_of(model: Model) -> str:
    """What a model is called: the name that it was loaded by, else its class."""
    config = config_of(model)
    return getattr(config, "name_or_path", "") or config.architectures[0]
