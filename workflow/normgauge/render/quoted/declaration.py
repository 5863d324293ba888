"""The declaration of quoted figures: which tables, which figures of them, which whole Markdown
tables, what may stay unmarked.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator
from jsonschema.exceptions import best_match

from normgauge.errors import InputError
from normgauge.selection import AGGREGATES, Selection
from normgauge.yaml_files import read_yaml

NULL, ABSENT = "none", "absent"
"""Under these `words` says how a missing value reads, and what stands where no row is selected."""

_TEXT = {"type": "string", "minLength": 1}
_TEXTS = {"type": "array", "items": _TEXT}
SCHEMA: dict[str, Any] = {
    "type": "object",
    "additionalProperties": False,
    "required": ["documents", "figures"],
    "properties": {
        "tables": {
            "type": "object",
            "additionalProperties": {
                "type": "object",
                "additionalProperties": False,
                "required": ["path"],
                "properties": {"path": _TEXT, "kind": _TEXT},
            },
        },
        "figures": {
            "type": "object",
            "additionalProperties": {
                "type": "object",
                "additionalProperties": {
                    "type": "object",
                    "additionalProperties": False,
                    "properties": {
                        "where": _TEXT,
                        "value": _TEXT,
                        "of": {"enum": list(AGGREGATES)},
                        "format": _TEXT,
                        "bound": {"enum": ["upper", "lower"]},
                        "words": {"type": "object", "additionalProperties": {"type": "string"}},
                    },
                },
            },
        },
        "blocks": {
            "type": "object",
            "additionalProperties": {
                "type": "object",
                "additionalProperties": False,
                "required": ["rows", "columns"],
                "properties": {
                    "rows": {
                        "type": "array",
                        "items": {"type": "object", "additionalProperties": _TEXT},
                    },
                    "columns": {
                        "type": "object",
                        "additionalProperties": _TEXT,
                        "minProperties": 1,
                    },
                },
            },
        },
        "documents": {
            "type": "object",
            "additionalProperties": {
                "type": "object",
                "additionalProperties": False,
                "properties": {
                    "results": _TEXTS,
                    "definitions": _TEXTS,
                    "published": _TEXTS,
                    "notes": _TEXTS,
                },
            },
        },
    },
}
ALLOWED = ("definitions", "published", "notes")


@dataclass(frozen=True)
class Figure:
    """One figure: what `selection` reads, as `format` writes it.

    `bound`: the figure bounds the value from above or below, so its last digit is rounded away from
    it. `words`: what values read as; a missing value reads as the word of `none`, no row at all as
    that of `absent`.
    """

    selection: Selection
    format: str
    bound: str | None
    words: Mapping[str, str]


@dataclass(frozen=True)
class Block:
    """A whole Markdown table. `rows`: the arguments of each row; `columns`: by heading a text with
    {argument} or {figure}.
    """

    rows: Sequence[Mapping[str, str]]
    columns: Mapping[str, str]


@dataclass(frozen=True)
class Document:
    """A text. `results`: its headings under which every number is a figure, or stands in one of the
    `allowed` phrases.
    """

    results: Sequence[str]
    allowed: Sequence[str]


@dataclass(frozen=True)
class Declaration:
    """`path`: the file, for messages. `tables`: (path, kind of its schema or None) by name; the
    others by their names.
    """

    path: Path
    tables: Mapping[str, tuple[str, str | None]]
    figures: Mapping[str, Figure]
    blocks: Mapping[str, Block]
    documents: Mapping[str, Document]


def read_declaration(path: str | os.PathLike[str]) -> Declaration:
    """The declaration in a YAML file. Raises InputError for one that breaks SCHEMA or names a
    figure twice.
    """
    content = read_yaml(path)
    if (error := best_match(Draft202012Validator(SCHEMA).iter_errors(content))) is not None:
        place = "/".join(map(str, error.absolute_path)) or "the file"
        raise InputError(f"{path}: {place}: {error.message}; mend it")
    figures: dict[str, Figure] = {}
    for table, members in content["figures"].items():
        for name, entry in members.items():
            if name in figures:
                raise InputError(f"{path}: figure {name} is declared twice; rename one")
            figures[name] = _figure(f"{path}: {name}", table, entry)
    blocks = {
        name: Block(entry["rows"], entry["columns"])
        for name, entry in content.get("blocks", {}).items()
    }
    documents = {
        name: Document(
            entry.get("results", []), [phrase for kind in ALLOWED for phrase in entry.get(kind, [])]
        )
        for name, entry in content["documents"].items()
    }
    tables = {
        name: (entry["path"], entry.get("kind"))
        for name, entry in content.get("tables", {}).items()
    }
    return Declaration(Path(path), tables, figures, blocks, documents)


def _figure(where: str, table: str, entry: Mapping[str, Any]) -> Figure:
    of = entry.get("of", "one")
    if ("value" in entry) == (of == "count"):
        raise InputError(f"{where}: expected a value, or `of: count` without one; mend it")
    default = "{:,}" if of == "count" else "{}"
    words = {str(key): text for key, text in entry.get("words", {}).items()}
    return Figure(
        Selection(table, entry.get("where"), entry.get("value"), of),
        entry.get("format", default),
        entry.get("bound"),
        words,
    )
