"""Checkpoints that need no download: the user's own folder, and the random initialisation of a
configuration.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import shutil
from pathlib import Path
from typing import Any

from normgauge.checkpoints.layout import (
    CONFIG,
    ConfigCheck,
    checkpoint_files,
    local_origin,
    read_json,
    refuse_pointer,
)
from normgauge.checkpoints.sources import near
from normgauge.errors import InputError
from normgauge.provenance import atomic_path


def link_folder(origin: Path, folder: Path, check: ConfigCheck | None = None) -> None:
    """Fill `folder` with the checkpoint files of `origin`, as hard links where the file system
    allows, else as copies.

    Symbolic links in `origin` (a hub cache is made of them) are followed, so the result stands on
    its own. `origin` may also be a folder with one GGUF file, or that file. Raises InputError when
    `origin` is none of these, or `check` refuses its config.json.
    """
    source, listed = local_origin(origin)
    present = [name for name in listed if (source / name).is_file()]
    names = checkpoint_files(present, str(origin), lambda name: read_json(source / name))
    for name in names:
        refuse_pointer(source / name)
    # a GGUF file is checked when it is opened
    if check and not any(name.endswith(".gguf") for name in names):
        check(read_json(source / CONFIG))
    with atomic_path(folder) as temporary:
        temporary.mkdir()
        for name in names:
            _link((source / name).resolve(), temporary / name)


def _link(origin: Path, target: Path) -> None:
    try:
        os.link(origin, target)
    except OSError:  # another file system, or one without hard links
        shutil.copyfile(origin, target)


def initialise(
    config_path: Path,
    seed: int,
    folder: Path,
    draw_vectors: bool = False,
    check: ConfigCheck | None = None,
) -> None:
    """Write config.json and model.safetensors (float32) of the class that `config_path` describes,
    initialised from `seed`.

    The class is `architectures[0]`; where the file names none, it is the base model of the
    `model_type`, and the written config.json says so. The weights are those of transformers' own
    initialisation after `torch.manual_seed(seed)`: the same seed gives the same bytes.
    `draw_vectors` then draws gains (log-normal, deviation 0.5) and biases (Gaussian, 0.1) as well,
    in the order of the parameters. Raises InputError when the file is not such a configuration, or
    `check` refuses it.
    """
    import torch

    from normgauge.checkpoints.architectures import untie

    config, model_class = _described(config_path, check)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        try:
            model = model_class(config)
        except (
            ValueError,
            TypeError,
            KeyError,
            AttributeError,
            AssertionError,
            RuntimeError,
            ZeroDivisionError,
        ) as error:
            raise InputError(
                f"{config_path}: {model_class.__name__} cannot be built from it ({error}); correct "
                "the sizes"
            ) from error
        untie(model)
        if draw_vectors:
            for name, parameter in model.named_parameters():
                if parameter.dim() == 1:
                    drawn = torch.randn(parameter.shape)
                    parameter.data = (0.5 * drawn).exp() if name.endswith("weight") else 0.1 * drawn
    with atomic_path(folder) as temporary:
        # The names of the class itself, not of an older file layout that transformers may translate
        # from.
        model.save_pretrained(temporary, save_original_format=False)
        temporary.joinpath("generation_config.json").unlink(missing_ok=True)


def initialise_by_tensor(
    config_path: Path, seed: int, folder: Path, dtype: str, check: ConfigCheck | None = None
) -> None:
    """Write config.json and shards of weights in `dtype`, one tensor in memory at a time.

    Matrices are Gaussian with the configuration's `initializer_range` (0.02 where it has none),
    gains stand for one and biases are zero, as in an initialisation, but the values are not those
    of the class: each tensor has a generator of its own, seeded with the seed and its name. The
    same seed gives the same bytes. Raises InputError as `initialise` does, and for a family that is
    not described.
    """
    import torch

    from normgauge.anatomy import describe
    from normgauge.anatomy.structure import Role
    from normgauge.checkpoints.shards import write_shards

    config, _ = _described(config_path, check)
    config.dtype = dtype
    anatomy, stored = describe(config), getattr(torch, dtype)
    fixed = {tensor.name: 0.0 for tensor in anatomy.tensors if len(tensor.shape) == 1}
    fixed |= {name: 1.0 for name in fixed if anatomy.tensor(name).axes[0].role == Role.SCALE}
    fixed |= {norm.gain: 1.0 - norm.gain_offset for norm in anatomy.norms if norm.gain}
    deviation = getattr(config, "initializer_range", None) or 0.02

    def drawn(name: str, shape: tuple[int, ...]) -> torch.Tensor:
        if name in fixed:
            return torch.full(shape, fixed[name], dtype=stored)
        values = torch.empty(shape, dtype=stored)
        generator = torch.Generator().manual_seed(_seed_for(seed, name))
        for row in values.split(max(1, 2**24 // math.prod(shape[1:]))):
            row.copy_(deviation * torch.randn(row.shape, generator=generator))
        return values

    shapes = {tensor.name: tensor.shape for tensor in anatomy.tensors if tensor.alias_of is None}
    with atomic_path(folder) as temporary:
        temporary.mkdir()
        write_shards(temporary, shapes, stored.itemsize, drawn)
        config.save_pretrained(temporary)


def _seed_for(seed: int, name: str) -> int:
    return int.from_bytes(hashlib.sha256(f"{seed} {name}".encode()).digest()[:8], "little") >> 1


def _described(config_path: Path, check: ConfigCheck | None) -> tuple[Any, Any]:
    """The configuration in a file and its class, checked."""
    from normgauge.checkpoints.configuration import check_numbers

    settings = _read_settings(config_path)
    _checked(check_numbers, settings, config_path)
    found = _model_class(settings, config_path)
    if check:
        _checked(check, settings, config_path)
    return found


def _checked(check: ConfigCheck, settings: dict[str, Any], path: Path) -> None:
    """Run a check of a config.json on the file that stands for one here."""
    try:
        check(settings)
    except InputError as error:
        message = str(error)
        raise InputError(
            f"{path}{message.removeprefix(CONFIG)}"
            if message.startswith(CONFIG)
            else f"{path}: {message}"
        ) from error


def _read_settings(path: Path) -> dict[str, Any]:
    try:
        settings = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(
            f"{path}: cannot be read ({error.strerror}); a relative path starts at the working "
            "directory"
        ) from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: not valid JSON ({error})") from error
    if not isinstance(settings, dict):
        raise InputError(
            f"{path}: expected a JSON object with the keys of a transformers configuration"
        )
    return settings


def _model_class(settings: dict[str, Any], path: Path) -> tuple[Any, Any]:
    """The configuration object and the class to build from it."""
    import transformers
    from huggingface_hub.errors import StrictDataclassError
    from transformers.models.auto import CONFIG_MAPPING, MODEL_MAPPING

    model_type = str(settings.get("model_type"))
    if model_type not in CONFIG_MAPPING:
        known = f"transformers {transformers.__version__}"
        raise InputError(
            f"{path}: model_type {model_type} is unknown to "
            f"{known}{near(model_type, CONFIG_MAPPING)}"
        )
    try:
        config = CONFIG_MAPPING[model_type].from_dict(settings)
    except (StrictDataclassError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise InputError(f"{path}: not a configuration of {model_type} ({error})") from error
    if not config.architectures:
        base = MODEL_MAPPING.get(type(config), None)
        if not isinstance(base, type):
            raise InputError(
                f"{path}: {model_type} has no single base model; name the class as architectures: "
                "[...]"
            )
        return config, base
    name = config.architectures[0]
    model_class: Any = getattr(transformers, str(name), None)
    is_model = isinstance(model_class, type) and issubclass(
        model_class, transformers.PreTrainedModel
    )
    if not is_model or not isinstance(config, model_class.config_class or ()):
        raise InputError(
            f"{path}: architectures names {name!r}, which is no transformers model of model_type "
            f"{model_type}"
        )
    return config, model_class
