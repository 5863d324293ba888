"""Where the seconds of one run of the main job went: by rule, and by how many jobs ran at a time.

Reads Snakemake's own log of a finished run, .snakemake/log/*.snakemake.log, whose path is the
argument. How to run it: benchmarks/README.md
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from side_by_side import write_results

TIME = re.compile(r"^\[(\w{3} \w{3} +\d+ [\d:]{8} \d{4})\]$")
STARTED = re.compile(r"^(?:local)?(?:rule|checkpoint) (\w+):$")
NUMBER = re.compile(r"^    jobid: (\d+)$")
FINISHED = re.compile(r"^Finished jobid: (\d+) ")


@dataclass(frozen=True)
class Job:
    rule: str
    start: datetime
    end: datetime

    @property
    def seconds(self) -> float:
        return (self.end - self.start).total_seconds()


def jobs_of(lines: Iterator[str]) -> list[Job]:
    """Every job that the log says to have started and finished; times are whole seconds."""
    started: dict[str, tuple[str, datetime]] = {}
    found, now, rule = [], None, ""
    for line in lines:
        if match := TIME.match(line):
            now = datetime.strptime(match[1], "%a %b %d %H:%M:%S %Y")
        elif match := STARTED.match(line):
            rule = match[1]
        elif now and (match := NUMBER.match(line)):
            started[match[1]] = (rule, now)
        elif now and (match := FINISHED.match(line)):
            name, start = started[match[1]]
            found.append(Job(name, start, now))
    return found


def seconds_at_a_time(jobs: list[Job]) -> Counter[int]:
    """Seconds of the run in which so many jobs ran."""
    moments = sorted([(job.start, 1) for job in jobs] + [(job.end, -1) for job in jobs])
    seconds: Counter[int] = Counter()
    running, before = 0, moments[0][0]
    for moment, change in moments:
        seconds[running] += int((moment - before).total_seconds())
        running, before = running + change, moment
    return seconds


def account(jobs: list[Job]) -> list[dict[str, Any]]:
    """A row for the run, one for each number of jobs at a time, one for each rule."""
    wall = (max(job.end for job in jobs) - min(job.start for job in jobs)).total_seconds()
    total = sum(job.seconds for job in jobs)
    rows = [{"what": "the run", "jobs": len(jobs), "seconds": int(wall), "share": ""}]
    rows += [
        {"what": f"{number} at a time", "jobs": "", "seconds": seconds, "share": seconds / wall}
        for number, seconds in sorted(seconds_at_a_time(jobs).items())
        if seconds  # two jobs that meet within one second of the log
    ]
    rules = {job.rule: [each for each in jobs if each.rule == job.rule] for job in jobs}
    summed = {rule: sum(job.seconds for job in own) for rule, own in rules.items()}
    rows += [
        {
            "what": rule,
            "jobs": len(rules[rule]),
            "seconds": int(seconds),
            "share": seconds / total,
        }
        for rule, seconds in sorted(summed.items(), key=lambda item: -item[1])
    ]
    return [{**row, "share": f"{row['share']:.3f}" if row["share"] != "" else ""} for row in rows]


if __name__ == "__main__":
    with Path(sys.argv[1]).open(encoding="utf-8") as log:
        write_results("main_job", account(jobs_of(iter(log.read().splitlines()))))
