"""The target `smoke` on a real one-node Slurm of the test's own. Opt-in, since it starts daemons:
NORMGAUGE_SLURM=1.

Configuration, key, state, logs and sockets lie in a temporary folder and the ports are free ones,
so a Slurm of the machine stays as it is.
"""

from __future__ import annotations

import getpass
import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import pytest
import yaml

from clone import SMOKE, Project, new_project

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "squeue")
SEARCHED = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"])
MISSING = [program for program in PROGRAMS if shutil.which(program, path=SEARCHED) is None]

CONFIGURATION = """\
ClusterName=normgauge
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller_port}
SlurmdPort={node_port}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
MpiDefault=none
# No control groups are delegated to a container.
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
ReturnToService=2
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
SchedulerType=sched/backfill
SchedulerParameters=bf_interval=5,sched_interval=5
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
# Without slurmdbd the state of a finished job is known to squeue alone, so it must stay there.
MinJobAge=3600
NodeName={host} NodeAddr=127.0.0.1 CPUs={cpus} RealMemory={memory} State=UNKNOWN
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""

pytestmark = [
    pytest.mark.slurm,
    pytest.mark.skipif(
        os.environ.get("NORMGAUGE_SLURM") != "1",
        reason="Slurm: not asked for; set NORMGAUGE_SLURM=1",
    ),
    pytest.mark.skipif(
        bool(MISSING), reason=f"Slurm: {', '.join(MISSING)} not found; install slurm-wlm and munge"
    ),
]


def free_ports(count: int) -> list[int]:
    with ExitStack() as sockets:
        opened = [sockets.enter_context(closing(socket.socket())) for _ in range(count)]
        for one in opened:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in opened]


def total_memory_megabytes() -> int:
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2**20


def wait_until(ready: Callable[[], bool], folder: Path, what: str) -> None:
    deadline = time.monotonic() + 60
    while not ready():
        logs = "\n".join(
            path.read_text(errors="replace")[-1500:] for path in sorted(folder.glob("*.log"))
        )
        assert time.monotonic() < deadline, f"{what}\n{logs}"
        time.sleep(0.5)


@contextmanager
def daemon(program: str, *arguments: str) -> Iterator[None]:
    """A daemon in the foreground, ended on leaving."""
    process = subprocess.Popen(
        [shutil.which(program, path=SEARCHED), *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield
    finally:
        process.terminate()
        try:
            process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def said_by(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True).stdout


def job_records() -> list[tuple[str, str]]:
    """(rule, state) of every job that this Slurm has seen; the executor writes the rule into the
    job's comment.
    """
    lines = said_by("squeue", "--states=all", "--noheader", "--format=%k|%T").splitlines()
    return [
        (comment.removeprefix("rule_").split("_wildcards_")[0], state)
        for comment, state in (line.rsplit("|", 1) for line in lines)
    ]


@pytest.fixture
def slurm(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A one-node Slurm for this test alone, found through SLURM_CONF; the value is its folder."""
    with tempfile.TemporaryDirectory(prefix="slurm-") as name, ExitStack() as running:
        folder = Path(name)
        # munged refuses a socket that other users could not reach.
        folder.chmod(0o755)
        for part in ("state", "spool"):
            (folder / part).mkdir()
        key = folder / "munge.key"
        key.touch(mode=0o600)
        key.write_bytes(os.urandom(128))
        controller_port, node_port = free_ports(2)
        configuration = folder / "slurm.conf"
        configuration.write_text(
            CONFIGURATION.format(
                folder=folder,
                host=socket.gethostname().split(".")[0],
                user=getpass.getuser(),
                controller_port=controller_port,
                node_port=node_port,
                cpus=os.cpu_count(),
                memory=total_memory_megabytes() * 9 // 10,
            )
        )
        monkeypatch.setenv("SLURM_CONF", str(configuration))
        # Inside a job the executor starts srun without SLURM_CONF; this one, first on the path,
        # gives it back.
        srun = folder / "bin/srun"
        srun.parent.mkdir()
        srun.write_text(f'#!/bin/sh\nSLURM_CONF={configuration} exec {shutil.which("srun")} "$@"\n')
        srun.chmod(0o755)
        monkeypatch.setenv("PATH", os.pathsep.join([str(srun.parent), SEARCHED]))
        running.enter_context(
            daemon(
                "munged",
                "--foreground",
                f"--socket={folder}/munge.socket",
                f"--key-file={key}",
                f"--pid-file={folder}/munged.pid",
                f"--seed-file={folder}/munged.seed",
                f"--log-file={folder}/munged.log",
            )
        )
        wait_until(lambda: (folder / "munge.socket").exists(), folder, "munged does not listen")
        running.enter_context(daemon("slurmctld", "-D", "-f", str(configuration)))
        running.enter_context(daemon("slurmd", "-D", "-f", str(configuration)))
        wait_until(
            lambda: said_by("sinfo", "--noheader", "--format=%T").strip() == "idle",
            folder,
            "the node does not become idle",
        )
        yield folder
        subprocess.run(["scancel", "--user", getpass.getuser()], capture_output=True)
        wait_until(lambda: not said_by("squeue", "--noheader"), folder, "cancelled jobs do not end")


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """A clone whose profiles/slurm is cut down to one small node without slurmdbd."""
    clone = new_project(tmp_path / "normgauge")
    path = clone / "profiles/slurm/config.yaml"
    settings = yaml.safe_load(path.read_text()) | {
        "jobs": 4,
        "cores": os.cpu_count(),
        "latency-wait": 10,
        "slurm-status-command": "squeue",
        "slurm-init-seconds-before-status-checks": 5,
        "seconds-between-status-checks": 5,
    }
    path.write_text(yaml.safe_dump(settings))
    return clone


def test_smoke_on_slurm(slurm: Path, project: Project) -> None:
    planned = Counter(project.plan("smoke"))
    project.run("smoke", "--workflow-profile", "profiles/slurm")
    assert (project / "figures/smoke/table2.pdf").read_bytes().startswith(b"%PDF")
    records = job_records()
    assert {state for _, state in records} == {"COMPLETED"}
    assert Counter(rule for rule, _ in records) == planned, "every compute job is a job of Slurm"
    assert project.plan("smoke") == {}


def test_a_job_that_fails_on_slurm_shows_its_one_line_error(slurm: Path, project: Project) -> None:
    target = "results/llama-tiny/seed42/checkpoint.json"
    (project / "config/shapes/llama-tiny.json").write_text('{"model_type": "perceptron"}\n')
    said = project.snakemake(target, *SMOKE, "--workflow-profile", "profiles/slurm")
    assert said.returncode != 0
    records = job_records()
    assert {rule for rule, _ in records} == {"acquire_checkpoint"}
    assert {state for _, state in records} == {"FAILED"}
    shown = said.stdout + said.stderr
    assert any(
        line.strip().startswith("error: ") and "perceptron" in line for line in shown.splitlines()
    ), shown[-3000:]
    assert not (project / target).exists()
