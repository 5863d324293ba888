"""The two descriptions of the environment say the same, and what they say is what runs."""

from __future__ import annotations

import importlib.metadata
import re
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement

from clone import ROOT

CONDA_NAMES = {"pytorch": "torch", "matplotlib-base": "matplotlib"}


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def locked() -> dict[str, str]:
    lines = (ROOT / "envs/requirements.lock").read_text().splitlines()
    return {
        canonical(name): version
        for name, version in (
            line.split("==") for line in lines if line and not line.startswith("#")
        )
    }


def conda() -> dict[str, str]:
    dependencies = yaml.safe_load((ROOT / "envs/pipeline.yaml").read_text())["dependencies"]
    pip = next(item["pip"] for item in dependencies if isinstance(item, dict))
    pins = [item.split(" =") for item in dependencies if isinstance(item, str) and " =" in item] + [
        item.split("==") for item in pip
    ]
    return {canonical(CONDA_NAMES.get(name, name)): version for name, version in pins}


def test_conda_and_pip_agree() -> None:
    pins = conda()
    assert pins.pop("python") == "3.11"
    assert pins == {name: locked()[name] for name in pins}


def test_both_hold_what_the_library_needs() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    needed = {
        canonical(Requirement(line).name): Requirement(line).specifier
        for line in project["dependencies"]
    }
    assert needed.keys() <= locked().keys()
    assert needed.keys() == conda().keys() - {"python"}
    assert all(specifier.contains(locked()[name]) for name, specifier in needed.items())


@pytest.mark.parametrize("name", sorted(locked()))
def test_the_lock_is_what_runs(name: str) -> None:
    assert importlib.metadata.version(name).split("+")[0] == locked()[name]


def test_the_lock_is_complete() -> None:
    """Every requirement of a locked package is locked: pip has nothing left to choose."""
    missing = {
        f"{name} needs {requirement.name}"
        for name in locked()
        for requirement in map(Requirement, importlib.metadata.requires(name) or [])
        if (not requirement.marker or requirement.marker.evaluate({"extra": ""}))
        and canonical(requirement.name) not in locked()
    }
    assert not missing


@pytest.mark.parametrize(
    "script",
    [".ci/run", "profiles/cluster-generic/submit.sh", "profiles/cluster-generic/status.sh"],
)
def test_shell_scripts_parse_and_may_be_executed(script: str) -> None:
    assert subprocess.run(["bash", "-n", script], cwd=ROOT).returncode == 0
    assert (ROOT / script).stat().st_mode & 0o111


def test_a_job_of_the_generic_cluster_is_never_taken_for_an_older_one(tmp_path: Path) -> None:
    """What an older job of the same process id left says nothing about this one, while it runs and
    after.
    """
    profile = ROOT / "profiles/cluster-generic"

    def said(script: str, *arguments: str) -> str:
        return subprocess.run(
            [profile / script, *arguments], cwd=tmp_path, capture_output=True, text=True, check=True
        ).stdout.strip()

    job = tmp_path / "job.sh"
    job.write_text("#!/bin/sh\nwhile [ ! -e go ]; do sleep 0.05; done\nexit 3\n")
    job.chmod(0o755)
    first, second = said("submit.sh", str(job)), said("submit.sh", str(job))
    assert first.partition(".")[2] != second.partition(".")[2]
    process = first.partition(".")[0]
    for left in (f"{process}.status", f"older/{process}.status", "older/status"):
        path = tmp_path / ".snakemake/local_cluster" / left
        path.parent.mkdir(exist_ok=True)
        path.write_text("0")
    assert said("status.sh", first) == said("status.sh", second) == "running"
    (tmp_path / "go").touch()
    while "running" in (states := [said("status.sh", name) for name in (first, second)]):
        pass
    assert states == ["failed", "failed"]
