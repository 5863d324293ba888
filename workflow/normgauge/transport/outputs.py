"""The guard of whatever commands and writers make: nothing is replaced, nothing is copied into
itself.

An output is refused before anything is made. Copies follow links and get the modes of new files, so
that a read-only source gives a copy that can be finished, moved and deleted.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from normgauge.errors import InputError
from normgauge.provenance import atomic_path

# what tools keep beside a model; git and the hub's client keep old weights there
NO_PART = (".git", ".cache", "__pycache__")

StrPath = str | os.PathLike[str]


@dataclass(frozen=True)
class Tree:
    """What a copy of a folder holds. `folders`, `files`: relative paths, links followed. `real`:
    where each folder lies.
    """

    folders: tuple[Path, ...]
    files: tuple[Path, ...]
    real: tuple[Path, ...]


def tree_of(source: StrPath) -> Tree:
    """The folders and files that a copy of `source` holds, without NO_PART, in sorted order.

    Raises InputError for a link to a folder that holds it, a link to nothing, and what is neither a
    file nor a folder.
    """
    folders, files, real = [Path()], [], [Path(os.path.realpath(source))]
    pending: list[tuple[Path, tuple[Path, ...]]] = [(Path(), (real[0],))]
    while pending:
        inside, above = pending.pop()
        for name in sorted(os.listdir(Path(source) / inside)):
            path = Path(source) / inside / name
            if path.is_dir() and name not in NO_PART:
                place = Path(os.path.realpath(path))
                if place in above:
                    raise InputError(
                        f"{path}: links to a folder that holds it, a copy would never end; remove "
                        "the link"
                    )
                folders.append(inside / name)
                real.append(place)
                pending.append((inside / name, (*above, place)))
            elif path.is_file():
                files.append(inside / name)
            elif not path.is_dir():
                raise InputError(
                    f"{path}: neither a file nor a folder, or a link to nothing; remove it or "
                    "restore what it names"
                )
    return Tree(tuple(sorted(folders)), tuple(sorted(files)), tuple(real))


def require_new(destination: StrPath, *sources: StrPath) -> None:
    """InputError where an output exists, where its folder is a file, or where it lies, through
    whatever links, inside a source folder.
    """
    if os.path.lexists(destination):
        raise InputError(f"{destination}: exists already and would be replaced; name a new place")
    place = Path(os.path.realpath(destination))
    nearest = next(parent for parent in place.parents if os.path.lexists(parent))
    if not nearest.is_dir():
        raise InputError(f"{destination}: {nearest} is no folder; name another place")
    for source in sources:
        if Path(source).is_dir() and any(
            place.is_relative_to(folder) for folder in tree_of(source).real
        ):
            raise InputError(
                f"{destination}: lies inside {source}, which it is made from; name a place outside"
            )


@contextmanager
def new_output(destination: StrPath, *sources: StrPath) -> Iterator[Path]:
    """`atomic_path` for an output that may replace nothing, asked before it is begun and again
    before it takes its place.
    """
    require_new(destination, *sources)
    with atomic_path(destination) as temporary:
        yield temporary
        if os.path.lexists(destination):
            raise InputError(
                f"{destination}: was made by another process in the meantime; name a new place"
            )


def copy_tree(source: StrPath, destination: StrPath, left: frozenset[Path] = frozenset()) -> None:
    """A copy of a folder at a path that is new, byte by byte, with the modes of new files. `left`:
    relative paths that stay behind, and with them the folders that held nothing else.
    """
    tree = tree_of(source)
    emptied = {parent for file in left for parent in file.parents} - {
        parent for file in set(tree.files) - left for parent in file.parents
    }
    Path(destination).mkdir()
    for folder in tree.folders:
        if folder not in emptied:
            (Path(destination) / folder).mkdir(parents=True, exist_ok=True)
    for file in tree.files:
        if file not in left:
            shutil.copyfile(Path(source) / file, Path(destination) / file)
