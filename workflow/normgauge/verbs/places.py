"""From what a user names to a folder that can be read, and to a place that may be written."""

from __future__ import annotations

import json
import os
import re
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from normgauge.errors import InputError
from normgauge.provenance import atomic_path
from normgauge.transport.outputs import require_new

HUB_ID = re.compile(
    r"(?P<repository>[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?)(@(?P<revision>[\w./-]+))?"
)
RECORD = "run.json"


def cache_folder() -> Path:
    """Where downloads are kept: NORMGAUGE_CACHE, else `normgauge` in the user's cache folder
    (XDG_CACHE_HOME).
    """
    own = os.environ.get("NORMGAUGE_CACHE")
    return (
        Path(own)
        if own
        else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "normgauge"
    )


Settings = Sequence[tuple[str, Any]] | None


@contextmanager
def model_folder(named: str, settings: Settings = None) -> Iterator[Path]:
    """The folder of `found_folder`; with `settings`, a view of it whose config.json has these keys
    laid over it.
    """
    from normgauge.checkpoints.readers import read_json

    with found_folder(named) as folder:
        if not settings:
            yield folder
            return
        stored = folder / "config.json"
        if not stored.is_file():
            raise InputError(
                f"{named}: holds no config.json for --config to be laid over; leave --config out"
            )
        with tempfile.TemporaryDirectory() as scratch:
            for path in folder.iterdir():
                if path != stored:
                    os.symlink(path.resolve(), Path(scratch) / path.name)
            Path(scratch, stored.name).write_text(
                json.dumps({**read_json(stored), **dict(settings)}), encoding="utf-8"
            )
            with _named(named, scratch):
                yield Path(scratch)


@contextmanager
def found_folder(named: str) -> Iterator[Path]:
    """The checkpoint folder that MODEL names: a folder, a .gguf file, or a repository of the model
    hub, `owner/name[@revision]`.

    What exists on the disk wins over the hub, and so does a folder that holds no such name: without
    a revision nothing is asked of the hub then. A repository is resolved to its commit, which is
    said on stderr, and fetched once into the cache, every file verified. Raises InputError for a
    file of another kind, and for a name that is neither on the disk nor on the hub.
    """
    path = Path(named).expanduser()
    if path.is_dir():
        yield path
    elif path.suffix == ".gguf" and path.is_file():
        # alone, as the reader of a folder expects it
        with tempfile.TemporaryDirectory() as scratch:
            os.symlink(path.resolve(), Path(scratch) / path.name)
            with _named(named, scratch), _named(named, f"{scratch}/{path.name}"):
                yield Path(scratch)
    elif path.exists():
        raise InputError(
            f"{named}: a file that is no checkpoint; give the folder that holds config.json and "
            "the weights, or a .gguf file"
        )
    elif (match := HUB_ID.fullmatch(named)) and path.suffix != ".gguf":
        if not match["revision"] and path.parent != Path() and path.parent.is_dir():
            raise _mistyped(named, path)
        yield _fetched(named, match["repository"], match["revision"])
    else:
        raise InputError(
            f"{named}: no such folder or file; give a checkpoint folder, a .gguf file, or a hub id "
            "(owner/name)"
        )


@contextmanager
def _named(named: str, scratch: str) -> Iterator[None]:
    """Errors name the model as the user did, not the temporary path that stands for it."""
    try:
        yield
    except InputError as error:
        raise InputError(str(error).replace(scratch, named)) from error


def _mistyped(named: str, path: Path) -> InputError:
    near = get_close_matches(path.name, [each.name for each in path.parent.iterdir()], n=1)
    meant = f"; did you mean {path.parent / near[0]}?" if near else ""
    return InputError(
        f"{named}: no such folder or file in {path.parent}{meant} (the hub repository of this name "
        f"is {named}@main)"
    )


def _fetched(named: str, repository: str, revision: str | None) -> Path:
    from normgauge.checkpoints.hub import fetch_repository, resolve_commit
    from normgauge.checkpoints.sources import HubSource

    try:
        commit = resolve_commit(repository, revision or "main")
        folder = cache_folder() / "hub" / repository.replace("/", "--") / commit
        print(f"{named}: commit {commit} of the model hub, in {folder}", file=sys.stderr)
        if not folder.is_dir():
            fetch_repository(HubSource(repository, (commit,)), commit, folder)
    except InputError as error:
        raise InputError(
            f"{named}: no such folder or file here; taken as a hub id: {error}"
        ) from error
    return folder


def require_place(destination: str, *sources: Path) -> None:
    """InputError, before any work, where what a verb is to write exists, lies inside a source, or
    may not be written.
    """
    require_new(destination, *sources)
    parent = Path(destination).absolute().parent
    while not parent.exists():
        parent = parent.parent
    if not os.access(parent, os.W_OK):
        raise InputError(f"{destination}: {parent} may not be written to; name another place")


def check_output(folder: str | None, record: Mapping[str, Any], *sources: Path) -> None:
    """InputError, before any work, unless `folder` is absent and outside the sources, empty, or
    holds a run of this very record.
    """
    if folder is None:
        return
    path = Path(folder)
    if not path.is_dir():
        require_place(folder, *sources)
    elif any(path.iterdir()) and not _same_run(path, record):
        raise InputError(
            f"{folder}: holds something else already and is not overwritten; name a new folder"
        )
    elif not os.access(path, os.W_OK) or not os.access(path.absolute().parent, os.W_OK):
        raise InputError(f"{folder}: may not be written to; name another place")


def _same_run(path: Path, record: Mapping[str, Any]) -> bool:
    try:
        return json.loads((path / RECORD).read_text(encoding="utf-8")) == json.loads(
            json.dumps(record)
        )
    except (OSError, ValueError):
        return False


@contextmanager
def output_folder(folder: str, record: Mapping[str, Any]) -> Iterator[Path]:
    """A new folder that takes the place of `folder` when all of it is written; `record` lies in it
    as run.json.
    """
    with atomic_path(folder) as temporary, _named(folder, str(temporary)):
        temporary.mkdir()
        yield temporary
        (temporary / RECORD).write_text(
            json.dumps(record, indent=2, sort_keys=True) + "\n", encoding="utf-8"
        )
