"""Slurm's scheduler alone: nodes in the cloud that never start, so that jobs are allocated and go no further.

Needs Debian's `slurmctld`, `slurm-client` and `munge`. Everything lies in one temporary folder, listens on loopback and
ends with the measurement.
"""

import os
import re
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from millpond.stack.ports import HeldPorts
from tests.benchmarks.peers.measured import Rate, Run, cpu_of

PROGRAMS = ("slurmctld", "sbatch", "sdiag", "scancel", "munged")
JOBS = 600
_MOST_SECONDS = 90.0
_CONFIGURATION = r"""
ClusterName=bench
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmdPort={slurmd_port}
CommunicationParameters=NoCtldInAddrAny
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
ReturnToService=2
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdSpoolDir={folder}/spool
StateSaveLocation={folder}/state
SlurmctldLogFile={folder}/slurmctld.log
SlurmctldDebug=error
SchedulerType=sched/builtin
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=default_queue_depth=100000,batch_sched_delay=1,sched_interval=1,max_rpc_cnt=0,max_sched_time=25
MaxJobCount=500000
MaxArraySize=200001
MinJobAge=300
SuspendProgram=/bin/true
ResumeProgram=/bin/true
SuspendTime=100000
ResumeTimeout=3600
ResumeRate=0
SuspendRate=0
TreeWidth=1000
GresTypes=gpu
NodeName=c[00001-{nodes:05d}] CPUs=64 Boards=1 SocketsPerBoard=2 CoresPerSocket=32 ThreadsPerCore=1 \
 RealMemory=500000 Gres=gpu:8 State=CLOUD
PartitionName=p Nodes=ALL Default=YES MaxTime=INFINITE State=UP OverSubscribe=NO
"""


def list_missing() -> list[str]:
    """What has to be installed first."""
    return [program for program in PROGRAMS if shutil.which(program) is None]


@contextmanager
def running(nodes: int) -> Iterator[Run]:
    """A controller over so many empty nodes; a run submits an array of jobs of one device and four cores each.

    Submitting is one call and part of the run; the jobs are cancelled after it.
    """
    with tempfile.TemporaryDirectory(prefix="millpond-bench-slurm-") as name, _slurm(Path(name), nodes) as (pid, found):
        yield lambda: _measure_rate(found, pid)


def _measure_rate(environment: Mapping[str, str], controller: int) -> Rate:
    _run(environment, "sdiag", "-r")
    cpu = cpu_of([controller])
    began = time.monotonic()
    wrap = ("--array", f"1-{JOBS}", "--gres=gpu:1", "-c4", "-o", "/dev/null", "--wrap=/bin/true")
    job = _run(environment, "sbatch", "--parsable", *wrap).strip()
    started = 0
    while started < JOBS and time.monotonic() - began < _MOST_SECONDS:
        time.sleep(0.25)
        found = re.search(r"Jobs started:\s*(\d+)", _run(environment, "sdiag"))
        started = int(found.group(1)) if found else 0
    seconds, spent = time.monotonic() - began, cpu_of([controller]) - cpu
    _run(environment, "scancel", job)
    return Rate(started / seconds, spent * 1000 / max(started, 1))


@contextmanager
def _slurm(folder: Path, nodes: int) -> Iterator[tuple[int, dict[str, str]]]:
    """A running controller: its process, and the environment for the commands."""
    with HeldPorts() as ports:
        settings = {"host": socket.gethostname(), "port": ports.take(), "slurmd_port": ports.take(), "folder": folder}
    (folder / "state").mkdir()
    (folder / "slurm.conf").write_text(_CONFIGURATION.format(nodes=nodes, **settings))
    key = folder / "munge.key"
    key.write_bytes(os.urandom(128))
    key.chmod(0o600)
    environment = {**os.environ, "SLURM_CONF": str(folder / "slurm.conf")}
    named = {"key": key, "socket": folder / "munge.socket", "pid": folder / "munge.pid", "log": folder / "munge.log"}
    arguments = (f"--{option}-file={path}" for option, path in named.items() if option != "socket")
    munge = [_find("munged"), "--foreground", "--force", f"--socket={named['socket']}", *arguments]
    munge.append(f"--seed-file={folder / 'munge.seed'}")
    daemons: list[subprocess.Popen[bytes]] = []
    try:
        with (folder / "output.log").open("wb") as log:
            daemons.append(subprocess.Popen(munge, stderr=log))
            _wait_for(named["socket"])
            daemons.append(subprocess.Popen([_find("slurmctld"), "-D", "-c"], env=environment, stderr=log))
        _wait_until_answered(environment)
        yield daemons[-1].pid, environment
    finally:
        for process in reversed(daemons):
            process.terminate()
            process.wait(60)


def _find(program: str) -> str:
    found = shutil.which(program)
    assert found is not None, f"{program} is not installed"
    return found


def _run(environment: Mapping[str, str], program: str, *arguments: str) -> str:
    command = [_find(program), *arguments]
    return subprocess.run(command, env=dict(environment), check=True, capture_output=True, text=True).stdout


def _wait_for(path: Path) -> None:
    deadline = time.monotonic() + 30
    while not path.exists():
        assert time.monotonic() < deadline, f"{path} did not come"
        time.sleep(0.05)


def _wait_until_answered(environment: Mapping[str, str]) -> None:
    deadline = time.monotonic() + 60
    while True:
        try:
            _run(environment, "sdiag")
            return
        except subprocess.CalledProcessError as error:
            if time.monotonic() > deadline:
                raise AssertionError(error.stderr) from error
            time.sleep(0.5)
