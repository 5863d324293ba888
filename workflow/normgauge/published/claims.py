"""Claims of a paper: the groups of config/published/STUDY.yaml, read and checked."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator
from jsonschema.exceptions import best_match

from normgauge.errors import InputError
from normgauge.schemas.ledger import Status
from normgauge.selection import AGGREGATES, Selection
from normgauge.yaml_files import read_yaml

KINDS = (
    "exact",
    "statistical",
    "hardware-bound",
    "ours differs by construction",
    "setting",
)
RELATIONS = ("=", ">=", "<=")
GIVEN = (Status.CONTRADICTED, Status.HUB, Status.CLOSED)
"""Statuses that a claim states itself; the others follow from our value."""

_TEXT = {"type": "string", "minLength": 1}
_KEYS: dict[str, Any] = {
    "place": _TEXT,
    "quantity": _TEXT,
    "value": {"type": ["number", "string"]},
    "written": _TEXT,
    "spelled": {"type": "boolean"},
    "kind": {"enum": list(KINDS)},
    "relation": {"enum": list(RELATIONS)},
    "tolerance": {"type": "number", "minimum": 0},
    "because": _TEXT,
    "row": _TEXT,
    "ours": {
        "type": "object",
        "additionalProperties": False,
        "properties": {
            "table": _TEXT,
            "model": _TEXT,
            "where": _TEXT,
            "value": _TEXT,
            "of": {"enum": list(AGGREGATES)},
        },
    },
    "computed": _TEXT,
    "check": _TEXT,
    "hub": _TEXT,
    "status": {"enum": [str(status) for status in GIVEN]},
    "reason": _TEXT,
}
SCHEMA: dict[str, Any] = {
    "type": "object",
    "additionalProperties": False,
    "required": ["title", "source", "groups"],
    "properties": {
        "title": _TEXT,
        "source": _TEXT,
        "tolerances": {
            "type": "object",
            "additionalProperties": False,
            "properties": dict.fromkeys(KINDS, _TEXT),
        },
        "checkpoints": {
            "type": "object",
            "additionalProperties": {
                "type": "object",
                "additionalProperties": False,
                "required": ["hub", "lacks"],
                "properties": {"hub": _TEXT, "lacks": _TEXT},
            },
        },
        "samples": {"type": "array"},
        "initialised": {"type": "object"},
        "groups": {
            "type": "array",
            "items": {
                "type": "object",
                "additionalProperties": False,
                "required": ["claims"],
                "properties": {
                    **_KEYS,
                    "claims": {
                        "type": "array",
                        "minItems": 1,
                        "items": {
                            "type": "object",
                            "additionalProperties": False,
                            "required": ["name"],
                            "properties": {"name": _TEXT, **_KEYS},
                        },
                    },
                },
            },
        },
    },
}


@dataclass(frozen=True)
class Claim:
    """A number, or words, that a paper prints.

    value: the number, or the words; None for a whole table with one reason. written: as printed.
    spelled: whether the text says it in words, so that no number points to it.
    relation: how ours must stand to it, within the tolerance. because: why that is so wide.
    model: id of the checkpoint whose row of `ours` it is compared with, where a table of ours has
        a row per model.
    computed: ours by arithmetic from sizes and theory, or by a function. check: arithmetic from
        other numbers of the paper, which contradicts it where it disagrees, and is no value of
        ours where it agrees.
    hub: id of the checkpoint that would give it. lacking: what stands in the way beside the
        download.
    status, reason: stated ones, with the sentence; a reason without a status explains a deviation.
    """

    study: str
    name: str
    place: str
    quantity: str
    value: float | str | None
    written: str
    spelled: bool
    kind: str
    relation: str
    tolerance: float
    because: str | None
    row: str | None
    model: str | None
    ours: Selection | None
    computed: str | None
    check: str | None
    hub: str | None
    lacking: str | None
    status: Status | None
    reason: str | None


def read_claims(path: str | os.PathLike[str]) -> list[Claim]:
    """The claims of a file of config/published/; the study is the file's name.

    Raises InputError naming file and claim for one that breaks the schema, has no status or way to
    one, or repeats a name.
    """
    return claims_of(path, read_document(path))


def claims_of(path: str | os.PathLike[str], document: Mapping[str, Any]) -> list[Claim]:
    """The same of a file that has been read by `read_document`."""
    path = Path(path)
    checkpoints = document.get("checkpoints", {})
    claims = [_claim(path, entry, checkpoints) for entry in _entries(document)]
    seen: set[str] = set()
    for claim in claims:
        if claim.name in seen:
            raise InputError(f"{path}: claim {claim.name} stands there twice; rename one")
        seen.add(claim.name)
    return claims


def published_files(folder: str | os.PathLike[str]) -> list[Path]:
    """The files of claims in a folder, in the order of their names."""
    return sorted(Path(folder).glob("*.yaml"))


def read_document(path: str | os.PathLike[str]) -> Mapping[str, Any]:
    """The whole file, checked against SCHEMA. Raises InputError naming the place that breaks it."""
    document = read_yaml(path)
    if (error := best_match(Draft202012Validator(SCHEMA).iter_errors(document))) is not None:
        place = "/".join(map(str, error.absolute_path)) or "the file"
        raise InputError(f"{Path(path)}: {place}: {error.message}; correct it")
    return document


def _entries(document: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Each claim with what its group states for all, and why its kind has such tolerances.

    A claim of a row stands at the place of its group, in that row.
    """
    reasons = document.get("tolerances", {})
    for group in document["groups"]:
        shared = {key: value for key, value in group.items() if key != "claims"}
        for own in group["claims"]:
            entry = shared | own
            if "row" in own and "place" not in own and "place" in shared:
                entry["place"] = f"{shared['place']}, {own['row']}"
            if ours := {**shared.get("ours", {}), **own.get("ours", {})}:
                entry["ours"] = ours
            if because := reasons.get(entry.get("kind")):
                entry.setdefault("because", because)
            yield entry


def _claim(path: Path, entry: Mapping[str, Any], checkpoints: Mapping[str, Any]) -> Claim:
    hub = entry.get("hub", entry.get("ours", {}).get("model"))
    name = entry["name"]
    if missing := {"place", "quantity", "kind"} - set(entry):
        raise InputError(f"{path}: claim {name} lacks {', '.join(sorted(missing))}; add it")
    ways = [key for key in ("status", "ours", "computed", "hub") if key in entry]
    if not ways and entry["kind"] != "setting":
        raise InputError(
            f"{path}: claim {name} has no way to a status; give ours, computed, hub, or a status "
            "with its reason"
        )
    if entry.get("status") in (Status.CONTRADICTED, Status.CLOSED) and "reason" not in entry:
        raise InputError(f"{path}: claim {name}: status without reason; add the sentence")
    if "ours" in entry and "table" not in entry["ours"]:
        raise InputError(f"{path}: claim {name}: ours without a table; name it")
    value = entry.get("value")
    if value is None and "written" not in entry:
        raise InputError(f"{path}: claim {name} has neither value nor written; add one")
    status = entry.get("status")
    return Claim(
        study=path.stem,
        name=name,
        place=entry["place"],
        quantity=entry["quantity"],
        value=value,
        written=entry.get("written", str(value)),
        spelled=entry.get("spelled", False),
        kind=entry["kind"],
        relation=entry.get("relation", "="),
        tolerance=entry.get("tolerance", 0.0),
        because=entry.get("because"),
        row=entry.get("row"),
        model=entry.get("ours", {}).get("model"),
        ours=_selection(entry),
        computed=entry.get("computed"),
        check=entry.get("check"),
        hub=hub,
        lacking=_lacking(checkpoints.get(hub)),
        status=None if status is None else Status(status),
        reason=entry.get("reason"),
    )


def _lacking(checkpoint: Mapping[str, str] | None) -> str | None:
    if checkpoint is None:
        return None
    return f"{checkpoint['hub']}, for which the pipeline lacks {checkpoint['lacks']}"


def _selection(entry: Mapping[str, Any]) -> Selection | None:
    ours = entry.get("ours")
    if ours is None:
        return None
    return Selection(ours["table"], ours.get("where"), ours.get("value"), ours.get("of", "one"))
