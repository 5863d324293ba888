"""Pinning the published set: a local server answers as the hub does."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import yaml

from clone import ROOT, Project

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class Hub(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        known = self.path.startswith("/api/models/") and "missing" not in self.path
        name = self.path.removeprefix("/api/models/").split("/revision/")[0]
        answer = json.dumps(
            {"id": name, "modelId": name, "sha": COMMIT, "siblings": []}
            if known
            else {"error": "Repository not found"}
        )
        self.send_response(200 if known else 404)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(answer)))
        if not known:
            self.send_header("X-Error-Code", "RepoNotFound")
        self.end_headers()
        self.wfile.write(answer.encode())

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def hub() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()


def pin(table: Path, endpoint: str, home: Path) -> subprocess.CompletedProcess[str]:
    environment = {
        **os.environ,
        "HF_ENDPOINT": endpoint,
        "HF_HOME": str(home),
        "HF_HUB_OFFLINE": "0",
        "NO_PROXY": "127.0.0.1",
    }
    command = [sys.executable, "workflow/scripts/pin_revisions.py", str(table)]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)


def test_pins_merge_over_the_published_set(hub: str, tmp_path: Path, project: Project) -> None:
    done = pin(ROOT / "config/paper.yaml", hub, tmp_path / "home")
    assert done.returncode == 0, done.stderr
    pins = tmp_path / "pins.yaml"
    pins.write_text(done.stdout)
    models = yaml.safe_load((ROOT / "config/paper.yaml").read_text())["models"]
    assert yaml.safe_load(done.stdout) == {
        "models": {model: {"source": {"revision": COMMIT}} for model in models}
    }
    outputs = project.outputs("all", "--configfile", "config/paper.yaml", str(pins))
    assert f"results/pythia-160m/{COMMIT}/summary.parquet" in outputs
    assert not any("unpinned" in path for path in outputs)


def test_a_repository_that_is_not_there_is_one_line(hub: str, tmp_path: Path) -> None:
    table = tmp_path / "table.yaml"
    table.write_text("models: {a: {source: {hub: org/missing, revision: unpinned}}}\n")
    done = pin(table, hub, tmp_path / "home")
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.startswith("error: models.a.source.hub: org/missing")
    assert done.stderr.count("\n") == 1
