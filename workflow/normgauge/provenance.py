"""Where a result comes from: hashes of files and of the code that a script imports, the executing
arithmetic, and writes that are whole or not there.
"""

from __future__ import annotations

import ast
import glob
import hashlib
import os
import platform
import shutil
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

from normgauge.errors import InputError, disk_full

LIBRARY = Path(__file__).resolve().parent


def sha256_file(path: str | os.PathLike[str]) -> str:
    """Hex sha256 of a file, read in chunks."""
    with open(path, "rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


@contextmanager
def atomic_path(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a temporary path beside `path`; on success it replaces `path`, on failure it is
    removed.

    Works for files and folders, so a killed or failing writer leaves nothing that looks finished.
    The temporary name carries the machine and the process: a job that outlives its run shares
    nothing with the one that is started again. What a process of this machine left that is no more,
    the next removes. Raises InputError when the disk is full.
    """
    final = Path(path)
    temporary, left = _beside(final, "part")
    for folder in left:
        _remove(folder)
    _remove(temporary)
    try:
        yield temporary
        _put_in_place(temporary, final)
    except Exception as error:
        _say_disk_full(error, final)
        raise
    finally:
        _remove(temporary)


@contextmanager
def resumable_path(path: str | os.PathLike[str], key: str) -> Iterator[Path]:
    """As `atomic_path`, for a folder whose writer, once killed, is to go on where it stopped.

    Yields a `resumable_folder`; what lies in its part `result` becomes `path` on success.
    """
    with resumable_folder(path, key) as folder:
        (folder / "result").mkdir(exist_ok=True)
        yield folder
        _put_in_place(folder / "result", Path(path))


@contextmanager
def resumable_folder(path: str | os.PathLike[str], key: str) -> Iterator[Path]:
    """A folder beside `path` for what work at it needs to go on where it stopped, once killed.

    key: all that the content depends on. What a killed process of this machine left under the same
    key is there again, whole as far as the writer saw to it; under another key it is removed. A
    process that still runs shares nothing with this one. The folder goes when the work is done, and
    when it fails. Raises InputError when the disk is full.
    """
    final = Path(path)
    folder, left = _beside(final, "resume")
    if _key_of(folder) != key:
        _remove(folder)
    for older in left:
        if _key_of(older) == key and not folder.exists():
            with suppress(FileNotFoundError):  # another process was faster
                os.rename(older, folder)
        else:
            _remove(older)
    try:
        folder.mkdir(exist_ok=True)
        (folder / "key").write_text(key, encoding="utf-8")
        yield folder
        _remove(folder)
    except Exception as error:
        _remove(folder)
        _say_disk_full(error, final)
        raise


def _beside(final: Path, ending: str) -> tuple[Path, list[Path]]:
    """The name of this process's temporary beside `final`, and those that processes of this machine
    left that are no more.
    """
    final.parent.mkdir(parents=True, exist_ok=True)
    start = f".{final.name}.{zlib.crc32(platform.node().encode()):08x}-"
    left = [
        path
        for path in final.parent.glob(f"{glob.escape(start)}*.{ending}")
        if not _alive(path.name.removeprefix(start).removesuffix(f".{ending}"))
    ]
    return final.with_name(f"{start}{os.getpid()}.{ending}"), left


def _key_of(folder: Path) -> str | None:
    try:
        return (folder / "key").read_text(encoding="utf-8")
    except OSError:
        return None


def _put_in_place(temporary: Path, final: Path) -> None:
    if temporary.is_dir() and final.is_dir():
        shutil.rmtree(final)
    os.replace(temporary, final)


def _say_disk_full(error: Exception, final: Path) -> None:
    if disk_full(error):
        raise InputError(
            f"disk full while writing {final}: free space on that file system and rerun"
        ) from error


def library_hash() -> str:
    """sha256 (first 16 hex digits) over all sources of the library."""
    digest = hashlib.sha256()
    for path in sorted(LIBRARY.rglob("*.py")):
        digest.update(str(path.relative_to(LIBRARY)).encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


def _alive(process: str) -> bool:
    """Whether a process of this machine has that id; True for what is no id."""
    try:
        os.kill(int(process), 0)
    except ProcessLookupError:
        return False
    except (ValueError, OverflowError, PermissionError):
        pass
    return True


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def import_closure(script: str | os.PathLike[str]) -> list[Path]:
    """The script and every normgauge module that it imports, directly or not, found from the source
    text, sorted by path.

    Imports inside functions count; importing a module also imports the packages above it.
    """
    pending, seen = [Path(script).resolve()], set()
    while pending:
        source = pending.pop()
        if source in seen:
            continue
        seen.add(source)
        pending.extend(_imports_of(source, source.read_bytes()))
    return sorted(seen)


@cache
def _imports_of(source: Path, text: bytes) -> list[Path]:
    """What a source imports itself. Kept, because a plan asks for the closures of some thirty
    scripts that share most modules.
    """
    return [
        file
        for node in _statements(ast.parse(text, filename=str(source)))
        for file in _imported_files(node, source)
    ]


def _statements(node: ast.AST) -> Iterator[ast.AST]:
    """Every statement below a node. Imports are statements, and expressions, which are not entered,
    are nine tenths of a source.
    """
    for child in ast.iter_child_nodes(node):
        if isinstance(child, (ast.stmt, ast.excepthandler, ast.match_case)):
            yield child
            yield from _statements(child)


def _imported_files(node: ast.AST, source: Path) -> list[Path]:
    if isinstance(node, ast.Import):
        names = [alias.name for alias in node.names]
    elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
        names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
    else:
        return []
    files = []
    for name in names:
        parts = name.split(".")
        if parts[0] == LIBRARY.name:
            for depth in range(1, len(parts) + 1):
                files.extend(_module_file(LIBRARY.joinpath(*parts[1:depth])))
        elif len(parts) == 1:  # a helper beside the script
            files.extend(_module_file(source.parent / parts[0]))
    return files


def _module_file(stem: Path) -> list[Path]:
    candidates = (stem.with_suffix(".py"), stem / "__init__.py")
    return [candidate for candidate in candidates if candidate.is_file()]


def code_hash(script: str | os.PathLike[str]) -> str:
    """sha256 (first 16 hex digits) over the sources in `import_closure(script)`; goes into a rule's
    params.

    Snakemake itself sees an edited script but not an edited module that the script imports.
    """
    digest = hashlib.sha256()
    for path in import_closure(script):
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


def execution_environment() -> dict[str, str]:
    """Version, BLAS kernels and thread counts that produced a result; part of every file's
    metadata.
    """
    import numpy  # noqa: F401  (loaded so that its BLAS is listed)
    import torch
    from threadpoolctl import threadpool_info

    from normgauge import __version__

    libraries = sorted(
        f"{info['internal_api']} {info.get('version')} {info.get('architecture', '')}".strip()
        for info in threadpool_info()
        if info["user_api"] == "blas"
    )
    return {
        "normgauge_version": __version__,
        "torch_version": torch.__version__,
        "torch_cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "blas": "; ".join(libraries),
        "threads": str(torch.get_num_threads()),
    }
