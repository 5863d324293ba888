"""What the solver is told about a model: names, shapes, kinds and which array is which. No weights.

It is a JSON file beside the arrays; an array is a file of raw little-endian float64, one row per
token position.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
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

    def rows(self, folder: Path) -> int:
        """How many rows its file holds. InputError when the file is missing or torn."""
        path = folder / f"{self.name}.f64"
        size = path.stat().st_size if path.is_file() else 0
        if not size or size % (8 * self.width):
            raise InputError(
                f"{path.name}: expected whole rows of {self.width} float64 values, found {size} "
                "bytes; observe again"
            )
        return size // (8 * self.width)

    def read(self, folder: Path, columns: slice = slice(None)) -> np.ndarray:
        """(N, width) float64, or some of its columns, C-ordered. InputError when the file is
        missing, torn or not finite.
        """
        shape = (self.rows(folder), self.width)
        values = np.array(
            np.memmap(folder / f"{self.name}.f64", np.float64, "r", shape=shape)[:, columns],
            order="C",
        )
        if not np.isfinite(values).all():
            raise InputError(
                f"{self.name}.f64: expected finite values, found NaN or infinities; observe again"
            )
        return values


@dataclass(frozen=True)
class StoredTensor:
    """A tensor to be recovered: name in the class's state_dict, shape, dtype of its storage grid,
    and the tensor it is tied to.

    `used`: whether the class computes with it; a stored head of another class is listed and cannot
        be observed.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    alias_of: str | None
    used: bool = True

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
    """A linear module with its input and output. `norm`: the norm whose output the input is, when
    it is that and nothing else.

    `input_first`: the weight is stored in x out. `part`: the part of the model it belongs to.
    """

    module: str
    weight: str
    bias: str | None
    input_first: bool
    norm: str | None
    inputs: Array
    outputs: Array
    part: str = ""


@dataclass(frozen=True)
class ObservedTable:
    """A lookup table (rows x width) that adds table[index] to the embedding sum; `indices` is an
    array of width 1, and so is `cover`, those of the sums of every token.
    """

    weight: str
    indices: Array
    cover: Array | None = None

    def read_indices(self, folder: Path, rows: int) -> np.ndarray:
        """(N,) int64 rows of the table; InputError when one is not among its `rows`."""
        return self._rows_in(self.indices, folder, rows)

    def read_all_indices(self, folder: Path, rows: int) -> np.ndarray:
        """The same, then those of the sums of every token where these are observed."""
        return np.concatenate(
            [self._rows_in(array, folder, rows) for array in (self.indices, self.cover) if array]
        )

    def _rows_in(self, array: Array, folder: Path, rows: int) -> np.ndarray:
        values = array.read(folder)[:, 0]
        indices = values.astype(np.int64)
        if (indices != values).any() or indices.min() < 0 or indices.max() >= rows:
            raise InputError(
                f"{array.name}.f64: expected row numbers of {self.weight}, 0 to {rows - 1}; "
                "observe again"
            )
        return indices


@dataclass(frozen=True)
class Description:
    """Everything but the arrays. `embedding`: the sum of the tables' looked-up rows, or None when
    it is not that alone;
    `cover`: these sums for every token, where they are observed.
    """

    tensors: tuple[StoredTensor, ...]
    norms: tuple[ObservedNorm, ...]
    maps: tuple[ObservedMap, ...]
    tables: tuple[ObservedTable, ...]
    embedding: Array | None
    cover: Array | None = None

    def read_sums(self, folder: Path) -> np.ndarray:
        """(N, width) embedding sums, those of every token last where they are observed."""
        return np.vstack([array.read(folder) for array in (self.embedding, self.cover) if array])

    def tensor(self, name: str) -> StoredTensor:
        return next(tensor for tensor in self.tensors if tensor.name == name)

    def norm(self, name: str) -> ObservedNorm:
        return next(norm for norm in self.norms if norm.name == name)

    def layer_norm_behind(self, item: ObservedMap) -> str | None:
        """The norm whose output the map reads, if it is a LayerNorm: then the map has a gauge
        line.
        """
        return next(
            (
                norm.name
                for norm in self.norms
                if norm.name == item.norm and norm.kind == NormKind.LAYER_NORM
            ),
            None,
        )

    def stored_name(self, name: str) -> str:
        """The tensor that holds the values: the one it is tied to, if any."""
        return self.tensor(name).alias_of or name

    def write(self, folder: Path) -> None:
        (folder / FILE).write_text(json.dumps(asdict(self), indent=1) + "\n", encoding="utf-8")

    @staticmethod
    def read(folder: Path) -> Description:
        """The description in a folder of observations; InputError when it is missing or not one, or
        when the arrays beside it are not its own.
        """
        description = Description.read_alone(folder)
        description._check_rows(folder)
        return description

    @staticmethod
    def read_alone(folder: Path) -> Description:
        """The same without its arrays: what a solver's folder keeps of it."""
        path = folder / FILE
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            description = Description(
                tuple(
                    StoredTensor(**{**item, "shape": tuple(item["shape"])})
                    for item in content["tensors"]
                ),
                tuple(ObservedNorm(**_with_arrays(item)) for item in content["norms"]),
                tuple(ObservedMap(**_with_arrays(item)) for item in content["maps"]),
                tuple(ObservedTable(**_with_arrays(item)) for item in content["tables"]),
                *(
                    Array(**content[name]) if content[name] else None
                    for name in ("embedding", "cover")
                ),
            )
            problem = next(description._problems(), None)
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise InputError(
                f"{path}: not a description of observations ({type(error).__name__}: {error}); "
                "observe again"
            ) from error
        if problem:
            raise InputError(f"{path}: {problem}; observe again")
        return description

    def _problems(self) -> Iterator[str]:
        """What contradicts itself, one sentence each."""
        shapes = {tensor.name: tensor.shape for tensor in self.tensors}
        kinds = [norm.kind for norm in self.norms if norm.kind not in list(NormKind)]
        yield from (f"norm kind {kind!r}: expected one of {', '.join(NormKind)}" for kind in kinds)
        for array in self._arrays():
            if (
                Path(array.name).name != array.name
                or type(array.width) is not int
                or array.width < 1
            ):
                yield (
                    f"array {array.name!r} of width {array.width!r}: expected the name of a "
                    "file "
                    "in this folder, at least one wide"
                )
        for name, expected in self._expected_shapes():
            if name not in shapes:
                yield f"tensor {name} is used but not listed"
            elif shapes[name] != expected:
                yield (
                    f"tensor {name} has shape {list(shapes[name])}, its arrays say {list(expected)}"
                )

    def _expected_shapes(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        for norm in self.norms:
            yield from ((name, (norm.inputs.width,)) for name in (norm.gain, norm.bias) if name)
        for item in self.maps:
            shape = (item.inputs.width, item.outputs.width)
            yield item.weight, shape if item.input_first else shape[::-1]
            if item.bias:
                yield item.bias, (item.outputs.width,)

    def _pairs(self) -> list[tuple[Array, Array]]:
        """Input and output of every norm and map."""
        return [(norm.inputs, norm.outputs) for norm in self.norms] + [
            (item.inputs, item.outputs) for item in self.maps
        ]

    def _table_pairs(self) -> list[tuple[Array, Array]]:
        """Embedding sums and the indices of every table behind them."""
        if not self.embedding:
            return []
        cover = [(self.cover, table.cover) for table in self.tables if self.cover and table.cover]
        return [(self.embedding, table.indices) for table in self.tables] + cover

    def _arrays(self) -> Iterator[Array]:
        for pair in self._pairs():
            yield from pair
        for pair in self._table_pairs():
            yield from pair

    def _check_rows(self, folder: Path) -> None:
        """InputError unless arrays that belong together are there, whole and equally long."""
        for first, second in (*self._pairs(), *self._table_pairs()):
            rows = first.rows(folder), second.rows(folder)
            if rows[0] != rows[1]:
                raise InputError(
                    f"{first.name}.f64 has {rows[0]} rows, {second.name}.f64 has {rows[1]}; "
                    "observe again"
                )


def _with_arrays(item: dict) -> dict:
    return {
        key: Array(**value) if isinstance(value, dict) else value for key, value in item.items()
    }
