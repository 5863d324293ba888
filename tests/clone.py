"""The workflow as a user runs it: a copy of the repository in a scratch folder and the snakemake
command line.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LEFT_OUT = (
    ".git",
    ".venv",
    ".snakemake",
    "results",
    "figures",
    "logs",
    "tests",
    "benchmarks",
    "docs",
    "*_cache",
    "__pycache__",
)
TARGETS = (
    "all",
    "all_tables",
    "all_figures",
    "smoke",
    "dead_directions",
    "dead_directions_scale",
    "table1_scale",
    "trained_vs_random_scale",
    "exact_recovery",
    "exact_recovery_scale",
    "signed_permutation",
    "signed_permutation_scale",
    "trajectories",
    "trajectories_scale",
    "scale_8b",
    "audit",
    "redundancy",
    "checkpoint_comparison",
    "checkpoint_diff",
    "lineage",
    "ledger",
)
SMOKE = ("--configfile", "config/test/smoke.yaml")


class Project:
    """A copy of the repository and what one does with it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def command(self, *arguments: str) -> list[str]:
        """Snakemake with these arguments; a run ends at once, not up to the profile's timespan
        later.
        """
        return [sys.executable, "-m", "snakemake", *arguments, "--max-jobs-per-timespan", "100/1s"]

    def environment(self, **changes: str) -> dict[str, str]:
        inherited = {
            name: value
            for name, value in os.environ.items()
            if name not in ("PYTHONPATH", "SNAKEMAKE_PROFILE")
        }
        return {**inherited, "OMP_NUM_THREADS": "1", **changes}

    def snakemake(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.command(*arguments),
            cwd=self.folder,
            env=self.environment(**environment),
            capture_output=True,
            text=True,
            timeout=600,
        )

    def run(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run to success; the assertion shows what snakemake said."""
        finished = self.snakemake(*arguments, **environment)
        assert finished.returncode == 0, finished.stdout[-2000:] + finished.stderr[-6000:]
        return finished

    def plan(self, *arguments: str) -> dict[str, int]:
        """Jobs per rule of a dry run, without the target rule; empty when there is nothing to
        do.
        """
        said = self.run(*arguments, "--dry-run").stdout
        if "Nothing to be done" in said:
            return {}
        table = re.search(r"^Job stats:\n.*\n[- ]+\n((?:.+\n)+?)total\s+(\d+)", said, re.MULTILINE)
        assert table, said[-3000:]
        counts = {
            rule: int(count)
            for rule, count in (line.split() for line in table.group(1).splitlines())
        }
        assert sum(counts.values()) == int(table.group(2))
        return {rule: count for rule, count in counts.items() if rule not in TARGETS}

    def outputs(self, *arguments: str) -> list[str]:
        """Every output and log path of a dry run."""
        said = self.run(*arguments, "--dry-run").stdout
        lines = re.findall(
            r"^    (?:output|log|benchmark): (.+)$", said.split("Job stats:")[1], re.MULTILINE
        )
        return [path for line in lines for path in line.split(", ")]

    def refusal(self, *arguments: str) -> str:
        """The one error line of a run that must fail; nothing else of it may look like an error."""
        finished = self.snakemake(*arguments)
        assert finished.returncode != 0
        lines = [
            line
            for line in (finished.stdout + finished.stderr).splitlines()
            if line.startswith("error: ")
        ]
        assert len(lines) == 1, finished.stdout[-2000:] + finished.stderr[-2000:]
        assert "Traceback" not in finished.stderr
        return lines[0]

    def copy(self, folder: Path) -> Project:
        """A copy with results and Snakemake's records, times kept."""
        shutil.copytree(self.folder, folder, symlinks=True)
        return Project(folder)

    def __truediv__(self, path: str) -> Path:
        return self.folder / path


def new_project(folder: Path) -> Project:
    shutil.copytree(ROOT, folder, ignore=shutil.ignore_patterns(*LEFT_OUT))
    return Project(folder)
