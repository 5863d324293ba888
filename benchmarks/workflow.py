"""Snakemake's own cost: seconds of a run with nothing to do, and the number of jobs of a run from
nothing.

Needs a finished `snakemake all_tables`. How to run it: benchmarks/README.md
"""

from __future__ import annotations

import re
import subprocess
import sys
import time

from side_by_side import write_results


def snakemake(*arguments: str) -> tuple[str, float]:
    start = time.perf_counter()
    finished = subprocess.run(
        [sys.executable, "-m", "snakemake", *arguments],
        capture_output=True,
        text=True,
        check=True,
        encoding="utf-8",
    )
    return finished.stdout + finished.stderr, time.perf_counter() - start


if __name__ == "__main__":
    rows = []
    for repeat in range(3):
        output, seconds = snakemake("all_tables", "--cores", "2")
        assert "Nothing to be done" in output, output
        rows.append(
            {
                "what": f"all_tables with nothing to do, run {repeat + 1}",
                "value": f"{seconds:.1f}",
                "unit": "seconds",
            }
        )
    output, _ = snakemake("all_tables", "--dry-run", "--forceall", "--quiet", "rules")
    jobs = re.search(r"^total\s+(\d+)", output, re.MULTILINE)
    assert jobs, output
    rows.append({"what": "all_tables from nothing", "value": jobs.group(1), "unit": "jobs"})
    write_results("workflow", rows)
