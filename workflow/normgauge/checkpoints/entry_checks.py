"""Checks of single values of the model table, each an InputError that names the place."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any

from normgauge.errors import InputError


def only_keys(
    where: str, source: Mapping[str, Any], required: tuple[str, ...], optional: tuple[str, ...] = ()
) -> None:
    for key in source:
        if key not in (*required, *optional):
            raise InputError(
                f"{where}.{key}: unknown key; known here: {', '.join((*required, *optional))}"
            )
    for key in required:
        if key not in source:
            raise InputError(
                f"{where}: the key `{key}` is missing; known here: "
                f"{', '.join((*required, *optional))}"
            )


def mapping(where: str, value: Any) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise InputError(f"{where}: expected a mapping, found {value!r}")
    return value


def text(where: str, value: Any) -> str:
    if not isinstance(value, str) or not value.strip():
        raise InputError(f"{where}: expected text, found {value!r}")
    return value


def matching(where: str, value: Any, pattern: re.Pattern[str], expected: str) -> str:
    if not isinstance(value, str) or not pattern.fullmatch(value):
        raise InputError(f"{where}: expected {expected}, found {value!r}")
    return value


def inner_path(where: str, value: Any) -> str:
    path = PurePosixPath(text(f"{where}.path", value))
    if path.is_absolute() or ".." in path.parts or "\\" in value or not path.parts:
        raise InputError(
            f"{where}.path: expected a path inside the wheel, relative and without `..`, found "
            f"{value!r}"
        )
    return path.as_posix()


def seeds_of(where: str, value: Any) -> tuple[int, ...]:
    listed = value if isinstance(value, list) else [value]
    if not listed or any(
        not isinstance(seed, int) or isinstance(seed, bool) or not 0 <= seed < 2**63
        for seed in listed
    ):
        raise InputError(
            f"{where}.seed: expected a whole number from 0 up, or a list of them, found {value!r}"
        )
    seeds = tuple(listed)
    distinct(f"{where}.seed", seeds)
    return seeds


def distinct(where: str, values: tuple[Any, ...]) -> None:
    repeated = sorted({value for value in values if values.count(value) > 1})
    if repeated:
        raise InputError(f"{where}: {repeated[0]!r} is listed twice")
