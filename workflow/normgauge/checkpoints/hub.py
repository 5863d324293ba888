"""A model hub's repositories at a pinned commit, every file verified against the hash that the hub
states for that commit.
"""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, cast

from huggingface_hub import HfApi, constants
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    HTTPError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.file_download import hf_hub_url, http_get
from huggingface_hub.utils import build_hf_headers
from tqdm import tqdm

from normgauge.checkpoints.layout import (
    CONFIG,
    ConfigCheck,
    check_free_space,
    checkpoint_files,
    read_json,
)
from normgauge.checkpoints.sources import HubSource, near
from normgauge.errors import InputError, without_credentials
from normgauge.progress import Progress
from normgauge.provenance import atomic_path, sha256_file

_CHUNK = 1 << 20
_TIMEOUT = 60.0  # seconds for the listing; the downloader has its own


@dataclass(frozen=True)
class RemoteFile:
    """A file of a repository: its size in bytes, and its sha256 (large files) or git blob id (files
    kept in git itself).
    """

    name: str
    size: int
    sha256: str | None
    blob: str


def fetch_repository(
    source: HubSource,
    revision: str,
    folder: str | os.PathLike[str],
    check: ConfigCheck | None = None,
) -> None:
    """Download the checkpoint files of `source` at the commit `revision` into `folder`.

    The hub is the one of the environment (HF_ENDPOINT, HF_TOKEN). Files are collected beside
    `folder` under a name that holds the commit, so a killed download resumes where it stopped;
    `folder` appears only when every file is verified. config.json comes first, and `check` may
    refuse its keys before the weights are fetched. Raises InputError when the repository, the
    commit or a file cannot be had, or does not match its hash.
    """
    final = Path(folder)
    endpoint = os.environ.get("HF_ENDPOINT", constants.ENDPOINT).rstrip("/")
    files = list_files(source, revision, endpoint)
    collected = final.with_name(f".{final.name}.{revision}.download")
    collected.mkdir(parents=True, exist_ok=True)
    _discard_others(collected, files)
    present = sum(path.stat().st_size for path in collected.iterdir())
    check_free_space(sum(file.size for file in files) - present, collected, source.repository)
    for file in sorted(files, key=lambda file: file.name != CONFIG):
        _download(source.repository, revision, endpoint, file, collected / file.name)
        _verify(file, collected / file.name, dict(source.sha256).get(file.name), source.repository)
        if check and file.name == CONFIG:
            check(read_json(collected / CONFIG))
    with atomic_path(final) as temporary:
        os.rename(collected, temporary)


def resolve_commit(repository: str, revision: str) -> str:
    """The commit, 40 hex digits, that a branch or tag of a repository stands for now.

    Raises InputError when the hub has no such repository or revision, or cannot be reached.
    """
    endpoint = os.environ.get("HF_ENDPOINT", constants.ENDPOINT).rstrip("/")
    where = f"hub repository {repository}"
    try:
        found = (
            HfApi(endpoint=endpoint).model_info(repository, revision=revision, timeout=_TIMEOUT).sha
        )
    except (HTTPError, OfflineModeIsEnabled) as error:
        raise _refusal(error, where, revision, endpoint) from error
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"{where}: {endpoint} does not answer like a model hub ({error}); check HF_ENDPOINT"
        ) from error
    if not found:
        raise InputError(
            f"{where}: the hub states no commit for {revision}; name one as {repository}@COMMIT"
        )
    return found


def list_files(source: HubSource, revision: str, endpoint: str) -> list[RemoteFile]:
    """The checkpoint files of the repository at the commit, as the hub lists them.

    Raises InputError when the hub answers for another commit than the one asked for, or a pinned
    file is not among them.
    """
    where = f"hub repository {source.repository}"
    try:
        info = HfApi(endpoint=endpoint).model_info(
            source.repository, revision=revision, files_metadata=True, timeout=_TIMEOUT
        )
    except (HTTPError, OfflineModeIsEnabled) as error:
        raise _refusal(error, where, revision, endpoint) from error
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"{where}: {endpoint} does not answer like a model hub ({error}); check HF_ENDPOINT"
        ) from error
    if info.sha != revision:
        raise InputError(
            f"{where}: asked for commit {revision}, the hub answered with {info.sha}; correct the "
            "revision in the model table"
        )
    siblings = {sibling.rfilename: sibling for sibling in info.siblings or ()}

    def read_index(name: str) -> dict[str, Any]:
        """The index of sharded weights, verified; it is fetched once more with the shards that it
        names.
        """
        with tempfile.TemporaryDirectory() as scratch:
            file, path = _remote_file(siblings[name], where), Path(scratch) / name
            _download(source.repository, revision, endpoint, file, path)
            _verify(file, path, None, source.repository)
            return read_json(path)

    names = checkpoint_files(siblings, f"{where} at {revision}", read_index)
    for pinned, _ in source.sha256:
        if pinned not in names:
            raise InputError(
                f"{where}: the pinned file {pinned} is not among the files to "
                f"fetch{near(pinned, names)}"
            )
    return [_remote_file(siblings[name], where) for name in names]


def _remote_file(sibling: Any, where: str) -> RemoteFile:
    if type(sibling.size) is not int or sibling.size < 0 or not isinstance(sibling.blob_id, str):
        raise InputError(
            f"{where}: the hub states no size and hash for {sibling.rfilename}, so it cannot be "
            "verified; use another hub"
        )
    return RemoteFile(
        sibling.rfilename,
        sibling.size,
        sibling.lfs.sha256 if sibling.lfs else None,
        sibling.blob_id,
    )


def _discard_others(collected: Path, files: list[RemoteFile]) -> None:
    """Remove what an earlier, interrupted run left that cannot be the start of a wanted file."""
    sizes = {file.name: file.size for file in files}
    for path in collected.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        elif path.lstat().st_size > sizes.get(path.name, -1):
            path.unlink()


def _download(
    repository: str, revision: str, endpoint: str, file: RemoteFile, target: Path
) -> None:
    """Append to `target` what is missing of the file; hf_hub_download would start again after a
    kill.
    """
    where = f"hub repository {repository}, file {file.name}"
    url = hf_hub_url(repository, file.name, revision=revision, endpoint=endpoint)
    try:
        with open(target, "ab") as output, suppress(_SurplusError):
            http_get(
                url,
                cast(BinaryIO, _Bounded(output, file.size)),
                resume_size=output.tell(),
                headers={**build_hf_headers(), "Accept-Encoding": "identity"},
                expected_size=file.size,
                displayed_filename=file.name,
                tqdm_class=_Bar,
            )
    except (HTTPError, OfflineModeIsEnabled) as error:
        raise _refusal(error, where, revision, endpoint) from error
    except OSError as error:
        if error.errno is not None:  # the disk, not the hub
            raise
        raise InputError(
            f"{where}: received {target.stat().st_size} of {file.size} bytes; rerun to resume"
        ) from error
    except ValueError as error:  # a single file beyond what the downloader takes
        raise InputError(f"{where}: {error}; use a sharded checkpoint") from error


class _SurplusError(Exception):
    """The reply goes on beyond the size that the hub states for the file."""


class _Bounded:
    """A file that takes `size` bytes and ends the download there. The hash then says whether it is
    the file.
    """

    def __init__(self, file: BinaryIO, size: int) -> None:
        self.file, self.size = file, size

    def write(self, data: bytes) -> int:
        room = self.size - self.file.tell()
        self.file.write(data[:room])
        if len(data) > room:
            raise _SurplusError
        return len(data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.file, name)


class _WithoutCredentials(logging.Filter):
    """The downloader's own messages name the URL, and an endpoint may hold a user and a
    password.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        record.msg, record.args = without_credentials(record.getMessage()), ()
        return True


for _handler in logging.getLogger("huggingface_hub").handlers:
    _handler.addFilter(_WithoutCredentials())


class _Bar(tqdm):
    """Hands the downloader's byte counts to `Progress`, because tqdm is silent where stderr is a
    log file.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(disable=True)
        self.label = f"download {options['desc']} (bytes)"
        self.whole = options["total"]
        self.counter = Progress(self.whole - options["initial"], self.label)

    def update(self, n: float | None = 1) -> None:
        count = int(n or 0)
        if count > 0:
            self.counter.step(count)
        else:  # the server would not resume, so the file starts again
            self.counter = Progress(self.whole, self.label)


def _verify(file: RemoteFile, path: Path, pin: str | None, repository: str) -> None:
    """Check the hub's hash and the pin; a file that fails is removed, so that a rerun fetches it
    anew.
    """
    sha256 = sha256_file(path)
    expected, found = (file.sha256, sha256) if file.sha256 else (file.blob, _git_blob_id(path))
    for kind, wanted, actual in (
        ("the hub's hash", expected, found),
        ("the pinned sha256", pin or sha256, sha256),
    ):
        if wanted != actual:
            path.unlink()
            raise InputError(
                f"hub repository {repository}: {file.name} hashes to {actual}, but {kind} is "
                f"{wanted}; "
                "the file was removed: rerun to fetch it again, and if it fails again distrust the "
                "server or the table"
            )


def _git_blob_id(path: Path) -> str:
    """The id under which git stores the file: sha1 over `blob <bytes>`, a null byte, and the
    content.
    """
    digest = hashlib.sha1(b"blob %d\0" % path.stat().st_size, usedforsecurity=False)
    with open(path, "rb") as handle:
        while chunk := handle.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def _refusal(error: Exception, where: str, revision: str, endpoint: str) -> InputError:
    """The hub's answer in the terms of the model table."""
    status = error.response.status_code if isinstance(error, HfHubHTTPError) else None
    if isinstance(error, GatedRepoError) or status == 403:
        return InputError(
            f"{where}: gated; accept its terms on {endpoint} and set HF_TOKEN to a token that may "
            "read it"
        )
    if isinstance(error, RevisionNotFoundError):
        return InputError(
            f"{where}: no commit {revision} there; correct the revision in the model table"
        )
    if isinstance(error, RepositoryNotFoundError):
        return InputError(
            f"{where}: not found on {endpoint}, or private; check the name, or set HF_TOKEN"
        )
    if status == 401:
        return InputError(f"{where}: {endpoint} rejects the token; correct or unset HF_TOKEN")
    if status is not None:
        return InputError(
            f"{where}: {endpoint} answered {status}; check the model table, or try again later"
        )
    if isinstance(error, OfflineModeIsEnabled):
        return InputError(
            f"{where}: offline mode is set; unset HF_HUB_OFFLINE and TRANSFORMERS_OFFLINE, or use "
            "a package or path source"
        )
    return InputError(
        f"{where}: {endpoint} cannot be reached ({type(error).__name__}); rerun to resume, "
        "or use a package or path source where no hub is in reach"
    )
