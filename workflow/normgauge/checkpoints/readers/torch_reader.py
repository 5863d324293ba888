"""Reader of torch files: `pytorch_model.bin`, single and sharded, and `state_dict.pt`.

Only tensors are unpickled (`weights_only=True`); a file that needs anything more is refused, and so
is one whose tensors need more than the file holds, before torch makes memory for them. A mapped
file is used only where every record of values lies in it as it is in memory, because torch slices
the map by offset and looks at neither size nor method.
"""

from __future__ import annotations

import io
import pickle
import warnings
import zipfile
from bisect import bisect_right
from pathlib import Path
from typing import Any, BinaryIO

import torch

from normgauge.checkpoints.readers import STORED_NAMES, Weights, check_shard, read_json, shards
from normgauge.errors import InputError, one_line

SINGLES, INDEX = ("pytorch_model.bin", "state_dict.pt"), "pytorch_model.bin.index.json"


def holds(folder: Path) -> bool:
    return any((folder / name).is_file() for name in (*SINGLES, INDEX))


def stored_config(folder: Path) -> dict[str, Any]:
    return read_json(folder / "config.json")


def read(folder: Path) -> Weights:
    """All tensors of `pytorch_model.bin` or `state_dict.pt`, or of the shards that
    `pytorch_model.bin.index.json` lists.
    """
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
    return Weights(
        tensors, {name: STORED_NAMES[tensor.dtype] for name, tensor in tensors.items()}, files
    )


@one_line("a torch file")
def load(path: Path) -> dict[str, torch.Tensor]:
    """The state dict in one torch file, memory-mapped where the format allows.

    Raises InputError when the file is not a dictionary of dense tensors, is truncated, holds
    pickled objects beyond tensors, or has a record of values that is compressed or of another size
    than its tensors need.
    """
    mapped = zipfile.is_zipfile(path)
    try:
        # torch's remarks about a file's pickle protocol come before it refuses the file
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            check_storages(path)
            value = torch.load(path, weights_only=True, map_location="cpu", mmap=mapped)
    except pickle.UnpicklingError as error:
        raise InputError(
            f"{path}: refused: the file holds pickled objects beyond tensors; convert it to "
            "safetensors"
        ) from error
    if not isinstance(value, dict) or not value:
        raise InputError(f"{path}: expected a dictionary of tensors, found {type(value).__name__}")
    for name, tensor in value.items():
        if not isinstance(name, str) or not isinstance(tensor, torch.Tensor):
            raise InputError(
                f"{path}: entry {name!r} is a {type(tensor).__name__}; expected a dictionary of "
                "tensor names to tensors"
            )
        if tensor.dtype not in STORED_NAMES or tensor.layout != torch.strided:
            raise InputError(
                f"{path}: tensor {name} is stored as {tensor.dtype}, {tensor.layout}; expected "
                "dense unquantised values"
            )
        if tensor.is_meta or tensor.numel() * tensor.itemsize > tensor.untyped_storage().nbytes():
            raise InputError(
                f"{path}: tensor {name} of shape {list(tensor.shape)} is larger than what the file "
                "stores for it; malformed"
            )
    return {name: tensor.detach().contiguous() for name, tensor in value.items()}


def check_storages(path: Path) -> None:
    """InputError where torch would make memory of a number that stands in a file, or take other
    bytes for a record's values.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        (_check_records if zipfile.is_zipfile(path) else _check_pickles)(path)


class _Placeholder(dict[Any, Any]):
    """Stands for every object in a pickle whose storages alone are wanted."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__()


class _Storages(pickle._Unpickler):
    """Goes through a pickle before torch does, calls nothing that it names, and notes `sizes`: key
    -> bytes per storage.

    Raises InputError for what torch would call and that makes memory out of a number.
    """

    def __init__(self, path: Path, file: BinaryIO) -> None:
        super().__init__(file, encoding="utf-8")
        self.path = path
        self.sizes: dict[str, int] = {}

    def find_class(self, module: str, name: str) -> Any:
        if name == "bytearray":
            raise InputError(
                f"{self.path}: refused: the file holds pickled objects beyond tensors ({name}); "
                "convert it to safetensors"
            )
        storage = getattr(torch, name, None) if name.endswith("Storage") else None
        return storage if isinstance(storage, type) else _Placeholder

    def persistent_load(self, saved: Any) -> None:
        # older files say as well of which storage this one is a part
        _, kind, key, _, count = saved[:5]
        self.sizes.setdefault(
            key, count * (1 if kind is torch.UntypedStorage else kind.dtype.itemsize)
        )


def _check_pickles(path: Path) -> None:
    """InputError when the storages of a file that is no archive are larger than it: torch makes
    them before it reads their values.

    The pickles: a magic number, a version, what the system was like, the object, the keys of the
    storages whose values follow. torch leaves a storage that the last does not list as the memory
    happened to be.
    """
    with open(path, "rb") as file:
        pickled = _Storages(path, file)
        if pickled.load() != torch.serialization.MAGIC_NUMBER:
            return  # no torch file: torch says what it makes of it
        for _ in range(3):
            pickled = _Storages(path, file)
            pickled.load()
        keys = _Storages(path, file).load()
    if not isinstance(keys, list) or sorted(map(str, keys)) != sorted(map(str, pickled.sizes)):
        raise InputError(
            f"{path}: does not list the storages that its tensors need, whose values would be "
            "anything; fetch it again"
        )
    needed, size = sum(pickled.sizes.values()), path.stat().st_size
    if needed > size or min(pickled.sizes.values(), default=0) < 0:
        raise InputError(
            f"{path}: its tensors need {needed} bytes, the file has {size}; malformed: fetch it "
            "again"
        )


def _check_records(path: Path) -> None:
    """InputError unless every record is stored uncompressed, those of storages of their size, apart
    from all other records.
    """
    with zipfile.ZipFile(path) as archive:
        members, end = archive.infolist(), archive.start_dir
        records: dict[str, zipfile.ZipInfo] = {}
        for member in members:  # torch finds names whatever their case
            if records.setdefault(member.filename.lower(), member) is not member:
                raise InputError(
                    f"{path}: record {member.filename} is there twice; malformed: fetch it again"
                )
            # a directory that names another record's place than the record itself is refused here
            archive.open(member).close()
            if member.compress_type != zipfile.ZIP_STORED:
                raise InputError(
                    f"{path}: record {member.filename} is compressed; expected stored values: save "
                    "it again with torch.save"
                )
    reader: Any = torch._C.PyTorchFileReader(str(path))  # its stubs lack the offsets
    storages = _Storages(path, io.BytesIO(reader.get_record("data.pkl")))
    storages.load()
    folder = members[0].filename.partition("/")[0]
    headers = [*sorted(member.header_offset for member in members), end]
    for key, size in storages.sizes.items():
        record = records.get(f"{folder}/data/{key}".lower())
        if record is None:
            raise InputError(
                f"{path}: record {folder}/data/{key} is missing; malformed: fetch it again"
            )
        room = headers[bisect_right(headers, record.header_offset)] - reader.get_record_offset(
            f"data/{key}"
        )
        found = min(record.file_size, record.compress_size, room)
        if found != size or record.file_size != size:
            where = f"{path}: record {record.filename}"
            raise InputError(
                f"{where} has {found} bytes of {record.file_size}, its tensors need {size}; "
                "malformed: fetch it again"
            )
