"""Bounds-checked reading of little-endian fields."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np

from normgauge.errors import InputError


class Cursor:
    """Reads a file's fields in order; InputError, naming the file and the field, on a read beyond
    its end.
    """

    def __init__(self, path: Path) -> None:
        self.path, self.position = path, 0
        self.data = np.memmap(path, mode="r").data if path.stat().st_size else memoryview(b"")

    @property
    def left(self) -> int:
        """Bytes not read yet."""
        return len(self.data) - self.position

    def take(self, count: int, what: str) -> memoryview:
        if count > self.left:
            raise self._truncated(count, what)
        self.position += count
        return self.data[self.position - count : self.position]

    def numbers(self, code: str, what: str) -> tuple[Any, ...]:
        """Numbers by their `struct` codes, little-endian, unpadded."""
        return struct.unpack(f"<{code}", self.take(struct.calcsize(f"<{code}"), what))

    def skip_strings(self, count: int, what: str) -> None:
        """Pass over `count` strings, each a u64 length and that many bytes."""
        if 8 * count > self.left:
            raise self._truncated(8 * count, what)
        position, end, length_at = self.position, len(self.data), struct.Struct("<Q").unpack_from
        for _ in range(count):
            if position + 8 > end:
                raise self._truncated(8, what)
            position += 8 + length_at(self.data, position)[0]
        if position > end:
            raise self._truncated(position - self.position, what)
        self.position = position

    def _truncated(self, count: int, what: str) -> InputError:
        return InputError(
            f"{self.path}: truncated: {what} needs {count} bytes at offset {self.position}; fetch "
            "the file again"
        )
