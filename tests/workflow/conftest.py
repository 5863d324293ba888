"""Clones for the workflow tests."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from clone import Project, new_project


@pytest.fixture(scope="session")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A fresh clone, for plans and refusals: nothing is run in it."""
    return new_project(tmp_path_factory.mktemp("clone") / "normgauge")


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A clone in which the target `smoke` has run. Copy it before changing it."""
    smoked = new_project(tmp_path_factory.mktemp("smoke") / "normgauge")
    smoked.run("smoke")
    return smoked


@pytest.fixture
def writable(finished: Project, tmp_path: Path) -> Project:
    """A finished project of the test's own."""
    return finished.copy(tmp_path / "normgauge")


@pytest.fixture
def fresh(tmp_path: Path) -> Callable[[], Project]:
    """A fresh clone of the test's own."""
    return lambda: new_project(tmp_path / "fresh")
