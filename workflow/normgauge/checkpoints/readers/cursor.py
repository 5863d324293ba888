"""Bounds-checked reading of little-endian fields."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np

from normgauge.errors import InputError


class Cursor:
    """Reads a file's fields in order; InputError, naming the file and the field, on a read beyond its end."""

    def __init__(self, path: Path) -> None:
        self.path, self.position = path, 0
        self.data = np.memmap(path, mode="r").data if path.stat().st_size else memoryview(b"")

    @property
    def left(self) -> int:
        """Bytes not read yet."""
        return len(self.data) - self.position

    def take(self, count: int, what: str) -> memoryview:
        if count > self.left:
            raise InputError(f"{self.path}: truncated: {what} needs {count} bytes at offset {self.position}; fetch the file again")
        self.position += count
        return self.data[self.position - count : self.position]

    def numbers(self, code: str, what: str) -> tuple[Any, ...]:
        """Numbers by their `struct` codes, little-endian, unpadded."""
        return struct.unpack(f"<{code}", self.take(struct.calcsize(f"<{code}"), what))
