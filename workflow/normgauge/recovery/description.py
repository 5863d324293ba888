"""What the solver is told about a model: names, shapes, kinds and which array is which. No weights.

It is a JSON file beside the arrays; an array is a file of raw little-endian float64, one row per token position.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from normgauge.anatomy.structure import NormKind
from normgauge.errors import InputError

FILE = "description.json"


@dataclass(frozen=True)
class Array:
    """An observed array: its file's stem and its width. The file's size gives the rows."""

    name: str
    width: int

    def read(self, folder: Path, columns: slice = slice(None)) -> np.ndarray:
        """(N, width) float64, or some of its columns, C-ordered. InputError when the file is missing or torn."""
        path = folder / f"{self.name}.f64"
        size = path.stat().st_size if path.is_file() else 0
        if not size or size % (8 * self.width):
            raise InputError(f"{path.name}: expected whole rows of {self.width} float64 values, found {size} bytes; observe again")
        return np.array(np.memmap(path, np.float64, "r").reshape(-1, self.width)[:, columns], order="C")


@dataclass(frozen=True)
class StoredTensor:
    """A tensor to be recovered: name in the class's state_dict, shape, dtype of its storage grid, and the tensor it is tied to."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    alias_of: str | None

    @property
    def count(self) -> int:
        return int(np.prod(self.shape))


@dataclass(frozen=True)
class ObservedNorm:
    """A norm with its input and output; gain and bias are tensor names."""

    name: str
    kind: str
    eps: float
    gain: str
    bias: str | None
    gain_offset: float
    inputs: Array
    outputs: Array


@dataclass(frozen=True)
class ObservedMap:
    """A linear module with its input and output. `norm`: the norm whose output the input is, when it is that and nothing else.

    `input_first`: the weight is stored in x out.
    """

    module: str
    weight: str
    bias: str | None
    input_first: bool
    norm: str | None
    inputs: Array
    outputs: Array


@dataclass(frozen=True)
class ObservedTable:
    """A lookup table (rows x width) that adds table[index] to the embedding sum; `indices` is an array of width 1."""

    weight: str
    indices: Array


@dataclass(frozen=True)
class Description:
    """Everything but the arrays. `embedding`: the sum of the tables' looked-up rows, or None when it is not that alone."""

    tensors: tuple[StoredTensor, ...]
    norms: tuple[ObservedNorm, ...]
    maps: tuple[ObservedMap, ...]
    tables: tuple[ObservedTable, ...]
    embedding: Array | None

    def tensor(self, name: str) -> StoredTensor:
        return next(tensor for tensor in self.tensors if tensor.name == name)

    def layer_norm_behind(self, item: ObservedMap) -> str | None:
        """The norm whose output the map reads, if it is a LayerNorm: then the map has a gauge line."""
        return next((norm.name for norm in self.norms if norm.name == item.norm and norm.kind == NormKind.LAYER_NORM), None)

    def stored_name(self, name: str) -> str:
        """The tensor that holds the values: the one it is tied to, if any."""
        return self.tensor(name).alias_of or name

    def write(self, folder: Path) -> None:
        (folder / FILE).write_text(json.dumps(asdict(self), indent=1) + "\n")

    @staticmethod
    def read(folder: Path) -> Description:
        """The description in a folder; InputError when it is missing or not one."""
        path = folder / FILE
        try:
            content = json.loads(path.read_text())
            return Description(
                tuple(StoredTensor(**{**item, "shape": tuple(item["shape"])}) for item in content["tensors"]),
                tuple(ObservedNorm(**_with_arrays(item)) for item in content["norms"]),
                tuple(ObservedMap(**_with_arrays(item)) for item in content["maps"]),
                tuple(ObservedTable(**_with_arrays(item)) for item in content["tables"]),
                Array(**content["embedding"]) if content["embedding"] else None,
            )
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise InputError(f"{path}: not a description of observations ({error}); observe again") from error


def _with_arrays(item: dict) -> dict:
    return {key: Array(**value) if isinstance(value, dict) else value for key, value in item.items()}
