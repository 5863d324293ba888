"""The model table: what a `source:` may say, checked, and which revisions it names.

Parsing touches neither the network nor the disk, so a mistake is reported before any work starts.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import yaml
from jsonschema import Draft202012Validator
from jsonschema.exceptions import best_match

from normgauge.errors import InputError

SCHEMA_PATH = Path(__file__).resolve().parents[2] / "schemas" / "models.schema.yaml"

# What each modality can be calibrated on: token ids for text and tokens, pixels for image, a spectrogram for audio.
CALIBRATIONS: dict[str, tuple[str, ...]] = {
    "text": ("kjv", "python-docs", "python-code", "smiles", "random-tokens"),
    "tokens": ("tcr", "smiles", "random-tokens"),
    "image": ("images", "random-noise"),
    "audio": ("random-noise", "kjv", "python-docs", "python-code"),  # a text corpus feeds the decoder
}

_IDENTIFIER = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_REPOSITORY = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9][A-Za-z0-9._-]*")
_REQUIREMENT = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]*)==([A-Za-z0-9][A-Za-z0-9._+-]*)")
UNPINNED = "unpinned"  # a place for a commit: plans, but is not acquired
_COMMIT = re.compile(r"[0-9a-f]{40}|unpinned")
_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class HubSource:
    """A repository of a model hub at pinned commits. `sha256` may pin files (name -> hex) beyond what the hub itself states."""

    repository: str
    revisions: tuple[str, ...]
    sha256: tuple[tuple[str, str], ...] = ()

    provenance = "published"

    def record(self, revision: str) -> dict[str, Any]:
        """What the manifest says of this source at one revision."""
        pins = {"sha256": dict(self.sha256)} if self.sha256 else {}
        return {"hub": self.repository, "revision": revision, **pins}


@dataclass(frozen=True)
class PackageSource:
    """Paths (folders or single files) inside a wheel of the package index, pinned by version and sha256 of the wheel."""

    name: str
    version: str
    sha256: str
    paths: tuple[str, ...]

    provenance = "published"

    @property
    def revisions(self) -> tuple[str, ...]:
        return (self.version,)

    def record(self, revision: str) -> dict[str, Any]:
        """What the manifest says of this source."""
        return {"package": f"{self.name}=={revision}", "sha256": self.sha256, "paths": list(self.paths)}


@dataclass(frozen=True)
class LocalSource:
    """A folder of the user's, in the layout of transformers' `save_pretrained`."""

    path: str
    revision: str = "local"

    provenance = "user supplied"

    @property
    def revisions(self) -> tuple[str, ...]:
        return (self.revision,)

    def record(self, revision: str) -> dict[str, Any]:
        """What the manifest says of this source: the folder's name only, so that results do not depend on where it lies."""
        return {"path": PurePosixPath(self.path).name, "revision": revision}


@dataclass(frozen=True)
class RandomInitSource:
    """The initialisation of the transformers class that a config.json describes, one revision per seed.

    draw_vectors: gains and biases are drawn too, which an initialisation leaves at one and zero.
    """

    config: str
    seeds: tuple[int, ...]
    draw_vectors: bool = False

    provenance = "random initialisation"

    @property
    def revisions(self) -> tuple[str, ...]:
        return tuple(f"seed{seed}" for seed in self.seeds)

    def record(self, revision: str) -> dict[str, Any]:
        """What the manifest says of this source."""
        drawn = {"draw_vectors": True} if self.draw_vectors else {}
        return {"random_init": {"config": PurePosixPath(self.config).name, "seed": seed_of(revision), **drawn}}


@dataclass(frozen=True)
class TrainedSource:
    """A model that the pipeline trains itself, one revision per seed."""

    recipe: str
    seeds: tuple[int, ...]

    provenance = "trained here"

    @property
    def revisions(self) -> tuple[str, ...]:
        return tuple(f"seed{seed}" for seed in self.seeds)

    def record(self, revision: str) -> dict[str, Any]:
        """What the manifest says of this source."""
        return {"trained": {"recipe": self.recipe, "seed": seed_of(revision)}}


Source = HubSource | PackageSource | LocalSource | RandomInitSource | TrainedSource

_KINDS = ("hub", "package", "path", "random_init", "trained")


def seed_of(revision: str) -> int:
    """The seed that a revision `seed<k>` names."""
    return int(revision.removeprefix("seed"))


def near(word: str, known: Iterable[str]) -> str:
    """`; did you mean a, b?` for the known words close to `word`, or nothing."""
    matches = difflib.get_close_matches(word, list(known), n=3, cutoff=0.5)
    return f"; did you mean {', '.join(matches)}?" if matches else ""


def parse_source(model_id: str, entry: Mapping[str, Any]) -> Source:
    """The source of one entry of the model table.

    Raises InputError, naming the model and the key, for anything that the table does not allow.
    """
    where = f"models.{model_id}.source"
    source = entry.get("source") if isinstance(entry, Mapping) else None
    if not isinstance(source, Mapping):
        raise InputError(f"{where}: expected a mapping with one of {', '.join(_KINDS)}; add it to the model table")
    # In a package source `path` is a place inside the wheel.
    kinds = [kind for kind in _KINDS if kind in source and not (kind == "path" and "package" in source)]
    if len(kinds) != 1:
        found = " and ".join(kinds) or f"only {', '.join(map(str, source)) or 'nothing'}"
        raise InputError(
            f"{where}: expected exactly one of {', '.join(_KINDS)}, found {found} "
            "(a config file is merged over the model table: give your own model its own id)"
        )
    return _PARSERS[kinds[0]](where, source)


def _hub(where: str, source: Mapping[str, Any]) -> HubSource:
    _only(where, source, required=("hub", "revision"), optional=("sha256",))
    repository = _match(f"{where}.hub", source["hub"], _REPOSITORY, "a repository `organisation/name`")
    listed = source["revision"] if isinstance(source["revision"], list) else [source["revision"]]
    revisions = tuple(
        _match(f"{where}.revision", commit, _COMMIT, "a commit of 40 lower-case hex digits (quoted; a branch or tag moves)")
        for commit in listed
    )
    _distinct(f"{where}.revision", revisions)
    pins = source.get("sha256", {})
    if not isinstance(pins, Mapping):
        raise InputError(f"{where}.sha256: expected a mapping from file name to sha256, found {pins!r}")
    if pins and len(revisions) > 1:
        raise InputError(f"{where}.sha256: pins belong to one revision, but {len(revisions)} are listed; give each its own model id")
    for file, digest in pins.items():
        _match(f"{where}.sha256.{file}", digest, _SHA256, "64 lower-case hex digits")
    return HubSource(repository, revisions, tuple(sorted(pins.items())))


def _package(where: str, source: Mapping[str, Any]) -> PackageSource:
    _only(where, source, required=("package", "sha256"), optional=("path", "paths"))
    requirement = _match(f"{where}.package", source["package"], _REQUIREMENT, "`name==version` with an exact version")
    name, version = requirement.split("==")
    digest = _match(f"{where}.sha256", source["sha256"], _SHA256, "the wheel's sha256, 64 lower-case hex digits")
    if ("path" in source) == ("paths" in source):
        raise InputError(f"{where}: expected either `path` (one folder or file inside the wheel) or `paths` (a list of them)")
    listed = source["paths"] if "paths" in source else [source["path"]]
    if not isinstance(listed, list) or not listed:
        raise InputError(f"{where}.paths: expected a list of folders or files inside the wheel, found {listed!r}")
    paths = tuple(_inner_path(where, path) for path in listed)
    _distinct(f"{where}.paths", paths)
    return PackageSource(name, version, digest, paths)


def _local(where: str, source: Mapping[str, Any]) -> LocalSource:
    _only(where, source, required=("path",), optional=("revision",))
    path = os.path.expanduser(_text(f"{where}.path", source["path"]))  # `~` as in a shell
    return LocalSource(path, _match(f"{where}.revision", source.get("revision", "local"), _IDENTIFIER, "a folder name (quote numbers)"))


def _random_init(where: str, source: Mapping[str, Any]) -> RandomInitSource:
    _only(where, source, required=("random_init",))
    where, source = f"{where}.random_init", _mapping(f"{where}.random_init", source["random_init"])
    _only(where, source, required=("config", "seed"), optional=("draw_vectors",))
    drawn = source.get("draw_vectors", False)
    if not isinstance(drawn, bool):
        raise InputError(f"{where}.draw_vectors: expected true or false, found {drawn!r}")
    return RandomInitSource(_text(f"{where}.config", source["config"]), _seeds(where, source["seed"]), drawn)


def _trained(where: str, source: Mapping[str, Any]) -> TrainedSource:
    _only(where, source, required=("trained",))
    where, source = f"{where}.trained", _mapping(f"{where}.trained", source["trained"])
    _only(where, source, required=("recipe", "seed"))
    recipe = _match(f"{where}.recipe", source["recipe"], _IDENTIFIER, "the name of a training recipe")
    return TrainedSource(recipe, _seeds(where, source["seed"]))


_PARSERS: dict[str, Callable[[str, Mapping[str, Any]], Source]] = {
    "hub": _hub,
    "package": _package,
    "path": _local,
    "random_init": _random_init,
    "trained": _trained,
}


def _only(where: str, source: Mapping[str, Any], required: tuple[str, ...], optional: tuple[str, ...] = ()) -> None:
    for key in source:
        if key not in (*required, *optional):
            raise InputError(f"{where}.{key}: unknown key; known here: {', '.join((*required, *optional))}")
    for key in required:
        if key not in source:
            raise InputError(f"{where}: the key `{key}` is missing; known here: {', '.join((*required, *optional))}")


def _mapping(where: str, value: Any) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise InputError(f"{where}: expected a mapping, found {value!r}")
    return value


def _text(where: str, value: Any) -> str:
    if not isinstance(value, str) or not value.strip():
        raise InputError(f"{where}: expected text, found {value!r}")
    return value


def _match(where: str, value: Any, pattern: re.Pattern[str], expected: str) -> str:
    if not isinstance(value, str) or not pattern.fullmatch(value):
        raise InputError(f"{where}: expected {expected}, found {value!r}")
    return value


def _inner_path(where: str, value: Any) -> str:
    path = PurePosixPath(_text(f"{where}.path", value))
    if path.is_absolute() or ".." in path.parts or "\\" in value or not path.parts:
        raise InputError(f"{where}.path: expected a path inside the wheel, relative and without `..`, found {value!r}")
    return path.as_posix()


def _seeds(where: str, value: Any) -> tuple[int, ...]:
    listed = value if isinstance(value, list) else [value]
    if not listed or any(not isinstance(seed, int) or isinstance(seed, bool) or not 0 <= seed < 2**63 for seed in listed):
        raise InputError(f"{where}.seed: expected a whole number from 0 up, or a list of them, found {value!r}")
    seeds = tuple(listed)
    _distinct(f"{where}.seed", seeds)
    return seeds


def _distinct(where: str, values: tuple[Any, ...]) -> None:
    repeated = sorted({value for value in values if values.count(value) > 1})
    if repeated:
        raise InputError(f"{where}: {repeated[0]!r} is listed twice")


def expand(models: Mapping[str, Mapping[str, Any]]) -> list[tuple[str, str]]:
    """Every (model id, revision) of the table, in its order; each is one folder `results/{model}/{revision}/`."""
    return [(model_id, revision) for model_id, entry in models.items() for revision in parse_source(model_id, entry).revisions]


def validate_models(models: Mapping[str, Any]) -> None:
    """Check the whole model table: ids, sources, every key against the schema, and what the schema cannot say.

    Raises InputError that names the model and the key.
    """
    if not isinstance(models, Mapping) or not models:
        raise InputError("models: expected a mapping from model id to its entry; see config/models.yaml")
    validator = Draft202012Validator(yaml.safe_load(SCHEMA_PATH.read_text()))
    for model_id, entry in models.items():
        _match(f"models.{model_id}", model_id, _IDENTIFIER, "a model id of letters, digits, `.`, `_` and `-` (quote numbers)")
        parse_source(model_id, entry)
        found = list(validator.iter_errors({model_id: entry}))
        # A misspelt key is missing under its right name as well; the misspelling says more.
        error = best_match([error for error in found if error.validator == "additionalProperties"] or found)
        if error is not None:
            place = ".".join(map(str, ("models", *error.absolute_path)))
            raise InputError(f"{place}: {_explanation(error)}")
        _check_calibration(model_id, entry)
        _check_tokenizer(model_id, entry, models)


def _explanation(error: Any) -> str:
    """One line in the table's own terms for a schema violation."""
    if error.validator == "additionalProperties":
        known = list(error.schema["properties"])
        unknown = next(key for key in error.instance if key not in known)
        return f"unknown key `{unknown}`; known here: {', '.join(known)}{near(str(unknown), known)}"
    if error.validator == "enum":
        return f"{error.instance!r} is not one of {', '.join(map(str, error.validator_value))}"
    if error.validator == "propertyNames":
        return f"{error.message}; known here: {', '.join(error.validator_value.get('enum', []))}"
    return error.message


def _check_calibration(model_id: str, entry: Mapping[str, Any]) -> None:
    modality, calibration = entry["modality"], entry["calibration"]
    if calibration not in CALIBRATIONS[modality]:
        raise InputError(
            f"models.{model_id}.calibration: {calibration} cannot feed a model of modality {modality}; "
            f"choose one of {', '.join(CALIBRATIONS[modality])}"
        )


def _check_tokenizer(model_id: str, entry: Mapping[str, Any], models: Mapping[str, Any]) -> None:
    lender = entry.get("tokenizer")
    if lender is None:
        return
    where = f"models.{model_id}.tokenizer"
    if lender not in models:
        raise InputError(f"{where}: no model {lender} in the table to borrow the tokenizer from{near(lender, models)}")
    if len(parse_source(lender, models[lender]).revisions) > 1:
        raise InputError(f"{where}: {lender} has several revisions, so its tokenizer is ambiguous; borrow from a model with one")
