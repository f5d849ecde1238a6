"""What is verified before this node says that it can work: the runtime, the disk, and a small real computation.

The computation runs as a task of its own through the runtime, so it passes every step that a job will: user, folders,
group, exec, log, exit. Source: spec of the ready report (nothing is scheduled here before it).
"""

import asyncio
import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from millpond_node_agent.runtimes.boottime import monotonic_ms
from millpond_node_agent.runtimes.protocol import RefusedTask, Runtime, TaskSpec, TaskState, TaskStatus, TaskTerms

# The sum of the squares from 1 to 1000, by n(n+1)(2n+1)/6.
_EXPECTED = "333833500"
_SCRIPT = "i=1; s=0; while [ $i -le 1000 ]; do s=$((s + i * i)); i=$((i + 1)); done; echo $s"
_DEADLINE_SECONDS = 20.0
_MEMORY_MIB = 64


class CheckFailed(Exception):
    """This node cannot work now; the message says what, found and expected."""


@dataclass(frozen=True, slots=True)
class Places:
    """The folders that must have room."""

    state_dir: Path
    work_dir: Path
    minimum_free_mib: int


async def check_node(runtime: Runtime, places: Places) -> dict[str, str]:
    """What was verified, by the name of the check.

    Raises:
        CheckFailed: the first check that does not hold.
    """
    report = runtime.report()
    return {
        "runtime": f"{report.name}, isolation {report.isolation}, limits {report.limits}",
        "disk": check_disk(places),
        "computation": await _check_computation(runtime),
    }


def check_disk(places: Places) -> str:
    """The free room in words.

    Raises:
        CheckFailed: too little of it.
    """
    for place in (places.state_dir, places.work_dir):
        free = shutil.disk_usage(place).free >> 20
        if free < places.minimum_free_mib:
            raise CheckFailed(f"disk: {free} MiB free at {place}, {places.minimum_free_mib} MiB needed")
    return f"{shutil.disk_usage(places.work_dir).free >> 20} MiB free"


async def _check_computation(runtime: Runtime) -> str:
    name = f"check-{os.urandom(6).hex()}"
    begun = monotonic_ms()
    try:
        spec = _check_spec(name)
        await runtime.prepare(spec)
        await runtime.start(spec)
        status = await _wait_for_end(runtime, name)
        printed = (await runtime.read_log(name, 0, 4096)).data.decode("utf-8", "replace").strip()
        await runtime.remove(name)
    except RefusedTask as refused:
        raise CheckFailed(f"computation: {refused}") from refused
    if status.exit_code != 0 or printed != _EXPECTED:
        end = f"exit code {status.exit_code}" if status.signal is None else f"signal {status.signal}"
        raise CheckFailed(f"computation: {end}, printed {printed[:200]!r}, expected {_EXPECTED!r}")
    return f"right in {monotonic_ms() - begun} ms"


async def _wait_for_end(runtime: Runtime, name: str) -> TaskStatus:
    deadline = monotonic_ms() + int(_DEADLINE_SECONDS * 1000)
    while (status := await runtime.status(name)).state is not TaskState.EXITED:
        if monotonic_ms() >= deadline:
            return await runtime.stop(name, 0)
        await asyncio.sleep(0.02)
    return status


def _check_spec(name: str) -> TaskSpec:
    terms = TaskTerms(
        allocation_id=name,
        job_id="check",
        task_id="check",
        tenant_id="check",
        attempt=1,
        epoch=0,
        cpu_milli=1000,
        memory_mib=_MEMORY_MIB,
        devices=(),
        stop_grace_seconds=0,
    )
    return TaskSpec(terms, ("/bin/sh", "-c", _SCRIPT), env={}, image=None, time_limit_seconds=int(_DEADLINE_SECONDS))
