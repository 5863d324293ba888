"""Reader of torch files: `pytorch_model.bin`, single and sharded, and `state_dict.pt`.

Only tensors are unpickled (`weights_only=True`); a file that needs anything more is refused. A mapped file is used only where
every record of values lies in it as it is in memory, because torch slices the map by offset and looks at neither size nor method.
"""

from __future__ import annotations

import io
import pickle
import warnings
import zipfile
from bisect import bisect_right
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

    Raises InputError when the file is not a dictionary of dense tensors, is truncated, holds pickled objects beyond tensors, or
    has a record of values that is compressed or of another size than its tensors need.
    """
    mapped = zipfile.is_zipfile(path)
    try:
        with warnings.catch_warnings():  # torch's remarks about a file's pickle protocol come before it refuses the file
            warnings.simplefilter("ignore")
            value = torch.load(path, weights_only=True, map_location="cpu", mmap=mapped)
            if mapped:
                _check_records(path)
    except InputError:
        raise
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


class _Placeholder(dict[Any, Any]):
    """Stands for every object in a pickle whose storages alone are wanted."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__()


class _Storages(pickle._Unpickler):
    """Goes through a pickle that torch has accepted, calls nothing that it names, and notes `sizes`: key -> bytes per storage."""

    def __init__(self, content: bytes) -> None:
        super().__init__(io.BytesIO(content), encoding="utf-8")
        self.sizes: dict[str, int] = {}

    def find_class(self, module: str, name: str) -> Any:
        storage = getattr(torch, name, None) if name.endswith("Storage") else None
        return storage if isinstance(storage, type) else _Placeholder

    def persistent_load(self, saved: Any) -> None:
        _, kind, key, _, count = saved
        self.sizes.setdefault(key, count * (1 if kind is torch.UntypedStorage else kind.dtype.itemsize))


def _check_records(path: Path) -> None:
    """InputError unless every storage's record is stored uncompressed, of the storage's size, apart from all other records."""
    reader: Any = torch._C.PyTorchFileReader(str(path))  # its stubs lack the offsets
    storages = _Storages(reader.get_record("data.pkl"))
    storages.load()
    with zipfile.ZipFile(path) as archive:
        members, end = archive.infolist(), archive.start_dir
    records: dict[str, zipfile.ZipInfo] = {}
    for member in members:  # torch finds names whatever their case
        if records.setdefault(member.filename.lower(), member) is not member:
            raise InputError(f"{path}: record {member.filename} is there twice; malformed: fetch it again")
    folder = members[0].filename.partition("/")[0]
    headers = [*sorted(member.header_offset for member in members), end]
    for key, size in storages.sizes.items():
        record = records[f"{folder}/data/{key}".lower()]
        where = f"{path}: record {record.filename}"
        if record.compress_type != zipfile.ZIP_STORED:
            raise InputError(f"{where} is compressed; expected stored values: save it again with torch.save")
        room = headers[bisect_right(headers, record.header_offset)] - reader.get_record_offset(f"data/{key}")
        found = min(record.file_size, record.compress_size, room)
        if found != size or record.file_size != size:
            raise InputError(f"{where} has {found} bytes of {record.file_size}, its tensors need {size}; malformed: fetch it again")
