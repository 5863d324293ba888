"""The target `smoke` on a real one-node Slurm. Opt-in, since it installs and starts daemons: NORMGAUGE_SLURM=1, as root on Debian."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from clone import Project, new_project

ASKED = os.environ.get("NORMGAUGE_SLURM") == "1"
REASON = "no Slurm run: set NORMGAUGE_SLURM=1 (as root on Debian; installs slurm-wlm and munge, starts their daemons)"

CONFIGURATION = """\
ClusterName=toy
SlurmctldHost={host}(127.0.0.1)
SlurmUser=slurm
AuthType=auth/munge
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
ReturnToService=2
SlurmctldPidFile=/run/slurmctld.pid
SlurmdPidFile=/run/slurmd.pid
StateSaveLocation=/var/spool/slurmctld
SlurmdSpoolDir=/var/spool/slurmd
SlurmctldLogFile=/var/log/slurm/slurmctld.log
SlurmdLogFile=/var/log/slurm/slurmd.log
SchedulerType=sched/backfill
SchedulerParameters=bf_interval=5,sched_interval=5
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
# Without slurmdbd the state of a finished job is known to squeue alone, so it must stay there.
MinJobAge=3600
NodeName={host} NodeAddr=127.0.0.1 CPUs={cpus} RealMemory={memory} State=UNKNOWN
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""

pytestmark = [pytest.mark.slurm, pytest.mark.skipif(not ASKED, reason=REASON)]


def shell(command: str) -> str:
    done = subprocess.run(["bash", "-euc", command], capture_output=True, text=True)
    assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
    return done.stdout


def daemon_pids() -> list[int]:
    files = ("/run/slurmd.pid", "/run/slurmctld.pid", "/run/munge/munged.pid")
    return [int(Path(file).read_text()) for file in files if Path(file).exists()]


@pytest.fixture(scope="module")
def slurm() -> Iterator[None]:
    """A one-node Slurm; daemons that were not running before are ended after."""
    if shutil.which("sbatch") is None:
        shell("apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends slurm-wlm munge")
    memory = int(next(line for line in Path("/proc/meminfo").read_text().splitlines() if line.startswith("MemTotal")).split()[1]) // 1024
    configuration = CONFIGURATION.format(host=socket.gethostname().split(".")[0], cpus=os.cpu_count(), memory=memory * 9 // 10)
    Path("/etc/slurm/slurm.conf").write_text(configuration)
    before = daemon_pids() if subprocess.run(["sinfo"], capture_output=True).returncode == 0 else []
    if not before:
        shell("mkdir -p /run/munge && chown munge:munge /run/munge && chmod 755 /run/munge && runuser -u munge -- /usr/sbin/munged")
        shell("mkdir -p /var/spool/slurmctld /var/spool/slurmd /var/log/slurm && chown slurm:slurm /var/spool/slurmctld /var/log/slurm")
        shell("slurmctld && sleep 1 && slurmd")
    deadline = time.monotonic() + 60
    while "idle" not in shell("sinfo -h -o %T || true"):
        assert time.monotonic() < deadline, shell("sinfo -N -l || true")
        time.sleep(1)
    yield
    if not before:
        for pid in daemon_pids():
            os.kill(pid, 15)


@pytest.fixture
def profile(tmp_path: Path) -> Path:
    """profiles/slurm, cut down to one small node without slurmdbd."""
    clone = new_project(tmp_path / "normgauge")
    path = clone / "profiles/slurm/config.yaml"
    settings = yaml.safe_load(path.read_text()) | {
        "jobs": 4,
        "cores": os.cpu_count(),
        "latency-wait": 10,
        "slurm-status-command": "squeue",
        "slurm-init-seconds-before-status-checks": 5,
        "seconds-between-status-checks": 5,
        "set-resources": {"acquire_checkpoint": {"mem_mb": 2000}},
    }
    path.write_text(yaml.safe_dump(settings))
    return clone.folder


def test_smoke_on_slurm(slurm: None, profile: Path) -> None:
    clone = Project(profile)
    finished = clone.run("smoke", "--workflow-profile", "profiles/slurm")
    assert (clone / "figures/smoke/table2.pdf").read_bytes().startswith(b"%PDF")
    submitted = (finished.stdout + finished.stderr).count("has been submitted with SLURM jobid")
    assert submitted >= 20, "the jobs went through Slurm"
    assert clone.plan("smoke") == {}
