"""Dictionaries of sparse autoencoders and transcoders: the encoder reads a space, the decoder and
its bias write to one.

Names as stored by SAELens and Gemma Scope (W_enc in x features, W_dec features x out) and by
torch's linear layers (out x in). SAELens' folder states in cfg.json where the dictionary lies and
how it normalises; both count.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from normgauge.anatomy.structure import Anatomy, Role
from normgauge.errors import InputError
from normgauge.gauge.groups import Monomial
from normgauge.gauge.model_gauge import Gauge
from normgauge.gauge.requirements import require_fitting
from normgauge.gauge.transform import require_range
from normgauge.transport.arrays import (
    StreamElement,
    element_on,
    keeps_lengths,
    read_arrays,
    save_arrays,
    transport_file,
)
from normgauge.transport.hooks import Hook, hook_of
from normgauge.transport.leftovers import numbers_beside, require_none_left
from normgauge.transport.outputs import copy_tree, new_output, require_new
from normgauge.transport.sidecar import Sidecar, check_origin, write_sidecar

# the space that a dictionary reads, and the one that it writes: a transcoder's are two
IN, OUT = "in", "out"
CONFIG, WEIGHTS = "cfg.json", "sae_weights.safetensors"
HOOK_KEYS = ("hook_name", "hook_point", "hookpoint")
# files that hold a number for each feature
FEATURES_ALONE = ("sparsity.safetensors", "log_feature_sparsity.safetensors")

# name -> its axes that lie in a space: (axis, what it does there, which of the two spaces); none:
# an array of features alone
LAYOUT: dict[str, tuple[tuple[int, Role, str], ...]] = {
    "W_enc": ((0, Role.READ, IN),),
    "W_dec": ((1, Role.WRITE, OUT),),
    "b_dec": ((0, Role.WRITE, OUT),),
    "b_dec_out": ((0, Role.WRITE, OUT),),
    "W_skip": ((0, Role.WRITE, OUT), (1, Role.READ, IN)),
    "encoder.weight": ((1, Role.READ, IN),),
    "decoder.weight": ((0, Role.WRITE, OUT),),
    "decoder.bias": ((0, Role.WRITE, OUT),),
    "bias": ((0, Role.WRITE, OUT),),
    **dict.fromkeys(
        (
            "b_enc",
            "encoder.bias",
            "threshold",
            "log_threshold",
            "b_gate",
            "b_mag",
            "r_mag",
            "scaling_factor",
        ),
        (),
    ),
    **dict.fromkeys(
        ("topk_threshold", "finetuning_scaling_factor", "sparsity", "log_sparsity"), ()
    ),
}
ENCODERS = ("W_enc", "encoder.weight")
MEAN_FREE = ("layer_norm",)  # normalisations of the input that subtract its mean over coordinates
NORM_FREE = ("constant_norm_rescale",)  # that divide by its length


@dataclass(frozen=True)
class Ends:
    """What moves the activations that a dictionary reads and those that it writes."""

    reads: StreamElement
    writes: StreamElement

    @property
    def exact(self) -> bool:
        return self.reads.is_signed_permutation and self.writes.is_signed_permutation


def transport_dictionary(
    source: str | os.PathLike[str],
    destination: str | os.PathLike[str],
    anatomy: Anatomy,
    gauge: Gauge,
    space: str | None,
    sidecar: Sidecar,
) -> None:
    """Move a dictionary in a .safetensors, .npz or .gguf file, or in a folder of SAELens. Features
    keep their numbers.

    space: in which it lies, by the anatomy's name; None takes it from the hook in cfg.json, which
    lies in the folder or beside the file, and with which a space that is given must agree. Raises
    InputError for an unknown array, one of the wrong width, a hook that stands for no space, one
    head alone or another width, and for a dictionary that normalises by what the gauge does not
    keep.
    """
    require_fitting(anatomy, gauge)
    folder = Path(source).is_dir()
    path = _config_path(source)
    config = _config(path)
    ends = _ends(path, config, anatomy, gauge, space)

    def moved(arrays: Mapping[str, torch.Tensor], where: str) -> dict[str, torch.Tensor]:
        _check_normalisation(path, config, ends, arrays)
        return {
            name: moved_array(ends, name, value, where, "b_dec_out" in arrays)
            for name, value in arrays.items()
        }

    if folder:
        _transport_folder(Path(source), destination, moved, sidecar)
    else:
        transport_file(source, destination, moved, sidecar)


def stated_hook(source: str | os.PathLike[str]) -> str | None:
    """The hook that the cfg.json in a dictionary's folder, or beside its file, states. Raises
    InputError for malformed JSON.
    """
    return _hook_name(_config(_config_path(source)))


def dictionary_weights(folder: Path) -> Path:
    """The file of a dictionary's folder that holds its arrays. Raises InputError where it is not
    clear.
    """
    if (folder / WEIGHTS).is_file():
        return folder / WEIGHTS
    files = [
        path for path in sorted(folder.glob("*.safetensors")) if path.name not in FEATURES_ALONE
    ]
    if len(files) != 1:
        raise InputError(
            f"{folder}: holds {len(files)} .safetensors files beside {CONFIG}; expected {WEIGHTS}, "
            "or the dictionary's one"
        )
    return files[0]


def _transport_folder(
    source: Path, destination: str | os.PathLike[str], moved: Any, sidecar: Sidecar
) -> None:
    require_new(destination, source)
    check_origin(source, sidecar)
    weights = dictionary_weights(source)
    require_none_left(
        source, numbers_beside(source, (weights.name, *FEATURES_ALONE)), "move them away first"
    )
    arrays, metadata = read_arrays(weights)
    result = moved(arrays, str(weights))
    with new_output(destination, source) as temporary:
        copy_tree(source, temporary)
        save_arrays(temporary / weights.name, ".safetensors", result, metadata)
        write_sidecar(temporary / "gauge.json", sidecar)


def moved_array(
    ends: Ends | StreamElement,
    name: str,
    value: torch.Tensor,
    source: str,
    two_biases: bool = False,
) -> torch.Tensor:
    """One array of a dictionary after the gauge. `two_biases`: b_dec is subtracted from what is
    read, b_dec_out added to the output.
    """
    if not isinstance(ends, Ends):
        ends = Ends(ends, ends)
    if name not in LAYOUT:
        raise InputError(
            f"{source}: array {name} is unknown, expected one of {', '.join(LAYOUT)}; rename it or "
            "leave it out"
        )
    result = value
    for axis, role, end in LAYOUT[name]:
        element = ends.reads if end == IN or (two_biases and name == "b_dec") else ends.writes
        if value.ndim <= axis or value.shape[axis] != element.size:
            raise InputError(
                f"{source}: array {name} has shape {list(value.shape)}, expected {element.size} "
                f"along axis {axis}; wrong model?"
            )
        result = (element.dual() if role == Role.READ else element).apply(result, axis)
    if LAYOUT[name] and not ends.exact:
        require_range(f"{source}: array {name}", value, result)
    return result


def _config_path(source: str | os.PathLike[str]) -> Path:
    return Path(source) / CONFIG if Path(source).is_dir() else Path(source).with_name(CONFIG)


def _hook_name(config: Mapping[str, Any]) -> Any:
    return next((config[key] for key in HOOK_KEYS if config.get(key)), None)


def _config(path: Path) -> dict[str, Any]:
    """The keys of a dictionary's cfg.json with those of its `metadata`, none where there is no such
    file.
    """
    if not path.is_file():
        return {}
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        inner = {
            key: value
            for key, value in (found.get("metadata") or {}).items()
            if value is not None or key not in found
        }
    except (ValueError, AttributeError, TypeError) as error:
        raise InputError(
            f"{path}: not valid JSON of a dictionary ({error}); mend or delete it"
        ) from error
    stated = {str(each[key]) for each in (found, inner) for key in HOOK_KEYS if each.get(key)}
    if len(stated) > 1:
        raise InputError(
            f"{path}: states the hooks {' and '.join(sorted(stated))}; keep the one that the "
            "dictionary was trained at"
        )
    return {**found, **inner}


def _ends(
    path: Path, config: Mapping[str, Any], anatomy: Anatomy, gauge: Gauge, space: str | None
) -> Ends:
    name = _hook_name(config)
    if name is None:
        if space is None:
            raise InputError(
                f"{path}: states no hook (hook_name); name the space in which the dictionary lies"
            )
        element = element_on(anatomy, gauge, space)
        return Ends(element, element)
    if not isinstance(name, str):
        raise InputError(f"{path}: hook_name is {name!r}, expected one hook's name")
    reads = _hook(path, config, anatomy, name, "d_in", "hook_head_index")
    writes = reads
    if "transcoder" in str(config.get("architecture")) or config.get("hook_name_out"):
        out = config.get("hook_name_out")
        if not isinstance(out, str):
            raise InputError(
                f"{path}: a transcoder at hook {name} states no hook_name_out; add the hook that "
                "it writes to"
            )
        writes = _hook(path, config, anatomy, out, "d_out", "hook_head_index_out")
    if space is not None and space != reads.space:
        raise InputError(
            f"{path}: hook {name} lies in {reads.space}, not in {space}; name that space, or none"
        )
    try:
        return Ends(reads.element(anatomy, gauge), writes.element(anatomy, gauge))
    except InputError as error:
        raise InputError(f"{path}: {error}") from error


def _hook(
    path: Path, config: Mapping[str, Any], anatomy: Anatomy, name: str, width: str, head: str
) -> Hook:
    try:
        hook = hook_of(anatomy, name)
    except InputError as error:
        raise InputError(f"{path}: {error}") from error
    if config.get(head) is not None:
        raise InputError(
            f"{path}: hook {name} of head {config[head]} alone; a gauge moves whole layers: "
            "retrain it, or move all heads together"
        )
    if config.get(width) not in (None, hook.width):
        raise InputError(
            f"{path}: {width} is {config[width]}, hook {name} has {hook.width} coordinates; use "
            "the dictionary's own model"
        )
    return hook


def _check_normalisation(
    path: Path, config: Mapping[str, Any], ends: Ends, arrays: Mapping[str, torch.Tensor]
) -> None:
    """InputError where the dictionary's own arithmetic does not commute with the gauge."""
    normalisation = config.get("normalize_activations")
    element = ends.reads
    common = (
        isinstance(element, Monomial)
        and element.is_signed_permutation
        and (element.factors == element.factors[0]).all()
    )
    if normalisation in MEAN_FREE and not common:
        raise InputError(
            f"{path}: normalize_activations {normalisation!r} subtracts the mean over coordinates; "
            "permutations with a common sign pass it"
        )
    kept = keeps_lengths(ends.reads) and keeps_lengths(ends.writes)
    reasons = {
        f"normalize_activations {normalisation!r} divides by": normalisation in NORM_FREE,
        "rescale_acts_by_decoder_norm multiplies by": bool(
            config.get("rescale_acts_by_decoder_norm")
        ),
        "a dictionary without an encoder of its own takes products with its decoder, and so": (
            not any(name in arrays for name in ENCODERS)
        ),
    }
    if not kept and (reason := next((text for text, holds in reasons.items() if holds), None)):
        raise InputError(
            f"{path}: {reason} lengths, which the gauge of this space changes; use a gauge without "
            "scales there"
        )
