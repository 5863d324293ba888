"""Reader of torch files: `pytorch_model.bin`, single and sharded, and `state_dict.pt`.

Only tensors are unpickled (`weights_only=True`); a file that needs anything more is refused.
"""

from __future__ import annotations

import pickle
import warnings
import zipfile
from pathlib import Path
from typing import Any

import torch

from normgauge.checkpoints.readers import STORED_NAMES, Weights, check_shard, read_json, shards
from normgauge.errors import InputError

SINGLES, INDEX = ("pytorch_model.bin", "state_dict.pt"), "pytorch_model.bin.index.json"


def holds(folder: Path) -> bool:
    return any((folder / name).is_file() for name in (*SINGLES, INDEX))


def stored_config(folder: Path) -> dict[str, Any]:
    return read_json(folder / "config.json")


def read(folder: Path) -> Weights:
    """All tensors of `pytorch_model.bin` or `state_dict.pt`, or of the shards that `pytorch_model.bin.index.json` lists."""
    single = next((folder / name for name in SINGLES if (folder / name).is_file()), None)
    if single is not None:
        files: tuple[Path, ...] = (single,)
        tensors = load(single)
    else:
        expected, tensors = shards(folder / INDEX), {}
        files = tuple(expected)
        for path, names in expected.items():
            shard = load(path)
            check_shard(path, names, set(shard), INDEX)
            tensors.update(shard)
    return Weights(tensors, {name: STORED_NAMES[tensor.dtype] for name, tensor in tensors.items()}, files)


def load(path: Path) -> dict[str, torch.Tensor]:
    """The state dict in one torch file, memory-mapped where the format allows.

    Raises InputError when the file is not a dictionary of dense tensors, is truncated, or holds pickled objects beyond tensors.
    """
    try:
        with warnings.catch_warnings():  # torch's remarks about a file's pickle protocol come before it refuses the file
            warnings.simplefilter("ignore")
            value = torch.load(path, weights_only=True, map_location="cpu", mmap=zipfile.is_zipfile(path))
    except pickle.UnpicklingError as error:
        raise InputError(f"{path}: refused: the file holds pickled objects beyond tensors; convert it to safetensors") from error
    except Exception as error:  # the unpickler of a damaged file may raise anything
        reason = str(error).partition("\n")[0] or type(error).__name__
        raise InputError(f"{path}: cannot be read as a torch file ({reason}); fetch it again") from error
    if not isinstance(value, dict) or not value:
        raise InputError(f"{path}: expected a dictionary of tensors, found {type(value).__name__}")
    for name, tensor in value.items():
        if not isinstance(name, str) or not isinstance(tensor, torch.Tensor):
            raise InputError(f"{path}: entry {name!r} is a {type(tensor).__name__}; expected a dictionary of tensor names to tensors")
        if tensor.dtype not in STORED_NAMES or tensor.layout != torch.strided:
            raise InputError(f"{path}: tensor {name} is stored as {tensor.dtype}, {tensor.layout}; expected dense unquantised values")
        if tensor.is_meta or tensor.numel() * tensor.itemsize > tensor.untyped_storage().nbytes():
            raise InputError(f"{path}: tensor {name} of shape {list(tensor.shape)} is larger than what the file stores for it; malformed")
    return {name: tensor.detach().contiguous() for name, tensor in value.items()}
