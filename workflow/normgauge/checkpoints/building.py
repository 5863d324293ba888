"""Building the model that a checkpoint holds, strictly, and its re-initialised twin."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from normgauge.anatomy import describe
from normgauge.checkpoints.agreement import require_agreement
from normgauge.checkpoints.architectures import dtype_named, empty_model, new_model
from normgauge.checkpoints.architectures.float64 import exact_float64
from normgauge.checkpoints.opening import Checkpoint
from normgauge.checkpoints.placing import REMEDY
from normgauge.checkpoints.readers.mapped import made_anew
from normgauge.errors import InputError


def build_model(checkpoint: Checkpoint, forward_dtype: str) -> nn.Module:
    """The model of class `config.architectures[0]` with the checkpoint's weights.

    `forward_dtype` is float32, float64, bfloat16 or float16; in float64 no operation of the forward
    pass rounds to float32. Evaluation mode, eager attention, no gradients, tied weights tied.
    Raises InputError naming the first tensor and the count when tensors are missing, left over, of
    the wrong shape or not finite, or when two tied tensors are both stored and differ.
    """
    return _assemble(checkpoint.config, checkpoint.tensors, forward_dtype, checkpoint.files[0].name)


def reinitialise(source: Any, seed: int, forward_dtype: str) -> nn.Module:
    """The same class with its own random initialisation, whole: `fresh_tensors`, cast.

    `source` is a Checkpoint or a config.
    """
    config = source.config if isinstance(source, Checkpoint) else source
    tensors = fresh_tensors(source, seed)
    return _assemble(config, tensors, forward_dtype, f"initialisation with seed {seed}")


def fresh_tensors(source: Any, seed: int) -> dict[str, torch.Tensor]:
    """The tensors of the class of a Checkpoint or a config, drawn in float32 after
    `torch.manual_seed(seed)`.

    What a class stores without learning it (SCEPTR's token tables) is taken from the checkpoint.
    The same seed gives the same bytes; the global random state is left as it was.
    """
    config = source.config if isinstance(source, Checkpoint) else source
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = new_model(config, torch.float32)
    tensors = model.state_dict()
    if isinstance(source, Checkpoint):
        learned = {name for name, _ in model.named_parameters(remove_duplicate=False)}
        tensors |= {name: tensor for name, tensor in source.tensors.items() if name not in learned}
    return tensors


def check_checkpoint(checkpoint: Checkpoint) -> None:
    """Refuse, before any work is built on it, a checkpoint that `build_model` would refuse; only
    the tensors' values are read.

    Raises the InputErrors of `build_model`.
    """
    origin = checkpoint.files[0].name
    matched(checkpoint.config, checkpoint.tensors, torch.float32, origin)
    for name in checkpoint.tensors:
        _check_finite(name, made_anew(checkpoint.tensors, name), origin)


def matched(
    config: Any, tensors: Mapping[str, torch.Tensor], dtype: torch.dtype, origin: str
) -> tuple[nn.Module, dict[str, torch.Tensor]]:
    """The class without values, and the tensors under all its names, checked against it."""
    model = empty_model(config, dtype)
    require_agreement(describe(config), model)
    complete = _with_ties(tensors, getattr(model, "all_tied_weights_keys", {}), origin)
    _check(complete, model.state_dict(), type(model).__name__, origin)
    return model, complete


def _assemble(
    config: Any, tensors: Mapping[str, torch.Tensor], forward_dtype: str, origin: str
) -> nn.Module:
    tensors = {
        name: made_anew(tensors, name) if tensor.is_meta else tensor
        for name, tensor in tensors.items()
    }
    dtype = dtype_named(forward_dtype)
    model, complete = matched(config, tensors, dtype, origin)
    # tied tensors are cast once
    unique = {id(tensor): (name, tensor) for name, tensor in complete.items()}
    values = {
        key: cast_values(name, tensor, dtype, origin) for key, (name, tensor) in unique.items()
    }
    model.load_state_dict(
        {name: values[id(tensor)] for name, tensor in complete.items()}, assign=True
    )
    return ready(model, dtype)


def ready(model: nn.Module, dtype: torch.dtype) -> nn.Module:
    """The model as it is run: tied, in evaluation mode, without gradients, exact where it is
    float64.
    """
    if isinstance(model, PreTrainedModel):
        model.tie_weights(recompute_mapping=False)  # the mapping of `empty_model`, not the class's
        if dtype == torch.float64:
            exact_float64(model)
    return model.eval().requires_grad_(False)


def _with_ties(
    tensors: Mapping[str, torch.Tensor], ties: Mapping[str, str], origin: str
) -> dict[str, torch.Tensor]:
    """Add the tied tensors that are stored once under another name."""
    complete, stored = dict(tensors), {name: name for name in tensors}
    for tied, source in ties.items():
        if source not in complete and tied in complete:
            complete[source], stored[source] = complete[tied], stored[tied]
    for tied, source in ties.items():
        if (
            tied in tensors
            and source in complete
            and not torch.equal(made_anew(tensors, tied), made_anew(tensors, stored[source]))
        ):
            raise InputError(
                f"{origin}: tensors {tied} and {source} are tied but differ; keep one of them"
            )
        if source in complete:
            complete[tied] = complete[source]
    return complete


def _check(
    tensors: Mapping[str, torch.Tensor],
    expected: Mapping[str, torch.Tensor],
    architecture: str,
    origin: str,
) -> None:
    if missing := [name for name in expected if name not in tensors]:
        raise InputError(
            f"{origin}: tensor {missing[0]} of {architecture} is missing ({len(missing)} in all); "
            f"{REMEDY}"
        )
    if extra := [name for name in tensors if name not in expected]:
        raise InputError(
            f"{origin}: tensor {extra[0]} has no place in {architecture} ({len(extra)} in all); "
            f"{REMEDY}"
        )
    if wrong := [name for name in expected if tensors[name].shape != expected[name].shape]:
        found, wanted = list(tensors[wrong[0]].shape), list(expected[wrong[0]].shape)
        raise InputError(
            f"{origin}: tensor {wrong[0]} has shape {found}, the config asks for {wanted} "
            f"({len(wrong)} such); mend the config"
        )


def cast_values(name: str, tensor: torch.Tensor, dtype: torch.dtype, origin: str) -> torch.Tensor:
    cast = tensor.to(dtype)
    if _all_finite(cast):
        return cast
    beyond = int((~cast.isfinite() & tensor.isfinite()).sum())
    if beyond:
        largest, limit = (
            float(tensor[tensor.isfinite()].double().abs().max()),
            torch.finfo(dtype).max,
        )
        raise InputError(
            f"{origin}: tensor {name} ({tensor.dtype}) has {beyond} values beyond {limit:.6g}, the "
            f"largest number of {dtype}, up to "
            f"{largest:.6g}; choose another forward dtype"
        )
    _check_finite(name, cast, origin)
    return cast


def _all_finite(tensor: torch.Tensor) -> bool:
    """Whether no value is NaN or infinite: one pass over the values, and no copy of them."""
    return not tensor.numel() or all(end.isfinite() for end in tensor.aminmax())


def _check_finite(name: str, tensor: torch.Tensor, origin: str) -> None:
    if not _all_finite(tensor):
        raise InputError(
            f"{origin}: tensor {name} holds {int((~tensor.isfinite()).sum())} values that are NaN "
            f"or infinite in {tensor.dtype}; the checkpoint is unusable"
        )
