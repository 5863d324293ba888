"""Clones for the workflow tests."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from filelock import FileLock

from clone import Project, new_project


@pytest.fixture(scope="session")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A fresh clone, for plans and refusals: nothing is run in it."""
    return new_project(tmp_path_factory.mktemp("clone") / "normgauge")


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A clone in which the target `smoke` has run, with two shards of gpt2-smoke, one for all
    processes of the test run.

    Copy it before changing it.
    """
    shared = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        shared = shared.parent
    folder, done = shared / "smoke" / "normgauge", shared / "smoke.done"
    with FileLock(shared / "smoke.lock"):
        if not done.exists():
            shutil.rmtree(folder.parent, ignore_errors=True)
            folder.parent.mkdir()
            clone = new_project(folder)
            smoke = clone / "config/test/smoke.yaml"
            objective = "    objective: causal LM\n"
            smoke.write_text(
                smoke.read_text().replace(objective, f"{objective}    capture: {{shards: 2}}\n")
            )
            clone.run("smoke")
            done.touch()
    return Project(folder)


@pytest.fixture
def writable(finished: Project, tmp_path: Path) -> Project:
    """A finished project of the test's own."""
    return finished.copy(tmp_path / "normgauge")


@pytest.fixture
def fresh(tmp_path: Path) -> Callable[[], Project]:
    """A fresh clone of the test's own."""
    return lambda: new_project(tmp_path / "fresh")
