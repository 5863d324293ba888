"""A model hub on localhost that speaks the part of the hub's protocol that the downloader uses,
with faults to order.

Listing: GET /api/models/{repository}/revision/{commit}?blobs=True. Files: GET or HEAD
/{repository}/resolve/{commit}/{file}, with Range; files kept in large file storage are redirected
to /storage/{sha256}, as the hub does.
"""

from __future__ import annotations

import hashlib
import json
import re
import threading
from contextlib import suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlparse

COMMIT = "0123456789abcdef0123456789abcdef01234567"
REPOSITORY = "organisation/model"


@dataclass
class Hub:
    """The repository's content and the faults of its server; change the fields between requests."""

    files: dict[str, bytes]
    large: set[str] = field(default_factory=set)
    repository: str = REPOSITORY
    commit: str = COMMIT
    answered_commit: str | None = None
    token: str | None = None
    gated_files: bool = False
    forbidden: bool = False
    status: int | None = None
    prose: bool = False
    without_hashes: bool = False
    vanished: set[str] = field(default_factory=set)
    corrupt: set[str] = field(default_factory=set)
    cut_at: dict[str, int] = field(default_factory=dict)
    cut_once: dict[str, int] = field(default_factory=dict)
    shortened: dict[str, int] = field(default_factory=dict)
    stall_at: dict[str, int] = field(default_factory=dict)
    stalled: threading.Event = field(default_factory=threading.Event)
    release: threading.Event = field(default_factory=threading.Event)
    ignores_range: bool = False
    longer: set[str] = field(default_factory=set)
    requests: list[tuple[str, str, str | None]] = field(default_factory=list)

    def __enter__(self) -> Hub:
        handler = type("Handler", (_Handler,), {"hub": self})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True
        )
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.release.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def listing(self) -> dict[str, Any]:
        siblings = []
        for name, content in sorted(self.files.items()):
            sibling: dict[str, Any] = {"rfilename": name}
            if not self.without_hashes:
                pointer = (
                    "version https://git-lfs.github.com/spec/v1\n"
                    f"oid sha256:{_sha256(content)}\nsize {len(content)}\n"
                ).encode()
                sibling |= {
                    "size": len(content),
                    "blobId": git_blob_id(pointer if name in self.large else content),
                }
                if name in self.large:
                    sibling["lfs"] = {
                        "sha256": _sha256(content),
                        "size": len(content),
                        "pointerSize": len(pointer),
                    }
            siblings.append(sibling)
        return {
            "id": self.repository,
            "modelId": self.repository,
            "sha": self.answered_commit or self.commit,
            "siblings": siblings,
        }

    def ranges(self, name: str) -> list[str | None]:
        """The Range headers under which the content of a file was asked for, in order."""
        place = (
            f"/storage/{_sha256(self.files[name])}"
            if name in self.large
            else f"/{self.repository}/resolve/{self.commit}/{name}"
        )
        return [asked for method, path, asked in self.requests if method == "GET" and path == place]


def git_blob_id(content: bytes) -> str:
    """The id that git gives a file of this content."""
    return hashlib.sha1(b"blob %d\0%s" % (len(content), content)).hexdigest()


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


class _Handler(BaseHTTPRequestHandler):
    hub: Hub

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_HEAD(self) -> None:
        self._respond()

    def do_GET(self) -> None:
        self._respond()

    def _respond(self) -> None:
        hub, path = self.hub, unquote(urlparse(self.path).path)
        hub.requests.append((self.command, path, self.headers.get("Range")))
        if hub.status:
            return self._refuse(hub.status)
        if hub.prose:
            return self._send(200, b"<html>Welcome to the airport network</html>")
        if hub.forbidden:
            return self._refuse(403)
        if path.startswith("/storage/"):
            return self._content(
                next(
                    name
                    for name in hub.large
                    if _sha256(hub.files[name]) == path.removeprefix("/storage/")
                )
            )
        if hub.token and "Authorization" not in self.headers:
            return self._refuse(401, "RepoNotFound")
        if hub.token and self.headers["Authorization"] != f"Bearer {hub.token}":
            return self._send(
                401, b"{}", {"X-Error-Message": "Invalid credentials in Authorization header"}
            )
        if match := re.fullmatch(r"/api/models/(.+)/revision/([^/]+)", path):
            return self._listing(*match.groups())
        if match := re.fullmatch(r"/(.+)/resolve/([^/]+)/(.+)", path):
            return self._resolve(*match.groups())
        return self._refuse(404)

    def _known(self, repository: str, commit: str) -> bool:
        if repository != self.hub.repository:
            self._refuse(404, "RepoNotFound")
        elif commit != self.hub.commit:
            self._refuse(404, "RevisionNotFound")
        else:
            return True
        return False

    def _listing(self, repository: str, revision: str) -> None:
        if self._known(repository, self.hub.commit if revision == "main" else revision):
            self._send(
                200, json.dumps(self.hub.listing()).encode(), {"Content-Type": "application/json"}
            )

    def _resolve(self, repository: str, commit: str, name: str) -> None:
        if not self._known(repository, commit):
            return
        if self.hub.gated_files:
            return self._refuse(401, "GatedRepo")
        if name not in self.hub.files or name in self.hub.vanished:
            return self._refuse(404, "EntryNotFound")
        if name not in self.hub.large:
            return self._content(name)
        content = self.hub.files[name]
        headers = {
            "X-Linked-Etag": f'"{_sha256(content)}"',
            "X-Linked-Size": str(len(content)),
            "X-Repo-Commit": self.hub.commit,
        }
        return self._send(302, b"", {"Location": f"/storage/{_sha256(content)}", **headers})

    def _content(self, name: str) -> None:
        hub = self.hub
        content = hub.files[name]
        if name in hub.corrupt:
            content = content[:-1] + bytes([content[-1] ^ 1])
        content = content[: hub.shortened.get(name, len(content))]
        if name in hub.longer:
            return self._endless(content)
        asked = (
            None
            if hub.ignores_range
            else re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
        )
        start = int(asked.group(1)) if asked else 0
        headers = {
            "ETag": f'"{git_blob_id(content)}"',
            "X-Repo-Commit": hub.commit,
            "Accept-Ranges": "bytes",
        }
        if asked:
            headers["Content-Range"] = f"bytes {start}-{len(content) - 1}/{len(content)}"
        end = min(hub.cut_at.get(name, len(content)), hub.cut_once.pop(name, len(content)))
        self._send(
            206 if asked else 200,
            content[start:],
            headers,
            cut=max(end - start, 0),
            stall=hub.stall_at.get(name),
        )

    def _endless(self, content: bytes) -> None:
        """The content and then 300 MB more, without a stated length, as a chunked reply has
        none.
        """
        self.send_response(200)
        self.end_headers()
        with suppress(BrokenPipeError, ConnectionResetError):
            self.wfile.write(content)
            for _ in range(300):
                self.wfile.write(bytes(1_000_000))

    def _refuse(self, status: int, code: str = "") -> None:
        self._send(status, b"{}", {"X-Error-Code": code} if code else {})

    def _send(
        self,
        status: int,
        body: bytes,
        headers: dict[str, str] | None = None,
        cut: int | None = None,
        stall: int | None = None,
    ) -> None:
        self.send_response(status)
        for key, value in (headers or {}).items():
            self.send_header(key, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "HEAD":
            return
        try:
            if stall is not None:
                self.wfile.write(body[:stall])
                self.wfile.flush()
                self.hub.stalled.set()
                self.hub.release.wait()
            else:
                self.wfile.write(body[:cut])
        except (BrokenPipeError, ConnectionResetError):
            self.hub.release.wait(0)  # the client was killed
